"""Vectors over HTTP are the Python API's, whatever batch they fell into."""

import base64
import concurrent.futures
import itertools
import random

import numpy as np
import pytest
from serving import running, same

import bertkit
from bertkit.poolings import TEXT_POOLINGS
from bertkit.serve.engine import ReadPooled, ReadTokens, SharedEncoder, TokenSequence
from bertkit.serve.settings import ServeSettings

pytestmark = pytest.mark.filterwarnings("ignore::bertkit.errors.BertkitWarning")
TEXTS = ["a b c", "hello", "", "x " * 20, "ünïcödé 漢字 🙂", "a\u0000b\u200bc"]
LONG = "a b c d e f g h i j k l m n o p q r s t u v w x y z " * 4
NEAR = 1e-5


def vectors(reply) -> np.ndarray:
    assert reply.status_code == 200, reply.text
    return np.array([row["embedding"] for row in reply.json()["data"]], dtype=np.float32)


@pytest.mark.parametrize("pooling", [None, *TEXT_POOLINGS])
@pytest.mark.parametrize("layers", [None, [-1], [-2], [0, -1], [2, 1]])
@pytest.mark.parametrize("normalize", [None, True])
def test_every_pooling_and_layer(server, pooling, layers, normalize):
    asked = {"pooling": pooling, "layers": layers, "normalize": normalize}
    reply = server.post("/v1/embeddings", {"input": TEXTS, "model": "fill", **asked})
    expected = server.berts["fill"].embed(TEXTS, **asked)
    np.testing.assert_allclose(vectors(reply), expected, atol=NEAR)


def test_one_text_base64_and_usage(server):
    body = {"input": "a b", "model": "fill", "encoding_format": "base64"}
    reply = server.post("/v1/embeddings", body).json()
    row = np.frombuffer(base64.b64decode(reply["data"][0]["embedding"]), dtype="<f4")
    np.testing.assert_allclose(row, server.berts["fill"].embed("a b"), atol=NEAR)
    assert reply["usage"] == {"prompt_tokens": 4, "total_tokens": 4}
    assert reply["model"] == "fill"
    assert "long_texts" not in reply


def test_token_ids_are_the_same_as_their_text(server):
    tokenizer = server.berts["fill"].tokenizer
    inner = list(tokenizer.encode("a b c").ids[1:-1])
    whole = list(tokenizer.encode("a b c").ids)
    expected = server.berts["fill"].embed(["a b c"])
    for given in (inner, whole, [inner]):
        np.testing.assert_allclose(vectors(server.post("/v1/embeddings", {"input": given})), expected, atol=NEAR)
    reply = server.post("/v1/embeddings", {"input": [10**6]})
    assert reply.status_code == 422
    assert "ids up to" in reply.json()["error"]["message"]


def test_dimensions_are_the_first_numbers_scaled_again(server):
    whole = server.berts["fill"].embed(["a b c"])[0]
    short = vectors(server.post("/v1/embeddings", {"input": "a b c", "dimensions": 5}))[0]
    np.testing.assert_allclose(short, whole[:5] / np.linalg.norm(whole[:5]), atol=NEAR)
    assert server.post("/v1/embeddings", {"input": "a", "dimensions": 17}).status_code == 422


def test_token_ids_are_cut_before_they_are_looked_at(server):
    """The rest of a long text has no effect on its vector, and is not checked either."""
    tokenizer = server.berts["fill"].tokenizer
    text = "a b c d " * 20
    whole = list(tokenizer.encode(text).ids)
    inner = whole[1:-1]
    [expected] = server.post("/embed", {"inputs": text}).json()
    for ids in (inner, whole, [*inner[:30], *[10**9] * 20], [*inner[:30], "a"]):
        reply = server.post("/embed", {"inputs": [ids]})
        same(reply.json(), [expected])
        assert reply.headers["bertkit-long-texts"] == "1"
    told = server.post("/v1/embeddings", {"input": [inner]}).json()
    assert told["long_texts"]["texts"] == [{"index": 0, "tokens": len(whole)}]
    for policy, status in (("refuse", 413), ("window", 422)):
        assert server.post("/embed", {"inputs": [[*inner, 10**9]], "too_long": policy}).status_code == status
    for wrong in ("a", 1.5, True, None, [1]):
        reply = server.post("/embed", {"inputs": [5, wrong]})
        assert (reply.status_code, reply.json()["field"]) == (422, "inputs")
        assert "inputs[0]: token 1 is no whole number" in reply.json()["error"]


def test_embed_normalizes_and_embed_all_gives_every_token(server):
    bert = server.berts["fill"]
    reply = server.post("/embed", {"inputs": TEXTS})
    np.testing.assert_allclose(reply.json(), bert.embed(TEXTS, normalize=True), atol=NEAR)
    reply = server.post("/embed", {"inputs": TEXTS, "normalize": False})
    np.testing.assert_allclose(reply.json(), bert.embed(TEXTS), atol=NEAR)
    rows = server.post("/embed_all", {"inputs": TEXTS}).json()
    for own, expected in zip(rows, bert.embed(TEXTS, pooling="none"), strict=True):
        np.testing.assert_allclose(own, expected, atol=NEAR)


