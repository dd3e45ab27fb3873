"""Every head over HTTP says what the Python API says, alone and among others."""

import asyncio
import json
import random
import threading
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from serving import fill_folder, running, same, wait_until

import bertkit
from bertkit.data.examples import TextExample
from bertkit.data.tables import Location
from bertkit.errors import BertkitError
from bertkit.finetuning.evaluate import make_windows, run_model
from bertkit.finetuning.explore.features import read_features
from bertkit.finetuning.explore.features_model import save_layer
from bertkit.finetuning.fine_tuning import open_data
from bertkit.finetuning.settings import read_settings
from bertkit.inside.attribution.attribution import quick_why
from bertkit.serve.models import Models, load_models, share_encoders
from bertkit.serve.routes.fill import plan_fill
from bertkit.serve.routes.tasks import converted
from bertkit.serve.settings import ServeSettings
from bertkit.tasks.shared.length import LengthPolicy

pytestmark = pytest.mark.filterwarnings("ignore::bertkit.errors.BertkitWarning")
TEXTS = ["a b c", "hello world", "", "x . y ? " * 30, "ünïcödé 漢字 🙂"]


def results(reply, model):
    assert reply.status_code == 200, reply.text
    assert reply.json()["model"] == model
    return reply.json()["results"]


def plain(predictions):
    """As JSON has it: tuples are lists; ids are ours."""
    found = [asdict(each) for each in predictions]
    for each in found:
        each.pop("id", None)
    return json.loads(json.dumps(found))


@pytest.mark.parametrize("task", ["classify", "multilabel", "regress"])
def test_classify(server, task):
    bert = server.berts[task]
    found = results(server.post("/classify", {"texts": TEXTS, "model": task}), task)
    same(found, plain(bert.classify(TEXTS)))
    pairs = TEXTS[::-1]
    found = results(server.post("/classify", {"texts": TEXTS, "pairs": pairs, "model": task}), task)
    same(found, plain(bert.classify(TEXTS, pairs)))
    assert found[3]["seen"]["cut"] > 0, "what was cut is in the reply"


def test_a_regression_on_a_frozen_encoder_is_served(folders, tmp_path):
    rows = ["text\tlabel", *(f"{word} {other}\t{word}" for word in "abc" for other in "defghij")]
    train = tmp_path / "train.tsv"
    train.write_text("\n".join(rows))
    begin, prepared = open_data("classify", read_settings(), folders["fill"], train, train)
    save_layer(begin, prepared, read_features(begin.model, prepared), 1, tmp_path / "features")
    bert = bertkit.load(tmp_path / "features")
    with running(load_models([f"features={tmp_path / 'features'}"], torch.device("cpu"))) as server:
        found = results(server.post("/classify", {"texts": TEXTS, "model": "features"}), "features")
    same(found, plain(bert.classify(TEXTS)))


def test_tag(server):
    bert = server.berts["tag"]
    same(results(server.post("/tag", {"texts": TEXTS}), "tag"), plain(bert.tag(TEXTS)))
    words = [["ada", "lives"], ["in", "rome"]]
    same(results(server.post("/tag", {"texts": words}), "tag"), plain(bert.tag(words)))


def test_answer_over_long_passages(server):
    bert = server.berts["answer"]
    questions = ["a", "b c", "where ?"]
    draw = random.Random(3)
    passages = ["x y z", " ".join("".join(draw.choices("abcdefghij", k=3)) for _ in range(50)), ""]  # no ties to break
    body = {"question": questions, "passage": passages, "best": 20}
    found = results(server.post("/answer", body), "answer")
    same(found, plain(bert.answer(questions, passages)))
    assert found[1]["seen"]["windows"] > 1
    [one] = results(server.post("/answer", {"question": "a", "passage": "x y z"}), "answer")
    assert len(one["candidates"]) == 1


