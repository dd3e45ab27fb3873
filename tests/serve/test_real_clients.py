"""Other people's clients, unchanged."""

import asyncio

import numpy as np
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError
from langchain_openai import OpenAIEmbeddings
from openai import AsyncOpenAI, NotFoundError, OpenAI, UnprocessableEntityError

TEXTS = ["A cat sat on the mat.", "Interest rates rose again.", ""]
NEAR = 1e-5


@pytest.fixture(autouse=True)
def _on_loopback(monkeypatch):
    """Offline the client refuses every address, loopback too; the sockets of this suite refuse all but that."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)


@pytest.fixture
def openai(minilm_server):
    with OpenAI(base_url=f"{minilm_server.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture
def expected(minilm_server):
    return minilm_server.berts["minilm"].embed(TEXTS)


@pytest.mark.parametrize("how", [{}, {"encoding_format": "float"}, {"encoding_format": "base64"}])
def test_openai(openai, expected, how):
    """Without a format the client asks for base64 by itself."""
    reply = openai.embeddings.create(model="minilm", input=TEXTS, **how)
    rows = [row.embedding for row in reply.data]
    if how.get("encoding_format") == "base64":
        import base64

        rows = [np.frombuffer(base64.b64decode(row), dtype="<f4") for row in rows]
    np.testing.assert_allclose(np.array(rows), expected, atol=NEAR)
    assert [row.index for row in reply.data] == [0, 1, 2]
    assert reply.usage.prompt_tokens == reply.usage.total_tokens > 10
    assert reply.model == "minilm"


def test_openai_one_text_tokens_and_dimensions(openai, minilm_server, expected):
    [row] = openai.embeddings.create(model="minilm", input=TEXTS[0]).data
    np.testing.assert_allclose(row.embedding, expected[0], atol=NEAR)
    ids = list(minilm_server.berts["minilm"].tokenizer.encode(TEXTS[0]).ids[1:-1])
    for given in (ids, [ids]):
        [row] = openai.embeddings.create(model="minilm", input=given).data
        np.testing.assert_allclose(row.embedding, expected[0], atol=NEAR)
    [row] = openai.embeddings.create(model="minilm", input=TEXTS[0], dimensions=64, user="somebody").data
    np.testing.assert_allclose(row.embedding, expected[0][:64] / np.linalg.norm(expected[0][:64]), atol=NEAR)


def test_openai_async(minilm_server, expected):
    async def ask():
        async with AsyncOpenAI(base_url=f"{minilm_server.url}/v1", api_key="unused") as client:
            return await asyncio.gather(
                *(client.embeddings.create(model="minilm", input=TEXTS[n % 3]) for n in range(12))
            )

    for number, reply in enumerate(asyncio.run(ask())):
        np.testing.assert_allclose(reply.data[0].embedding, expected[number % 3], atol=NEAR)


def test_openai_lists_models_and_reads_our_errors(openai):
    assert [model.id for model in openai.models.list()] == ["minilm"]
    with pytest.raises(NotFoundError, match="no model 'ada' here; choose from: minilm") as caught:
        openai.embeddings.create(model="ada", input="a")
    assert caught.value.code == "model_not_found"
    with pytest.raises(UnprocessableEntityError, match="at least one"):
        openai.embeddings.create(model="minilm", input=[])


def test_langchain(minilm_server, expected):
    made = OpenAIEmbeddings(
        base_url=f"{minilm_server.url}/v1", api_key="unused", model="minilm", check_embedding_ctx_length=False
    )
    np.testing.assert_allclose(made.embed_documents(TEXTS), expected, atol=NEAR)
    np.testing.assert_allclose(made.embed_query(TEXTS[0]), expected[0], atol=NEAR)
    np.testing.assert_allclose(asyncio.run(made.aembed_documents(TEXTS)), expected, atol=NEAR)


def test_hugging_face_vectors(minilm_server, expected):
    for address in ("", "/embed", "/models/minilm", "/models/minilm/pipeline/feature-extraction"):
        client = InferenceClient(model=minilm_server.url + address)
        np.testing.assert_allclose(client.feature_extraction(TEXTS), expected, atol=NEAR)
        np.testing.assert_allclose(client.feature_extraction(TEXTS[0]), expected[:1], atol=NEAR)
        cut = client.feature_extraction(TEXTS[0], normalize=True, truncate=True, dimensions=8)
        assert cut.shape == (1, 8)
    found = InferenceClient(model=minilm_server.url).sentence_similarity(TEXTS[0], TEXTS[1:])
    assert found == pytest.approx((expected[1:] @ expected[0]).tolist(), abs=NEAR)


def test_hugging_face_heads(server):
    def client(name):
        return InferenceClient(model=f"{server.url}/models/{name}")

    chances = server.berts["classify"].classify("a b").probabilities
    rows = client("classify").text_classification("a b")
    assert {row.label: row.score for row in rows} == pytest.approx(chances, abs=NEAR)
    assert len(client("classify").text_classification("a b", top_k=1)) == 1
    tagged = server.berts["tag"].tag("ada lives in rome")
    spans = client("tag").token_classification("ada lives in rome")
    assert [(s.entity_group, s.word, s.start, s.end) for s in spans] == [
        (s.label, s.text, *s.characters) for s in tagged.spans
    ]
    answered = server.berts["answer"].answer("a", "x y z").candidates[0]
    found = client("answer").question_answering(question="a", context="x y z")
    assert (found.answer, found.start, found.end) == (answered.text, answered.start, answered.end)
    assert found.score == pytest.approx(answered.probability, abs=NEAR)
    filled = server.berts["fill"].fill("a [MASK] c", top=3, whole_words=False)
    words = client("fill").fill_mask("a [MASK] c", top_k=3)
    assert [(w.token_str, w.sequence) for w in words] == [(f.word, f.text) for f in filled]
    assert [w.score for w in words] == pytest.approx([f.probability for f in filled], abs=NEAR)
    assert all(server.berts["fill"].tokenizer.vocab[w.token_str] == w.token for w in words)


def test_hugging_face_reads_our_errors(server):
    with pytest.raises(HfHubHTTPError, match="422"):
        InferenceClient(model=f"{server.url}/models/tag/pipeline/fill-mask").fill_mask("a [MASK]")
    with pytest.raises(HfHubHTTPError, match="404"):
        InferenceClient(model=f"{server.url}/models/nobody").fill_mask("a [MASK]")
    for body in ({"inputs": {}}, {"inputs": 3}, {"inputs": {"question": "a"}}, {"inputs": [[1, "a"]]}, {}):
        assert server.post("/", body).status_code == 422, body
    assert server.post("/models/fill/pipeline/translation", {"inputs": "a"}).status_code == 404
    assert server.post("/models/fill", {"inputs": "a [MASK]", "parameters": {"top_k": 0}}).status_code == 422
