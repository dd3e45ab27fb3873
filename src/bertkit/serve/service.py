"""Plans made off the event loop, computed by the workers, finished off the loop where that takes long."""

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
from bertkit.serve.planner import Planner, Told
from bertkit.serve.plans.plan import Draft, Plan
from bertkit.serve.plans.vectors import Wanted, plan_vectors
from bertkit.serve.refusals import Refusal
from bertkit.serve.settings import LARGE, ServeSettings
from bertkit.serve.worker import Ticket, Workers

Value = TypeVar("Value")


@dataclass(frozen=True)
class Answer:
    """What came of a plan."""

    value: Any
    plan: Plan


class Service:
    """Everything a server needs to answer: models, queue, threads."""

    def __init__(self, models: Models, settings: ServeSettings) -> None:
        self.models = models
        self.settings = settings
        self.metrics = Metrics(settings.max_tokens)
        self.ready = False
        self.inside = 0  # requests that are being answered
        self._small = ThreadPoolExecutor(1, thread_name_prefix="small")
        self._large = ThreadPoolExecutor(1, thread_name_prefix="large")  # long texts do not hold up short ones
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="reader")
        self._planners = {pool: Planner(pool, self._queue) for pool in (self._small, self._large)}

    async def start(self) -> None:
        """Start the workers, and send one text through every encoder."""
        self._loop = asyncio.get_running_loop()
        self.workers = Workers(
            self._deliver,
            self.metrics,
            budget=self.settings.max_tokens,
            most_tokens=self.settings.waiting_tokens,
            threads=self.settings.workers,
            cores=torch.get_num_threads() if self.models.on_cpu else None,
        )
        self.metrics.watch(lambda: self.inside, lambda: self.workers.depth)
        self.workers.start()
        await asyncio.gather(*(self._warm(name) for name in self.models.by_name))
        self._tidying = asyncio.create_task(memory.keep_giving_back())
        self.ready = True

    async def stop(self) -> None:
        """Answer what waits, then stop the threads."""
        self.ready = False
        self._tidying.cancel()
        await asyncio.to_thread(self.workers.close)
        for pool in (self._small, self._large, self._reader):
            pool.shutdown(wait=False, cancel_futures=True)

    async def answer(self, plan: Callable[[], Plan | Draft], size: int = 0) -> Answer:
        """Make the plan, have it computed, finish it; `size` says about how many characters it reads."""
        hope = _Hope(self._loop.create_future())
        self._planners[self._pool(size)].submit(hope, partial(hope.still, plan), size)
        try:
            made, rows = await hope.future
        except asyncio.CancelledError:
            hope.cancelled = True
            if hope.ticket is not None:
                self.workers.cancel(hope.ticket)
            raise
        except RequestError as error:
            raise Refusal(422, str(error)) from error
        finally:
            del (
                hope
            )  # else an error holds this frame, which holds the hope, which holds the error, and all of them the texts
        if made.lengths is not None and made.lengths.long:
            self.metrics.texts_cut(made.lengths.policy, len(made.lengths.long))
        size = max(made.tokens, made.made)
        value = made.finish(rows) if made.quick else await self.off_loop(partial(made.finish, rows), size)
        return Answer(value, made)

    async def off_loop(self, work: Callable[[], Value], size: int) -> Value:
        """Run it in a thread; what is wrong with the request comes back as a refusal."""
        try:
            return await self._loop.run_in_executor(self._pool(size), work)
        except RequestError as error:
            raise Refusal(422, str(error)) from error

    async def read_off_loop(self, work: Callable[[], Value]) -> Value:
        """Parse a large body in the one thread for that: each parse holds the interpreter, and several at once more."""
        return await self._loop.run_in_executor(self._reader, work)

    def _pool(self, size: int) -> ThreadPoolExecutor:
        return self._large if size > LARGE else self._small

    def _queue(self, made: "Told[_Hope]") -> None:
        """On a planner's thread: plans go into the queue together; the loop hears of each when it is computed."""
        asked: dict[Ticket, _Hope] = {}
        for hope, plan in made:
            if isinstance(plan, Exception):
                self._loop.call_soon_threadsafe(hope.fail, plan)
            elif refusal := self._too_much(plan):
                self._loop.call_soon_threadsafe(hope.fail, refusal)
            elif not hope.cancelled:
                hope.ticket = Ticket(plan.lane, plan.pieces, partial(hope.fulfil, plan))
                asked[hope.ticket] = hope
        for ticket in self.workers.submit([*asked]):
            seconds = self.workers.seconds_behind
            said = f"the queue is full; try again in {seconds} s"
            refusal = Refusal(429, said, headers={"Retry-After": str(seconds)})
            self._loop.call_soon_threadsafe(asked[ticket].fail, refusal)
        for ticket, hope in asked.items():
            if hope.cancelled:  # since it was asked above
                self.workers.cancel(ticket)

    def _too_much(self, plan: Plan) -> Refusal | None:
        tokens, most = sum(map(len, plan.pieces)), self.settings.waiting_tokens
        if tokens <= most:
            return None
        return Refusal(413, f"the request has {tokens:,} tokens, over the {most:,} of one request; split it")

    def _deliver(self, done: list[Ticket]) -> None:
        """On a worker's thread: one call for all that a batch completed."""
        self._loop.call_soon_threadsafe(_tell, done)

    async def _warm(self, name: str) -> None:
        """The first passes allocate memory and choose kernels, or compile them: nobody should wait for that."""
        served = self.models.by_name[name]
        wanted = Wanted(settings=served.bert.embed_settings())
        doublings = [1 << each for each in range(served.limit.bit_length() + 1)] * OFTEN  # a GPU's differ by length
        for words in (1, 64) if self.models.on_cpu else doublings:
            text = "warm " * min(words, served.limit - 2)  # [CLS] and [SEP] count
            with contextlib.suppress(Refusal):  # where the limits are smaller than this
                await self.answer(partial(plan_vectors, served, [text] * 4, wanted, self.settings))


class _Hope:
    """Somebody on the event loop who waits for the rows of a plan."""

    def __init__(self, future: asyncio.Future[tuple[Plan, list[Any]]]) -> None:
        self.future = future
        self.ticket: Ticket | None = None
        self.cancelled = False

    def still(self, plan: Callable[[], Plan | Draft]) -> Plan | Draft:
        """Make the plan, unless nobody waits for it any more."""
        if self.cancelled:
            raise RequestError("the client is gone")
        return plan()

    def fulfil(self, plan: Plan, ticket: Ticket) -> None:
        """The rows are there, or the model failed."""
        if ticket.failure is not None:
            self.fail(BertkitError(f"the model failed: {ticket.failure}"), ticket.failure)
        elif not self.future.done():
            self.future.set_result((plan, ticket.rows))

    def fail(self, error: Exception, cause: Exception | None = None) -> None:
        """There will be none."""
        error.__cause__ = cause
        if not self.future.done():
            self.future.set_exception(error)


def _tell(done: list[Ticket]) -> None:
    """On the event loop: wake whoever waits for these."""
    for ticket in done:
        ticket.wake(ticket)