@pytest.mark.parametrize("pooling", ["mean", "max", "cls", "none"])
@pytest.mark.parametrize("too_long", ["truncate", "window"])
def test_long_texts_by_policy_and_reported(server, pooling, too_long):
    texts = ["a", LONG]
    path, field = ("/embed_all", "inputs") if pooling == "none" else ("/v1/embeddings", "input")
    reply = server.post(path, {field: texts, "pooling": pooling, "too_long": too_long})
    assert reply.headers["bertkit-long-texts"] == "1"
    assert f"{field}[1], has 106" in reply.headers["bertkit-length-note"]
    expected = server.berts["fill"].embed(texts, pooling=pooling, too_long=too_long)
    if pooling == "none":
        for own, wanted in zip(reply.json(), expected, strict=True):
            np.testing.assert_allclose(own, wanted, atol=NEAR)
    else:
        np.testing.assert_allclose(vectors(reply), expected, atol=NEAR)
        [note] = reply.json()["long_texts"]["texts"]
        assert note == {"index": 1, "tokens": 106}


def test_long_texts_are_refused_where_asked(server):
    for body in ({"inputs": ["a", LONG], "truncate": False}, {"inputs": ["a", LONG], "too_long": "refuse"}):
        reply = server.post("/embed", body)
        assert reply.status_code == 413
        assert "inputs[1] has 106 tokens, over the limit of 32" in reply.json()["error"]


def test_what_windows_would_keep_is_counted(models):
    """Pooled, the reply is a single vector; until then every token of every layer is there."""
    with running(models, ServeSettings(max_held=3 * 16 * 106)) as server:
        assert server.post("/embed", {"inputs": LONG, "too_long": "window"}).status_code == 200
        assert server.post("/embed", {"inputs": [LONG] * 9, "layers": [0, 1, 2]}).status_code == 200
        reply = server.post("/embed", {"inputs": LONG, "too_long": "window", "layers": [0, 1, 2]})
        assert reply.status_code == 413
        assert "long texts through windows would keep" in reply.json()["error"]


def test_more_layers_than_the_model_has_are_refused(server):
    expected = server.berts["fill"].embed(["a"], layers=[2, -1], normalize=True)
    found = server.post("/embed", {"inputs": ["a"], "layers": [2, -1], "model": "fill"}).json()
    np.testing.assert_allclose(found, expected, atol=1e-5)
    reply = server.post("/embed", {"inputs": "a", "layers": [1] * 4, "model": "fill"})
    assert reply.status_code == 422
    assert "4 layers are more than the model's 3" in reply.json()["error"]


def test_pairs_are_read_together(server):
    bert = server.berts["fill"]
    together = vectors(server.post("/v1/embeddings", {"input": ["a b ||| c d", "a"], "pairs": True}))
    trace = bert.trace("a b", "c d")
    np.testing.assert_allclose(together[0], trace.output.mean(dim=0), atol=NEAR)
    np.testing.assert_allclose(together[1], bert.embed("a"), atol=NEAR)
    apart = vectors(server.post("/v1/embeddings", {"input": ["a b ||| c d"]}))
    assert abs(apart - together[:1]).max() > 1e-3
    long_pair = server.post("/v1/embeddings", {"input": [f"{LONG} ||| {LONG}"], "pairs": True})
    assert long_pair.headers["bertkit-long-texts"] == "1"


def test_models_that_share_an_encoder_share_its_pass(server, models):
    taught = [models.by_name[name] for name in ("classify", "tag", "answer", "choose", "regress", "multilabel")]
    assert len({each.shared_encoder for each in taught}) == 1
    assert len({id(each.bert.model.encoder) for each in taught}) == 1
    assert models.by_name["fill"].shared_encoder is not taught[0].shared_encoder
    assert len(models.shared_encoders) == 3, "and that of a model with a decoder"


def test_a_vector_does_not_depend_on_its_batch(server):
    """Many clients at once, all poolings and heads mixed; each reply is the one for its own text."""
    draw = random.Random(0)
    asked = []
    for number in range(150):
        text = " ".join(draw.choices("abcdefghijklmnop", k=draw.randint(1, 25)))
        pooling = draw.choice(["mean", "max", "cls", "mean-max", "last"])
        asked.append((text, pooling, draw.choice([[-1], [-2], [1, -1], [0]]), number % 5 == 0))

    def ask(each):
        text, pooling, layers, classify = each
        if classify:
            return server.post("/classify", {"texts": text}).json()["results"][0]["probabilities"]
        body = {"input": text, "pooling": pooling, "layers": layers}
        return vectors(server.post("/v1/embeddings", body))[0]

    with concurrent.futures.ThreadPoolExecutor(16) as threads:
        found = list(threads.map(ask, asked))
    for (text, pooling, layers, classify), got in zip(asked, found, strict=True):
        if classify:
            assert got == pytest.approx(server.berts["classify"].classify(text).probabilities, abs=NEAR)
        else:
            np.testing.assert_allclose(got, server.berts["fill"].embed(text, pooling=pooling, layers=layers), atol=NEAR)