def test_choose(server):
    bert = server.berts["choose"]
    questions, choices = ["a b", "c"], [["x", "y", "z"], ["p q " * 30, "r"]]
    found = results(server.post("/choose", {"question": questions, "choices": choices}), "choose")
    same(found, plain(bert.choose(questions, choices)))
    [one] = results(server.post("/choose", {"question": "a b", "choices": ["x", "y", "z"]}), "choose")
    same(one, found[0])


def test_fill(server):
    bert = server.berts["fill"]
    texts = ["a [MASK] c", "[MASK] [MASK]", "a[MASK] b", "a b " * 30 + "[MASK]" + " c d" * 30]
    found = results(server.post("/fill", {"text": texts, "top": 3}), "fill")
    for own, text in zip(found, texts, strict=True):
        same(own, plain(bert.fill(text, top=3)))
    everything = {"text": "a [MASK] c", "top": bert.tokenizer.size, "whole_words": False}
    [found] = results(server.post("/fill", everything), "fill")
    same(found, plain(bert.fill("a [MASK] c", top=bert.tokenizer.size, whole_words=False)))
    assert len(found) == bert.tokenizer.size
    reply = server.post("/fill", {"text": "no blank"})
    assert reply.status_code == 422
    assert "write [MASK] or ___ where a word is missing" in reply.json()["error"]
    assert server.post("/fill", {"text": "[MASK]", "top": 10**6}).status_code == 422


def test_more_words_for_blanks_than_a_reply_holds_are_refused(models):
    with running(models, ServeSettings(max_words=30)) as server:
        assert server.post("/fill", {"text": ["[MASK]"] * 10, "top": 3}).status_code == 200
        for path, body in (
            ("/fill", {"text": ["[MASK]"] * 10, "top": 4}),
            ("/models/fill", {"inputs": ["[MASK]"] * 10, "parameters": {"top_k": 4}}),
        ):
            reply = server.post(path, body)
            assert reply.status_code == 413
            assert "40 words for the blanks are over 30; ask for fewer" in reply.json()["error"]


def test_predictions_are_told_off_the_event_loop(server):
    """A reply of many candidates would else hold up everybody."""
    service = server.service
    plan = partial(
        plan_fill, service.models.named("fill"), ["[MASK]"] * 2, 1, "window", service.settings, whole_words=True
    )
    told = partial(converted, plan, lambda _: threading.current_thread().name)
    answer = asyncio.run_coroutine_threadsafe(service.answer(told), service._loop).result(20)
    assert [name.split("_")[0] for name in answer.value] == ["small", "small"]


@pytest.mark.parametrize("task", ["classify", "multilabel", "regress"])
def test_raw_scores_are_logits(server, task):
    """What the head gives: before softmax or sigmoid, and before the decision layer's temperature."""
    answers = server.service.models.named(task).answers
    cooler = replace(answers, decision=replace(answers.decision, temperature=3.0))
    examples = [TextExample(text, None, None, Location(Path("a"), 0, "number")) for text in ("a b", "c d e " * 20)]
    windows = make_windows(answers.task, examples)
    expected = run_model(answers.model, answers.task, windows).rows
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(server.service.models.named(task).__dict__, "answers", cooler)
        body = {"inputs": [[example.text] for example in examples], "model": task, "raw_scores": True}
        reply = server.post("/predict", body)
    assert reply.status_code == 200, reply.text
    labels = answers.task.labels or ("LABEL_0",)
    for rows, logits in zip(reply.json(), expected, strict=True):
        assert [row["score"] for row in rows] == sorted((row["score"] for row in rows), reverse=True)
        same({row["label"]: row["score"] for row in rows}, dict(zip(labels, logits.tolist(), strict=True)))


