"""What `bertkit.load()` gives: vectors, blanks, traces, on a small model and on real ones."""

import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import bertkit
from bertkit.checkpoint.save_load import Checkpoint
from bertkit.config import family_config
from bertkit.errors import BertkitWarning, RequestError
from bertkit.model.model import new_model
from bertkit.predict.bert import Bert
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.windows import best_window, windows
from bertkit.text.wordpiece import SPECIALS

LETTERS = "abcdefghijklmnopqrstuvwxyz"
PIECES = [*SPECIALS, *LETTERS, *(f"##{c}" for c in LETTERS)]


@pytest.fixture(scope="module")
def bert() -> Bert:
    config = family_config("bert", "tiny", vocab_size=len(PIECES), max_length=32, init_std=0.2)
    model = new_model(config, {"masked_word": None}).eval()
    return Bert(Checkpoint(model=model, tokenizer=Tokenizer.from_vocab(PIECES), max_length=32))


TEXTS = ["a b c", "", "hello world", "z", "the quick brown fox", "a b c"]


def test_vectors_come_in_order_whatever_the_batch(bert):
    together = bert.embed(TEXTS)
    assert together.shape == (6, 128)
    assert together.dtype == np.float32
    for text, vector in zip(TEXTS, together, strict=True):
        np.testing.assert_allclose(bert.embed(text), vector, atol=1e-5)
    np.testing.assert_array_equal(together[0], together[5])


def test_no_texts_no_vectors(bert):
    assert bert.embed([]).shape == (0, 128)
    assert bert.embed([], pooling="mean-max", layers=[-1, 0]).shape == (0, 512)


def test_poolings_and_layers(bert):
    [tokens] = bert.embed(["a b c"], pooling="none")
    assert tokens.shape == (5, 128)
    np.testing.assert_allclose(bert.embed("a b c", pooling="mean"), tokens.mean(0), atol=1e-5)
    np.testing.assert_allclose(bert.embed("a b c", pooling="max"), tokens.max(0), atol=1e-5)
    np.testing.assert_allclose(bert.embed("a b c", pooling="cls"), tokens[0], atol=1e-5)
    np.testing.assert_allclose(bert.embed("a b c", pooling="first"), tokens[0], atol=1e-5)
    np.testing.assert_allclose(bert.embed("a b c", pooling="last"), tokens[-1], atol=1e-5)
    both = bert.embed("a b c", pooling="mean-max")
    np.testing.assert_allclose(both, np.concatenate([tokens.mean(0), tokens.max(0)]), atol=1e-5)
    side_by_side = bert.embed("a b c", layers=[-1, -2, 0])
    assert side_by_side.shape == (384,)
    np.testing.assert_allclose(side_by_side[:128], bert.embed("a b c"), atol=1e-5)
    np.testing.assert_allclose(side_by_side[128:256], bert.embed("a b c", layers=1), atol=1e-5)
    trace = bert.trace("a b c")
    np.testing.assert_allclose(side_by_side[256:], trace.embeddings.numpy().mean(0), atol=1e-5)
    assert np.linalg.norm(bert.embed("a b c", normalize=True)) == pytest.approx(1, abs=1e-6)


