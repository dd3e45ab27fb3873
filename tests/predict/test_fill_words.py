"""Blanks that hang together, against every combination counted out by hand on a tiny vocabulary."""

import json
from itertools import product

import pytest
import torch
from taught import PIECES

from bertkit.checkpoint.save_load import Checkpoint
from bertkit.cli.main import run
from bertkit.config import family_config
from bertkit.errors import BertkitWarning, RequestError
from bertkit.model.batch import Batch
from bertkit.model.model import new_model
from bertkit.predict.bert import Bert
from bertkit.predict.fill import Filled
from bertkit.predict.fill_words import ChainFiller, FilledTogether
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.wordpiece import SPECIALS

pytestmark = pytest.mark.usefixtures("_one_thread")
SHAPE = {"depth": 1, "width": 16, "heads": 2, "inner": 32, "init_std": 0.5}
NORMAL = [number for number in range(len(PIECES)) if number >= len(SPECIALS)]
STARTS = [number for number in NORMAL if not PIECES[number].startswith("##")]
CONTINUES = [number for number in NORMAL if PIECES[number].startswith("##")]


def make(tokenizer: Tokenizer, family: str = "bert", max_length: int = 32) -> Bert:
    config = family_config(family, "tiny", vocab_size=tokenizer.size, max_length=max_length, **SHAPE)
    model = new_model(config, {"masked_word": None}, seed=5).eval()
    return Bert(Checkpoint(model=model, tokenizer=tokenizer, max_length=max_length))


@pytest.fixture(scope="module")
def bert() -> Bert:
    return make(Tokenizer.from_vocab(PIECES))


def chance(bert: Bert, ids: list[int], places: list[int], chain: tuple[int, ...]) -> float:
    """The slow twin: one pass for each piece of one chain, written out."""
    ids, result = list(ids), 1.0
    for place, piece in zip(places, chain, strict=True):
        with torch.no_grad():
            logits = bert.model.logits(Batch.pack([ids]), "masked_word")
        result *= logits[place].softmax(-1)[piece].item()
        ids[place] = piece
    return result


def ids_of(bert: Bert, text: str) -> tuple[list[int], list[int]]:
    ids = list(bert.tokenizer.encode(text).ids)
    return ids, [place for place, piece in enumerate(ids) if piece == bert.tokenizer.mask_id]


def test_together_is_the_best_of_all_combinations(bert):
    text = "a [MASK] c [MASK] ?"
    ids, places = ids_of(bert, text)
    every = {chain: chance(bert, ids, places, chain) for chain in product(NORMAL[:58:3], NORMAL)}
    filler = ChainFiller(bert.model, bert.tokenizer, 32, "window")
    found = filler.together(text, top=1000, beam=len(NORMAL))
    by_words = {each.words: each for each in found}
    checked = 0
    for chain, expected in every.items():
        words = tuple(PIECES[piece] for piece in chain)
        if words in by_words:
            checked += 1
            assert by_words[words].probability == pytest.approx(expected, rel=1e-4)
    assert checked > 100
    best = max(every, key=every.__getitem__)
    assert found[0].probability >= every[best] * 0.9999
    assert [each.probability for each in found] == sorted((each.probability for each in found), reverse=True)
    total = sum(each.probability for each in filler.together(text, top=1000, beam=1000))
    assert 0 < total <= 1.0001


def test_together_sees_what_it_put_in_and_blank_by_blank_does_not(bert):
    text = "[MASK] [MASK] [MASK]"
    [best, *_] = bert.fill(text, top=3, together=True)
    assert isinstance(best, FilledTogether)
    ids, places = ids_of(bert, text)
    chain = tuple(PIECES.index(word) for word in best.words)
    assert best.probability == pytest.approx(chance(bert, ids, places, chain), rel=1e-4)
    apart = [next(c for c in bert.fill(text, top=1) if c.blank == blank) for blank in range(3)]
    alone = tuple(PIECES.index(c.word) for c in apart)
    if not set(alone) & set(range(len(SPECIALS))):
        assert best.probability >= chance(bert, ids, places, alone) * 0.9999


def test_the_text_of_together_is_put_together(bert):
    for each in bert.fill("x [MASK] y [MASK].", top=50, together=True):
        first, second = each.words
        text = f"x{'' if first.startswith('##') else ' '}{first.removeprefix('##')} y"
        text += f"{'' if second.startswith('##') else ' '}{second.removeprefix('##')}."
        assert each.text == text


def test_whole_words_are_the_best_of_all_words(bert):
    text = "a [MASK] c"
    ids, [place] = ids_of(bert, text)
    every = {(piece,): chance(bert, ids, [place], (piece,)) for piece in STARTS}
    wide = [*ids[:place], *[bert.tokenizer.mask_id] * 2, *ids[place + 1 :]]
    for chain in product(STARTS, CONTINUES):
        every[chain] = chance(bert, wide, [place, place + 1], chain)
    found = ChainFiller(bert.model, bert.tokenizer, 32, "window").whole_words(text, top=20, pieces=2, beam=len(STARTS))
    expected = sorted(every, key=lambda chain: -every[chain])[:20]
    words = ["".join(PIECES[piece].removeprefix("##") for piece in chain) for chain in expected]
    assert [each.word for each in found] == words
    for each, chain in zip(found, expected, strict=True):
        assert each.probability == pytest.approx(every[chain], rel=1e-4)
        assert each.text == f"a {each.word} c"
        assert isinstance(each, Filled)


