"""Texts and pairs to labels and numbers: losses against torch's own, policies for long texts, transformers' classes."""

from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import bertkit
from bertkit.checkpoint.save_load import Checkpoint, load_checkpoint, save_checkpoint
from bertkit.data.examples import TextExample
from bertkit.data.tables import Location
from bertkit.errors import RequestError
from bertkit.finetuning.evaluate import make_windows, run_model
from bertkit.finetuning.learner import joined_logits, pack
from bertkit.model.model import new_model
from bertkit.tasks.classify import Classify
from bertkit.tasks.folder import read_task, task_json
from bertkit.tasks.multilabel import Multilabel
from bertkit.tasks.regress import Regress
from bertkit.tasks.shared.decision import Decision
from bertkit.tasks.shared.labels import balanced_weights
from bertkit.tasks.shared.length import LengthPolicy
from bertkit.tasks.task import LossSettings

HERE = Location(Path("data.tsv"), 7)
LABELS = ("bad", "good", "so")


def example(text: str, label=None, pair: str | None = None) -> TextExample:
    return TextExample(text, pair, label, HERE)


def task(kind=Classify, limit: int = 64, policy: str = "head", **content):
    content = content or ({} if kind is Regress else {"labels": LABELS})
    return kind(tokenizer=tiny.tokenizer(), limit=limit, length=LengthPolicy(policy), **content)


def loss(of, examples, logits, **settings):
    windows = make_windows(of, examples)
    batch = pack(windows, tiny_model("classify", 3).config)
    return of.loss(torch.tensor(logits, requires_grad=True), batch, windows, LossSettings(**settings))


def tiny_model(head: str, outputs: int | None, family: str = "bert"):
    from bertkit.config import family_config

    shape = {"depth": 2, "width": 32, "heads": 2, "inner": 64, "max_length": 64, "vocab_size": len(tiny.PIECES)}
    return new_model(family_config(family, "tiny", **shape, pad_id=0), {head: outputs}, seed=3).eval()


LOGITS = [[0.5, -1.0, 2.0], [1.5, 0.0, -0.5]]


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_class_loss_is_torch_s(smoothing):
    total, count = loss(task(), [example("good", "so"), example("bad film", "bad")], LOGITS, label_smoothing=smoothing)
    theirs = F.cross_entropy(torch.tensor(LOGITS), torch.tensor([2, 0]), label_smoothing=smoothing)
    torch.testing.assert_close(total / count, theirs)


def test_class_weights_weigh_each_example_by_its_label():
    weights = (0.5, 1.0, 4.0)
    total, count = loss(task(), [example("good", "so"), example("bad", "bad")], LOGITS, class_weights=weights)
    each = F.cross_entropy(torch.tensor(LOGITS), torch.tensor([2, 0]), reduction="none")
    torch.testing.assert_close(total, 4.0 * each[0] + 0.5 * each[1])
    assert int(count) == 2


@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 1000), min_size=1))
def test_balanced_weights_are_one_on_average_and_labels_weigh_the_same(counts):
    labels = sorted(counts)
    weights = dict(zip(labels, balanced_weights(counts, labels), strict=True))
    mean = sum(weights[label] * counts[label] for label in labels) / sum(counts.values())
    assert mean == pytest.approx(1.0)
    assert max(weights[label] * counts[label] for label in labels) == pytest.approx(
        min(weights[label] * counts[label] for label in labels)
    )


def test_multilabel_loss_is_torch_s_mean_over_labels():
    examples = [example("good", ("so", "bad")), example("bad", ())]
    total, count = loss(task(Multilabel), examples, LOGITS)
    wanted = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(total / count, F.binary_cross_entropy_with_logits(torch.tensor(LOGITS), wanted))


def test_numbers_are_learned_in_units_of_their_spread():
    of = task(Regress, center=100.0, spread=20.0)
    total, _ = loss(of, [example("good", 120.0), example("bad", 60.0)], [[0.5], [-1.0]])
    torch.testing.assert_close(total, torch.tensor(0.25 + 1.0))
    windows = make_windows(of, [example("good")])
    assert of.decode([example("good")], windows, [np.array([0.5])], Decision())[0].value == 110.0


