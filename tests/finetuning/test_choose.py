"""Multiple choice: any number of choices, each whole, compared by one softmax."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from span_helpers import ODD, PLACE, assert_near, outputs_of, pack, three_ways, tiny_model

from bertkit.data.examples import ChoiceExample
from bertkit.errors import BertkitError, RequestError
from bertkit.tasks.choose import Choose
from bertkit.tasks.shared.decision import Decision
from bertkit.tasks.shared.length import LengthPolicy
from bertkit.tasks.shared.losses import choice_loss
from bertkit.tasks.task import LossSettings
from bertkit.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(uncased_vocab):
    return Tokenizer.from_vocab(uncased_vocab)


def example_of(question, choices, label=None):
    return ChoiceExample(question, tuple(choices), label, PLACE)


EXAMPLES = [
    example_of("Where do fish live?", ["in water", "on the moon"], 0),
    example_of("What is 2 + 2?", ["three", "four", "five", "a lot", ""], 1),
    example_of("Only one?", ["yes"], 0),
]


def windows_of(task, examples):
    return [window for number, example in enumerate(examples) for window in task.windows(example, number)]


def test_a_sequence_for_each_choice(tokenizer):
    task = Choose(tokenizer=tokenizer, limit=64)
    windows = windows_of(task, EXAMPLES)
    assert [window.example for window in windows] == [0, 0, 1, 1, 1, 1, 1, 2]
    assert windows[1].ids == tokenizer.encode("Where do fish live?", "on the moon").ids
    assert windows[1].segments == tokenizer.encode("Where do fish live?", "on the moon").segments
    assert task.count_targets(windows) == 3
    assert [window.target for window in windows] == [0, 0, 1, 1, 1, 1, 1, 0]


@settings(max_examples=60)
@given(st.integers(0, 60), st.lists(st.integers(0, 60), min_size=1, max_size=4), st.integers(8, 40))
def test_the_question_is_cut_from_the_left_and_the_choice_stays_whole(tokenizer, length, sizes, limit):
    example = example_of(" ".join("q" * length), [" ".join("c" * size) for size in sizes])
    windows = Choose(tokenizer=tokenizer, limit=limit).windows(example, 0)
    for window, size in zip(windows, sizes, strict=True):
        pieces = tokenizer.tokens(window.ids)
        assert len(pieces) == min(limit, length + size + 3)
        assert pieces.count("c") == min(size, limit - 3)
        assert pieces.count("[SEP]") == 2
        assert window.detail.seen.cut == length + size + 3 - len(pieces)


def test_which_side_of_a_question_is_cut(tokenizer):
    example = example_of("one two three four five six seven", ["eight nine"])
    kinds = {"tail": "[CLS] four five six seven [SEP]", "head": "[CLS] one two three four [SEP]"}
    kinds["head-tail"] = "[CLS] one five six seven [SEP]"
    for kind, wanted in kinds.items():
        [window] = Choose(tokenizer=tokenizer, limit=9, length=LengthPolicy(kind)).windows(example, 0)
        assert " ".join(tokenizer.tokens(window.ids)) == f"{wanted} eight nine [SEP]"
        assert str(window.detail.seen) == "3 of 9 tokens were cut"


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_equals_its_slow_twin_and_does_not_depend_on_the_batch(tokenizer, smoothing):
    task = Choose(tokenizer=tokenizer, limit=64)
    windows = windows_of(task, EXAMPLES)
    logits = torch.randn(8, 1, generator=torch.manual_seed(0), requires_grad=True)
    weights = LossSettings(label_smoothing=smoothing)
    total, count = task.loss(logits, pack(windows), windows, weights)
    slow = sum(
        F.cross_entropy(rows.T, torch.tensor([example.label]), label_smoothing=smoothing)
        for rows, example in zip(torch.split(logits, [2, 5, 1]), EXAMPLES, strict=True)
    )
    torch.testing.assert_close(total, slow)
    assert int(count) == task.count_targets(windows) == 3
    first, _ = task.loss(logits[:2], pack(windows[:2]), windows[:2], weights)
    rest, _ = task.loss(logits[2:], pack(windows[2:]), windows[2:], weights)
    torch.testing.assert_close(first + rest, total)
    total.backward()
    assert torch.isfinite(logits.grad).all()


def test_missing_choices_take_no_share():
    logits = torch.tensor([[1.0, 2.0, -torch.inf], [0.0, 0.0, 0.0]], requires_grad=True)
    total = choice_loss(logits, torch.tensor([0, 2]), 0.2)
    total.backward()
    assert torch.isfinite(total)
    assert torch.isfinite(logits.grad).all()
    assert logits.grad[0, 2] == 0


def test_choices_of_a_question_belong_together(tokenizer):
    task = Choose(tokenizer=tokenizer, limit=64)
    windows = windows_of(task, EXAMPLES)[1:]
    with pytest.raises(BertkitError, match="the choices of a question are in different batches"):
        task.loss(torch.zeros(7, 1), pack(windows), windows, LossSettings())


def test_packed_padded_and_alone_agree(tokenizer, monkeypatch):
    task = Choose(tokenizer=tokenizer, limit=24)
    examples = [*EXAMPLES, example_of(" ".join(ODD), ["yes " * 30, "\u200b", "日本"], 2)]
    windows = windows_of(task, examples)
    ways = three_ways(tiny_model(tokenizer, "choose", 1), "choose", windows, monkeypatch)
    assert_near(ways[0], ways[1])
    assert_near(ways[0], ways[2])
    choices = [[chosen.choice for chosen in task.decode(examples, windows, way, Decision())] for way in ways]
    assert choices[0] == choices[1] == choices[2]


def test_decode_and_score(tokenizer):
    task = Choose(tokenizer=tokenizer, limit=64)
    windows = windows_of(task, EXAMPLES)
    outputs = [np.array([x], dtype=np.float32) for x in (2, 1, 0, 3, 1, 0, 0, -5)]
    found = task.decode(EXAMPLES, windows, outputs, Decision())
    assert [(chosen.choice, chosen.text) for chosen in found] == [(0, "in water"), (1, "four"), (0, "yes")]
    assert all(sum(chosen.probabilities) == pytest.approx(1) for chosen in found)
    assert found[0].probability == pytest.approx(1 / (1 + np.exp(-1)))
    assert found[1].seen.windows == 5
    assert task.score(EXAMPLES, found) == {"accuracy": 1.0}
    careful = task.decode(EXAMPLES, windows, outputs, Decision(abstain=0.75))
    assert [(chosen.choice, chosen.text) for chosen in careful] == [(None, None), (1, "four"), (0, "yes")]
    assert task.score(EXAMPLES, careful) == {"accuracy": 1.0}


def test_one_sequence_reads_the_same_under_any_limit_it_fits(tokenizer):
    model = tiny_model(tokenizer, "choose", 1)
    example = EXAMPLES[0]
    fits = max(len(tokenizer.encode(example.question, choice)) for choice in example.choices)
    near, far = (Choose(tokenizer=tokenizer, limit=limit).windows(example, 0) for limit in (fits, 512))
    assert_near(outputs_of(model, "choose", near), outputs_of(model, "choose", far))


def test_faults_are_named_with_their_place(tokenizer):
    task = Choose(tokenizer=tokenizer, limit=64)
    with pytest.raises(RequestError, match="train.tsv, line 7: the question has no choices"):
        task.windows(example_of("Why?", []), 0)
    for label in (2, -1):
        with pytest.raises(RequestError, match=f"train.tsv, line 7: label {label} is none of the 2 choices"):
            task.windows(example_of("Why?", ["a", "b"], label), 0)
    with pytest.raises(RequestError, match="length policy 'windows' does not go with 'choose'"):
        Choose(tokenizer=tokenizer, limit=64, length=LengthPolicy("windows"))
