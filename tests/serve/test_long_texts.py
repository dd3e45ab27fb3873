"""A text that was too long is never cut in silence: headers, refusals and the names of texts on every route."""

import numpy as np
import pytest
from serving import running

from bertkit.serve.settings import ServeSettings

LONG = "a b c d e f g h i j k l m n o p q r s t u v w x y z " * 4
SIMILAR = {"inputs": {"source_sentence": "a", "sentences": ["b", LONG]}}
ASKED = [
    ("/rerank", {"query": "a", "texts": ["b", LONG]}, "texts[1]"),
    ("/rerank", {"query": LONG, "texts": ["b", "c"], "model": "fill"}, "query"),
    ("/rerank", {"query": "a", "texts": ["b", LONG], "model": "rank"}, "texts[1]"),
    ("/rerank", {"query": "a", "texts": ["b", LONG], "model": "regress"}, "texts[1]"),
    ("/similarity", SIMILAR, "inputs.sentences[1]"),
    ("/models/fill", SIMILAR, "inputs.sentences[1]"),
    ("/predict", {"inputs": [["b"], [LONG]]}, "inputs[1]"),
    ("/models/classify", {"inputs": ["b", LONG]}, "inputs[1]"),
    ("/classify", {"texts": ["b", LONG]}, "texts[1]"),
]


@pytest.fixture(scope="module")
def strict(models):
    with running(models, ServeSettings(too_long="refuse")) as found:
        yield found


@pytest.mark.parametrize(("path", "body", "name"), ASKED)
def test_what_was_cut_is_in_the_headers(server, path, body, name):
    reply = server.post(path, body)
    assert reply.status_code == 200, reply.text
    assert reply.headers["bertkit-long-texts"] == "1"
    assert reply.headers["bertkit-length-note"].startswith("1 text was cut to 32 tokens; the longest, " + name)


@pytest.mark.parametrize(("path", "body", "name"), ASKED[:-1])
def test_a_server_that_refuses_long_texts(strict, path, body, name):
    reply = strict.post(path, body)
    assert reply.status_code == 413
    assert reply.json()["error"].startswith(name + " has 10")
    assert reply.json()["field"] == name.partition("[")[0] or name == "query"
    if path in ("/rerank", "/predict"):
        assert strict.post(path, {**body, "truncate": True}).status_code == 200


def test_a_request_that_will_not_have_its_texts_cut(server):
    for path, body, _ in ASKED:
        if path in ("/rerank", "/predict"):
            assert server.post(path, {**body, "truncate": False}).status_code == 413


def test_blanks_of_long_texts(server, strict):
    text = LONG + "[MASK]"
    for path, body, name in (
        ("/fill", {"text": ["[MASK]", text]}, "text"),
        ("/models/fill", {"inputs": [text]}, "inputs"),
    ):
        assert "read through windows of 32" in server.post(path, body).headers["bertkit-length-note"]
        reply = strict.post(path, body)
        assert reply.status_code == 413
        assert reply.json()["field"] == name
        assert f"{name}[{len(next(iter(body.values()))) - 1}] has 107 tokens" in reply.json()["error"]
    assert strict.post("/fill", {"text": text, "too_long": "window"}).status_code == 200


def test_of_a_long_pair_is_told_what_was_done(server):
    pair = f"{LONG} ||| b"
    asked = {"pairs": True, "too_long": "window"}
    reply = server.post("/embed", {"inputs": [pair], **asked})
    assert "1 text was cut to 32" in reply.headers["bertkit-length-note"]
    np.testing.assert_allclose(reply.json(), server.post("/embed", {"inputs": [pair], "pairs": True}).json(), atol=1e-5)
    assert "windows" in server.post("/embed", {"inputs": [LONG], **asked}).headers["bertkit-length-note"]
    reply = server.post("/embed", {"inputs": [LONG, pair], **asked})
    assert "1 text was cut to 32 tokens; the longest, inputs[1]" in reply.headers["bertkit-length-note"]


def test_as_many_texts_as_are_allowed_are_ranked(models):
    with running(models, ServeSettings(max_texts=4)) as small:
        for path, asked in (
            ("/rerank", lambda texts: {"query": "a", "texts": texts}),
            ("/similarity", lambda texts: {"inputs": {"source_sentence": "a", "sentences": texts}}),
        ):
            assert len(small.post(path, asked(["b"] * 4)).json()) == 4
            reply = small.post(path, asked(["b"] * 5))
            assert reply.status_code == 413
            assert "has 5 texts; at most 4" in reply.json()["error"]


def test_a_wrong_token_is_told_by_the_name_of_its_field(server):
    reply = server.post("/embed", {"inputs": [[5], [10**6]]})
    assert reply.json()["field"] == "inputs"
    assert reply.json()["error"].startswith("inputs[1]: token 0 is 1000000")


@pytest.mark.parametrize("labels", [5, "per", [5], {"per": 1}])
def test_labels_to_ignore_are_a_list(server, labels):
    reply = server.post("/models/tag", {"inputs": "a b", "parameters": {"ignore_labels": labels}})
    assert reply.status_code == 422
    assert reply.json()["error"] == "parameters.ignore_labels must be a list of texts"


def test_labels_that_are_ignored(server):
    found = server.post("/models/tag", {"inputs": "a b c d e f g"}).json()
    some = {span["entity_group"] for span in found}
    body = {"inputs": "a b c d e f g", "parameters": {"ignore_labels": [*some]}}
    assert server.post("/models/tag", body).json() == []


def test_sentences_of_hugging_faces_routes_are_plain(server):
    reply = server.post("/models/fill/pipeline/feature-extraction", {"inputs": 3})
    assert reply.status_code == 422
    assert reply.json()["error"].startswith("inputs: give a text")