@pytest.mark.parametrize(
    ("of", "label", "sentence"),
    [
        (task(), "nice", "data.tsv, line 7: the label 'nice' is not among those of the training data"),
        (task(Multilabel), ("so", "nice"), "data.tsv, line 7: the label 'nice'"),
        (task(Regress, center=0.0), "nice", "data.tsv, line 7: the label 'nice' is not a number"),
    ],
)
def test_labels_nobody_taught_are_named_with_their_place(of, label, sentence):
    with pytest.raises(RequestError, match=sentence):
        of.windows(example("good", label), 0)


@pytest.mark.parametrize("text", ["", " ", "\u0000\ufffd", "e\u0301", "語" * 30, "🙂👩‍👩‍👧", "\u202e\u200b"])
def test_odd_texts_are_texts_too(text):
    model = tiny_model("classify", 3)
    windows = make_windows(task(), [example(text, "so", pair=text)])
    assert np.isfinite(run_model(model, task(), windows).rows[0]).all()


LONG = "good bad film the was very in and of " * 20


@pytest.mark.parametrize("pool", ["mean", "max"])
def test_windows_pool_logits_alike_in_loss_and_decoding(pool):
    of = Classify(tokenizer=tiny.tokenizer(), limit=32, length=LengthPolicy("windows", pool=pool), labels=LABELS)
    examples = [example(LONG, "so"), example("good", "bad")]
    windows = make_windows(of, examples)
    assert len(windows) > 3
    outputs = run_model(tiny_model("classify", 3), of, windows)
    first = np.stack(outputs.rows[:-1])
    pooled = first.mean(axis=0) if pool == "mean" else first.max(axis=0)
    predictions = of.decode(examples, windows, outputs.rows, Decision())
    chances = np.exp(pooled) / np.exp(pooled).sum()
    np.testing.assert_allclose(list(predictions[0].probabilities.values()), chances, atol=1e-6)
    both = torch.tensor(np.stack([pooled, outputs.rows[-1]]))
    assert outputs.loss == pytest.approx(float(F.cross_entropy(both, torch.tensor([2, 0]))), abs=1e-5)
    assert predictions[0].seen.windows == len(windows) - 1
    assert (predictions[0].seen.cut, predictions[1].seen.windows) == (0, 1)


def test_hierarchical_reading_joins_vectors_before_the_pooler():
    of, model = task(limit=32, policy="hierarchical"), tiny_model("classify", 3)
    windows = make_windows(of, [example(LONG, "so"), example("good film", "bad")])
    batch = pack(windows, model.config)
    with torch.inference_mode():
        rows = joined_logits(model, "classify", batch, windows, model(batch))
        first = batch.first(model(batch))
        slow = model.heads["classify"](model.pooler.transform(first[:-1].mean(dim=0)))
    torch.testing.assert_close(rows[:-1], slow.expand(len(windows) - 1, -1), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(rows[-1:], model.logits(batch, "classify")[-1:], atol=1e-5, rtol=1e-5)
    np.testing.assert_allclose(run_model(model, of, windows).rows[0], slow.detach().numpy(), atol=1e-5)


@pytest.mark.parametrize("policy", ["head", "tail", "head-tail", "windows", "hierarchical"])
def test_a_policy_changes_nothing_where_the_text_fits(policy):
    of, model = task(policy=policy), tiny_model("classify", 3)
    windows = make_windows(of, [example("the film was good", "so", pair="bad")])
    [row] = run_model(model, of, windows).rows
    encoding = tiny.tokenizer().encode("the film was good", "bad")
    assert windows[0].ids == encoding.ids
    with torch.inference_mode():
        whole = model.logits(pack(windows, model.config), "classify")[0]
    np.testing.assert_allclose(row, whole.numpy(), atol=1e-5)


def test_abstaining_says_no_label_but_is_scored_by_the_likeliest():
    of = task()
    examples = [example("good", "so"), example("bad", "bad")]
    windows = make_windows(of, examples)
    rows = [np.array([0.0, 0.0, 0.2]), np.array([9.0, 0.0, 0.0])]
    found = of.decode(examples, windows, rows, Decision(abstain=0.9))
    assert [prediction.label for prediction in found] == [None, "bad"]
    assert of.score(examples, found)["accuracy"] == 1.0


def test_thresholds_decide_each_label():
    of = task(Multilabel)
    windows = make_windows(of, [example("good")])
    [found] = of.decode([example("good")], windows, [np.array([0.0, 2.0, -3.0])], Decision(thresholds={"so": 0.01}))
    assert found.labels == ("bad", "good", "so")


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "modernbert"])
def test_families_without_a_second_segment_read_pairs(family):
    model = tiny_model("classify", 3, family)
    windows = make_windows(task(), [example("good film", pair="bad")])
    assert np.isfinite(run_model(model, task(), windows).rows[0]).all()


