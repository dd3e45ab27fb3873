"""Cohere's own client, unchanged, asks a server with a small cross-encoder."""

import subprocess
import sys
import time
import urllib.error
import urllib.request

import cohere
import pytest

import bertkit
from bertkit.checkpoint.save_load import Checkpoint, save_checkpoint
from bertkit.config import family_config
from bertkit.model.model import new_model
from bertkit.text.tokenizer import Tokenizer

WORDS = ["the", "film", "was", "good", "bad", "where", "is", "ada", "in", "rome"]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
QUERY, DOCUMENTS = "where is ada", ["the film was good", "ada is in rome", "bad"]
PORT = 8797


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    config = family_config("bert", "tiny", vocab_size=len(PIECES), depth=2, width=16, heads=2, inner=32, init_std=0.3)
    fields = {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}
    made = Checkpoint(
        model=new_model(config, {"classify": 1}, seed=1).eval(),
        tokenizer=Tokenizer.from_vocab(PIECES),
        labels=("LABEL_0",),
        settings=fields,
    )
    path = tmp_path_factory.mktemp("cohere") / "reranker"
    save_checkpoint(made, path)
    return path


@pytest.fixture(scope="module")
def url(folder):
    command = [sys.executable, "-m", "bertkit", "serve", str(folder), "--port", str(PORT)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url, deadline = f"http://127.0.0.1:{PORT}", time.monotonic() + 90
    while True:
        try:
            urllib.request.urlopen(f"{url}/ready").close()
            break
        except urllib.error.URLError:
            assert server.poll() is None, "the server stopped"
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.2)
    yield url
    server.terminate()
    server.wait(30)


@pytest.fixture(scope="module")
def expected(folder):
    return [
        (ranked.index, pytest.approx(ranked.score, abs=1e-5)) for ranked in bertkit.load(folder).rank(QUERY, DOCUMENTS)
    ]


def test_the_second_version(url, expected):
    client = cohere.ClientV2(api_key="unused", base_url=url)
    reply = client.rerank(model="reranker", query=QUERY, documents=DOCUMENTS)
    assert [(row.index, row.relevance_score) for row in reply.results] == expected
    assert reply.meta.api_version.version == "2"
    assert reply.id
    best = client.rerank(model="reranker", query=QUERY, documents=DOCUMENTS, top_n=1, max_tokens_per_doc=64)
    assert [(row.index, row.relevance_score) for row in best.results] == expected[:1]


def test_the_first_version(url, expected):
    client = cohere.Client(api_key="unused", base_url=url)
    documents = [{"text": text} for text in DOCUMENTS]
    reply = client.rerank(model="reranker", query=QUERY, documents=documents, top_n=2, return_documents=True)
    assert [(row.index, row.relevance_score) for row in reply.results] == expected[:2]
    assert reply.results[0].document.text == DOCUMENTS[expected[0][0]]
    plain = client.rerank(model="reranker", query=QUERY, documents=DOCUMENTS, return_documents=False)
    assert all(row.document is None for row in plain.results)


def test_a_model_that_is_not_here_is_named_in_the_error(url):
    client = cohere.ClientV2(api_key="unused", base_url=url)
    with pytest.raises(cohere.NotFoundError, match="no model .* here; choose from: reranker"):
        client.rerank(model="rerank-v3.5", query=QUERY, documents=DOCUMENTS)


def test_a_request_without_documents_is_refused(url):
    client = cohere.ClientV2(api_key="unused", base_url=url)
    with pytest.raises(cohere.UnprocessableEntityError, match="at least one"):
        client.rerank(model="reranker", query=QUERY, documents=[])
