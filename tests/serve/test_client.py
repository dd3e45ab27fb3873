"""bertkit's own clients against a real server, and against one that misbehaves."""

import asyncio
import json
import socket
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest
from serving import running

import bertkit
from bertkit import client as replies
from bertkit import embedding_requests
from bertkit.connection import back_off
from bertkit.errors import BertkitError, RequestError
from bertkit.model.pooling import EmbedSettings
from bertkit.serve.http.auth import Keys
from bertkit.serve.models import Models, share_encoders
from bertkit.serve.settings import ServeSettings

pytestmark = pytest.mark.filterwarnings("ignore::bertkit.errors.BertkitWarning")
TEXTS = ["a b c", "hello", ""]
NEAR = 1e-5


@pytest.fixture
def client(server):
    with bertkit.Client(server.url) as found:
        yield found


def test_embed_is_the_python_api(client, server):
    bert = server.berts["fill"]
    np.testing.assert_allclose(client.embed(TEXTS), bert.embed(TEXTS), atol=NEAR)
    np.testing.assert_allclose(client.embed("a b"), bert.embed("a b"), atol=NEAR)
    asked = {"pooling": "max", "layers": [0, -1], "normalize": True}
    np.testing.assert_allclose(client.embed(TEXTS, **asked), bert.embed(TEXTS, **asked), atol=NEAR)
    for own, wanted in zip(client.embed(TEXTS, pooling="none"), bert.embed(TEXTS, pooling="none"), strict=True):
        np.testing.assert_allclose(own, wanted, atol=NEAR)
    short = {"dimensions": 4, "prompt_name": "query"}
    np.testing.assert_allclose(client.embed(TEXTS, **short), bert.embed(TEXTS, **short), atol=NEAR)
    assert client.embed(TEXTS).dtype == np.float32
    assert client.embed("a").flags.writeable


def test_many_texts_go_in_several_requests(client, server, monkeypatch):
    monkeypatch.setattr(embedding_requests, "MAX_TEXTS", 3)
    texts = [f"{letter} b" for letter in "abcdefgh"]
    np.testing.assert_allclose(client.embed(texts), server.berts["fill"].embed(texts), atol=NEAR)
    monkeypatch.setattr(embedding_requests, "MAX_CHARACTERS", 7)
    np.testing.assert_allclose(client.embed(texts), server.berts["fill"].embed(texts), atol=NEAR)


@pytest.mark.parametrize("normalize", [None, True, False])
@pytest.mark.parametrize("pooling", [None, "none"])
def test_normalizing_is_the_python_apis(sentences, pooling, normalize):
    server, bert = sentences
    asked = {"pooling": pooling, "normalize": normalize}
    with bertkit.Client(server.url) as client:
        for own, wanted in zip(client.embed(TEXTS, **asked), bert.embed(TEXTS, **asked), strict=True):
            np.testing.assert_allclose(own, wanted, atol=NEAR)


@pytest.fixture(scope="module")
def sentences(folders):
    """A server of a model whose folder says to normalize, with little room for a reply; and the same model here."""
    berts = [bertkit.load(folders["fill"]) for _ in range(2)]
    for bert in berts:
        bert.checkpoint = replace(bert.checkpoint, embed=EmbedSettings(normalize=True))
    with running(Models(share_encoders({"sentences": berts[0]})), ServeSettings(max_numbers=200)) as server:
        yield server, berts[1]


def test_what_is_too_much_for_one_request_goes_in_halves(sentences):
    server, bert = sentences
    texts = [f"{letter} b" for letter in "abcdefghijklmnopqrstuvwxyz"]  # 416 numbers
    with bertkit.Client(server.url) as client:
        np.testing.assert_allclose(client.embed(texts), bert.embed(texts), atol=NEAR)
        with pytest.raises(RequestError, match="413: the reply would have 224 numbers"):
            client.embed(["a", "a b c d e f g h i j k l"], pooling="none")


def test_no_texts_have_a_width_too(client):
    assert client.embed([]).shape == (0, 16)
    assert client.embed([], layers=[0, 1]).shape == (0, 32)
    assert client.embed([], pooling="none") == []


@pytest.mark.parametrize("layers", [-2, [-2], np.array([-2]), np.int64(1)], ids=repr)
def test_layers_as_the_python_api_takes_them(client, server, layers):
    np.testing.assert_allclose(
        client.embed("a b", layers=layers), server.berts["fill"].embed("a b", layers=-2), atol=NEAR
    )


@pytest.mark.parametrize(
    ("texts", "said"),
    [(b"a", "not bytes"), (3, "not int"), (["a", b"b"], r"texts\[1\] is bytes"), ([3], r"\[0\] is int")],
)
def test_what_is_no_text_is_refused_here(client, texts, said):
    with pytest.raises(RequestError, match=said):
        client.embed(texts)


