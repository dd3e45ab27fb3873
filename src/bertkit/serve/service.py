"""From a request to its result: a thread makes the plan, the workers compute its sequences, `finish` makes the result.

The texts of requests that wait together are tokenized in one call, and their sequences are queued in one call.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Generic, TypeVar

import torch

from bertkit.engine.batches import Passage
from bertkit.errors import BertkitError, RequestError
from bertkit.serve import memory
from bertkit.serve.engine import SharedEncoder, TokenSequence
from bertkit.serve.metrics import Metrics
from bertkit.serve.models import Models
from bertkit.serve.refusals import Refusal, detached
from bertkit.serve.settings import OFF_LOOP_SIZE, ServeSettings
from bertkit.serve.worker import Ticket, Workers
from bertkit.text.length import LengthReport
from bertkit.text.tokenizer import Tokenizer

GROUP_CHARACTERS = 16_000  # planned together: a few milliseconds, which the first request of a group waits
MIN_CHARACTERS = 100  # counted for a request with fewer
SIZED = (str, list, tuple)  # texts, or lists of their words or token ids
TOKENIZE_CHARACTERS = 200_000  # in one call: an encoding takes some hundred bytes for each token
Recipient = TypeVar("Recipient")  # whom a plan is delivered to
Value = TypeVar("Value")


@dataclass(slots=True)  # not frozen: creating a frozen one takes three times as long, and every request has one
class Plan:
    """What the encoder computes for a request, and how the rows become the result."""

    shared_encoder: SharedEncoder
    sequences: Sequence[TokenSequence]
    finish: Callable[[list[Any]], Any]
    tokens: int  # of the texts before truncation, as the reply states them
    report: LengthReport | None = None  # which texts were over the limit
    finish_on_loop: bool = False  # whether `finish` is so fast that a thread would take longer
    result_size: int = 0  # characters and numbers of the result, where they may be more than the tokens


@dataclass(slots=True)
class PlanDraft:
    """A plan without the tokens of its texts, which are tokenized together with those of other requests."""

    tokenizer: Tokenizer
    texts: Sequence[str]
    complete: Callable[[Iterable[Passage]], Plan]


@dataclass(frozen=True)
class PlanResult:
    """The result of a plan, and the plan."""

    value: Any
    plan: Plan


MakePlan = Callable[[], Plan | PlanDraft]
Planned = list[tuple[Recipient, Plan | Exception]]


class Service:
    """Models, queue and threads of one server."""

    def __init__(self, models: Models, settings: ServeSettings) -> None:
        self.models = models
        self.settings = settings
        self.metrics = Metrics(settings.max_tokens)
        self.ready = False
        self.in_progress = 0  # requests that are being answered
        self._small = ThreadPoolExecutor(1, thread_name_prefix="small")
        self._large = ThreadPoolExecutor(1, thread_name_prefix="large")  # so that long texts do not delay short ones
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="reader")
        self._planners = {pool: Planner(pool, self._enqueue) for pool in (self._small, self._large)}

    async def start(self) -> None:
        """Start the workers; the server sets `ready` after warm-up."""
        self._loop = asyncio.get_running_loop()
        self.workers = Workers(
            self._deliver,
            self.metrics,
            budget=self.settings.max_tokens,
            max_waiting=self.settings.waiting_tokens,
            threads=self.settings.workers,
            cores=torch.get_num_threads() if self.models.on_cpu else None,
        )
        self.metrics.watch(lambda: self.in_progress, lambda: self.workers.depth)
        self.workers.start()
        self._trimming = asyncio.create_task(memory.keep_trimming())

    async def stop(self) -> None:
        """Compute the requests in the queue, then stop the threads."""
        self.ready = False
        self._trimming.cancel()
        await asyncio.to_thread(self.workers.close)
        for pool in (self._small, self._large, self._reader):
            pool.shutdown(wait=False, cancel_futures=True)

    async def answer(self, make: MakePlan, size: int = 0) -> PlanResult:
        """Make the plan, have it computed, finish it; `size` is about how many characters its texts have."""
        pending = PendingReply(self._loop.create_future())
        self._planners[self._pool(size)].submit(pending, partial(pending.unless_cancelled, make), size)
        try:
            plan, rows = await pending.future
        except asyncio.CancelledError:
            pending.cancelled = True
            if pending.ticket is not None:
                self.workers.cancel(pending.ticket)
            raise
        except RequestError as error:
            raise Refusal(422, str(error)) from error
        finally:
            del pending  # else a reference cycle: the error holds this frame, the frame `pending`, `pending` the error
        if plan.report is not None and plan.report.long:
            self.metrics.long_texts(plan.report.policy, len(plan.report.long))
        if plan.finish_on_loop:
            return PlanResult(plan.finish(rows), plan)
        value = await self.off_loop(partial(plan.finish, rows), max(plan.tokens, plan.result_size))
        return PlanResult(value, plan)

    async def off_loop(self, work: Callable[[], Value], size: int) -> Value:
        """Run a function in a thread; a RequestError becomes a refusal."""
        try:
            return await self._loop.run_in_executor(self._pool(size), work)
        except RequestError as error:
            raise Refusal(422, str(error)) from error

    async def read_off_loop(self, work: Callable[[], Value]) -> Value:
        """Parse a large body in the one thread for that: several would hold the interpreter's lock for longer."""
        return await self._loop.run_in_executor(self._reader, work)

    def _pool(self, size: int) -> ThreadPoolExecutor:
        return self._large if size > OFF_LOOP_SIZE else self._small

    def _enqueue(self, planned: "Planned[PendingReply]") -> None:
        """On a planner's thread: put plans into the queue together; each pending reply is resolved by its ticket."""
        queued: dict[Ticket, PendingReply] = {}
        for pending, plan in planned:
            if isinstance(plan, Exception):
                self._loop.call_soon_threadsafe(pending.fail, plan)
            elif refusal := self._over_limit(plan):
                self._loop.call_soon_threadsafe(pending.fail, refusal)
            elif not pending.cancelled:
                plan.shared_encoder.claim(plan.sequences)
                pending.ticket = Ticket(plan.shared_encoder, plan.sequences, partial(pending.resolve, plan))
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
        tokens, limit = sum(map(len, plan.sequences)), self.settings.waiting_tokens
        if tokens <= limit:
            return None
        return Refusal(413, f"the request has {tokens:,} tokens, over the {limit:,} of one request; split it")

    def _deliver(self, done: list[Ticket]) -> None:
        """On a worker's thread: one call to the event loop for all requests that a batch completed."""
        self._loop.call_soon_threadsafe(_resolve_all, done)