def test_predict_as_text_embeddings_inference_has_it(server):
    chances = server.berts["classify"].classify("a b").probabilities
    rows = server.post("/predict", {"inputs": "a b"}).json()
    assert [row["label"] for row in rows] == sorted(chances, key=lambda label: -chances[label])
    assert {row["label"]: row["score"] for row in rows} == pytest.approx(chances, abs=1e-5)
    assert server.post("/predict", {"inputs": [["a b"]]}).json() == [rows]
    pair = server.berts["classify"].classify("a", "b").probabilities
    for one, body in ((True, ["a", "b"]), (False, [["a", "b"], ["a", "b"]])):
        found = server.post("/predict", {"inputs": body}).json()
        first = found if one else found[0]
        assert {row["label"]: row["score"] for row in first} == pytest.approx(pair, abs=1e-5)
    assert server.post("/predict", {"inputs": [["a"], ["a", "b"]]}).status_code == 422


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_windows_that_are_joined_before_the_head(folders, dtype):
    """A hierarchical policy averages the windows' vectors before the pooler: in two halves as in one."""
    berts = [bertkit.load(folders["classify"]).to("cpu", dtype) for _ in range(2)]
    for bert in berts:
        task = replace(bert.answers.task, length=LengthPolicy("hierarchical"))
        bert.__dict__["answers"] = replace(bert.answers, task=task)
    texts = ["a b", "q r s t " * 20]
    with running(Models(share_encoders({"joined": berts[0]}))) as server:
        found = results(server.post("/classify", {"texts": texts}), "joined")
    assert found[1]["seen"]["windows"] > 1
    if dtype == "float32":
        same(found, plain(berts[1].classify(texts)))
    assert [row["label"] for row in found] == [row["label"] for row in plain(berts[1].classify(texts))]


def test_a_server_in_int8_says_what_an_int8_model_says(folders):
    models = load_models([str(folders["fill"]), str(folders["classify"])], torch.device("cpu"), dtype="int8")
    fill, classify = (bertkit.load(folders[name], quantize="int8") for name in ("fill", "classify"))
    with running(models) as server:
        assert server.http.get("/info").json()["model_dtype"] == "int8"
        reply = server.post("/v1/embeddings", {"input": TEXTS, "model": "fill"})
        vectors = np.array([row["embedding"] for row in reply.json()["data"]])
        found = results(server.post("/classify", {"texts": TEXTS}), "classify")
    # Near, not equal: a last digit may decide how a number is rounded.
    np.testing.assert_allclose(vectors, fill.embed(TEXTS), atol=1e-3)
    assert np.abs(vectors - bertkit.load(folders["fill"]).embed(TEXTS)).max() > 1e-5, "something was rounded"
    same(found, plain(classify.classify(TEXTS)), near=1e-3)


def test_encoders_that_round_otherwise_are_not_shared(folders):
    def served(*dtypes):
        berts = {name: bertkit.load(folders["fill"]).to("cpu", dtype) for name, dtype in dtypes}
        return Models(share_encoders(berts))

    assert len(served(("one", "int8"), ("two", "int8")).shared_encoders) == 1
    apart = served(("one", "int8"), ("two", "float32"))
    assert len(apart.shared_encoders) == 2
    assert [each.bert.dtype for each in apart.by_name.values()] == ["int8", "float32"]


@pytest.mark.parametrize("pair", [None, "d e"])
def test_attention_and_neurons_are_the_trace(server, pair):
    trace = server.berts["fill"].trace("a b c", pair)
    found = server.post("/neuron", {"text": "a b c", "pair": pair}).json()
    assert found["tokens"] == list(trace.tokens)
    assert found["relative"] is False
    assert [part["layer"] for part in found["layers"]] == [1, 2]
    for part, layer in zip(found["layers"], trace.layers, strict=True):
        np.testing.assert_allclose(part["weights"], layer.weights, atol=1e-5)
        np.testing.assert_allclose(part["queries"], layer.queries.transpose(0, 1), atol=1e-5)
        np.testing.assert_allclose(part["keys"], layer.keys.transpose(0, 1), atol=1e-5)
    one = server.post("/attention", {"text": "a b c", "pair": pair, "layer": 2, "head": 1}).json()
    assert one["heads"] == [1]
    [part] = one["layers"]
    assert set(part) == {"layer", "weights"}
    np.testing.assert_allclose(part["weights"], trace.layers[1].weights[:1], atol=1e-5)