HEADS = {
    "classify": ("AutoModelForSequenceClassification", 3),
    "tag": ("AutoModelForTokenClassification", 3),
    "answer": ("AutoModelForQuestionAnswering", None),
    "choose": ("AutoModelForMultipleChoice", None),
}


@pytest.mark.parametrize("head", HEADS)
def test_transformers_loads_the_folder_by_its_auto_class_with_equal_logits(head, tmp_path):
    import transformers

    name, outputs = HEADS[head]
    model = tiny_model(head, outputs)
    labels = LABELS if outputs else ()
    checkpoint = Checkpoint(model=model, tokenizer=tiny.tokenizer(), labels=labels, max_length=64)
    described = task_json(read_task(checkpoint)[0], Decision(temperature=2.0), {})
    save_checkpoint(
        Checkpoint(model=model, tokenizer=tiny.tokenizer(), labels=labels, max_length=64, task=described),
        tmp_path / "m",
    )
    theirs = getattr(transformers, name).from_pretrained(tmp_path / "m").eval()
    inputs = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")("the film was good", "bad", return_tensors="pt")
    own = pack(make_windows(task(), [example("the film was good", pair="bad")]), model.config)
    assert inputs["input_ids"][0].tolist() == own.ids.tolist()
    with torch.inference_mode():
        ours = load_checkpoint(tmp_path / "m").model.logits(own, head)
        if head == "choose":
            out = theirs(**{key: value[None] for key, value in inputs.items()}).logits[0]
        elif head == "answer":
            out = theirs(**inputs)
            out = torch.stack((out.start_logits[0], out.end_logits[0]), dim=-1)
        else:
            out = theirs(**inputs).logits[0]
    torch.testing.assert_close(ours.reshape(out.shape), out, atol=1e-5, rtol=1e-5)
    if outputs:
        assert theirs.config.id2label == dict(enumerate(LABELS))


def test_a_folder_of_transformers_answers_with_its_own_labels(tmp_path):
    import transformers

    shape = {"vocab_size": len(tiny.PIECES), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.BertConfig(**shape, intermediate_size=64, id2label={0: "no", 1: "yes"})
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path)
    tiny.tokenizer().save(tmp_path)
    found = bertkit.load(tmp_path).classify(["good film", "bad"])
    assert {prediction.label for prediction in found} <= {"no", "yes"}
    with pytest.raises(RequestError, match="this model was fine-tuned for 'classify'; it cannot tag"):
        bertkit.load(tmp_path).tag("good")


def test_a_model_without_a_task_says_how_to_teach_it_one(tmp_path):
    bert = bertkit.load(tiny.tiny_folder(tmp_path / "m"))
    with pytest.raises(RequestError, match="no head for a task; fine-tune it: bertkit finetune"):
        bert.classify("good")


@pytest.mark.parametrize("content", [{"task": []}, {"task": {"labels": ["a"]}}, {"task": {"name": 3}}])
def test_a_damaged_task_in_bertkit_json_is_named(content, tmp_path):
    import json

    folder = tiny.tiny_folder(tmp_path / "m")
    (folder / "bertkit.json").write_text(json.dumps(content))
    if content["task"]:
        with pytest.raises(RequestError, match="bertkit.json: task is not as bertkit writes it"):
            bertkit.load(folder)
