"""Labels that a model was not trained on: by vectors of sentences and by entailment, beside slow obvious twins."""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import taught
import torch
from huggingface_hub import InferenceClient

sys.path.insert(0, str(Path(__file__).parents[1] / "serve"))
from serving import running, vectors_folder

import bertkit
from bertkit.checkpoint.delta import TEXTS
from bertkit.checkpoint.save_load import Checkpoint, load_checkpoint, save_checkpoint
from bertkit.cli.main import run
from bertkit.config import family_config
from bertkit.errors import RequestError
from bertkit.model.model import new_model
from bertkit.model.pooling import EmbedSettings
from bertkit.predict import zero_shot
from bertkit.predict.zero_shot import WAYS, Scale
from bertkit.serve.models import load_models
from bertkit.tasks.shared.label_set import MAX_LABELS, LabelSet
from bertkit.text.tokenizer import Tokenizer

LABELS = ["cat", "dog", "rain"]
DESCRIBED = {"cat": "it is a cat", "dog": "a dog barks", "rain": "it rains"}
THREE = ("contradiction", "entailment", "neutral")


def inference_folder(folder: Path, labels: tuple[str, ...] = THREE, **shape) -> Path:
    """A random model of natural language inference."""
    shape = {"depth": 1, "width": 16, "heads": 2, "inner": 32, "max_length": 48, **shape}
    config = family_config("bert", "tiny", vocab_size=len(taught.PIECES), init_std=0.3, **shape)
    model = new_model(config, {"classify": len(labels)}, seed=4).eval()
    tokenizer = Tokenizer.from_vocab(taught.PIECES)
    save_checkpoint(Checkpoint(model=model, tokenizer=tokenizer, labels=labels, max_length=48), folder)
    return folder


@pytest.fixture(scope="module")
def vectors(tmp_path_factory) -> Path:
    return vectors_folder(tmp_path_factory.mktemp("given") / "vectors")


@pytest.fixture(scope="module")
def inference(tmp_path_factory) -> Path:
    return inference_folder(tmp_path_factory.mktemp("given") / "inference")


