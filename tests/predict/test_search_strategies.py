"""Greedy search, sampling and beam search over tables of numbers, without a model."""

import math
from collections import Counter

import pytest
import torch

from bertkit.engine.writing.search import WriteSettings, allowed_scores, beam_search, choose, next_tokens
from bertkit.errors import RequestError

END = 0


class Table:
    """A decoder whose scores depend on the last token alone: row n of a table follows token n."""

    def __init__(self, rows, starts):
        self.scores, self.starts, self.batches = torch.tensor(rows).log(), torch.tensor(starts), []

    def start(self):
        return self.scores[self.starts]

    def step(self, ids, rows=None):
        self.batches.append(len(ids))
        return self.scores[ids]


# Token 1 is likely followed by 2 (0.5), which leads to worse; 3 (0.4) leads to a sure end.
ROWS = [[1.0, 0.0, 0.0, 0.0], [0.05, 0.05, 0.5, 0.4], [0.3, 0.3, 0.2, 0.2], [0.98, 0.01, 0.005, 0.005]]


def ids_of(decoder, count, settings):
    sequences = [[] for _ in range(count)]
    for step in next_tokens(decoder, count, settings, {END}):
        for sequence, token in zip(step.sequences, step.ids, strict=True):
            sequences[sequence].append(token)
    return sequences


def test_greedy_takes_the_likeliest_token_and_beams_the_likeliest_sequence():
    assert ids_of(Table(ROWS, [1]), 1, WriteSettings(tokens=5)) == [[2, END]]
    assert beam_search(Table(ROWS, [1]), 1, WriteSettings(tokens=5, beams=2, length_penalty=0.0), [END]) == [[3, END]]


def test_sequences_that_have_ended_leave_the_batch():
    decoder = Table(ROWS, [3, 3, 3, 2, 2])  # four of five end at once or after a step
    sequences = ids_of(decoder, 5, WriteSettings(tokens=4))
    assert sequences == [[END]] * 5
    rows = [[0.0, 1.0, 0.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
    decoder = Table(rows, [1, 2, 2, 2])
    assert ids_of(decoder, 4, WriteSettings(tokens=3)) == [[1, 1, 1], [END], [END], [END]]
    assert decoder.batches == [1, 1]


def test_a_limit_ends_what_never_ends():
    rows = [[0.5, 0.5], [0.0, 1.0]]
    assert ids_of(Table(rows, [1]), 1, WriteSettings(tokens=7)) == [[1] * 7]
    assert beam_search(Table(rows, [1]), 1, WriteSettings(tokens=7, beams=1), [END]) == [[1] * 7]


def test_the_length_penalty_prefers_longer_sequences():
    rows = [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.5, 0.5, 0.0]]
    short, long = (
        beam_search(Table(rows, [1]), 1, WriteSettings(tokens=6, beams=3, length_penalty=penalty), [END])[0]
        for penalty in (0.0, 5.0)
    )
    assert len(short) < len(long)


def test_samples_follow_the_distribution_and_the_seed():
    scores = torch.tensor([[0.5, 0.3, 0.2]]).log()
    settings = WriteSettings(temperature=1.0)
    generator = torch.Generator().manual_seed(0)
    counts = Counter(choose(scores, settings, [generator]).item() for _ in range(20_000))
    assert [counts[token] / 20_000 for token in range(3)] == pytest.approx([0.5, 0.3, 0.2], abs=0.01)
    one, two, other = (ids_of(Table(ROWS, [1] * 20), 20, WriteSettings(tokens=9, top_k=4, seed=s)) for s in (1, 1, 2))
    assert one == two
    assert one != other


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"top_k": 2}, [0, 1]),
        ({"top_p": 0.5}, [0]),  # the first token alone reaches it
        ({"top_p": 0.51}, [0, 1]),
        ({"top_p": 0.79, "top_k": 1}, [0]),
        ({"temperature": 2.0}, [0, 1, 2]),
    ],
)
def test_top_k_and_top_p_leave_the_likeliest(settings, kept):
    scores = torch.tensor([[0.5, 0.3, 0.2]]).log()
    allowed = allowed_scores(scores, WriteSettings(**settings))
    assert allowed.isfinite()[0].nonzero().flatten().tolist() == kept


def test_a_temperature_flattens_or_sharpens():
    scores = torch.tensor([[0.8, 0.2]]).log()
    hot, cold = (allowed_scores(scores, WriteSettings(temperature=t)).softmax(-1)[0, 0].item() for t in (10.0, 0.1))
    assert hot == pytest.approx(0.8**0.1 / (0.8**0.1 + 0.2**0.1), abs=1e-6)
    assert cold > 0.999


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"beams": 0}, "beams=0 must be from 1 to 1,000"),
        ({"tokens": 0}, "tokens=0 must be at least 1"),
        ({"temperature": 0.0}, "temperature=0.0 must be over 0"),
        ({"temperature": math.nan}, "temperature=nan must be over 0"),
        ({"length_penalty": math.inf}, "length_penalty=inf is not a number"),
        ({"top_p": 0.0}, "top_p=0.0 must be over 0 and at most 1"),
        ({"top_k": -1}, "top_k=-1 must be at least 0"),
        ({"beams": 2, "top_k": 3}, "beams and sampling"),
        ({"stop": ("",)}, "empty text"),
    ],
)
def test_wrong_settings_are_one_sentence(settings, sentence):
    with pytest.raises(RequestError, match=sentence):
        WriteSettings(**settings)
