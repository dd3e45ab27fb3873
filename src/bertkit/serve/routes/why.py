"""Why a model predicts what it predicts: how much each word adds to the score of a label, tag, answer or masked word.

The workers compute no gradients, so attribution has one thread of its own, for which few requests may wait.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field
from starlette.responses import Response

from bertkit.engine.threads import set_thread_count
from bertkit.errors import BertkitError, RequestError
from bertkit.serve.http.endpoint import check_texts, reply
from bertkit.serve.http.routing import Routes
from bertkit.serve.models import ServedModel
from bertkit.serve.refusals import Refusal
from bertkit.serve.routes.schema import MODEL, example
from bertkit.serve.service import Service

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# (model, text, pair, target=, word=, before_batch=) -> as `bertkit.why`; given to the server, which does not import it.
Explain = Callable[..., "DataclassInstance"]
MAX_WAITING = 8  # requests; 429 beyond
MAX_CHARACTERS = 20_000  # of one text; 413 beyond
RETRY_SECONDS = "2"


class WhyRequest(BaseModel):
    """A text or pair, and which output to explain."""

    model_config = example(text="Paris is the [MASK] of France.")

    text: str
    pair: str | None = Field(None, description="The second text; for a question, the passage.")
    target: str | None = Field(None, description="The label, tag, answer or word to explain; by default the predicted.")
    word: str | None = Field(None, description="Of a tagger: the word whose tag is explained.")
    model: str | None = MODEL


def why_routes(service: Service, explain: Explain | None) -> Routes:
    """/why, where the server was given `explain`."""
    routes = Routes()
    if explain is None:
        return routes
    queue = ExplainQueue(explain, service)
    able = [served.name for served in service.models.by_name.values() if served.explains]

    @routes.post("/why", summary="How much each word adds", tags=["inside"], include_in_schema=bool(able))
    async def why(request: WhyRequest) -> Response:
        served = service.models.named(request.model or (able[0] if able else None))
        served.refuse_adapter("gradients")
        texts = [request.text] if request.pair is None else [request.text, request.pair]
        check_texts(texts, "text", service.settings)
        if max(map(len, texts)) > MAX_CHARACTERS:
            raise Refusal(413, f"a text to explain may have {MAX_CHARACTERS:,} characters; give a part of it", "text")
        result = await queue.answer(served, request)
        return await reply(service, {**result, "model": served.name}, numbers=sum(map(len, texts)))

    return routes


class ExplainQueue:
    """One thread that explains, and the requests that wait for it."""

    def __init__(self, explain: Explain, service: Service) -> None:
        self._explain = explain
        self._service = service
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="why", initializer=partial(set_thread_count, 1))
        self._waiting = 0

    async def answer(self, served: ServedModel, request: WhyRequest) -> dict[str, Any]:
        """The explanation as JSON; where the client leaves, no further batch of steps is computed."""
        if self._waiting >= MAX_WAITING:
            message = f"{self._waiting} texts wait to be explained; try again in {RETRY_SECONDS} s"
            raise Refusal(429, message, headers={"Retry-After": RETRY_SECONDS})
        self._waiting += 1
        left = threading.Event()  # whether the client has disconnected
        try:
            work = partial(self._explain, served.bert, request.text, request.pair)
            chosen = partial(
                work, target=request.target, word=request.word, before_batch=partial(self._before_batch, left)
            )
            return asdict(await asyncio.get_running_loop().run_in_executor(self._thread, chosen))
        except asyncio.CancelledError:
            left.set()
            raise
        except RequestError as error:
            raise Refusal(422, str(error)) from error
        finally:
            self._waiting -= 1

    def _before_batch(self, left: threading.Event, tokens: int) -> None:
        """Stop where nobody waits; use the cores that the workers leave free."""
        if left.is_set():
            raise BertkitError("the client has disconnected")
        threads = self._service.workers.free_threads(tokens)
        if threads is not None:
            set_thread_count(threads)