def test_attention_refuses_what_is_not_there(server):
    for body in ({"layer": 3}, {"head": 3}, {"layer": 0}, {"layer": -1}):
        reply = server.post("/attention", {"text": "a", **body})
        assert reply.status_code == 422
        assert reply.json()["field"] == next(iter(body))
    assert server.post("/attention", {"text": "a b " * 40, "pair": "c"}).status_code == 413


def test_attention_shows_the_beginning_of_a_long_text_and_says_so(server, models):
    reply = server.post("/attention", {"text": "a b " * 40, "layer": 1, "head": 1})
    limit = server.berts["fill"].checkpoint.max_length
    assert len(reply.json()["tokens"]) == limit
    assert reply.json()["tokens"][-1] == "[SEP]"
    assert reply.json()["long_texts"]["texts"] == [{"index": 0, "tokens": 82}]
    assert f"cut to {limit} tokens" in reply.headers["bertkit-length-note"]
    with running(models, ServeSettings(too_long="refuse")) as strict:
        assert strict.post("/attention", {"text": "a b " * 40}).status_code == 413


def test_a_model_that_reads_from_left_to_right_is_not_offered_for_blanks(tmp_path):
    folders = [fill_folder(tmp_path / "both"), fill_folder(tmp_path / "causal", causal=True)]
    models = load_models([str(folder) for folder in folders], torch.device("cpu"))
    assert len(models.shared_encoders) == 2, "equal weights, but not one encoder"
    with running(models) as server:
        cards = server.http.get("/v1/models").json()["data"]
        assert {card["id"]: card["abilities"] for card in cards} == {
            "both": ["fill", "embed"],
            "causal": ["write", "embed"],
        }
        reply = server.post("/fill", {"text": "a [MASK] c", "model": "causal"})
        assert reply.status_code == 422
        assert reply.json()["error"] == "the model 'causal' cannot fill; it can write, embed"
        vectors = [server.post("/embed_all", {"inputs": text, "model": "causal"}).json()[0] for text in ("a b", "a c")]
        np.testing.assert_array_equal(vectors[0][:2], vectors[1][:2])
        [layer] = server.post("/attention", {"text": "a b c", "model": "causal", "layer": 1}).json()["layers"]
        assert not np.triu(np.array(layer["weights"]), 1).any()


def test_a_request_without_a_model_finds_one_that_can(server):
    assert server.post("/tag", {"texts": "a"}).json()["model"] == "tag"
    reply = server.post("/tag", {"texts": "a", "model": "fill"})
    assert reply.status_code == 422
    assert "cannot tag; it can fill, embed" in reply.json()["error"]
    reply = server.post("/tag", {"texts": "a", "model": "nobody"})
    assert reply.status_code == 404
    assert reply.json()["field"] == "model"


def test_an_ability_that_no_model_has(folders):
    served = share_encoders({"tag": bertkit.load(folders["tag"])})
    with running(Models(served)) as server:
        assert server.post("/fill", {"text": "[MASK]"}).status_code == 404
        paths = server.http.get("/openapi.json").json()["paths"]
        assert "/tag" in paths
        assert "/fill" not in paths


def test_every_example_of_the_documentation_works(server):
    description = server.http.get("/openapi.json").json()
    schemas = description["components"]["schemas"]
    tried = 0
    for path, operations in description["paths"].items():
        filled = path.replace("{name}", "fill").replace("{task}", "feature-extraction")
        for method, operation in operations.items():
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
            example = schemas[body["$ref"].rpartition("/")[2]]["example"] if body else None
            reply = server.http.request(method, filled, json=example)
            assert reply.status_code == 200, f"{path}: {reply.text}"
            tried += 1
    assert tried >= 18


def test_equal_encoders_are_found_by_their_numbers(folders):
    one, other = bertkit.load(folders["tag"]), bertkit.load(folders["tag"])
    with torch.no_grad():
        other.model.encoder.embeddings.word.weight[7, 3] += 1e-4
    served = share_encoders({"one": one, "other": other, "third": bertkit.load(folders["classify"])})
    assert served[0].shared_encoder is not served[1].shared_encoder
    assert served[0].shared_encoder is served[2].shared_encoder


