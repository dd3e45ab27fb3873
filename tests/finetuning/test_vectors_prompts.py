"""Named prompts of a folder: as sentence-transformers reads them, in Python, files, HTTP, search and training."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from fastapi.testclient import TestClient

import bertkit
from bertkit.checkpoint.save_load import load_checkpoint, save_checkpoint
from bertkit.cli.main import run
from bertkit.errors import RequestError
from bertkit.finetuning.embeddings.data import read_texts
from bertkit.finetuning.embeddings.settings import read_vector_request
from bertkit.finetuning.embeddings.tuning import encoded_data, tune_vectors
from bertkit.model.pooling import EmbedSettings
from bertkit.serve.app import create_app
from bertkit.serve.models import load_models

pytestmark = pytest.mark.usefixtures("_one_thread")
TEXTS = ["the film was very good", "a dull film", "it is"]
PROMPTS = (("query", "good "), ("document", "dull film "), ("topic", "it is "))


def folder_with(path: Path, **embed: object) -> Path:
    start = load_checkpoint(tiny.tiny_folder(path / "plain"))
    save_checkpoint(replace(start, embed=EmbedSettings(normalize=True, **embed)), path / "model")
    return path / "model"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return folder_with(tmp_path_factory.mktemp("prompts"), prompts=PROMPTS)


def test_vectors_are_those_of_sentence_transformers(model, tmp_path):
    from sentence_transformers import SentenceTransformer

    theirs, ours = SentenceTransformer(str(model), device="cpu"), bertkit.load(model)
    for name, text in PROMPTS:
        expected = theirs.encode(TEXTS, prompt_name=name)
        np.testing.assert_allclose(ours.embed(TEXTS, prompt_name=name), expected, atol=1e-5)
        np.testing.assert_allclose(ours.embed([text + each for each in TEXTS]), expected, atol=1e-5)
    np.testing.assert_allclose(ours.embed(TEXTS), theirs.encode(TEXTS), atol=1e-5)
    assert np.abs(ours.embed(TEXTS) - ours.embed(TEXTS, prompt_name="query")).max() > 1e-3
    queries, documents = theirs.encode_query(TEXTS[:2]), theirs.encode_document(TEXTS)
    expected = [[(found["corpus_id"], found["score"]) for found in row] for row in theirs_search(queries, documents)]
    for row, found in zip(expected, ours.search(TEXTS[:2], TEXTS), strict=True):
        assert [each.index for each in found] == [index for index, _ in row]
        assert [each.score for each in found] == pytest.approx([score for _, score in row], abs=1e-5)
    hits = bertkit.build_index(TEXTS, tmp_path / "index", kinds=["dense"], model=model, vectors="float32").search(
        TEXTS[0]
    )
    assert [hit.score for hit in hits] == pytest.approx([score for _, score in expected[0]], abs=1e-5)
    theirs.default_prompt_name = "topic"
    theirs.save(str(tmp_path / "theirs"))
    again = bertkit.load(tmp_path / "theirs")
    assert dict(again.checkpoint.embed.prompts) == dict(PROMPTS)
    np.testing.assert_allclose(again.embed(TEXTS), theirs.encode(TEXTS), atol=1e-5)
    again.save(tmp_path / "ours")
    saved = SentenceTransformer(str(tmp_path / "ours"), device="cpu")
    assert (saved.prompts, saved.default_prompt_name) == (dict(PROMPTS), "topic")
    assert load_checkpoint(tmp_path / "ours").embed == again.checkpoint.embed


def theirs_search(queries: np.ndarray, documents: np.ndarray) -> list:
    from sentence_transformers.util import semantic_search

    return semantic_search(queries, documents)


def test_sides_of_a_search():
    settings = EmbedSettings(prefix="all: ", prompts=(("query", "q: "), ("passage", "p: ")))
    assert (settings.side(("query",)).prefix, settings.side(("document", "passage")).prefix) == ("q: ", "p: ")
    only = EmbedSettings(prefix="all: ", prompts=(("query", "q: "),))
    assert only.side(("document", "passage")).prefix == "", "as encode_document: the default prompt may be the query's"
    neither = EmbedSettings(prefix="all: ", prompts=(("topic", "t: "),))
    assert neither.side(("query",)).prefix == "all: "
    assert neither.prompted("query").prefix == ""
    assert EmbedSettings.read(only.as_json()) == only
    assert EmbedSettings.read({"pooling": "mean", "layers": [-1], "normalize": True, "prefix": ""}).prompts == ()


def test_files_and_servers_take_prompts(model, tmp_path, capsys):
    bert = bertkit.load(model)
    expected = bert.embed(TEXTS, prompt_name="query")
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    words = ["embed", tmp_path / "texts.txt", "--model", model, "--out", tmp_path / "v.npy", "--prompt-name"]
    assert run([str(word) for word in (*words, "query")]) == 0
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), expected, atol=1e-6)
    words[5] = tmp_path / "w.npy"
    assert run([str(word) for word in (*words, "qeury")]) == 2
    said = capsys.readouterr().err
    assert "unknown prompt name 'qeury'; choose from: document, query, topic; did you mean 'query'?" in said
    with TestClient(create_app(load_models([str(model)], torch.device("cpu")))) as server:
        rows = server.post("/embed", json={"inputs": TEXTS, "prompt_name": "query"}).json()
        np.testing.assert_allclose(rows, expected, atol=1e-5)
        data = server.post("/v1/embeddings", json={"input": TEXTS, "prompt_name": "query"}).json()["data"]
        np.testing.assert_allclose([row["embedding"] for row in data], expected, atol=1e-5)
        refused = server.post("/embed", json={"inputs": TEXTS, "prompt_name": "none"})
        assert refused.status_code == 422
        assert "choose from: document, query, topic" in refused.text
        ranked = server.post("/rerank", json={"query": TEXTS[0], "texts": TEXTS}).json()
        found = bert.search(TEXTS[0], TEXTS)
        assert [row["index"] for row in ranked] == [each.index for each in found]
        assert [row["score"] for row in ranked] == pytest.approx([each.score for each in found], abs=1e-5)


def test_unknown_prompts_are_refused(model, tmp_path):
    with pytest.raises(RequestError, match="unknown prompt name 'title'; choose from: document, query, topic"):
        bertkit.load(model).embed(TEXTS, prompt_name="title")
    plain = bertkit.load(tiny.tiny_folder(tmp_path / "plain"))
    np.testing.assert_array_equal(plain.embed(TEXTS, prompt_name="query"), plain.embed(TEXTS))
    with pytest.raises(RequestError, match="unknown prompt name 'topic'; choose from: document, query"):
        plain.embed(TEXTS, prompt_name="topic")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"prompts": ["query"]}, "prompts must be texts by name"),
        ({"prompts": {"query": 3}}, "prompts must be texts by name"),
        (
            {"prompts": {"query": "q"}, "default_prompt_name": "topic"},
            "default_prompt_name is 'topic', but prompts has",
        ),
    ],
)
def test_damaged_prompts_are_refused(tmp_path, content, sentence):
    model = folder_with(tmp_path, prompts=PROMPTS)
    (model / "config_sentence_transformers.json").write_text(json.dumps(content))
    with pytest.raises(RequestError, match=sentence):
        load_checkpoint(model)


def test_training_reads_texts_after_their_prompts(model, tmp_path):
    pairs = tmp_path / "pairs.jsonl"
    rows = [("good film", "it is good", "it is dull"), ("dull film", "it is dull", "good film")] * 8
    pairs.write_text("".join(json.dumps({"query": q, "positive": p, "negative": n}) + "\n" for q, p, n in rows))
    start, found = load_checkpoint(model), read_texts([pairs])
    data = encoded_data(start, found, None, "pairs", 64)
    texts = found.rows[:2].T.reshape(-1)
    read = [start.tokenizer.decode(span) for span in spans(data, data.places(texts, 2))]
    assert read == ["good good film", "good dull film"] + [
        f"dull film {text}" for text in ("it is good", "it is dull", "it is dull", "good film")
    ], "a text may be a query in one row and a document in another"
    settings = read_vector_request("batch=8", "tokens=64", "epochs=2")[0]
    tune_vectors(settings, model, pairs, None, tmp_path / "run")
    assert load_checkpoint(tmp_path / "run").embed.prompts == PROMPTS
    alike = encoded_data(start, read_texts([pairs], kind="pairs"), None, "pairs", 64)
    assert len(alike.encoded.lengths) == 2 * len(found.texts)
    plain = encoded_data(load_checkpoint(tiny.tiny_folder(tmp_path / "plain")), found, None, "pairs", 64)
    assert (plain.shift, len(plain.encoded.lengths)) == (0, len(found.texts))


def spans(data, places) -> list[list[int]]:
    starts = data.encoded.starts
    return [data.encoded.ids[starts[place] : starts[place + 1]].tolist() for place in places]