def test_whole_words_for_each_of_several_blanks(bert):
    found = bert.fill("[MASK] b [MASK]", top=3, pieces=3)
    assert [each.blank for each in found] == [0, 0, 0, 1, 1, 1]
    assert all(each.text.endswith(" b [MASK]") for each in found[:3])
    assert all(not each.word.startswith(("#", "[")) for each in found)


def test_candidates_of_any_length_by_their_chains(bert):
    text = "a [MASK] c"
    words = ["b", "bcd", "zz", "one two", "B"]
    found = bert.fill(text, candidates=words)
    assert sorted(each.word for each in found) == sorted(words)
    assert [each.probability for each in found] == sorted((each.probability for each in found), reverse=True)
    ids, [place] = ids_of(bert, text)
    for each in found:
        chain = tuple(bert.tokenizer.encode(each.word).ids[1:-1])
        wide = [*ids[:place], *[bert.tokenizer.mask_id] * len(chain), *ids[place + 1 :]]
        expected = chance(bert, wide, list(range(place, place + len(chain))), chain)
        assert each.probability == pytest.approx(expected, rel=1e-4), each.word
        assert each.text == f"a {each.word} c"


def test_a_candidate_of_one_piece_has_the_probability_of_plain_fill(bert):
    plain = {each.word: each.probability for each in bert.fill("a [MASK] c", top=len(PIECES))}
    for each in bert.fill("a [MASK] c", candidates=["x", "y", "?"]):
        assert each.probability == pytest.approx(plain[each.word], rel=1e-4)


def test_all_words_of_two_pieces_share_what_there_is(bert):
    """With two blanks the chains of two pieces sum to 1: no length is favored but by being told."""
    filler = ChainFiller(bert.model, bert.tokenizer, 32, "window")
    ids, [place] = ids_of(bert, "a [MASK] c")
    from bertkit.predict.fill_words import Masked

    wide = (*ids[:place], bert.tokenizer.mask_id, bert.tokenizer.mask_id, *ids[place + 1 :])
    masked = Masked(wide, (0,) * len(wide), (place, place + 1))
    chains = list(product(range(len(PIECES)), repeat=2))
    assert sum(filler.probabilities([masked] * len(chains), chains)) == pytest.approx(1, abs=1e-4)


def test_candidates_for_several_blanks(bert):
    found = bert.fill("[MASK] b [MASK]", candidates=["x", "yz"])
    assert [each.blank for each in found] == [0, 0, 1, 1]
    assert {each.text for each in found} == {"x b [MASK]", "yz b [MASK]", "[MASK] b x", "[MASK] b yz"}


@pytest.mark.parametrize(
    ("candidates", "sentence"),
    [
        ("word", "must be a list of words"),
        ([], "one at least"),
        ([5], r"candidates\[0\] is int"),
        (["東"], "the candidate '東' is not made of pieces that this vocabulary has"),
        (["a [MASK]"], "is not made of pieces"),
        ([""], "the candidate '' is not made"),
        (["\u200b"], "is not made of pieces"),
    ],
)
def test_candidates_that_cannot_be(bert, candidates, sentence):
    with pytest.raises(RequestError, match=sentence):
        bert.fill("a [MASK] c", candidates=candidates)


def test_a_blank_that_touches_its_neighbors(bert):
    ids, [place] = ids_of(bert, "a[MASK]")
    chain = (PIECES.index("##b"), PIECES.index("##c"))
    wide = [*ids[:place], *[bert.tokenizer.mask_id] * 2, *ids[place + 1 :]]
    [found] = bert.fill("a[MASK]", candidates=["bc"])
    assert found.text == "abc"
    assert found.probability == pytest.approx(chance(bert, wide, [place, place + 1], chain), rel=1e-4)
    merged = make(Tokenizer.from_vocab([*PIECES, "abc"]))
    with pytest.raises(RequestError, match="'bc' becomes one with its neighbors, 'abc'; put spaces around the blank"):
        merged.fill("a[MASK]", candidates=["bc"])


