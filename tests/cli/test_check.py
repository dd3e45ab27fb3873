"""`bertkit check` as a user runs it, and what it says of good and bad shards."""

import json
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from bertkit.errors import RequestError
from bertkit.pretraining.check_shards import Lengths, piece_counts, report_shards
from bertkit.pretraining.examples.batches import DataSettings, ExampleSource
from bertkit.pretraining.examples.show_masks import MaskedExample, lines, masked_examples
from bertkit.pretraining.recipe import read_recipe
from bertkit.text.shards.reader import open_shards
from bertkit.text.shards.writer import write_shards

TEXT = "The players played in New York, unbelievably. They were playing a play!\nA second paragraph.\n\nNaïve Café.\n\n"
RECIPE = """
[model]
size = "tiny"

[data]
length = 32
objective = ["mlm", "nsp"]
block = 4

[train]
steps = 10
batch = 8
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory, uncased_vocab) -> Path:
    folder = tmp_path_factory.mktemp("check")
    (folder / "names.txt").write_text("New York\n", encoding="utf-8")
    (folder / "recipe.toml").write_text(RECIPE, encoding="utf-8")
    for name, text in {
        "many": TEXT * 40,
        "one": "One document. Of two sentences.\n",
        "emoji": "😀 😀 a\n\n😀\n",
    }.items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
        names = folder / "names.txt" if name == "many" else None
        write_shards([folder / f"{name}.txt"], uncased_vocab, folder / name, processes=1, entities=names)
    return folder


def test_the_report_counts_what_is_there(bertkit_command, place):
    done = bertkit_command("check", "many", "--json", cwd=place)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    opened = open_shards(place / "many")
    assert (report["documents"], report["sentences"], report["entities"]) == (80, 160, 40)
    assert report["tokens"] == opened.tokens
    assert report["vocabulary"] == 30522
    assert report["pieces_used"] == len(np.unique(opened.gather([0], [opened.tokens])[0]))
    assert report["unknown_share"] == 0
    slow = [stop - start for start, stop in pairwise(opened.sentence_starts.tolist())]
    assert report["sentence_lengths"]["longest"] == max(slow)
    assert report["sentence_lengths"]["mean"] == round(sum(slow) / len(slow), 1)
    assert report["epoch"] is None
    assert report["stops"] == []


def test_with_a_recipe_it_says_what_training_makes_of_it(command_here, place):
    done = command_here("check", "many", "--recipe", "recipe.toml", cwd=place)
    assert done.returncode == 0, done.stderr
    assert "every checksum as written" in done.stdout
    examples = re.search(r"examples +([\d,]+) in an epoch; the recipe reads them ([\d.]+) times", done.stdout)
    assert int(examples[1]) == 80
    source = ExampleSource(open_shards(place / "many"), read_recipe(place / "recipe.toml", "shards=many").data)
    tokens = source.examples(np.arange(80)).lengths.sum()
    assert float(examples[2]) == pytest.approx(10 * 8 * 32 / tokens, rel=0.1), "a step is a budget of tokens"
    assert "names             40" in done.stdout
    assert "stop:" not in done.stdout


def test_what_training_would_trip_over_is_exit_1(command_here, place):
    done = command_here("check", "one", "--recipe", "recipe.toml", cwd=place)
    assert done.returncode == 1
    assert "note: there is one document, so objective nsp is refused" in done.stdout
    assert "stop: objective nsp takes texts from other documents" in done.stdout
    assert done.stderr == ""
    without = command_here("check", "one", cwd=place)
    assert without.returncode == 0, "only a recipe can be refused"


CHANGES = {
    ("one", "objective=mlm"): None,
    ("one", "objective=mlm,sop"): None,
    ("many", "length=600"): "length=600 is over the model's max_length=512",
    ("many", "batch=6"): "batch=6 must be a multiple of block=4",
    ("many", "steps=none"): "say how long to train",
    ("one", "masking=entity"): "holds no entity spans",
    ("many", "masking=entity"): None,
}


@pytest.mark.parametrize(("shards", "change"), CHANGES, ids=" ".join)
def test_stops_are_those_of_training(place, shards, change):
    recipe = read_recipe(place / "recipe.toml", f"shards={place / shards}", "objective=mlm", change)
    stops = report_shards(open_shards(place / shards), recipe).stops
    expected = CHANGES[shards, change]
    assert len(stops) == (expected is not None)
    assert expected is None or expected in stops[0]


def test_unknown_tokens_and_unused_pieces_are_noted(place):
    opened = open_shards(place / "emoji")
    report = report_shards(opened)
    assert report.unknown_share == 0.75
    assert piece_counts(opened)[opened.tokenizer.unknown_id] == 3
    assert any("75.0% of the tokens are unknown" in note for note in report.notes)
    assert any("only 0% of the vocabulary occurs" in note for note in report.notes)
    assert any("every document is one sentence" in note for note in report.notes)


def test_counting_in_small_parts_gives_the_same(place, monkeypatch):
    opened = open_shards(place / "many")
    whole = piece_counts(opened)
    monkeypatch.setattr("bertkit.pretraining.check_shards.TOKENS_AT_ONCE", 7)
    assert (piece_counts(opened) == whole).all()
    assert whole.sum() == opened.tokens


def test_lengths_of_a_list():
    assert Lengths.of(np.array([1, 2, 3, 4, 100])) == Lengths(mean=22.0, median=3, most=4, longest=100)
    assert Lengths.of(np.array([5])) == Lengths(mean=5.0, median=5, most=5, longest=5)


@pytest.mark.parametrize(("file", "words"), [("tokens.bin", "is damaged"), ("manifest.json", "is damaged")])
def test_a_flipped_bit_is_found(command_here, place, tmp_path, uncased_vocab, file, words):
    write_shards([place / "many.txt"], uncased_vocab, tmp_path / "made", processes=1)
    path = next((tmp_path / "made").rglob(file))
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)
    done = command_here("check", tmp_path / "made")
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stdout == ""


FAULTS = {
    "no folder": (["nowhere"], "nowhere holds no shards; make some: bertkit shards"),
    "not shards": (["."], "holds no shards"),
    "no recipe": (["many", "--recipe", "no.toml"], "unknown file or recipe 'no.toml'; choose from: "),
    "count": (["many", "--masks", "--count", "0"], "count=0 must be at least 1"),
    "no path": ([], "path"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_requests_are_one_sentence(command_here, place, fault):
    arguments, words = FAULTS[fault]
    done = command_here("check", *arguments, cwd=place)
    assert done.returncode == 2
    assert words.lower() in done.stderr.lower()
    assert "Traceback" not in done.stderr


def test_masks_are_pairs_of_lines(command_here, place):
    done = command_here("check", "--masks", "many", "--recipe", "recipe.toml", "--count", 3, cwd=place)
    assert done.returncode == 0, done.stderr
    *pairs, last = done.stdout.strip().split("\n\n")
    heads = [pair.splitlines()[0] for pair in pairs if pair.startswith("(")]
    assert len(heads) == 3
    assert set(heads) <= {"(B follows A)", "(B is from another document)"}
    for pair in pairs:
        text, shown = [line for line in pair.splitlines() if not line.startswith("(")]
        assert len(text.split()) == len(shown.split())
        assert "[MASK]" not in text
    assert "[MASK]" in done.stdout
    assert re.fullmatch(r"[\d.]+% of \d+ tokens chosen; of these .+ masked, .+ replaced, .+ kept", last)


def test_masks_as_json_are_the_examples_of_training(command_here, place):
    done = command_here("check", "--masks", "many", "--recipe", "recipe.toml", "--json", "--count", 2, cwd=place)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    settings = read_recipe(place / "recipe.toml", "shards=x").data
    expected, _ = masked_examples(open_shards(place / "many"), settings, 2)
    assert [MaskedExample(**row) for row in rows] == expected


@pytest.mark.parametrize("masking", ["token", "whole-word", "n-gram", "entity"])
def test_what_changed_is_what_is_asked(place, masking):
    examples, shares = masked_examples(open_shards(place / "many"), DataSettings(masking=masking, length=32), 200)
    assert len(examples) == 200
    asked = 0
    for example in examples:
        changed = {i for i, (a, b) in enumerate(zip(example.text, example.shown, strict=True)) if a != b}
        assert changed <= set(example.asked)
        assert not {example.text[i] for i in example.asked} & {"[CLS]", "[SEP]"}
        asked += len(example.asked)
    assert shares.chosen == asked / shares.tokens
    assert abs(shares.masked - 0.8) < 0.1
    assert abs(shares.masked + shares.replaced + shares.kept - 1) < 1e-9


def test_whole_words_are_masked_whole(place):
    examples, _ = masked_examples(open_shards(place / "many"), DataSettings(masking="whole-word", length=32), 50)
    for example in examples:
        for at in example.asked:
            after = at + 1
            assert not example.text[after].startswith("##") or after in example.asked


def test_left_to_right_has_no_masks(place):
    with pytest.raises(RequestError, match="objective=causal masks no token"):
        masked_examples(open_shards(place / "many"), DataSettings(objective=("causal",)), 2)


def test_lines_keep_every_token_and_their_width():
    words = [f"word{n}" for n in range(60)]
    shown = ["[MASK]" if n % 7 == 0 else word for n, word in enumerate(words)]
    pairs = list(lines(MaskedExample(words, shown, list(range(0, 60, 7))), width=40))
    assert " ".join(text for text, _ in pairs).split() == words
    assert " ".join(line for _, line in pairs).split() == shown
    assert all(len(line) <= 40 for pair in pairs for line in pair)
    long = "x" * 100
    assert list(lines(MaskedExample([long, "a"], [long, "a"], []), width=40)) == [(long, long), ("a", "a")]
