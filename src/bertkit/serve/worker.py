"""Worker threads: each computes the next batch of the queue; a request is delivered when it has all its rows."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

from bertkit.engine.threads import TOKENS_FOR_ONE_THREAD, set_thread_count
from bertkit.serve.engine import SharedEncoder, TokenSequence
from bertkit.serve.queue import Waiting, fair_budget, next_batch, seconds_to_wait
from bertkit.serve.refusals import detached


@dataclass(eq=False)
class Ticket:
    """One request in the queue: its sequences, and the rows computed so far."""

    shared_encoder: SharedEncoder
    sequences: Sequence[TokenSequence]
    on_done: Callable[["Ticket"], None] = lambda _: None  # called by whoever `deliver` hands the ticket to
    rows: list[Any] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    taken: int = 0  # sequences that are computed or being computed: the first ones
    missing: int = 0  # rows not computed yet
    cancelled: bool = False
    failure: Exception | None = None

    def __post_init__(self) -> None:
        self.lengths = [len(sequence) for sequence in self.sequences]
        self.rows = [None] * len(self.sequences)
        self.missing = len(self.sequences)

    @property
    def tokens_left(self) -> int:
        """Tokens that no worker has taken yet."""
        return sum(self.lengths[self.taken :])


Part = tuple[Ticket, int, int]  # sequences [start, stop) of a ticket
Deliver = Callable[[list[Ticket]], None]


@dataclass(frozen=True)
class BatchDone:
    """Counts of one computed batch, for the metrics."""

    sequences: int
    tokens: int
    longest: int  # tokens of its longest sequence
    seconds: float
    requests: int


class Observer(Protocol):
    """Receives the counts of batches."""

    def batch_done(self, batch: BatchDone) -> None:
        """Called after each batch, by the thread that computed it."""


class Workers:
    """The queue and its worker threads, which call `deliver` with the requests that a batch completed.

    On a CPU, a batch that is computed alone uses all `cores`, and several at a time have a share each: the threads of
    one batch wait for each other at every linear layer, separate batches never do.
    """

    def __init__(
        self,
        deliver: Deliver,
        observer: Observer,
        *,
        budget: int,
        max_waiting: int,
        threads: int = 1,
        cores: int | None = None,
    ) -> None:
        self._deliver = deliver
        self._observer = observer
        self._budget = budget
        self._max_waiting = max_waiting
        self._waiting: list[Ticket] = []
        self._waiting_tokens = 0
        self._computing_tokens = 0
        self._tokens_per_second = 0.0  # moving average
        self._closing = False
        self._busy = 0  # threads that compute a batch
        self._cores = cores
        self._changed = threading.Condition()
        self._threads = [threading.Thread(target=self._work, name=f"worker-{n}", daemon=True) for n in range(threads)]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Compute the requests in the queue, then stop."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    @property
    def depth(self) -> tuple[int, int]:
        """(requests, tokens) in the queue."""
        return len(self._waiting), self._waiting_tokens

    @property
    def seconds_behind(self) -> int:
        """Estimated seconds until the tokens in the queue are computed."""
        return seconds_to_wait(self._waiting_tokens, self._tokens_per_second)

    def free_threads(self, tokens: int) -> int | None:
        """Torch threads for other work on so many tokens: all cores while nothing is computed here, else one.

        Threads that wait for a busy core make all of them slow. None: torch's default, where a GPU computes.
        """
        if self._cores is None:
            return None
        return 1 if self._busy or self._waiting or tokens <= TOKENS_FOR_ONE_THREAD else self._cores

    def submit(self, tickets: Sequence[Ticket]) -> list[Ticket]:
        """Put requests into the queue, all before a worker takes any; returns those that it has no room for."""
        refused = []
        with self._changed:
            for ticket in tickets:
                tokens = sum(ticket.lengths)
                if self._waiting and self._waiting_tokens + tokens > self._max_waiting:
                    refused.append(ticket)
                else:
                    self._waiting.append(ticket)
                    self._waiting_tokens += tokens
            self._changed.notify()
        return refused

    def cancel(self, ticket: Ticket) -> None:
        """Take a request out of the queue; rows that are being computed are dropped."""
        with self._changed:
            ticket.cancelled = True
            if ticket in self._waiting:
                self._waiting.remove(ticket)
                self._waiting_tokens -= ticket.tokens_left

    def _work(self) -> None:
        thread_count = None  # torch's, in this worker; it is kept from batch to batch
        while taken := self._take():
            (parts, tokens, threads), started = taken, time.perf_counter()
            if threads is not None and threads != thread_count:
                set_thread_count(thread_count := threads)
            done = self._store(_compute(parts), tokens)
            self._count(parts, tokens, time.perf_counter() - started)
            if done:
                self._deliver(done)

    def _threads_for(self, tokens: int) -> int | None:
        """Torch threads for the batch just taken; None: torch's default.

        One for few tokens; all cores where no other batch is or will be computed; else this worker's share of them.
        """
        if self._cores is None:
            return None
        if tokens <= TOKENS_FOR_ONE_THREAD:
            return 1
        return self._cores if self._busy == 1 and not self._waiting else max(1, self._cores // len(self._threads))

    def _take(self) -> tuple[list[Part], int, int | None] | None:
        """The next batch, its tokens and its torch threads; None when the queue is empty and closed."""
        with self._changed:
            while not self._waiting:
                if self._closing:
                    return None
                self._changed.wait()
            budget = self._batch_budget()
            parts: list[Part] = []
            for ticket, count in zip(self._waiting, self._counts(budget), strict=True):
                if count:
                    start, ticket.taken = ticket.taken, ticket.taken + count
                    parts.append((ticket, start, ticket.taken))
            taken = sum(sum(ticket.lengths[start:stop]) for ticket, start, stop in parts)
            self._waiting_tokens -= taken
            self._computing_tokens += taken
            self._waiting = [ticket for ticket in self._waiting if ticket.taken < len(ticket.sequences)]
            if self._waiting:
                self._changed.notify()  # there is work for another thread
            self._busy += 1
            return parts, taken, self._threads_for(taken)

    def _batch_budget(self) -> int:
        """Most tokens of the next batch: the whole budget for a single worker, a fair share for one of several."""
        if len(self._threads) == 1:
            return self._budget
        return fair_budget(self._waiting_tokens + self._computing_tokens, len(self._threads), self._budget)

    def _counts(self, budget: int) -> list[int]:
        """How many sequences of each waiting request go next: all, where they fit into one batch; else `next_batch`."""
        key = self._waiting[0].shared_encoder.key
        if self._waiting_tokens <= budget and all(ticket.shared_encoder.key == key for ticket in self._waiting):
            return [len(ticket.lengths) - ticket.taken for ticket in self._waiting]
        waiting = [Waiting(ticket.shared_encoder.key, ticket.lengths, ticket.taken) for ticket in self._waiting]
        return next_batch(waiting, budget)

    def _store(self, results: Sequence[tuple[Part, list[Any] | Exception]], tokens: int) -> list[Ticket]:
        """Write rows into their tickets; returns those that are complete."""
        done = []
        with self._changed:
            self._busy -= 1
            self._computing_tokens -= tokens
            for (ticket, start, stop), rows in results:
                ticket.missing -= stop - start
                if isinstance(rows, Exception):
                    ticket.failure = rows
                else:
                    ticket.rows[start:stop] = rows
                if ticket.missing == 0 and not ticket.cancelled:
                    done.append(ticket)
        return done

    def _count(self, parts: Sequence[Part], tokens: int, seconds: float) -> None:
        """Update the speed, and report the batch to the observer."""
        lengths = [length for ticket, start, stop in parts for length in ticket.lengths[start:stop]]
        speed, previous = tokens / seconds, self._tokens_per_second
        self._tokens_per_second = 0.8 * previous + 0.2 * speed if previous else speed
        self._observer.batch_done(BatchDone(len(lengths), tokens, max(lengths), seconds, len(parts)))


def _compute(parts: Sequence[Part]) -> list[tuple[Part, list[Any] | Exception]]:
    """Rows for each part. If a batch fails, its parts are computed one by one, so that only the faulty one fails."""
    sequences = [sequence for ticket, start, stop in parts for sequence in ticket.sequences[start:stop]]
    try:
        computed = parts[0][0].shared_encoder.compute(sequences)
        assert len(computed) == len(sequences)
    except Exception as error:
        failure = detached(error)
    else:
        rows = iter(computed)
        return [(part, list(islice(rows, part[2] - part[1]))) for part in parts]
    if len(parts) == 1:
        return [(parts[0], failure)]
    return [result for part in parts for result in _compute([part])]
