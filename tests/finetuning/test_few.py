"""few=true: contrastive tuning of the encoder on few rows a label, then a logistic regression as its head."""

import itertools
import math
import random
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
import torch.nn.functional as F

import bertkit
from bertkit.checkpoint.save_load import load_checkpoint
from bertkit.errors import RequestError
from bertkit.finetuning.explore.features import fit_classifier
from bertkit.finetuning.few import FEW_ROWS, FEW_STEPS, LabelPlan, few_start, label_contrast

pytestmark = pytest.mark.usefixtures("_one_thread")
TOPICS = {"positive": tiny.GOOD, "negative": tiny.BAD, "person": tiny.NAMES}


def topic_rows(per_label, labels=("positive", "negative"), seed=0):
    """Each word of a label in turn, after any other."""
    draw = random.Random(seed)
    words = [(TOPICS[label][n % len(TOPICS[label])], label) for label in labels for n in range(per_label)]
    return [(f"{draw.choice(tiny.FILLER)} {word}", label) for word, label in words]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny.tiny_folder(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "few"
    dev = topic_rows(20, seed=1)
    return bertkit.finetune("classify", topic_rows(8), dev, folder, out, few=True, learning_rate=3e-3, epochs=30)


def slow_contrast(vectors, labels, temperature):
    """The loss by its definition: one text, one partner at a time."""
    total, counted = 0.0, 0
    for i in range(len(labels)):
        others = [j for j in range(len(labels)) if j != i]
        sum_over_others = sum(math.exp(float(vectors[i] @ vectors[j]) / temperature) for j in others)
        partners = [j for j in others if labels[j] == labels[i]]
        logs = [float(vectors[i] @ vectors[j]) / temperature - math.log(sum_over_others) for j in partners]
        if partners:
            total, counted = total - sum(logs) / len(logs), counted + 1
    return total, counted


@pytest.mark.parametrize("labels", [[0, 0, 1, 1], [0, 1, 0, 2, 1, 0], [0, 1, 2], [1, 1, 1]])
def test_the_loss_is_its_definition(labels):
    vectors = F.normalize(torch.randn(len(labels), 5, generator=torch.Generator().manual_seed(3)), dim=-1)
    loss, counted = label_contrast(vectors, torch.tensor(labels), 0.3)
    expected = slow_contrast(vectors, labels, 0.3)
    assert (float(loss), int(counted)) == (pytest.approx(expected[0], abs=1e-4), expected[1])


@pytest.mark.parametrize("sizes", [(2, 2), (8, 8, 8), (3, 5, 17, 2), (40, 1)])
def test_every_text_meets_one_of_its_label_in_every_epoch(sizes):
    labels = tuple(itertools.chain.from_iterable([number] * size for number, size in enumerate(sizes)))
    plan = LabelPlan((7,) * len(labels), 6, seed=5, labels=labels)
    for epoch in range(3):
        steps = [plan.step(epoch * plan.steps + number) for number in range(plan.steps)]
        assert sorted(itertools.chain.from_iterable(steps)) == list(range(len(labels)))
        order = [labels[n] for step in steps for n in step]
        runs = [len(list(group)) for _, group in itertools.groupby(order)]
        assert all(size > 1 for size in runs) or 1 in sizes
    again = LabelPlan((7,) * len(labels), 6, seed=5, labels=labels)
    assert again.step(1) == plan.step(1)
    assert len(labels) < 8 or LabelPlan((7,) * len(labels), 6, seed=6, labels=labels).step(0) != again.step(0)


def test_it_learns_from_few_rows_and_saves_a_model_like_any_other(run, folder, tmp_path):
    assert run.scores["accuracy"] >= 0.95
    assert run.finished
    assert run.report.path.is_file()
    assert "temperature" in " ".join(run.notes)
    model = bertkit.load(run.folder)
    assert model.classify("a lovely film").label == "positive"
    assert bertkit.evaluate(model, topic_rows(20, seed=2)).score >= 0.9
    assert "lovely" in bertkit.why(model, "a lovely film").html
    model.save(tmp_path / "copy")
    assert bertkit.load(tmp_path / "copy").classify("a dull film").label == "negative"


def test_the_layers_are_tuned_and_the_embeddings_are_not(run, folder):
    before, after = (load_checkpoint(path).model.encoder.state_dict() for path in (folder, run.folder / "model"))
    same = {name: torch.equal(before[name], after[name]) for name in before}
    assert all(same[name] for name in same if name.startswith("embeddings."))
    assert not any(same[name] for name in same if name.startswith("layers.") and name.endswith("weight"))


def test_the_head_is_the_logistic_regression_on_the_tuned_vectors(run):
    bert, rows = bertkit.load(run.folder), topic_rows(8)
    texts, labels = zip(*rows, strict=True)
    vectors = bert.embed(texts, pooling="mean", normalize=False)
    expected = fit_classifier(vectors, np.array(labels)).decision_function(vectors)  # of the second label, "positive"
    temperature = bert.checkpoint.task["decision"]["temperature"]
    odds = [each.probabilities for each in bert.classify(texts)]
    found = [math.log(each["positive"] / each["negative"]) * temperature for each in odds]
    np.testing.assert_allclose(found, expected, atol=1e-3)


def test_it_is_chosen_by_itself_where_rows_are_few_and_nothing_is_named(folder):
    few = bertkit.finetune("classify", topic_rows(6), topic_rows(4, seed=1), folder)
    assert "6 rows a label are few, so few=true was chosen" in few.notes[0]
    assert len(few.model.checkpoint.task["record"]["settings"]) > 10
    assert few.model.checkpoint.task["record"]["settings"]["few"] is True
    assert few.model.checkpoint.task["record"]["best_step"] == FEW_STEPS
    named = bertkit.finetune("classify", topic_rows(6), topic_rows(4, seed=1), folder, epochs=1)
    refused = bertkit.finetune("classify", topic_rows(6), topic_rows(4, seed=1), folder, few=False, epochs=1)
    single = [*topic_rows(6), ("ada lives", "person")]
    one = bertkit.finetune("classify", single, topic_rows(4, seed=1), folder, minutes=0.005)
    many = bertkit.finetune("classify", topic_rows(FEW_ROWS), topic_rows(4, seed=1), folder, minutes=0.005)
    for other in (named, refused, one, many):
        assert not any("few=true" in note for note in other.notes)
        assert "few" not in other.notes[0]


def test_of_the_bundled_model_the_variant_for_sentences_is_tuned(tmp_path):
    assert few_start(Path("bundled")).name == "sentences"
    assert few_start(tmp_path) == tmp_path


def test_a_finished_run_is_not_repeated(run, folder):
    dev = topic_rows(20, seed=1)
    settings = {"few": True, "learning_rate": 3e-3, "epochs": 30}
    again = bertkit.finetune("classify", topic_rows(8), dev, folder, run.folder, resume=True, **settings)
    assert again.scores == run.scores


@pytest.mark.parametrize(
    ("rows", "settings", "message"),
    [
        ([*topic_rows(3), ("ada lives", "person")], {}, "the label 'person' has one row to train on, and few=true"),
        ([("a film", "good"), ("the film", "good")], {}, "every example has the label 'good'; at least two labels"),
        (topic_rows(3), {"patience": 2}, "patience=2 has no effect with few=true; leave one of them out"),
        (topic_rows(3), {"pooling": "first"}, "pooling=first has no effect with few=true"),
        (topic_rows(3), {"rank": 4}, "rank=4 has no effect with few=true"),
        (topic_rows(3), {"few": "maybe"}, "few=maybe is not true or false"),
        ([*topic_rows(3), ("a film", None)], {}, "label"),
        ([*topic_rows(3), ("a film", " ")], {}, "label"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(folder, tmp_path, rows, settings, message):
    with pytest.raises(RequestError, match=message) as refused:
        bertkit.finetune("classify", rows, topic_rows(2), folder, tmp_path / "run", **{"few": True, **settings})
    assert "\n" not in str(refused.value)


def test_other_tasks_and_teachers_are_refused(folder, run, tmp_path):
    numbers = [(text, float(n)) for n, (text, _) in enumerate(topic_rows(4))]
    with pytest.raises(RequestError, match="few=true goes with classify, not with 'regress'; leave it out"):
        bertkit.finetune("regress", numbers, numbers, folder, tmp_path / "run", few=True)
    teacher = run.folder / "model"
    with pytest.raises(RequestError, match="few=true .* has no use for a teacher"):
        bertkit.finetune("classify", topic_rows(4), topic_rows(2), folder, tmp_path / "two", few=True, teacher=teacher)