def test_wrong_wishes_are_one_sentence(bert):
    with pytest.raises(RequestError, match="unknown pooling 'median'; choose from: cls"):
        bert.embed(["a"], pooling="median")
    with pytest.raises(RequestError, match=r"layers \(7,\) must be from 0 \(embeddings\) to 2"):
        bert.embed(["a"], layers=7)
    with pytest.raises(RequestError, match="layers"):
        bert.embed(["a"], layers=[])
    with pytest.raises(RequestError, match="unknown length policy"):
        bert.embed(["a"], too_long="chop")
    for wrong, sentence in [
        (["a", None], r"texts\[1\] is a missing value \(None\); leave such rows out"),
        (None, "texts must be a str or a list of them, not NoneType"),
        ([["a"]], r"texts\[0\] is list"),
        (5, "not int"),
        ({"a": "one"}, "texts is a dict"),
    ]:
        with pytest.raises(RequestError, match=sentence):
            bert.embed(wrong)
    for method in (bert.similarity, bert.tag, partial(bert.search, "a"), partial(bert.similarity, ["a"])):
        with pytest.raises(RequestError, match="texts is a set, which has no order"):
            method({"a", "b"})
    with pytest.raises(RequestError, match="layers='x' must be whole numbers"):
        bert.embed(["a"], layers="x")
    with pytest.raises(RequestError, match="one text would be compared letter by letter"):
        bert.similarity("abc", ["a"])
    assert bert.embed(["a"], layers=np.int64(1)).shape == (1, 128)
    assert bert.embed(np.array(["a", "b"])).shape == (2, 128)
    assert bert.embed(text for text in ("a", "b")).shape == (2, 128)
    with pytest.raises(RequestError, match="surrogate"):
        bert.embed(["ok", "a\ud800b"])


LONG = " ".join(LETTERS * 5)


def test_nothing_is_cut_in_silence(bert):
    said = r"1 text was cut to 32 tokens; the longest, text 2 \(counted from 1\), has 132; embed with too_long='window'"
    with pytest.warns(BertkitWarning, match=said):
        cut = bert.embed(["a", LONG])
    np.testing.assert_allclose(cut[1], bert.embed(" ".join((LETTERS * 5)[:30])), atol=1e-5)
    with pytest.raises(RequestError, match=r"text 2 \(counted from 1\) has 132 tokens, over the limit of 32"):
        bert.embed(["a", LONG], too_long="refuse")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bert.embed(["a", " ".join((LETTERS * 5)[:30])])


def test_a_warning_names_the_line_of_the_caller(bert, tmp_path):
    for long_answer in (
        lambda: bert.embed(LONG),
        lambda: bert.fill("[MASK] " + LONG, top=1),
        lambda: bertkit.look(bert, LONG),
    ):
        with pytest.warns(BertkitWarning) as given:
            long_answer()
        assert {Path(each.filename) for each in given} == {Path(__file__)}


