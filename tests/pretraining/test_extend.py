"""A vocabulary that grows: old pieces keep their ids and rows, new ones start as the mean of their old pieces."""

import json

import pytest
import torch
from tiny_runs import WORDS, make_shards, recipe_words, tiny_recipe, write_text

from bertkit.checkpoint.save_load import Checkpoint, load_checkpoint, save_checkpoint
from bertkit.config import family_config
from bertkit.errors import RequestError
from bertkit.model.batch import Batch
from bertkit.model.model import new_model
from bertkit.pretraining.learner import extended_model, first_difference, old_pieces
from bertkit.pretraining.pretraining import pretrain
from bertkit.text.shards.writer import write_shards
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.vocabulary.extension import extend_vocabulary, most_useful, pieces_of_words

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "a", "b", "c", "##a", "##b", "##c", "ab", "##bc", "cab"]
TEXT = "abcab abcab abcab cabbc cabbc bacca a b. ab abcab\n\nbacca caab cab zab zab zab.\n"


@pytest.fixture
def old():
    return Tokenizer.from_vocab(PIECES)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_the_words_that_save_most_pieces_come_first(old, text):
    made = extend_vocabulary([text], old, len(PIECES) + 3)
    # zab is unknown, as costly as its 3 characters and one more: 3 x 3 saved; abcab (ab ##c ##a ##b): 4 x 3.
    assert list(made.pieces) == ["abcab", "zab", "bacca"]
    assert [made.tokenizer.vocab[piece] for piece in PIECES] == list(range(len(PIECES)))
    assert [made.tokenizer.vocab[piece] for piece in made.pieces] == [15, 16, 17]
    assert made.tokenizer.encode_ids(["abcab zab b."]) == [[15, 16, 7, 5]]
    assert made.report["pieces_per_word_after"] < made.report["pieces_per_word_before"]
    assert (made.report["kept"], made.report["added"], made.report["size"]) == (15, 3, 18)


def test_usefulness_is_count_times_what_is_saved_with_ties_in_order():
    counts = {"b": 9, "xy": 5, "long": 2, "rare": 1, "aa": 5}
    lengths = {"b": 1, "xy": 2, "long": 4, "rare": 4, "aa": 2}
    assert most_useful(counts, lengths, 3, min_count=2) == ["long", "aa", "xy"]
    with pytest.raises(RequestError, match=r"have 3 words of several pieces that occur 2 times or more, and 9 new"):
        most_useful(counts, lengths, 9, min_count=2)


def test_an_unknown_word_is_never_cheap(old):
    assert pieces_of_words(old, ["ab", "abc", "z", "zab"]) == {"ab": 1, "abc": 2, "z": 2, "zab": 4}


def test_what_cannot_be_extended_is_refused(old, text):
    with pytest.raises(RequestError, match="size=15 must be over the 15 pieces"):
        extend_vocabulary([text], old, 15)
    with pytest.raises(RequestError, match="the piece 'ab' is in the vocabulary already"):
        old.with_pieces(["new", "ab"])
    with pytest.raises(RequestError, match="the piece 'new' is in the vocabulary already"):
        old.with_pieces(["new", "new"])


def test_old_pieces_are_those_the_old_tokenizer_cuts(old):
    assert old.tokens(old_pieces(old, "abcab")) == ["ab", "##c", "##a", "##b"]
    assert old.tokens(old_pieces(old, "##bcab")) == ["##bc", "##a", "##b"]
    assert old.tokens(old_pieces(old, "zab")) == old.tokens(old_pieces(old, "##zab")) == ["[UNK]"]


@pytest.mark.parametrize("family", ["bert", "albert"])
@pytest.mark.parametrize("spare", [0, 1, 7], ids="{} spare rows".format)
def test_old_logits_stay_and_a_new_row_is_the_mean(old, family, spare):
    config = family_config(family, "tiny", width=32, heads=2, inner=64, vocab_size=len(PIECES) + spare)
    model = new_model(config, {"masked_word": None, "next_sentence": None}, seed=1).eval()
    torch.nn.init.normal_(model.heads["masked_word"].decoder.bias)
    new = old.with_pieces(["abcab", "##bcab", "zab"])
    larger = extended_model(model, old, new)
    assert larger.config.vocab_size == max(len(PIECES) + spare, len(PIECES) + 3)
    ids = old.encode("ab cab a b. abc").ids
    assert ids == new.encode("ab cab a b. abc").ids, "no new piece in it"
    batch = Batch.pack([ids], [[0] * len(ids)])
    before, after = model.logits(batch, "masked_word"), larger.logits(batch, "masked_word")
    assert torch.equal(before[:, : len(PIECES)], after[:, : len(PIECES)])
    for tensor in ("encoder.embeddings.word.weight", "heads.masked_word.decoder.bias"):
        ours, theirs = larger.state_dict()[tensor], model.state_dict()[tensor]
        assert torch.equal(ours[: len(PIECES)], theirs[: len(PIECES)])
        for piece in ("abcab", "##bcab", "zab"):
            torch.testing.assert_close(ours[new.vocab[piece]], theirs[old_pieces(old, piece)].mean(dim=0))
    assert larger.heads["masked_word"].decoder.weight is larger.encoder.embeddings.word.weight