def _resolve_all(done: list[Ticket]) -> None:
    """On the event loop."""
    for ticket in done:
        ticket.on_done(ticket)


class PendingReply:
    """A request on the event loop that waits for the rows of its plan."""

    def __init__(self, future: asyncio.Future[tuple[Plan, list[Any]]]) -> None:
        self.future = future
        self.ticket: Ticket | None = None
        self.cancelled = False

    def unless_cancelled(self, make: MakePlan) -> Plan | PlanDraft:
        """Make the plan, unless the client has disconnected."""
        if self.cancelled:
            raise RequestError("the client has disconnected")
        return make()

    def resolve(self, plan: Plan, ticket: Ticket) -> None:
        """Set the rows as the future's result, or the model's failure as its error."""
        if ticket.failure is not None:
            self.fail(BertkitError(f"the model failed: {ticket.failure}"), ticket.failure)
        elif not self.future.done():
            self.future.set_result((plan, ticket.rows))

    def fail(self, error: Exception, cause: Exception | None = None) -> None:
        """Set the future's error."""
        error.__cause__ = cause
        if not self.future.done():
            self.future.set_exception(error)


class Planner(Generic[Recipient]):
    """Makes plans on the one thread of `pool`, and delivers each, or the error of its request.

    Requests that arrive while it is busy are planned together, up to a size; then the thread is free for other work.
    Tokenizing one text at a time takes longer than the forward pass on a GPU, and leaves all cores but one idle.
    """

    def __init__(self, pool: Executor, deliver: Callable[[Planned[Recipient]], None]) -> None:
        self._pool = pool
        self._deliver = deliver
        self._waiting: deque[tuple[Recipient, MakePlan, int]] = deque()
        self._scheduled = False  # whether `_work` is submitted and not yet running

    def submit(self, recipient: Recipient, make: MakePlan, size: int = 0) -> None:
        """Have a plan made; `size` is about how many characters its texts have."""
        self._waiting.append((recipient, make, max(size, MIN_CHARACTERS)))
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            try:
                self._pool.submit(self._work)
            except RuntimeError:  # the pool is closed
                self._scheduled = False
                raise

    def _work(self) -> None:
        self._scheduled = False  # first: a request that is submitted from here on may be too late for this run
        try:
            for group in self._take():
                plans = complete([draft for _, draft in group])
                self._deliver([(recipient, plan) for (recipient, _), plan in zip(group, plans, strict=True)])
        finally:
            if self._waiting:
                self._schedule()

    def _take(self) -> list[list[tuple[Recipient, PlanDraft]]]:
        """The drafts of the next requests, by tokenizer; plans without a draft, and errors, are delivered at once."""
        size, drafts = 0, dict[int, list[tuple[Recipient, PlanDraft]]]()
        while self._waiting and size < GROUP_CHARACTERS:
            recipient, make, characters = self._waiting.popleft()
            size += characters
            plan = _attempt(make)
            if isinstance(plan, PlanDraft):
                drafts.setdefault(id(plan.tokenizer), []).append((recipient, plan))
            else:
                self._deliver([(recipient, plan)])
        return [*drafts.values()]