def test_windows_read_every_token(bert):
    with pytest.warns(BertkitWarning, match="read through windows of 32 tokens"):
        [tokens] = bert.embed([LONG], pooling="none", too_long="window")
    assert tokens.shape == (132, 128)
    with pytest.warns(BertkitWarning):
        pooled = bert.embed(["a", LONG], too_long="window")
    np.testing.assert_allclose(pooled[1], tokens.mean(0), atol=1e-5)
    np.testing.assert_allclose(pooled[0], bert.embed("a"), atol=1e-5)
    # the middle of a window is what that window alone gives
    spans = windows(130, 30, 30 // 4)
    start, stop = spans[2]
    [alone] = bert.embed([" ".join((LETTERS * 5)[start:stop])], pooling="none")
    middle = (start + stop) // 2
    np.testing.assert_allclose(tokens[1 + middle], alone[1 + middle - start], atol=1e-5)


def test_a_change_at_the_end_of_a_long_text_is_seen(bert):
    other = LONG[:-1] + "q"
    with pytest.warns(BertkitWarning):
        one, two = bert.embed([LONG, other], too_long="window")
    with pytest.warns(BertkitWarning):
        cut_one, cut_two = bert.embed([LONG, other], too_long="truncate")
    assert np.abs(one - two).max() > 1e-4
    np.testing.assert_array_equal(cut_one, cut_two)


def test_a_million_characters(bert):
    text = "ab " * 333_334
    with pytest.warns(BertkitWarning, match="has 6666"):
        assert np.isfinite(bert.embed(text)).all()
    with pytest.warns(BertkitWarning, match="read through windows"):
        assert np.isfinite(bert.embed(text, too_long="window")).all()
    with pytest.warns(BertkitWarning):  # one word of a million characters is one [UNK]
        assert np.isfinite(bert.embed(["a" * 1_000_000, text])).all()


def test_fill(bert):
    candidates = bert.fill("a [MASK] c", top=len(PIECES), whole_words=False)
    assert sum(candidate.probability for candidate in candidates) == pytest.approx(1, abs=1e-4)
    assert [c.probability for c in candidates] == sorted((c.probability for c in candidates), reverse=True)
    assert {c.blank for c in candidates} == {0}
    by_word = {candidate.word: candidate for candidate in candidates}
    assert by_word["b"].text == "a b c"
    assert by_word["##b"].text == "ab c", "a continuation joins what stands before it"
    two = bert.fill("[MASK] b [MASK]", top=2)
    assert [c.blank for c in two] == [0, 0, 1, 1]
    assert two[2].text.startswith("[MASK] b ")


def test_fill_equals_the_head_at_that_position(bert):
    from bertkit.model.batch import Batch

    batch = Batch.pack([bert.tokenizer.encode("a [MASK] c").ids])
    with torch.no_grad():
        expected = bert.model.logits(batch, "masked_word")[2].softmax(-1)
    best = bert.fill("a [MASK] c", top=1, whole_words=False)[0]
    assert best.probability == pytest.approx(expected.max().item(), rel=1e-5)
    whole = {
        word: float(p) for word, p in zip(PIECES, expected, strict=True) if word[:2] != "##" and word not in SPECIALS
    }
    found = bert.fill("a [MASK] c", top=len(PIECES))
    assert {c.word: c.probability for c in found} == pytest.approx(whole, rel=1e-4), "the head's own probabilities"
    assert [c.word for c in found] == sorted(whole, key=lambda word: -whole[word])


@pytest.mark.parametrize(
    ("text", "blank", "stands_for"),
    [
        ("a [MASK] c", 0, "word"),
        ("[MASK] c", 0, "word"),
        ("(___)", 0, "word"),
        ("a\n[MASK].", 0, "word"),
        ("[MASK]b c", 0, "word"),  # the beginning of a word
        ("a[MASK] c", 0, "rest"),
        ("7[MASK]", 0, "rest"),
        ("\u00e9\u0301[MASK]", 0, "rest"),
        ("[MASK][MASK]", 0, "word"),
        ("[MASK][MASK]", 1, "any"),
        ("\u6771[MASK]", 0, "word"),  # each ideograph is a word
    ],
)
def test_a_blank_that_stands_alone_is_filled_with_whole_words(bert, text, blank, stands_for):
    """Also by beam search; one that continues a word with word pieces; with special tokens never."""
    normal = [piece for piece in PIECES if piece not in SPECIALS]
    expected = {piece for piece in normal if stands_for == "any" or (stands_for == "rest") == piece.startswith("##")}
    assert {c.word for c in bert.fill(text, top=len(PIECES)) if c.blank == blank} == expected
    assert {c.words[blank] for c in bert.fill(text, top=1000, together=True)} <= expected
    every = bert.fill(text, top=len(PIECES), whole_words=False)
    assert {c.word for c in every if c.blank == blank} == set(PIECES)
    assert len(bert.fill(text, top=50, together=True, whole_words=False)) == 50
    with pytest.raises(RequestError, match="pieces gives whole words"):
        bert.fill(text, pieces=2, whole_words=False)


def test_fill_in_a_long_text(bert):
    text = LONG + " [MASK] " + LONG
    with pytest.warns(BertkitWarning, match="read through windows of 32 tokens"):
        found = next(c for c in bert.fill(text, top=len(PIECES)) if c.word == "q")
    assert found.text == text.replace("[MASK]", "q")
    with (
        pytest.raises(RequestError, match="the blank at token 131 is beyond the 32 that are kept"),
        pytest.warns(BertkitWarning, match="cut to 32 tokens"),
    ):
        bert.fill(text, too_long="truncate")
    with pytest.raises(RequestError, match="over the limit of 32"):
        bert.fill(text, too_long="refuse")


@pytest.mark.filterwarnings("ignore::bertkit.errors.BertkitWarning")
def test_many_blanks_in_a_long_text_are_each_seen_where_most_is_around_them(bert):
    words = list(LETTERS * 5)
    blanks = [3, 40, 41, 77, 129]
    for place in blanks:
        words[place] = "[MASK]"
    found = bert.fill(" ".join(words), top=2)
    assert [c.blank for c in found] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    spans = windows(130, 30, 30 // 4)
    start, stop = spans[best_window(spans, 77)]
    alone = bert.fill(" ".join(words[start:stop]), top=2)
    number = sum(start <= blank < 77 for blank in blanks)
    expected = [c for c in alone if c.blank == number]
    assert [c.word for c in found if c.blank == 3] == [c.word for c in expected]
    for one, two in zip([c for c in found if c.blank == 3], expected, strict=True):
        assert one.probability == pytest.approx(two.probability, rel=1e-4)


def test_a_table_larger_than_the_vocabulary_fills_with_words_only(bert):
    larger = new_model(family_config("bert", "tiny", vocab_size=200, max_length=32), {"masked_word": None}).eval()
    with torch.no_grad():
        larger.heads["masked_word"].decoder.bias[100:] = 50.0
    larger_bert = Bert(Checkpoint(model=larger, tokenizer=bert.tokenizer))
    found = larger_bert.fill("a [MASK]", top=57, whole_words=False)
    assert {c.word for c in found} <= set(PIECES)
    assert sum(c.probability for c in found) == pytest.approx(1, abs=1e-4)


def test_fill_with_a_byte_level_vocabulary(tmp_path):
    """RoBERTa's blank takes the space before it; its pieces say by a space that they begin a word."""
    from tokenizers import ByteLevelBPETokenizer

    trained = ByteLevelBPETokenizer()
    lines = ["Paris is the capital of France."] * 20 + ["it is a test of this and that"] * 20
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trained.train_from_iterator(lines, vocab_size=300, special_tokens=specials, show_progress=False)
    trained.save_model(str(tmp_path))
    tokenizer = Tokenizer.load(tmp_path)
    config = family_config("roberta", "tiny", vocab_size=tokenizer.size, max_length=32)
    roberta = Bert(Checkpoint(model=new_model(config, {"masked_word": None}).eval(), tokenizer=tokenizer))
    words = {c.word: c.text for c in roberta.fill("Paris is <mask> of", top=tokenizer.size)}
    assert words["is"] == "Paris is is of"
    assert not any(word.startswith("##") for word in words)
    first = {c.word: c.text for c in roberta.fill("<mask> is", top=tokenizer.size)}
    assert first["P"] == "P is", "the first word of a text has no mark of a space"
    found = {c.word: c.text for c in roberta.fill("Paris is <mask> of", top=tokenizer.size, whole_words=False)}
    assert found["is"] == "Paris is is of"
    assert found["##is"] == "Paris isis of"
    assert len(found) > 150


def test_wrong_arguments_of_other_methods(bert):
    for path in (b"x", 5, [], ""):
        with pytest.raises(RequestError, match="a model is named by the path of its folder"):
            bertkit.load(path)
    for top in (None, "5", 2.5, True):
        with pytest.raises(RequestError, match="top="):
            bert.fill("a [MASK]", top=top)
    with pytest.raises(RequestError, match="1,001 blanks; at most 1,000"):
        bert.fill("[MASK] " * 1001)


def test_fill_says_what_is_missing(bert):
    with pytest.raises(RequestError, match=r"the text has no blank: write \[MASK\]"):
        bert.fill("a b c")
    with pytest.raises(RequestError, match="top=0 must be from 1"):
        bert.fill("[MASK]", top=0)
    plain = Bert(Checkpoint(model=new_model(bert.model.config), tokenizer=bert.tokenizer))
    with pytest.raises(RequestError, match="no masked-word head"):
        plain.fill("[MASK]")
    with pytest.raises(RequestError, match="no tokenizer; pass one"):
        Bert(Checkpoint(model=bert.model)).embed(["a"])
    with pytest.raises(RequestError, match="cannot write"):
        bert.write("Once upon")


def test_trace_of_a_pair(bert):
    trace = bert.trace("a b", "c")
    assert trace.tokens == ("[CLS]", "a", "b", "[SEP]", "c", "[SEP]")
    assert len(trace.layers) == 2
    assert trace.layers[0].weights.shape == (2, 6, 6)
    np.testing.assert_allclose(trace.output.numpy(), bert.trace("a b", "c").layers[-1].output.numpy(), atol=1e-6)
    swapped = bert.trace("a b c")
    assert swapped.tokens == ("[CLS]", "a", "b", "c", "[SEP]")
    with pytest.raises(RequestError, match="over the limit"):
        bert.trace(LONG)


def test_similarity(bert):
    cosines = bert.similarity(["a b", "x y z"], ["a b"])
    assert cosines.shape == (2, 1)
    assert cosines[0, 0] == pytest.approx(1, abs=1e-5)
    assert cosines[1, 0] < 0.999


def test_save_and_load_give_the_same_answers(bert, tmp_path):
    bert.save(tmp_path / "copy")
    again = bertkit.load(tmp_path / "copy")
    np.testing.assert_array_equal(again.embed(TEXTS), bert.embed(TEXTS))
    for one, two in zip(again.fill("a [MASK] c"), bert.fill("a [MASK] c"), strict=True):
        assert (one.word, one.text, one.blank) == (two.word, two.text, two.blank)
        assert one.probability == pytest.approx(two.probability, rel=1e-5)
    shape = "bert, 2 layers of 128, 0.4 million parameters, heads: masked_word"
    assert repr(again) == f"Bert('copy', {shape}, float32 on cpu, {tmp_path / 'copy'})"
    assert (again.name, again.path, again.device.type) == ("copy", tmp_path / "copy", "cpu")
    assert repr(bert) == f"Bert('unsaved', {shape}, float32 on cpu)"


def test_what_is_for_bertkit_alone_is_not_listed_and_still_works(bert):
    listed = [name for name in dir(bert) if not name.startswith("_")]
    assert {"embed", "fill", "look", "why", "device", "name"} <= set(listed)
    assert not {"checkpoint", "answers", "writer", "embed_blocks", "embed_settings", "width"} & set(listed)
    with pytest.warns(DeprecationWarning, match="Bert.embed_settings .* goes in 0.4; use bert.checkpoint.embed_sett"):
        settings = bert.embed_settings(pooling="max")
    with pytest.warns(DeprecationWarning, match="Bert.width"):
        assert bert.width(settings) == 128
    with pytest.warns(DeprecationWarning, match="Bert.embed_blocks"):
        [block] = bert.embed_blocks(["a"], settings)
    np.testing.assert_array_equal(block.vectors[0], bert.embed("a", pooling="max"))
    with pytest.raises(AttributeError, match="'Bert' has no attribute 'encode'"):
        _ = bert.encode


def test_a_device_that_is_not_there_is_refused_in_one_sentence(bert):
    for device in ("cuda:99", "gpu"):
        with pytest.raises(RequestError, match=f"the model cannot be put on '{device}': .*; choose another, or 'cpu'"):
            bert.to(device)
    assert bert.device.type == "cpu"
    assert bert.embed("a").shape == (128,)


def test_views_are_methods(bert):
    assert "a b c" in bert.look("a b c").html
    assert bert.why("a [MASK] c") == bertkit.why(bert, "a [MASK] c")
    assert repr(bert.trace("a b c")) == "TextTrace(5 tokens, 2 layers of 128)"


def test_several_texts_are_filled(bert):
    filled = bert.fill(["a [MASK]", "[MASK] b"], top=2)
    assert filled == [bert.fill("a [MASK]", top=2), bert.fill("[MASK] b", top=2)]
    assert len(bert.fill(["[MASK] [MASK]"], top=3, together=True)[0]) == 3