def test_what_json_cannot_say_is_refused_here(client):
    with pytest.raises(RequestError, match="cannot be written as JSON"):
        client.classify([b"a"])
    with pytest.raises(RequestError, match="layers='a' must be whole numbers"):
        client.embed("a", layers="a")


def test_heads(client, server):
    assert client.fill("a [MASK]", top=2)[0]["word"] == server.berts["fill"].fill("a [MASK]")[0].word
    assert client.classify("a")["label"] == server.berts["classify"].classify("a").label
    assert [each["label"] for each in client.classify(["a", "b"], ["c", "d"])] == [
        each.label for each in server.berts["classify"].classify(["a", "b"], ["c", "d"])
    ]
    assert client.tag("a b")["tags"] == list(server.berts["tag"].tag("a b").tags)
    assert client.answer("a", "x y")["text"] == server.berts["answer"].answer("a", "x y").text
    assert client.choose("a", ["x", "y"])["choice"] == server.berts["choose"].choose("a", ["x", "y"]).choice
    assert np.array(client.attention("a b", layer=1, head=2)["layers"][0]["weights"]).shape == (1, 4, 4)
    assert client.models()[0]["id"] == "fill"
    with bertkit.Client(server.url, model="tag") as named:
        assert named.embed("a").shape == (16,)
        with pytest.raises(RequestError, match="cannot classify"):
            named.classify("a")


def test_the_same_awaited(server):
    async def ask():
        async with bertkit.AsyncClient(server.url) as client:
            vectors = await asyncio.gather(*(client.embed(text) for text in TEXTS * 10))
            heads = await asyncio.gather(
                client.fill("[MASK]"),
                client.classify("a"),
                client.tag("a"),
                client.answer("a", "b"),
                client.choose("a", ["b", "c"]),
                client.attention("a", layer=1),
                client.models(),
                client.get("/info"),
                client.post("/tokenize", {"inputs": "a"}),
            )
            return vectors, heads

    vectors, heads = asyncio.run(ask())
    np.testing.assert_allclose(np.stack(vectors), server.berts["fill"].embed(TEXTS * 10), atol=NEAR)
    assert all(heads)


def test_what_is_no_json_comes_as_text(client):
    assert client.get("/health") == ""
    assert "bertkit_requests_total" in client.get("/metrics")


@pytest.mark.parametrize("port", ["99999", "abc", "-1"])
def test_ports_that_are_none(port):
    with pytest.raises(RequestError, match="write it as http"):
        bertkit.Client(f"http://127.0.0.1:{port}")
    with pytest.raises(RequestError, match="write it as http"):
        bertkit.Client("http://a..b")


def test_what_is_wrong_is_said(client, server):
    with pytest.raises(RequestError, match="422: the text has no blank"):
        client.fill("no blank")
    with pytest.raises(RequestError, match="404"):
        client.post("/nothing", {})
    with pytest.raises(RequestError, match="write it as http"):
        bertkit.Client("localhost:8000")
    with pytest.raises(BertkitError, match="gave no answer in 2 tries"):
        bertkit.Client("http://127.0.0.1:9", retries=1).embed("a")


def test_the_key(models, monkeypatch):
    with running(models, keys=Keys(["a-good-key"])) as server:
        assert bertkit.Client(server.url, key="a-good-key").embed("a").shape == (16,)
        with pytest.raises(RequestError, match="401: a key is needed"):
            bertkit.Client(server.url, key="a-bad-key").embed("a")
        monkeypatch.setenv("BERTKIT_API_KEY", "a-good-key")
        assert bertkit.Client(server.url).embed("a").shape == (16,)


def test_waiting_doubles_and_heeds_the_server():
    assert [back_off(n, None, 1.0) for n in range(4)] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert back_off(30, None, 1.0) == 8.0
    assert back_off(0, None, 0.0) == pytest.approx(0.05)
    assert back_off(0, "7", 1.0) == 7.0
    assert back_off(0, "99999", 1.0) == 60.0
    assert back_off(0, "tomorrow", 1.0) == pytest.approx(0.1)


