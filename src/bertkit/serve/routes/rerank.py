"""Reranking as Jina's and Cohere's clients ask for it: /v1/rerank (Jina, Cohere 1) and /v2/rerank (Cohere 2)."""

from typing import Annotated, Any
from uuid import uuid4

from pydantic import BaseModel, Field, PlainValidator, WithJsonSchema
from starlette.responses import Response

from bertkit.serve.http.endpoint import length_note, length_policy, reply
from bertkit.serve.http.routing import Routes
from bertkit.serve.routes.schema import MODEL, TEXT, kind_of, lenient_example
from bertkit.serve.routes.tei import rank
from bertkit.serve.service import Service

EXAMPLE = {"query": "pets", "documents": ["Interest rates rose.", "A dog lay on the rug."]}
DOCUMENT = {"anyOf": [TEXT, {"type": "object", "properties": {"text": TEXT}, "required": ["text"]}]}


def read_documents(value: object) -> list[str]:
    """Texts, or objects with a text each."""
    if not isinstance(value, list) or not value:
        raise ValueError("give a list of texts, or of objects with a text; at least one")
    return [_text(item, number) for number, item in enumerate(value)]


def _text(item: object, number: int) -> str:
    text = item.get("text") if isinstance(item, dict) else item
    if not isinstance(text, str):
        what = "an object without a text" if isinstance(item, dict) else kind_of(item)
        raise ValueError(f"item {number} is {what}; give texts, or objects with a text")
    return text


Documents = Annotated[
    list[str], PlainValidator(read_documents), WithJsonSchema({"type": "array", "items": DOCUMENT, "minItems": 1})
]


class CohereRerankRequest(BaseModel):
    """A query and the documents to rank by it, as Cohere's client sends them."""

    model_config = lenient_example(**EXAMPLE)

    query: str
    documents: Documents
    top_n: int | None = Field(None, ge=1, description="How many documents to list, the best first; by default all.")
    return_documents: bool | None = Field(None, description="Whether the reply has the texts, too.")
    model: str | None = MODEL


class JinaRerankRequest(CohereRerankRequest):
    """The same as Jina's and Cohere's first version send it; the reply has the texts unless the request says no."""

    model_config = lenient_example(**EXAMPLE, top_n=1)

    return_documents: bool | None = Field(True, description="Whether the reply has the texts, too.")


def rerank_routes(service: Service) -> Routes:
    """/v1/rerank and /v2/rerank."""
    routes = Routes()

    @routes.post("/v1/rerank", summary="Reranking as Jina and Cohere 1 reply", tags=["vectors"])
    async def first_version(request: JinaRerankRequest) -> Response:
        return await _ranked(service, request, "1")

    @routes.post("/v2/rerank", summary="Reranking as Cohere 2 replies", tags=["vectors"])
    async def second_version(request: CohereRerankRequest) -> Response:
        return await _ranked(service, request, "2")

    return routes


async def _ranked(service: Service, request: CohereRerankRequest, version: str) -> Response:
    """The documents, best first, with scores from 0 to 1, or cosines of a model for vectors."""
    served, texts = service.models.reranker(request.model), request.documents
    policy = length_policy(None, None, service.settings)
    result = await rank(service, served, request.query, texts, policy, field="documents")
    scores: list[float] = result.value
    order = sorted(range(len(scores)), key=lambda n: -scores[n])[: request.top_n]
    rows: list[dict[str, Any]] = [{"index": n, "relevance_score": scores[n]} for n in order]
    if request.return_documents:
        rows = [{**row, "document": {"text": texts[row["index"]]}} for row in rows]
    tokens = result.plan.tokens
    content = {
        "id": str(uuid4()),
        "model": served.name,
        "object": "list",
        "results": rows,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "meta": {"api_version": {"version": version}, "billed_units": {"search_units": 1}},
        **length_note(result.plan.report),
    }
    return await reply(service, content, result.plan, len(rows), served.name)
