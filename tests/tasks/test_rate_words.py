"""Token regression: a number for each word, read from lists and columns, learned in any scale, at first pieces only."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch

import bertkit
from bertkit.data.tables import Location
from bertkit.errors import RequestError
from bertkit.finetuning.fine_tuning import fine_tune
from bertkit.finetuning.settings import read_settings
from bertkit.model.batch import Batch
from bertkit.tasks.rate_words import RateWords
from bertkit.tasks.read import guess_task, read_examples
from bertkit.tasks.rows.rate_words import RatedWordsExample
from bertkit.tasks.shared.decision import Decision
from bertkit.tasks.task import LossSettings

pytestmark = pytest.mark.usefixtures("_one_thread")
PLACE = Location(Path("f"), 1)


def rated(words: str, *numbers: float) -> RatedWordsExample:
    return RatedWordsExample(tuple(words.split()), numbers or None, PLACE)


def task(**more: float) -> RateWords:
    return RateWords(tokenizer=tiny.tokenizer(), limit=16, **more)


def test_words_and_numbers_are_read_from_columns_and_from_lists(tmp_path):
    conll, rows = tmp_path / "a.conll", tmp_path / "a.jsonl"
    conll.write_text("the x 1.5\nfilm x 2\n\ngood x -0.25\n")
    rows.write_text('{"tokens": ["the", "film"], "scores": [1.5, 2]}\n{"tokens": ["good"], "scores": ["-0.25"]}\n')
    for path in (conll, rows):
        found = read_examples("rate-words", path).examples
        assert [(e.words, e.labels) for e in found] == [(("the", "film"), (1.5, 2.0)), (("good",), (-0.25,))]
        assert guess_task(path) == "rate-words"


def test_whole_numbers_may_be_names_of_tags(tmp_path):
    path = tmp_path / "a.conll"
    path.write_text("the 1\nfilm 2\n\ngood 1\n")
    assert guess_task(path) == "tag"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"words": ["a", "b"], "ratings": [1.5]}, "row|line.*2 words and 1 numbers; give one number to each word"),
        ({"words": ["a"], "ratings": ["high"]}, "'ratings' holds 'high', not a number such as 3.5"),
        ({"words": ["a"]}, "no column of numbers; name it with label="),
    ],
)
def test_rows_that_do_not_fit_are_refused(row, message, tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(RequestError, match=message):
        read_examples("rate-words", tmp_path / "a.jsonl")


def test_only_first_pieces_are_asked_and_every_word_is_asked_once():
    words, numbers = ["ex", "the", "exx", "film"] * 8, [float(n) for n in range(32)]
    windows = task().windows(rated(" ".join(words), *numbers), 0)
    assert len(windows) > 2
    asked = {
        word: window.target[place]
        for window in windows
        for word, place in zip(window.detail.words, window.detail.positions, strict=True)
    }
    assert asked == dict(enumerate(numbers))
    assert task().count_targets(windows) == 32
    assert all(one.detail.words[-1] + 1 == other.detail.words[0] for one, other in pairwise(windows))


def test_the_loss_is_the_squared_error_in_the_models_units():
    made = task(center=10.0, spread=5.0)
    windows = made.windows(rated("the ex film", 10.0, 20.0, 5.0), 0)  # e ##x: only the first piece counts
    batch = Batch.pack([window.ids for window in windows])
    logits = torch.tensor([[9.0], [1.0], [2.5], [9.0], [-1.0], [9.0]])
    total, count = made.loss(logits, batch, windows, LossSettings())
    assert (float(total), int(count)) == ((1 - 0) ** 2 + (2.5 - 2) ** 2 + (-1 + 1) ** 2, 3)
    [found] = made.decode([rated("the ex film")], windows, [logits.numpy()], Decision())
    assert found.values == (15.0, 22.5, 5.0)


def test_scores_are_over_words():
    made = task()
    examples = [rated("the film", 1.0, 2.0), rated("good", 4.0)]
    windows = [window for number, example in enumerate(examples) for window in made.windows(example, number)]
    outputs = [np.array([[0.0], [1.0], [3.0], [0.0]]), np.array([[0.0], [2.0], [0.0]])]
    scores = made.score(examples, made.decode(examples, windows, outputs, Decision()))
    assert scores["mean_squared_error"] == pytest.approx((0 + 1 + 4) / 3)
    assert scores["spearman"] == pytest.approx(0.5)
    assert set(scores) == set(made.metrics)


def test_a_model_learns_which_words_are_liked(tmp_path):
    train, dev = tiny.files(tmp_path, "rate-words")
    start = tiny.tiny_folder(tmp_path / "start")
    settings = read_settings("epochs=6", "learning_rate=3e-3", "batch=16")
    result = fine_tune("rate-words", settings, start, train, dev, tmp_path / "run")
    assert result.scores["pearson"] > 0.95
    assert result.collapsed is None
    bert = bertkit.load(tmp_path / "run" / "model")
    found = bert.rate_words("the Good film, was awful")
    assert found.words == ("the", "Good", "film", ",", "was", "awful")
    assert [("the Good film, was awful")[a:b] for a, b in found.characters] == list(found.words)
    assert found.values[1] == pytest.approx(30.5, abs=2.5)
    assert found.values[5] == pytest.approx(10.5, abs=2.5)
    assert bert.rate_words([["the", "good"]])[0].characters is None