@pytest.fixture(autouse=True)
def _online(monkeypatch):
    """The server is on this machine, and the client thinks that it is not."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)


def softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()


def sigmoid(scores: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-scores))


def values(found: bertkit.Classified) -> list[float]:
    return list(found.probabilities.values())


def near(bert: bertkit.Bert, text: str, statements: Sequence[str]) -> np.ndarray:
    """The mean of three cosines for each statement, one by one."""
    [wholes], found = bert.similarity([text], statements), []
    for whole, statement in zip(wholes, statements, strict=True):
        one, other = (unit(bert.embed(each, pooling="none")) for each in (text, statement))
        nearest = [max(float(x @ y) for y in other) for x in one], [max(float(x @ y) for x in one) for y in other]
        found.append((whole + np.mean(nearest[0]) + np.mean(nearest[1])) / 3)
    return np.array(found)


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.filterwarnings("ignore::bertkit.errors.BertkitWarning")  # the texts of comparison are long in letters
@pytest.mark.parametrize("labels", [LABELS, DESCRIBED])
def test_by_vectors_the_probabilities_are_those_of_the_cosines(vectors, labels):
    bert, statements = bertkit.load(vectors), LabelSet.read(labels).statements
    cosines, (exclusive, scale) = near(bert, "a cat sat", statements), scales("vectors")
    bert.classify(["b", "a dog"], labels=labels)
    found = bert.classify("a cat sat", labels=labels)
    np.testing.assert_allclose(values(found), softmax(exclusive.slope * cosines), atol=1e-5)
    assert (found.label, found.probability) == (LABELS[cosines.argmax()], max(values(found)))
    assert found.seen.tokens == 7
    usual = np.mean([near(bert, text, statements) for text in TEXTS], axis=0)
    several = bert.classify(["a", "a cat sat"], labels=labels, multi_label=True)[1]
    np.testing.assert_allclose(values(several), sigmoid(scale.slope * (cosines - usual) + scale.offset), atol=1e-5)


def scales(way: str) -> tuple[Scale, Scale]:
    return WAYS[way].exclusive, WAYS[way].independent


@pytest.mark.parametrize("names", [THREE, ("entailment", "not_entailment"), ("CONTRADICTION", "NEUTRAL", "ENTAILMENT")])
def test_by_entailment_the_odds_of_the_statements_are_compared(tmp_path, names):
    bert = bertkit.load(inference_folder(tmp_path / "model", names))
    [index] = [number for number, name in enumerate(names) if name.lower() == "entailment"]
    statements = LabelSet.read(LABELS).statements
    pairs = bert.classify(["a cat sat"] * 3, list(statements))
    chances = np.array([pair.probabilities[names[index]] for pair in pairs])
    odds = np.log(chances / (1 - chances))
    found = bert.classify(["a cat sat", "b"], labels=LABELS)[0]
    np.testing.assert_allclose(values(found), softmax(WAYS["entailment"].exclusive.slope * odds), atol=1e-5)
    several = values(bert.classify("a cat sat", labels=LABELS, multi_label=True))
    np.testing.assert_allclose(several, sigmoid(WAYS["entailment"].independent.slope * odds), atol=1e-5)
    assert found.seen.tokens == 7, "of the text, not of the statements"


def test_a_template_is_the_sentence_around_a_name(vectors):
    bert = bertkit.load(vectors)
    written = {"cat": "it is a cat", "dog": "it is a dog"}
    found = bert.classify("a cat", labels=["cat", "dog"], template="it is a {}")
    assert values(found) == values(bert.classify("a cat", labels=written))
    assert values(found) != values(bert.classify("a cat", labels=["cat", "dog"]))


@pytest.mark.parametrize("kind", ["vectors", "inference"])
def test_independent_labels_do_not_depend_on_each_other(kind, request):
    bert = bertkit.load(request.getfixturevalue(kind))
    for multi_label, same in ((True, True), (False, False)):
        few = bert.classify("a cat", labels=LABELS[:2], multi_label=multi_label)
        many = bert.classify("a cat", labels=LABELS, multi_label=multi_label)
        assert (values(few) == pytest.approx(values(many)[:2], abs=1e-6)) == same
    one = bert.classify("a cat", labels=["cat"], multi_label=True)
    assert values(one) == pytest.approx(values(many := bert.classify("a cat", labels=LABELS, multi_label=True))[:1])
    assert values(many) == pytest.approx(values(bert.classify(["b", "a cat"], labels=LABELS, multi_label=True)[1]))


def test_prefix_and_dense_layers_are_those_of_the_folder(vectors, tmp_path):
    torch.manual_seed(0)
    dense = torch.nn.Sequential(torch.nn.Linear(16, 5), torch.nn.Tanh())
    embed = EmbedSettings(pooling="max", prefix="query: ", dense=dense)
    save_checkpoint(replace(load_checkpoint(vectors), embed=embed), tmp_path / "dense")
    bert = bertkit.load(tmp_path / "dense")
    cosines = near(bert, "a cat", list(DESCRIBED.values()))
    found = values(bert.classify("a cat", labels=DESCRIBED))
    np.testing.assert_allclose(found, softmax(WAYS["vectors"].exclusive.slope * cosines), atol=1e-5)


def test_vectors_of_labels_are_kept_until_weights_change(vectors, monkeypatch):
    bert, calls, plain = bertkit.load(vectors), [], zero_shot.embed_texts
    monkeypatch.setattr(zero_shot, "embed_texts", lambda *args: calls.append(args) or plain(*args))
    first = bert.classify("a cat", labels=LABELS)
    for _ in range(3):
        assert bert.classify("a cat", labels=LABELS) == first
    before = len(calls)
    assert before <= 4, "the first pass may pack the weights"
    bert.classify("a cat", labels=LABELS)
    assert len(calls) == before
    with torch.no_grad():
        bert.model.encoder.embeddings.word.weight.mul_(-1.5)
    assert values(bert.classify("a cat", labels=LABELS)) != values(first)
    assert len(calls) > before
    for number in range(zero_shot.KEPT + 5):
        bert.classify("a cat", labels=["cat", f"{number}"])
    assert len(bert.zero_shot._kept) == zero_shot.KEPT


def test_of_a_long_text_the_beginning_is_read_and_it_is_said(vectors, inference):
    for folder in (vectors, inference):
        seen = bertkit.load(folder).classify("a b " * 60, labels=["cat", "dog"]).seen
        assert (seen.tokens, seen.windows) == (120, 1)
        assert 80 < seen.cut < 120


WRONG = [
    ({"labels": []}, "labels is empty; name two labels"),
    ({"labels": ["cat"]}, "'cat' is the only label, so every text would get it; add another one"),
    ({"labels": ["cat", " cat "]}, "the label 'cat' is there twice"),
    ({"labels": {"a": "same", "b": "same"}}, "the description 'same' is there twice"),
    ({"labels": ["cat", " "]}, r"labels\[1\] is empty"),
    ({"labels": ["cat", "!?"], "template": "{}"}, r"labels\[1\] '!\?' is described without a word"),
    ({"labels": {"cat": ""}, "multi_label": True}, r"labels\[0\] 'cat' is described without a word"),
    ({"labels": ["cat", None]}, r"labels\[1\] is NoneType, not a str"),
    ({"labels": "cat,dog"}, "labels='cat,dog' must be a list"),
    ({"labels": 3}, "labels=3 must be a list"),
    ({"labels": list(map(str, range(MAX_LABELS + 1)))}, "101 labels are over the 100 of a request"),
    ({"labels": ["cat", "x" * 1000]}, "has 1,020 characters, over 500"),
    ({"labels": ["cat", "dog"], "template": "about"}, "template='about' must have {} once"),
    ({"labels": ["cat", "dog"], "template": "{} {}"}, "must have {} once"),
    ({"labels": DESCRIBED, "template": "about {}"}, "template goes with names alone"),
    ({"template": "about {}"}, "template and multi_label go with labels"),
    ({"multi_label": True}, "template and multi_label go with labels"),
]


@pytest.mark.parametrize(("options", "sentence"), WRONG)
def test_wrong_labels_get_one_sentence(vectors, options, sentence):
    with pytest.raises(RequestError, match=sentence):
        bertkit.load(vectors).classify("a cat", **options)


@pytest.mark.parametrize("text", ["", "  ", "?!", "..."])
def test_a_text_without_words_is_refused_with_its_place(vectors, inference, text):
    for folder in (vectors, inference):
        with pytest.raises(RequestError, match="the request, number 2: the text has no words"):
            bertkit.load(folder).classify(["a cat", text], labels=LABELS)


def test_pairs_and_models_that_cannot_are_refused(vectors, tmp_path):
    with pytest.raises(RequestError, match="labels go with single texts"):
        bertkit.load(vectors).classify("a cat", "a dog", labels=LABELS)
    for folder in (taught.taught_folder(tmp_path / "none", None), taught.taught_folder(tmp_path / "tag", "tag")):
        with pytest.raises(RequestError, match="cannot classify by labels that it was not trained on; name one"):
            bertkit.load(folder).classify("a cat", labels=LABELS)
    with pytest.raises(RequestError, match="cannot classify by labels"):
        bertkit.load(taught.taught_folder(tmp_path / "other", "classify")).classify("a cat", labels=LABELS)
    layered = EmbedSettings(pooling="mean", layers=(-1, -2))
    save_checkpoint(replace(load_checkpoint(vectors), embed=layered), tmp_path / "layers")
    with pytest.raises(RequestError, match="cannot classify by labels"):
        bertkit.load(tmp_path / "layers").classify("a cat", labels=LABELS)


def test_the_bundled_model_answers_by_its_variant():
    found = bertkit.load().classify("I want my money back.", labels=["refund", "delivery"])
    assert found == bertkit.load("sentences").classify("I want my money back.", labels=["refund", "delivery"])
    assert found.label == "refund"
    with pytest.raises(RequestError, match="such as 'sentences'"):
        bertkit.load("bundled").classify("a", labels=LABELS)


def test_the_server_replies_as_python_does(vectors, inference, tmp_path):
    other = taught.taught_folder(tmp_path / "classify", "classify")
    folders = {"classify": other, "inference": inference, "vectors": vectors}
    with running(load_models([f"{name}={path}" for name, path in folders.items()], torch.device("cpu"))) as server:
        cards = {card["id"]: card["abilities"] for card in server.http.get("/v1/models").json()["data"]}
        assert [name for name, able in cards.items() if "zero-shot" in able] == ["inference", "vectors"]
        for name in ("inference", "vectors"):
            client, bert = bertkit.Client(server.url, model=name), bertkit.load(folders[name])
            for labels, multi_label in ((LABELS, False), (DESCRIBED, True)):
                expected = bert.classify(["a cat", "b"], labels=labels, multi_label=multi_label)
                found = client.classify(["a cat", "b"], labels=labels, multi_label=multi_label)
                for reply, each in zip(found, expected, strict=True):
                    assert reply["probabilities"] == pytest.approx(dict(each.probabilities), abs=1e-5)
                    assert (reply["label"], reply["seen"]["tokens"]) == (each.label, each.seen.tokens)
            asked = bert.classify("a cat", labels=LABELS, template="it is a {}", multi_label=True).probabilities
            rows = InferenceClient(model=f"{server.url}/models/{name}").zero_shot_classification(
                "a cat", LABELS, multi_label=True, hypothesis_template="it is a {}"
            )
            assert {row.label: row.score for row in rows} == pytest.approx(dict(asked), abs=1e-5)
            assert [row.score for row in rows] == sorted(asked.values(), reverse=True) or len(set(asked.values())) < 3
        assert server.post("/classify", {"texts": "a", "labels": LABELS}).json()["model"] == "inference", "the first"
        assert server.post("/classify", {"texts": "a"}).json()["model"] == "classify"
        path = f"{server.url}/models/vectors/pipeline/zero-shot-classification"
        assert len(InferenceClient(model=path).zero_shot_classification("a cat", ["cat", "dog"])) == 2
        several = {"inputs": ["a cat", "b"], "parameters": {"candidate_labels": LABELS}}
        assert [len(rows) for rows in server.post("/", several).json()] == [3, 3]
        refused(server)
        limit = server.service.settings.max_texts
        many = {"texts": ["a"] * (limit // 3 + 1), "labels": LABELS, "model": "inference"}
        reply = server.post("/classify", many)
        assert (reply.status_code, reply.json()["field"]) == (413, "texts")
        assert f"send {limit // 3:,} at a time" in reply.json()["error"]


def test_where_no_model_has_labels_the_documented_request_brings_some(vectors):
    with running(load_models([f"vectors={vectors}"], torch.device("cpu"))) as server:
        schema = server.http.get("/openapi.json").json()
        [body] = [each for each in schema["components"]["schemas"].values() if "multi_label" in each["properties"]]
        assert "/classify" in schema["paths"]
        [found, _] = server.post("/classify", body["example"]).json()["results"]
        assert list(found["probabilities"]) == ["praise", "complaint"]


def refused(server) -> None:
    """Bad requests: one sentence, and no other status than 422."""
    bodies = [{"texts": "a cat", **options} for options, _ in WRONG if options.get("labels") != ["cat", None]]
    bodies += [{"texts": "?", "labels": LABELS}, {"texts": "a", "labels": LABELS, "model": "classify"}]
    bodies += [{"texts": "a", "labels": LABELS, "pairs": "b"}, {"texts": "a", "labels": LABELS, "multi_label": 3.5}]
    for body in bodies:
        reply = server.post("/classify", body)
        assert reply.status_code == 422, (body, reply.text)
        assert reply.json()["error"]
    for parameters in ({"candidate_labels": "a,b"}, {"candidate_labels": LABELS, "x": 1}, {"multi_label": "no"}):
        asked = {"inputs": "a", "parameters": {"candidate_labels": LABELS, **parameters}}
        assert server.post("/models/vectors", asked).status_code == 422, parameters


def test_texts_and_files_are_answered_on_the_command_line(vectors, tmp_path, capsys):
    bert, table, out = bertkit.load(vectors), tmp_path / "texts.tsv", tmp_path / "out.jsonl"
    expected = bert.classify(["a cat", "a dog"], labels=DESCRIBED)
    assert run(["predict", str(vectors), "a cat", "--labels", "cat, dog", "--template", "it is a {}", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    wanted = bert.classify("a cat", labels=["cat", "dog"], template="it is a {}")
    assert (row["label"], row["probability"]) == (wanted.label, pytest.approx(wanted.probability))
    table.write_text("text\tlabel\na cat\tcat\n...\tdog\na dog\tdog\n")
    described = tmp_path / "labels.json"
    described.write_text(json.dumps(DESCRIBED))
    words = ["predict", str(vectors), str(table), "--labels", str(described), "--out", str(out), "--on-error", "skip"]
    assert run([*words, "probabilities=true"]) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    for row, each in zip(rows, expected, strict=True):
        assert row["probabilities"] == pytest.approx(dict(each.probabilities), abs=1e-5)
    right = np.mean([each.label == gold for each, gold in zip(expected, ("cat", "dog"), strict=True)])
    printed = capsys.readouterr()
    assert f"accuracy {right:.4f}" in printed.out
    assert "the text has no words" in (tmp_path / "out.jsonl.skipped.txt").read_text()
    assert run([*words[:4], "cat"]) == 2
    assert "is the only label" in capsys.readouterr().err
    assert run(["predict", str(vectors), "a cat", "--multi-label"]) == 2
    assert "go with labels" in capsys.readouterr().err