DIFFERENT = {
    "another order": ([*PIECES[:7], "c", "b", *PIECES[9:], "x"], {}, "id 7 is 'c' there and 'b' in the model"),
    "one less": (PIECES[:-1], {}, "id 14 has no piece there and 'cab' in the model"),
    "cased": ([*PIECES, "x"], {"lowercase": False}, "text is cleaned or cut in another way"),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_is_no_extension_says_what_differs_first(old, name):
    pieces, options, sentence = DIFFERENT[name]
    assert sentence in first_difference(old, Tokenizer.from_vocab(pieces, **options))
    assert first_difference(old, Tokenizer.from_vocab([*PIECES, "x", "##y"])) is None


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    folder = tmp_path_factory.mktemp("first")
    shards = make_shards(folder / "corpus", words=WORDS[:-4])
    pretrain(tiny_recipe(shards, steps=2, objective="mlm"), folder / "run")
    return folder / "run" / "model"


def test_from_the_command_line_to_a_model_with_more_words(first, tmp_path, command_here):
    text = write_text(tmp_path / "text.txt")  # with four words that the model does not know
    size = Tokenizer.load(first).size + 4
    done = command_here("vocab", text, "--extend", first, "--size", size, "--out", tmp_path / "vocab")
    assert done.returncode == 0, done.stderr
    assert f"{size} pieces in" in done.stdout
    assert "each at its id" in done.stdout
    assert sorted(json.loads((tmp_path / "vocab" / "report.json").read_text())["first_added"]) == sorted(WORDS[-4:])
    write_shards([text], tmp_path / "vocab", tmp_path / "shards", processes=1)
    (tmp_path / "recipe.toml").write_text("")
    words = recipe_words(tmp_path / "shards", steps=3, objective="mlm")
    command = ["pretrain", tmp_path / "recipe.toml", *words, "--from", first, "--out", tmp_path / "run"]
    done = command_here(*command)
    assert done.returncode == 0, done.stderr
    made = load_checkpoint(tmp_path / "run" / "model")
    assert made.model.config.vocab_size == made.tokenizer.size == size
    assert made.tokenizer.hash == Tokenizer.load(tmp_path / "vocab").hash
    again = command_here(*command, "--resume")
    assert "finished already" in again.stdout, again.stderr


def test_cased_goes_with_the_model(first, text, tmp_path, command_here):
    done = command_here("vocab", text, "--extend", first, "--size", 99, "--cased", "--out", tmp_path / "vocab")
    assert done.returncode == 2
    assert "leave out --cased" in done.stderr
    assert not (tmp_path / "vocab").exists()


def test_a_model_without_a_tokenizer_needs_shards_that_fit(first, tmp_path):
    save_checkpoint(Checkpoint(model=load_checkpoint(first).model), tmp_path / "bare")
    shards = make_shards(tmp_path / "corpus")
    with pytest.raises(RequestError, match="has 34 words but .* 38, and no tokenizer to extend"):
        pretrain(tiny_recipe(shards, objective="mlm"), tmp_path / "run", start=tmp_path / "bare")


@pytest.mark.parametrize(("family", "objective"), [("electra", "rtd"), ("bert", "mlm,nsp")])
def test_other_objectives_take_the_larger_table_too(tmp_path, family, objective):
    small = make_shards(tmp_path / "small", words=WORDS[:-4])
    pretrain(tiny_recipe(small, steps=2, objective=objective, family=family), tmp_path / "first")
    other, larger = make_shards(tmp_path / "other", words=["x", *WORDS]), make_shards(tmp_path / "larger")
    start = tmp_path / "first" / "model"
    with pytest.raises(RequestError, match=r"another vocabulary than the model's: id 6 is 'x' there and 'river'"):
        pretrain(tiny_recipe(other, objective=objective), tmp_path / "run", start=start)
    assert not (tmp_path / "run").exists()
    pretrain(tiny_recipe(larger, objective=objective, steps=2), tmp_path / "run", start=start)
    assert load_checkpoint(tmp_path / "run" / "model").model.config.vocab_size == 38
