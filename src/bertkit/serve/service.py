"""From a request to its answer: planned in a thread, computed by the workers, finished where it holds nobody up."""

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch

from bertkit.engine.recorded import OFTEN
from bertkit.errors import BertkitError, RequestError
from bertkit.serve import memory
from bertkit.serve.metrics import Metrics
from bertkit.serve.models import Models
from bertkit.serve.planner import Draft, Plan, Planned, Planner
from bertkit.serve.plans.vectors import Wanted, plan_vectors
from bertkit.serve.refusals import Refusal
from bertkit.serve.settings import LARGE, ServeSettings
from bertkit.serve.worker import Ticket, Workers

Value = TypeVar("Value")


@dataclass(frozen=True)
class Answer:
    """The result of a plan."""

    value: Any
    plan: Plan


class Service:
    """Models, queue and threads of one server."""

    def __init__(self, models: Models, settings: ServeSettings) -> None:
        self.models = models
        self.settings = settings
        self.metrics = Metrics(settings.max_tokens)
        self.ready = False
        self.inside = 0  # requests that are being answered
        self._small = ThreadPoolExecutor(1, thread_name_prefix="small")
        self._large = ThreadPoolExecutor(1, thread_name_prefix="large")  # long texts do not hold up short ones
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="reader")
        self._planners = {pool: Planner(pool, self._enqueue) for pool in (self._small, self._large)}

    async def start(self) -> None:
        """Start the workers, and send one text through every encoder."""
        self._loop = asyncio.get_running_loop()
        self.workers = Workers(
            self._deliver,
            self.metrics,
            budget=self.settings.max_tokens,
            max_waiting=self.settings.waiting_tokens,
            threads=self.settings.workers,
            cores=torch.get_num_threads() if self.models.on_cpu else None,
        )
        self.metrics.watch(lambda: self.inside, lambda: self.workers.depth)
        self.workers.start()
        await asyncio.gather(*(self._warm(name) for name in self.models.by_name))
        self._trimming = asyncio.create_task(memory.keep_trimming())
        self.ready = True

    async def stop(self) -> None:
        """Compute what waits, then stop the threads."""
        self.ready = False
        self._trimming.cancel()
        await asyncio.to_thread(self.workers.close)
        for pool in (self._small, self._large, self._reader):
            pool.shutdown(wait=False, cancel_futures=True)

    async def answer(self, plan: Callable[[], Plan | Draft], size: int = 0) -> Answer:
        """Make the plan, have it computed, finish it; `size` says about how many characters it reads."""
        pending = PendingReply(self._loop.create_future())
        self._planners[self._pool(size)].submit(pending, partial(pending.unless_cancelled, plan), size)
        try:
            made, rows = await pending.future
        except asyncio.CancelledError:
            pending.cancelled = True
            if pending.ticket is not None:
                self.workers.cancel(pending.ticket)
            raise
        except RequestError as error:
            raise Refusal(422, str(error)) from error
        finally:
            del pending  # else an error holds this frame, which holds `pending`, which holds the error: a cycle
        if made.lengths is not None and made.lengths.long:
            self.metrics.texts_cut(made.lengths.policy, len(made.lengths.long))
        size = max(made.tokens, made.made)
        value = made.finish(rows) if made.quick else await self.off_loop(partial(made.finish, rows), size)
        return Answer(value, made)

    async def off_loop(self, work: Callable[[], Value], size: int) -> Value:
        """Run a function in a thread; a RequestError becomes a refusal."""
        try:
            return await self._loop.run_in_executor(self._pool(size), work)
        except RequestError as error:
            raise Refusal(422, str(error)) from error

    async def read_off_loop(self, work: Callable[[], Value]) -> Value:
        """Parse a large body in the one thread for that: several would hold the interpreter longer."""
        return await self._loop.run_in_executor(self._reader, work)

    def _pool(self, size: int) -> ThreadPoolExecutor:
        return self._large if size > LARGE else self._small

    def _enqueue(self, planned: "Planned[PendingReply]") -> None:
        """On a planner's thread: put plans into the queue together; each reply is resolved when it is computed."""
        queued: dict[Ticket, PendingReply] = {}
        for pending, plan in planned:
            if isinstance(plan, Exception):
                self._loop.call_soon_threadsafe(pending.fail, plan)
            elif refusal := self._over_limit(plan):
                self._loop.call_soon_threadsafe(pending.fail, refusal)
            elif not pending.cancelled:
                pending.ticket = Ticket(plan.lane, plan.pieces, partial(pending.resolve, plan))
                queued[pending.ticket] = pending
        for ticket in self.workers.submit([*queued]):
            seconds = self.workers.seconds_behind
            message = f"the queue is full; try again in {seconds} s"
            refusal = Refusal(429, message, headers={"Retry-After": str(seconds)})
            self._loop.call_soon_threadsafe(queued[ticket].fail, refusal)
        for ticket, pending in queued.items():
            if pending.cancelled:  # since the check above
                self.workers.cancel(ticket)

    def _over_limit(self, plan: Plan) -> Refusal | None:
        tokens, limit = sum(map(len, plan.pieces)), self.settings.waiting_tokens
        if tokens <= limit:
            return None
        return Refusal(413, f"the request has {tokens:,} tokens, over the {limit:,} of one request; split it")

    def _deliver(self, done: list[Ticket]) -> None:
        """On a worker's thread: one call to the event loop for all requests that a batch completed."""
        self._loop.call_soon_threadsafe(_resolve_all, done)

    async def _warm(self, name: str) -> None:
        """Run first passes, which allocate memory and choose or compile kernels, before the first request."""
        served = self.models.by_name[name]
        wanted = Wanted(settings=served.bert.embed_settings())
        doublings = [1 << each for each in range(served.limit.bit_length() + 1)] * OFTEN  # a GPU's differ by length
        for words in (1, 64) if self.models.on_cpu else doublings:
            text = "warm " * min(words, served.limit - 2)  # [CLS] and [SEP] count
            with contextlib.suppress(Refusal):  # where the limits are smaller than this
                await self.answer(partial(plan_vectors, served, [text] * 4, wanted, self.settings))


class PendingReply:
    """A request on the event loop that waits for the rows of its plan."""

    def __init__(self, future: asyncio.Future[tuple[Plan, list[Any]]]) -> None:
        self.future = future
        self.ticket: Ticket | None = None
        self.cancelled = False

    def unless_cancelled(self, plan: Callable[[], Plan | Draft]) -> Plan | Draft:
        """Make the plan, unless the client has disconnected."""
        if self.cancelled:
            raise RequestError("the client is gone")
        return plan()

    def resolve(self, plan: Plan, ticket: Ticket) -> None:
        """Pass on the rows, or that the model failed."""
        if ticket.failure is not None:
            self.fail(BertkitError(f"the model failed: {ticket.failure}"), ticket.failure)
        elif not self.future.done():
            self.future.set_result((plan, ticket.rows))

    def fail(self, error: Exception, cause: Exception | None = None) -> None:
        """Pass on why there are no rows."""
        error.__cause__ = cause
        if not self.future.done():
            self.future.set_exception(error)


def _resolve_all(done: list[Ticket]) -> None:
    """On the event loop."""
    for ticket in done:
        ticket.wake(ticket)