def test_why_equals_the_python_function(server):
    cases = {
        "classify": {"text": "a cat sat", "target": None},
        "tag": {"text": "ada lives in london", "word": "lives"},
        "answer": {"text": "where?", "pair": "ada lives in london"},
        "fill": {"text": "a [MASK] sat"},
    }
    for model, body in cases.items():
        found = server.post("/why", {**body, "model": model}).json()
        wanted = bertkit.why(server.berts[model], **body)
        assert (found["model"], found["target"]) == (model, wanted.target)
        same([each["share"] for each in found["words"]], [each.share for each in wanted.words], near=1e-3)


def test_why_refuses_what_it_cannot_explain(server, monkeypatch):
    for body, status, part in (
        ({"text": "a", "model": "choose"}, 422, "not explained"),
        ({"text": "a", "model": "fill"}, 422, "no blank"),
        ({"text": "a", "model": "classify", "target": "nobody"}, 422, "nobody"),
        ({"text": "a " * 15_000, "model": "classify"}, 413, "20,000 characters"),
    ):
        reply = server.post("/why", body)
        assert (reply.status_code, part in reply.json()["error"]) == (status, True), reply.text
    monkeypatch.setattr("bertkit.serve.routes.why.MAX_WAITING", 0)
    reply = server.post("/why", {"text": "a [MASK]"})
    assert (reply.status_code, reply.headers["retry-after"]) == (429, "2")


def test_the_model_card_describes_the_model(server):
    card = next(each for each in server.http.get("/v1/models").json()["data"] if each["id"] == "classify")
    model = server.berts["classify"].model
    assert card["parameters"] == sum(each.numel() for each in model.parameters())
    assert card["bytes"] == 4 * card["parameters"]
    assert (card["dtype"], card["unknown"], card["bundled"]) == ("float32", "[UNK]", False)


class Steps:
    """`explain` of a server that waits before each batch, and counts them."""

    def __init__(self) -> None:
        self.begun, self.go, self.batches, self.stopped = threading.Event(), threading.Event(), 0, threading.Event()
        self.threads: list[int] = []

    def __call__(self, bert, text, pair, *, target, word, before_batch):
        def each(tokens: int) -> None:
            self.begun.set()
            assert self.go.wait(20)
            try:
                before_batch(tokens)
            except BertkitError:
                self.stopped.set()
                raise
            self.batches += 1
            self.threads.append(torch.get_num_threads())

        return quick_why(bert, text, pair, target=target, word=word, before_batch=each)


def test_why_stops_when_its_client_is_gone(models):
    steps = Steps()
    with running(models, explain=steps) as server:
        body = {"text": "a cat sat " * 60, "model": "classify"}
        with pytest.raises(httpx.ReadTimeout):
            server.http.post("/why", json=body, timeout=httpx.Timeout(20, read=0.5))
        assert steps.begun.wait(20)
        wait_until(lambda: server.service.in_progress == 0)
        steps.go.set()
        assert steps.stopped.wait(20)
        assert steps.batches == 0, "no batch is computed for nobody"
        assert server.post("/why", body).status_code == 200
        assert steps.batches > 0


def test_why_uses_the_cores_that_are_free(models, monkeypatch):
    steps = Steps()
    steps.go.set()
    body = {"text": "a cat sat " * 60, "model": "classify"}
    with running(models, explain=steps) as server:
        workers = server.service.workers
        monkeypatch.setattr(workers, "_cores", 2)
        for busy, threads in ((0, 2), (1, 1)):
            monkeypatch.setattr(workers, "_busy", busy)
            steps.threads.clear()
            assert server.post("/why", body).status_code == 200
            assert set(steps.threads) == {threads}
        assert workers.free_threads(8) == 1, "few tokens are faster with one thread"
