"""Two models on the same examples: every yardstick, fine-tuned models; what cannot be compared."""

import json
from dataclasses import replace

import numpy as np
import pytest
from test_retrieval import folder_of
from test_yardsticks import PAIRS, TOKENIZER, model_of, scores

import bertkit
from bertkit.checkpoint.save_load import Checkpoint
from bertkit.errors import RequestError
from bertkit.evaluation.yardstick import YARDSTICKS


def plain(family="bert"):
    return bertkit.Bert(Checkpoint(model=model_of(family), tokenizer=TOKENIZER))


@pytest.fixture(scope="module")
def berts():
    return plain(), plain("roberta")


FILES = {
    "minimal-pairs": [{"sentence_good": good, "sentence_bad": bad} for _, good, bad in PAIRS],
    "blanks": [{"text": "the [MASK] sat", "answers": word} for word in ("cat", "dogs", "mat")],
    "similarity": [
        {"sentence1": a, "sentence2": b, "score": n}
        for n, (a, b) in enumerate([("the cat", "the mat"), ("dogs", "bark"), ("cat", "cat sat")])
    ],
    "clustering": [{"text": text, "label": text[:3]} for text in ("the cat", "the mat", "dogs bark", "dogs")],
}


@pytest.mark.parametrize("name", [name for name in YARDSTICKS if name != "glue"])  # which test_glue.py compares
def test_every_yardstick_compares_two_models(berts, tmp_path, name):
    data = FILES[name] if name in FILES else folder_of(tmp_path)
    one, other = (bertkit.evaluate(bert, data) for bert in berts)
    found = bertkit.evaluate(berts[0], data, against=berts[1])
    assert replace(found, against=None) == one
    assert found.against.scores == other.scores
    assert found.against.difference == pytest.approx(one.score - other.score)
    assert found.against.interval[0] <= found.against.difference + 1e-9
    assert json.loads(json.dumps(found.to_json()))["against"]["p_value"] == found.against.p_value
    same = bertkit.evaluate(berts[0], data, against=berts[0]).against
    assert (same.difference, same.interval, same.p_value) == (0.0, (0.0, 0.0), 1.0)


def test_the_difference_is_that_of_pairs_answered_otherwise(berts):
    texts = ["the cat sat", "dogs bark", "the cat runs", "dogs sat on the mat"]
    rows = [{"sentence_good": a, "sentence_bad": b} for a in texts for b in texts if a != b] * 5
    right = []
    for bert in berts:
        flat = scores(bert.model, [text for row in rows for text in row.values()])
        right.append(np.greater(flat[::2], flat[1::2]).astype(float))
    differences = right[0] - right[1]
    found = bertkit.evaluate(berts[0], rows, against=berts[1]).against
    half = 1.96 * differences.std() / np.sqrt(len(rows))
    assert found.difference == pytest.approx(differences.mean())
    assert found.interval == pytest.approx((differences.mean() - half, differences.mean() + half), abs=0.03)
    shown = f"{differences.mean():+.4f}".replace("-", "−")
    text = str(bertkit.evaluate(berts[0], rows, against=berts[1]))
    assert f"against unsaved: accuracy {right[1].mean():.4f}\ndifference {shown} (95 % interval " in text


TEXTS = ["the cat sat", "dogs bark", "the cat runs", "dogs sat on the mat"] * 4


@pytest.fixture(scope="module")
def classifiers(berts, tmp_path_factory):
    """One that was trained on the labels, and one on labels at random."""
    folder, label = tmp_path_factory.mktemp("classifiers"), [text[:3] for text in TEXTS]
    berts[0].save(folder / "trunk")
    for name, labels in (("right", label), ("wrong", label[1:] + label[:1])):
        bertkit.Classifier(str(folder / "trunk"), layer=2).fit(TEXTS, labels).save(folder / name)
    return folder


def test_fine_tuned_models_are_compared_on_labeled_examples(classifiers):
    rows = {"text": TEXTS, "label": [text[:3] for text in TEXTS]}
    found = bertkit.evaluate(classifiers / "right", rows, against=classifiers / "wrong")
    assert found.score == 1.0
    assert (found.against.model, found.against.scores["accuracy"]) == ("wrong", 1 - found.against.difference)
    assert found.against.p_value < 0.01 < found.against.interval[0]


def test_what_was_scored_otherwise_cannot_be_compared(berts, classifiers):
    rows = {"text": TEXTS, "label": [text[:3] for text in TEXTS]}
    with pytest.raises(RequestError, match="right is scored as classify and unsaved as clustering: compare two models"):
        bertkit.evaluate(classifiers / "right", rows, against=berts[0])
    found = bertkit.evaluate(classifiers / "right", rows, against=berts[0], by="clustering")
    assert found.task == "clustering"


def test_models_that_read_other_columns_cannot_be_compared(classifiers, tmp_path):
    """A model remembers the columns that it was trained on."""
    changed = {"text": TEXTS, "label": [text[:3] for text in TEXTS], "kind": [text[:3] for text in TEXTS[::-1]]}
    record = classifiers / "right" / "bertkit.json"
    content = json.loads(record.read_text())
    other = tmp_path / "other"
    bertkit.load(classifiers / "right").save(other)
    content["task"]["record"]["columns"] = {"text": "text", "label": "kind"}
    (other / "bertkit.json").write_text(json.dumps(content))
    with pytest.raises(RequestError, match="read other columns or labels of the file"):
        bertkit.evaluate(classifiers / "right", changed, against=other)