def test_wrong_wishes(bert):
    for pieces in (0, 11, 2.0, False, "2", None):
        with pytest.raises(RequestError, match="pieces="):
            bert.fill("a [MASK]", pieces=pieces)
    for top in (0, 1001, None, True):
        with pytest.raises(RequestError, match="top="):
            bert.fill("a [MASK]", top=top, together=True)
    with pytest.raises(RequestError, match="three ways to fill; choose one"):
        bert.fill("a [MASK]", candidates=["b"], together=True)
    with pytest.raises(RequestError, match="no blank"):
        bert.fill("a b", together=True)
    with pytest.raises(RequestError, match="51 blanks; at most 50"):
        make(bert.tokenizer, max_length=64).fill("[MASK] " * 51, together=True)
    headless = Bert(Checkpoint(model=new_model(bert.model.config), tokenizer=bert.tokenizer))
    with pytest.raises(RequestError, match="no masked-word head"):
        headless.fill("a [MASK]", candidates=["b"])


def test_a_long_text_is_read_around_its_blank(bert):
    words = list("abcdefghijklmnopqrstuvwxyz" * 4)
    words[60] = "[MASK]"
    text = " ".join(words)
    with pytest.warns(BertkitWarning, match="read through windows of 32"):
        found = bert.fill(text, candidates=["xyz"])[0]
    near = " ".join(words[60 - 14 : 60 + 14])  # two tokens more make three pieces, two more [CLS] and [SEP]
    assert found.probability == pytest.approx(bert.fill(near, candidates=["xyz"])[0].probability, rel=1e-4)
    assert found.text == text.replace("[MASK]", "xyz")
    with pytest.warns(BertkitWarning), pytest.raises(RequestError, match="beyond the 32 that are kept"):
        bert.fill(text, candidates=["xyz"], too_long="truncate")
    with pytest.raises(RequestError, match="over the limit of 32"):
        bert.fill(text, pieces=2, too_long="refuse")
    with (
        pytest.warns(BertkitWarning),
        pytest.raises(RequestError, match="the blanks are 61 tokens apart, and the model reads 32"),
    ):
        bert.fill("[MASK] " + text, together=True)
    words[0], words[60] = "[MASK]", "i"
    with pytest.warns(BertkitWarning, match="cut to 32"):
        assert len(bert.fill(" ".join(words), pieces=2, too_long="truncate")) == 5


def test_a_blank_at_either_end_of_a_long_text(bert):
    words = list("abcdefghijklmnopqrstuvwxyz" * 4)
    for place in (0, -1):
        text = " ".join([*words[:place], "[MASK]", *words[place:][1:]] if place else ["[MASK]", *words[1:]])
        with pytest.warns(BertkitWarning):
            assert len(bert.fill(text, pieces=3)) == 5


def byte_level(folder) -> Tokenizer:
    from tokenizers import ByteLevelBPETokenizer

    trained = ByteLevelBPETokenizer()
    lines = ["Paris is the capital of France."] * 20 + ["it is a test of this and that"] * 20
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trained.train_from_iterator(lines, vocab_size=300, special_tokens=specials, show_progress=False)
    trained.save_model(str(folder))
    return Tokenizer.load(folder)


def unigram(folder) -> Tokenizer:
    from tokenizers import SentencePieceUnigramTokenizer

    trained = SentencePieceUnigramTokenizer()
    lines = ["Paris is the capital of France.", "it is a test of this and that", "capitals and capitalists"] * 20
    specials = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    trained.train_from_iterator(lines, vocab_size=60, special_tokens=specials, unk_token="<unk>", show_progress=False)
    trained.save(str(folder / "tokenizer.json"))
    names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]", "pad_token": "<pad>"}
    settings = {**names, "unk_token": "<unk>", "tokenizer_class": "AlbertTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return Tokenizer.load(folder)


@pytest.mark.parametrize(("build", "family"), [(byte_level, "roberta"), (unigram, "albert")])
def test_vocabularies_that_mark_the_space(build, family, tmp_path):
    tokenizer = build(tmp_path)
    bert = make(tokenizer, family)
    text = f"Paris is {tokenizer.mask_token} of"
    found = bert.fill(text, candidates=["the", "test", "this and that"])
    assert {each.text for each in found} == {"Paris is the of", "Paris is test of", "Paris is this and that of"}
    assert sum(each.probability for each in found) < 1
    words = bert.fill(text, top=200, pieces=2)
    assert any(len(tokenizer.encode(each.word).ids) > 3 for each in words), "words of two pieces are among them"
    assert all(" " not in each.word for each in words)
    assert all(each.text == f"Paris is {each.word} of" for each in words)
    assert len(bert.fill(f"{text} {tokenizer.mask_token}", top=3, together=True)) == 3


def test_the_command(bert, capsys, tmp_path):
    bert.save(tmp_path / "model")
    given = ["--model", str(tmp_path / "model")]
    assert run(["fill", "a [MASK] c", *given, "--candidates", "b, one two", "--json"]) == 0
    expected = bert.fill("a [MASK] c", candidates=["b", "one two"])
    assert [json.loads(line)["word"] for line in capsys.readouterr().out.splitlines()] == [
        each.word for each in expected
    ]
    assert run(["fill", "[MASK] a [MASK]", *given, "--together", "--top", "2"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert run(["fill", "a [MASK] c", *given, "--pieces", "99"]) == 2
    assert "pieces=99 must be from 1 to 10" in capsys.readouterr().err
