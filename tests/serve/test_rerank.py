"""Reranking as text-embeddings-inference, Jina and Cohere ask for it, by a cross-encoder and by vectors."""

import math

import numpy as np
import pytest
import torch
from serving import running

import bertkit
from bertkit.serve.models import load_models
from bertkit.serve.settings import ServeSettings

QUERY, TEXTS = "a b", ["c d e", "a b c", "x y z", "b"]
LONG = "a b c d e f g h i j k l m n o p q r s t u v w x y z " * 4
OBJECTS = [{"text": text} for text in TEXTS]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A cross-encoder and a model for vectors, over the letters of `taught`."""
    import taught
    from serving import fill_folder

    from bertkit.checkpoint.save_load import Checkpoint, load_checkpoint, save_checkpoint
    from bertkit.finetuning.learner import with_config
    from bertkit.tasks.rank import Rank

    base = tmp_path_factory.mktemp("rerank")
    plain = load_checkpoint(fill_folder(base / "plain", head="next_sentence"))
    model = with_config(plain.model, plain.model.config, {"classify": 1}, seed=2).eval()
    torch.nn.init.normal_(model.heads["classify"].out.weight, generator=torch.Generator().manual_seed(1))
    assert taught.PIECES
    fields = Rank(tokenizer=plain.tokenizer, limit=32, activation="identity").config_fields
    made = Checkpoint(model=model, tokenizer=plain.tokenizer, labels=("LABEL_0",), max_length=32, settings=fields)
    save_checkpoint(made, base / "ranker")
    return base


@pytest.fixture(scope="module")
def server(folders):
    models = load_models([f"plain={folders / 'plain'}", f"ranker={folders / 'ranker'}"], torch.device("cpu"))
    with running(models, ServeSettings(max_texts=8)) as server:
        yield server


@pytest.fixture(scope="module")
def expected(folders):
    ranked = bertkit.load(folders / "ranker").rank(QUERY, TEXTS)
    return [(each.index, each.score) for each in ranked]


def probabilities(expected):
    return [(index, pytest.approx(1 / (1 + math.exp(-score)), abs=1e-5)) for index, score in expected]


def test_rank_itself_and_tei(server, expected):
    found = bertkit.Client(server.url).rank(QUERY, TEXTS, top=2)
    assert [(row["index"], row["score"]) for row in found] == [(n, pytest.approx(s, abs=1e-5)) for n, s in expected[:2]]
    rows = server.post("/rerank", {"query": QUERY, "texts": TEXTS, "return_text": True}).json()
    assert [(row["index"], row["score"]) for row in rows] == probabilities(expected), "the model that ranks is first"
    assert rows[0]["text"] == TEXTS[rows[0]["index"]]
    rows = server.post("/rerank", {"query": QUERY, "texts": TEXTS, "raw_scores": True}).json()
    assert [row["score"] for row in rows] == pytest.approx([score for _, score in expected], abs=1e-5)
    assert "ranker" not in server.http.get("/info").json()["model_id"]


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
@pytest.mark.parametrize("documents", [TEXTS, OBJECTS])
def test_jina_and_cohere(server, expected, path, documents):
    reply = server.post(path, {"query": QUERY, "documents": documents, "model": "ranker", "max_chunks_per_doc": 1})
    assert reply.status_code == 200, reply.text
    content = reply.json()
    assert [(row["index"], row["relevance_score"]) for row in content["results"]] == probabilities(expected)
    assert content["model"] == "ranker"
    assert content["id"]
    assert content["usage"]["total_tokens"] > len(TEXTS)
    assert content["meta"]["api_version"] == {"version": path[2]}
    assert ("document" in content["results"][0]) == (path == "/v1/rerank")
    asked = {"query": QUERY, "documents": documents, "top_n": 1, "return_documents": path == "/v2/rerank"}
    [row] = server.post(path, asked).json()["results"]
    assert row.get("document") == ({"text": TEXTS[expected[0][0]]} if path == "/v2/rerank" else None)


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
def test_a_model_for_vectors_gives_cosines(server, folders, path):
    rows = server.post(path, {"query": QUERY, "documents": TEXTS, "model": "plain"}).json()["results"]
    query, *texts = bertkit.load(folders / "plain").embed([QUERY, *TEXTS], normalize=True)
    cosines = [float(query @ text) for text in texts]
    assert [row["index"] for row in rows] == sorted(range(4), key=lambda n: -cosines[n])
    assert [row["relevance_score"] for row in rows] == pytest.approx(sorted(cosines, reverse=True), abs=1e-5)


WRONG = {
    "documents": ({"documents": []}, 422, "at least one"),
    "an object without a text": ({"documents": [{"title": "a"}]}, 422, "item 0 is an object without a text"),
    "a number": ({"documents": ["a", 7]}, 422, "item 1 is a number"),
    "top_n": ({"documents": ["a"], "top_n": 0}, 422, "top_n"),
    "too many": ({"documents": ["a"] * 9}, 413, "documents has 9 texts"),
    "no model": ({"documents": ["a"], "model": "other"}, 404, "no model 'other' here; choose from: plain, ranker"),
}


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_requests_are_one_sentence(server, path, wrong):
    body, status, message = WRONG[wrong]
    reply = server.post(path, {"query": QUERY, **body})
    assert reply.status_code == status
    assert message in reply.text


def test_long_texts_are_told_or_refused(server):
    body = {"query": QUERY, "documents": ["a", LONG]}
    reply = server.post("/v1/rerank", body)
    assert reply.headers["bertkit-long-texts"] == "1"
    assert reply.json()["long_texts"]["texts"] == [{"index": 1, "tokens": 106}]
    refused = server.post("/rerank", {"query": QUERY, "texts": ["a", LONG], "truncate": False})
    assert refused.status_code == 413
    assert "texts[1] has 106 tokens" in refused.text


def test_the_page_and_openapi_know_them(server):
    paths = server.http.get("/openapi.json").json()["paths"]
    for path in ("/rank", "/rerank", "/v1/rerank", "/v2/rerank"):
        example = paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert example, path
    assert np.all([path in paths for path in ("/v1/rerank", "/v2/rerank")])