def complete(drafts: Sequence[PlanDraft]) -> list[Plan | Exception]:
    """Plans of drafts with one tokenizer; if a text is refused, draft by draft, so that only its request fails."""
    if len(drafts) == 1:  # from an iterator, so that tokens of a long text can be freed one block after the other
        return [_attempt(drafts[0].complete, tokenize(drafts[0].tokenizer, drafts[0].texts))]
    tokens = _attempt(lambda: [*tokenize(drafts[0].tokenizer, [text for draft in drafts for text in draft.texts])])
    if isinstance(tokens, Exception):
        return [plan for draft in drafts for plan in complete([draft])]
    remaining = iter(tokens)
    parts = [list(islice(remaining, len(draft.texts))) for draft in drafts]
    return [_attempt(draft.complete, part) for draft, part in zip(drafts, parts, strict=True)]


def tokenize(tokenizer: Tokenizer, texts: Sequence[str]) -> Iterator[Passage]:
    """The tokens of each text, from calls of up to TOKENIZE_CHARACTERS each."""
    start = size = 0
    for stop, text in enumerate(texts, start=1):
        size += len(text)
        if size > TOKENIZE_CHARACTERS or stop == len(texts):
            yield from (Passage(*ids_and_segments) for ids_and_segments in tokenizer.encode_plain(texts[start:stop]))
            start, size = stop, 0


def _attempt(function: Callable[..., Value], *arguments: object) -> Value | Exception:
    """The function's result, or its error."""
    try:
        return function(*arguments)
    except Exception as error:
        return detached(error)
    except BaseException as error:  # a Rust library's panic is no Exception, and must not fail other requests
        return BertkitError(f"planning failed: {error}")


def size_of(texts: Iterable[object]) -> int:
    """About how many characters there are to read, counted up to `OFF_LOOP_SIZE`: there may be a million texts."""
    size = 0
    for text in texts:
        size += max(1, len(text)) if isinstance(text, SIZED) else 1
        if size > OFF_LOOP_SIZE:
            break
    return size