def test_minilm_in_any_batch(minilm_server):
    texts = ["A cat sat on the mat.", "Interest rates rose again.", "word " * 300, "¿Qué?"]
    expected = minilm_server.berts["minilm"].embed(texts)
    for size in range(1, len(texts) + 1):
        for chosen in itertools.islice(itertools.combinations(range(len(texts)), size), 3):
            reply = minilm_server.post("/v1/embeddings", {"input": [texts[i] for i in chosen]})
            np.testing.assert_allclose(vectors(reply), expected[list(chosen)], atol=NEAR)


def test_the_pass_and_its_slow_twin(berts):
    """One batch with every reader in it equals each piece computed alone."""
    bert = berts["fill"]
    shared = SharedEncoder(bert.model.encoder)
    readers = [ReadPooled((2,), "mean", True), ReadPooled((0, 2), "max", False), ReadTokens((1,)), ReadTokens((2, 0))]
    encodings = [bert.tokenizer.encode(text) for text in TEXTS]
    pieces = [TokenSequence(encoding, read) for encoding in encodings for read in readers]
    random.Random(1).shuffle(pieces)
    for together, alone in zip(shared.compute(pieces), (shared.compute([piece])[0] for piece in pieces), strict=True):
        np.testing.assert_allclose(together, alone, atol=1e-6)


def test_several_workers_give_the_same(models, berts):
    with running(models, ServeSettings(workers=3, max_tokens=64), berts=berts) as server:
        texts = [" ".join("abcdefghij"[: n % 10 + 1]) for n in range(60)]
        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            parts = list(
                threads.map(lambda n: vectors(server.post("/v1/embeddings", {"input": texts[n:]})), range(0, 60, 5))
            )
        expected = berts["fill"].embed(texts)
        for start, found in zip(range(0, 60, 5), parts, strict=True):
            np.testing.assert_allclose(found, expected[start:], atol=NEAR)


def test_similarity_and_rank(server, minilm_server):
    bert = minilm_server.berts["minilm"]
    texts = ["Interest rates rose.", "A dog lay on the rug.", "My kitten sleeps."]
    expected = bert.similarity(["pets"], texts)[0]
    body = {"inputs": {"source_sentence": "pets", "sentences": texts}}
    assert minilm_server.post("/similarity", body).json() == pytest.approx(expected.tolist(), abs=NEAR)
    rows = minilm_server.post("/rerank", {"query": "pets", "texts": texts, "return_text": True}).json()
    assert [row["index"] for row in rows] == np.argsort(-expected).tolist()
    assert [row["text"] for row in rows] == [texts[row["index"]] for row in rows]
    taught = server.berts["regress"].classify(["pets"] * 3, texts)
    rows = server.post("/rerank", {"query": "pets", "texts": texts, "model": "regress", "raw_scores": True}).json()
    assert {row["index"]: row["score"] for row in rows} == pytest.approx(
        {number: rated.value for number, rated in enumerate(taught)}, abs=NEAR
    )


def test_tokens_there_and_back(server):
    tokenizer = server.berts["fill"].tokenizer
    [rows] = server.post("/tokenize", {"inputs": "hello b"}).json()
    encoding = tokenizer.encode("hello b")
    assert [row["id"] for row in rows] == list(encoding.ids)
    assert [row["special"] for row in rows] == list(encoding.special)
    assert rows[0]["start"] is None
    assert (rows[1]["start"], rows[1]["stop"]) == encoding.offsets[1]
    [plain] = server.post("/tokenize", {"inputs": ["hello b"], "add_special_tokens": False}).json()
    assert plain == [row for row in rows if not row["special"]]
    assert server.post("/decode", {"ids": [row["id"] for row in rows]}).json() == [tokenizer.decode(encoding.ids)]
    assert server.post("/decode", {"ids": [[10**9]]}).status_code == 422


def test_the_models_are_listed_with_what_they_can(server):
    listed = {card["id"]: card for card in server.http.get("/v1/models").json()["data"]}
    assert next(iter(listed)) == "fill"
    assert listed["fill"]["abilities"] == ["fill", "embed"]
    assert listed["tag"]["abilities"] == ["tag", "embed"]
    assert listed["classify"]["labels"] == ["bad", "fine", "good"]
    info = server.http.get("/info").json()
    assert info["model_id"] == "fill"
    assert info["max_input_length"] == 32
    assert info["model_dtype"] == "float32"
    assert info["version"] == bertkit.__version__