class Moody(BaseHTTPRequestHandler):
    """Answers by a list of moods: a status, or "drop" to close the connection without a word."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.server.seen += 1
        mood = self.server.moods.pop(0) if self.server.moods else 200
        if mood == "drop":
            self.close_connection = True
            self.connection.close()
            return
        body = json.dumps({"results": ["fine"]} if mood == 200 else {"error": "not now"}).encode()
        self.send_response(mood)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def moody():
    with HTTPServer(("127.0.0.1", 0), Moody) as found:
        found.moods, found.seen = [], 0
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield found
        found.shutdown()


@pytest.mark.parametrize("moods", [[429, 503, 200], ["drop", "drop", 504, 200], [502, "drop", 408]])
def test_failures_that_pass_are_tried_again(moody, moods, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    moody.moods = list(moods)
    client = bertkit.Client(f"http://127.0.0.1:{moody.server_port}")
    assert client.tag("a") == "fine"
    client.close()


@pytest.mark.parametrize("status", [400, 401, 404, 413, 422, 500])
def test_failures_that_stay_are_not(moody, status):
    moody.moods = [status]
    client = bertkit.Client(f"http://127.0.0.1:{moody.server_port}")
    with pytest.raises(BertkitError, match=f"{status}: not now"):
        client.tag("a")
    client.close()
    assert moody.seen == 1


def test_a_server_that_hangs_up_while_it_is_sent_to_is_heard():
    """It has read the headers, says why it wants no more, and leaves the rest unread."""
    with socket.create_server(("127.0.0.1", 0)) as other:

        def refuse():
            connection, _ = other.accept()
            connection.recv(1000)
            connection.sendall(b'HTTP/1.1 413 Too Large\r\nContent-Length: 20\r\n\r\n{"error":"too much"}')
            connection.close()

        threading.Thread(target=refuse, daemon=True).start()
        client = bertkit.Client(f"http://127.0.0.1:{other.getsockname()[1]}", retries=0)
        with pytest.raises(RequestError, match="413"):
            client.tag("x" * (12 << 20))
        client.close()


def test_a_connection_that_is_never_made_is_tried_again(monkeypatch):
    def reset(*_, **__):
        raise ConnectionResetError(104, "Connection reset by peer")

    client = bertkit.Client("http://127.0.0.1:9", retries=0)
    monkeypatch.setattr("socket.create_connection", reset)
    with pytest.raises(BertkitError, match="gave no answer in 1 tries; the last said ConnectionResetError"):
        client.models()


def test_bert_client_has_the_old_signature(server):
    bert = server.berts["fill"]
    host, port = server.url.removeprefix("http://").split(":")
    with bertkit.BertClient(ip=host, port=int(port), port_out=5556, check_version=False) as client:
        np.testing.assert_allclose(client.encode(["a b", "c"]), bert.embed(["a b", "c"], layers=-2), atol=NEAR)
        vectors, tokens = client.encode([["a", "b"]], is_tokenized=True, show_tokens=True)
        np.testing.assert_allclose(vectors, bert.embed(["a b"], layers=-2), atol=NEAR)
        assert tokens == [["[CLS]", "a", "b", "[SEP]"]]
        vectors, tokens = client.encode(["a ||| b", "c"], show_tokens=True)
        assert tokens == [["[CLS]", "a", "[SEP]", "b", "[SEP]"], ["[CLS]", "c", "[SEP]"]]
        np.testing.assert_allclose(client.encode(np.array(["a ||| b", "c"])), vectors, atol=NEAR)
        pair = client.encode(["a b ||| c d"])
        np.testing.assert_allclose(pair[0], bert.trace("a b", "c d").layers[0].output.mean(dim=0), atol=NEAR)
        batches = list(client.encode_async((["a"] * n for n in range(1, 9)), max_num_batch=7))
        assert [len(batch) for batch in batches] == list(range(1, 8))
        for wrong in ([], "a", [""], [3], np.array([])):
            with pytest.raises(RequestError):
                client.encode(wrong)
        assert client.server_status["model_id"] == "fill"
    client = bertkit.BertClient(host, int(port), output_fmt="list", pooling_strategy="CLS_TOKEN", pooling_layer=[-1])
    np.testing.assert_allclose(client.encode(["a"]), bert.embed(["a"], pooling="cls"), atol=NEAR)
    assert isinstance(client.encode(["a"])[0], list)
    client.close()
    assert bertkit.BertClient(ip="::1").status["url"] == "http://[::1]:8000"
    with pytest.raises(RequestError, match="REDUCE_MEAN"):
        bertkit.BertClient(pooling_strategy="MEAN")


def test_replies_have_the_keys_of_their_types(client):
    known = {
        replies.FilledReply: client.fill("a [MASK]")[0],
        replies.TaggedReply: client.tag("a b"),
        replies.AnsweredReply: client.answer("a", "a b c", best=2),
        replies.CandidateReply: client.answer("a", "a b c")["candidates"][0],
        replies.ChosenReply: client.choose("a", ["b", "c"]),
        replies.RatedWordsReply: client.rate_words("a b"),
        replies.AttentionReply: client.attention("a b"),
        replies.LayerReply: client.attention("a b", layer=1)["layers"][0],
        replies.SeenReply: client.tag("a b")["seen"],
    }
    for kind, reply in known.items():
        assert set(reply) == set(kind.__annotations__), kind
    classified = set(replies.ClassifiedReply.__annotations__)
    for name in (None, "multilabel", "regress"):
        assert set(bertkit.Client(client.url, model=name).classify("a")) <= classified
    assert set(replies.ModelReply.__annotations__) <= set(client.models()[0])
