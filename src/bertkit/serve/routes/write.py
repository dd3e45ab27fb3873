"""Generated text: /write, and /v1/completions as OpenAI's clients ask for it; both can stream, a piece at a time.

Generation has a thread of its own, beside the queue of encoders: a request after the other, and streams in turns.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from typing import Any
from uuid import uuid4

import orjson
from pydantic import BaseModel, Field
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from bertkit.errors import RequestError
from bertkit.serve.http.endpoint import check_texts, reply
from bertkit.serve.http.routing import Routes
from bertkit.serve.models import ServedModel
from bertkit.serve.refusals import Refusal
from bertkit.serve.routes.schema import MODEL, Texts, example, lenient_example
from bertkit.serve.service import Service
from bertkit.tasks.write import Written

Pieces = Generator[str, None, Written]
MOST_BEAMS = 16
OPTIONS = ("tokens", "beams", "length_penalty", "temperature", "top_k", "top_p", "seed", "stop")


class WriteRequest(BaseModel):
    """Prompts to continue, or texts to write a text for. Options that are left out are the model's own."""

    model_config = example(texts=["Two dogs play in the snow."])

    texts: Texts
    tokens: int | None = Field(None, ge=1, description="New tokens at most.")
    beams: int | None = Field(None, ge=1, le=MOST_BEAMS, description="1 is greedy search.")
    length_penalty: float | None = Field(None, description="Beam search divides scores by length to this power.")
    temperature: float | None = Field(None, gt=0, description="Draw tokens at random; below 1 likely ones more often.")
    top_k: int | None = Field(None, ge=0, description="Draw from this many likeliest tokens; 0: from all.")
    top_p: float | None = Field(None, gt=0, le=1, description="Draw from the likeliest tokens of this probability.")
    seed: int | None = Field(None, ge=0, description="Of what is drawn.")
    stop: list[str] | None = Field(None, max_length=16, description="Texts that end the generation.")
    stream: bool = Field(False, description="Send the text in pieces, as server-sent events; for one text.")
    model: str | None = MODEL


class CompletionRequest(BaseModel):
    """What OpenAI's clients send to /v1/completions; other fields of theirs are ignored."""

    model_config = lenient_example(prompt="Once upon a time", max_tokens=20)

    prompt: Texts
    max_tokens: int | None = Field(16, ge=1)
    temperature: float | None = Field(1.0, ge=0, description="0 is greedy search.")
    top_p: float | None = Field(1.0, gt=0, le=1)
    seed: int | None = Field(None, ge=0)
    stop: Texts | None = None
    n: int = Field(1, ge=1, le=1, description="Only one text for each prompt.")
    stream: bool = False
    model: str | None = MODEL


class EventStream(Response):
    """Server-sent events, each sent when it is there."""

    def __init__(self, events: AsyncIterator[Any]) -> None:
        super().__init__(media_type="text/event-stream", headers={"cache-control": "no-store"})
        self.events = events
        self.raw_headers = [header for header in self.raw_headers if header[0] != b"content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send one `data:` line for each event, and [DONE]."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for event in self.events:
            await send({"type": "http.response.body", "body": _event(orjson.dumps(event)), "more_body": True})
        await send({"type": "http.response.body", "body": _event(b"[DONE]"), "more_body": False})


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def write_routes(service: Service) -> Routes:
    """/write and /v1/completions."""
    routes, documented = Routes(), "write" in service.models.abilities
    thread = ThreadPoolExecutor(1, thread_name_prefix="writer")

    async def run(work: Callable[[], Any]) -> Any:
        try:
            return await asyncio.get_running_loop().run_in_executor(thread, work)
        except RequestError as error:
            raise Refusal(422, str(error)) from error

    def able(name: str | None, texts: Sequence[str], field: str, *, stream: bool) -> ServedModel:
        served = service.models.able(name, "write")
        check_texts(texts, field, service.settings)
        if stream and len(texts) > 1:
            raise Refusal(422, f"{field} has {len(texts)} texts, and one can be streamed; leave out stream", field)
        return served

    @routes.post("/write", summary="Generated texts", tags=["heads"], include_in_schema=documented)
    async def write(request: WriteRequest) -> Response:
        served = able(request.model, request.texts, "texts", stream=request.stream)
        options = {name: value for name in OPTIONS if (value := getattr(request, name)) is not None}
        if request.stream:
            return EventStream(await _started(run, served, request.texts[0], options, _piece, _end))
        written: list[Written] = await run(partial(served.bert.write, list(request.texts), **options))
        content = {"model": served.name, "results": [asdict(each) for each in written]}
        return await reply(service, content)

    @routes.post(
        "/v1/completions", summary="Generated texts, as OpenAI has it", tags=["heads"], include_in_schema=documented
    )
    async def completions(request: CompletionRequest) -> Response:
        served = able(request.model, request.prompt, "prompt", stream=request.stream)
        sampled = {"temperature": request.temperature, "top_p": request.top_p} if request.temperature else {}
        options: dict[str, Any] = {"tokens": request.max_tokens, "seed": request.seed, "stop": request.stop, **sampled}
        options = {name: value for name, value in options.items() if value is not None} | {"beams": 1}
        head = {"id": f"cmpl-{uuid4().hex}", "object": "text_completion", "created": int(time.time())}
        head |= {"model": served.name}
        if request.stream:
            piece, end = partial(_choice, head, None), partial(_last_choice, head)
            return EventStream(await _started(run, served, request.prompt[0], options, piece, end))
        written: list[Written] = await run(partial(served.bert.write, list(request.prompt), **options))
        return await reply(service, _completion(head, written))

    return routes


async def _started(
    run: Callable[[Callable[[], Any]], Any],
    served: ServedModel,
    text: str,
    options: dict[str, Any],
    piece: Callable[[str], Any],
    end: Callable[[Written], Any],
) -> AsyncIterator[Any]:
    """The events of a stream; its first piece is made before the reply begins, so that errors have their status."""
    pieces: Pieces = served.bert.writer.stream(text, served.bert.writer.settings(options))
    first: str | Written = await run(partial(_next, pieces))

    async def events() -> AsyncIterator[Any]:
        new = first
        while not isinstance(new, Written):
            yield piece(new)
            new = await run(partial(_next, pieces))
        yield end(new)

    return events()


def _next(pieces: Pieces) -> str | Written:
    """The next piece; after the last one, the whole text."""
    try:
        return next(pieces)
    except StopIteration as end:
        written: Written = end.value
        return written


def _piece(text: str) -> dict[str, Any]:
    return {"text": text}


def _end(written: Written) -> dict[str, Any]:
    return {"text": "", "result": asdict(written)}


def _choice(head: dict[str, Any], reason: str | None, text: str, index: int = 0) -> dict[str, Any]:
    choice = {"text": text, "index": index, "logprobs": None, "finish_reason": reason}
    return {**head, "choices": [choice]}


def _last_choice(head: dict[str, Any], written: Written) -> dict[str, Any]:
    return _choice(head, _reason(written), "")


def _reason(written: Written) -> str:
    return "stop" if written.ended else "length"


def _completion(head: dict[str, Any], written: Sequence[Written]) -> dict[str, Any]:
    choices = [_choice(head, _reason(each), each.text, index)["choices"][0] for index, each in enumerate(written)]
    read, new = sum(each.seen.tokens for each in written), sum(each.tokens for each in written)
    usage = {"prompt_tokens": read, "completion_tokens": new, "total_tokens": read + new}
    return {**head, "choices": choices, "usage": usage}
