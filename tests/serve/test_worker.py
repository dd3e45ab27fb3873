"""Threads at the queue, over shared_encoders that only pretend to compute."""

import gc
import threading
import time
import traceback
import weakref
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from serving import wait_until

from bertkit.engine.threads import TOKENS_FOR_ONE_THREAD
from bertkit.serve.queue import Waiting, next_batch
from bertkit.serve.worker import Ticket, Workers, _compute

MANY_TOKENS = "w" * (TOKENS_FOR_ONE_THREAD + 1)


class Metrics:
    def __init__(self):
        self.batches = []

    def batch_done(self, batch):
        self.batches.append(batch)


@dataclass(frozen=True)
class Word:
    """A piece that is its own answer; the word "bad" makes its batch fail."""

    text: str

    def __len__(self):
        return len(self.text)


@dataclass(eq=False)
class Slow:
    """A shared that can be held."""

    open: threading.Event = field(default_factory=threading.Event)
    begun: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    seen: list = field(default_factory=list)
    threads: list = field(default_factory=list)

    @property
    def key(self):
        return id(self)

    def compute(self, pieces):
        self.threads.append(torch.get_num_threads())
        self.begun.release()
        assert self.open.wait(10)
        self.seen.append([piece.text for piece in pieces])
        if any(piece.text == "bad" for piece in pieces):
            raise RuntimeError("a bad word")
        return [piece.text.upper() for piece in pieces]


class Desk:
    """Workers, and the tickets that came back."""

    def __init__(self, **options):
        self.done, self.metrics = [], Metrics()
        self.shared_encoder = Slow()
        options = {"budget": 100, "max_waiting": 1000} | options
        self.workers = Workers(self.done.extend, self.metrics, **options)
        self.workers.start()

    def ask(self, *words):
        """A ticket in the queue, or None where it is full."""
        ticket = Ticket(self.shared_encoder, [Word(word) for word in words])
        return None if self.workers.submit([ticket]) else ticket

    def hold(self, word="first"):
        """A batch that is being computed, so that what comes next waits."""
        ticket = self.ask(word)
        assert self.shared_encoder.begun.acquire(timeout=10)
        return ticket

    def finish(self):
        self.shared_encoder.open.set()
        self.workers.close()


@pytest.fixture
def desk():
    found = Desk()
    yield found
    found.finish()


def test_requests_that_wait_together_are_computed_together(desk):
    desk.hold()
    tickets = [desk.ask("a", "b"), desk.ask("c")]
    desk.finish()
    assert desk.shared_encoder.seen == [["first"], ["a", "b", "c"]]
    assert [ticket.rows for ticket in tickets] == [["A", "B"], ["C"]]
    assert [batch.requests for batch in desk.metrics.batches] == [1, 2]
    assert desk.workers.depth == (0, 0)


def test_a_long_request_is_told_once_and_whole():
    desk = Desk(budget=8)
    ticket = desk.ask(*(f"w{n}" for n in range(50)))
    desk.finish()
    assert desk.done == [ticket]
    assert ticket.rows == [f"W{n}" for n in range(50)]


def test_only_the_guilty_request_fails(desk):
    desk.hold()
    good, bad, other = desk.ask("a"), desk.ask("bad"), desk.ask("b")
    desk.finish()
    assert good.rows == ["A"]
    assert other.rows == ["B"]
    assert good.failure is None
    assert other.failure is None
    assert isinstance(bad.failure, RuntimeError)
    assert set(desk.done) >= {good, bad, other}
    assert desk.workers._computing_tokens == 0


def test_a_cancelled_request_leaves_the_queue(desk):
    desk.hold()
    gone, stays = desk.ask("gone"), desk.ask("stays")
    desk.workers.cancel(gone)
    assert desk.workers.depth == (1, 5)
    desk.finish()
    assert desk.shared_encoder.seen == [["first"], ["stays"]]
    assert gone not in desk.done
    assert stays in desk.done


def test_cancelled_in_the_middle_it_is_computed_for_nothing(desk):
    first = desk.hold()
    desk.workers.cancel(first)
    desk.finish()
    assert desk.done == []
    assert desk.workers.depth == (0, 0)
    assert desk.workers._computing_tokens == 0


def test_a_full_queue_takes_no_more_and_says_when_to_come_back():
    desk = Desk(max_waiting=10)
    desk.hold()
    desk.ask("12345678")
    assert desk.ask("123") is None
    assert desk.workers.seconds_behind >= 1
    assert desk.workers.depth == (1, 8)
    desk.finish()


def test_requests_that_come_together_are_computed_together_and_only_those_without_room_are_refused():
    desk = Desk(max_waiting=10)
    desk.shared_encoder.open.set()
    tickets = [Ticket(desk.shared_encoder, [Word(word)]) for word in ("12345", "1234567", "123", "45")]
    assert desk.workers.submit(tickets) == [tickets[1]]
    desk.finish()
    assert desk.shared_encoder.seen == [["12345", "123", "45"]]
    assert desk.done == [tickets[0], *tickets[2:]]


def test_one_request_over_the_limit_is_taken_where_nothing_waits():
    desk = Desk(max_waiting=10)
    ticket = desk.ask("123456789012345")
    desk.finish()
    assert ticket.rows == ["123456789012345"]


def test_closing_answers_what_waits():
    desk = Desk(budget=4)
    desk.hold()
    tickets = [desk.ask("abc") for _ in range(20)]
    desk.finish()
    assert all(ticket.rows == ["ABC"] for ticket in tickets)


def test_many_threads_lose_and_cross_nothing():
    desk = Desk(budget=20, threads=4)
    desk.shared_encoder.open.set()
    tickets = {}

    def client(name):
        for number in range(100):
            words = [f"{name}-{number}-{part}" for part in range(number % 4 + 1)]
            while (ticket := desk.ask(*words)) is None:
                time.sleep(0.001)
            tickets[name, number] = (words, ticket)

    threads = [threading.Thread(target=client, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    desk.finish()
    assert len(desk.done) == len(set(desk.done)) == 400
    assert all(ticket.rows == [word.upper() for word in words] for words, ticket in tickets.values())


@pytest.mark.parametrize(("cores", "share"), [(6, 3), (1, 1)])
def test_a_batch_alone_has_all_cores_and_two_share_them(cores, share):
    desk = Desk(threads=2, cores=cores)
    desk.hold(MANY_TOKENS)
    desk.ask(MANY_TOKENS)
    assert desk.shared_encoder.begun.acquire(timeout=10)
    desk.finish()
    assert desk.shared_encoder.threads == [cores, share]


def test_after_the_others_are_done_a_batch_has_all_cores_again():
    desk = Desk(threads=2, cores=2)
    desk.shared_encoder.open.set()
    for _ in range(3):
        desk.ask(MANY_TOKENS)
        assert desk.shared_encoder.begun.acquire(timeout=10)
        wait_until(lambda: desk.workers._busy == 0)
    desk.finish()
    assert desk.shared_encoder.threads == [2, 2, 2]


def test_few_tokens_are_computed_by_one_thread_and_other_threads_keep_their_count():
    before, desk = torch.get_num_threads(), Desk(cores=3)
    desk.shared_encoder.open.set()
    for word in ("few", MANY_TOKENS, MANY_TOKENS, "few"):
        desk.ask(word)
        wait_until(lambda: not desk.workers.depth[0] and desk.workers._busy == 0)
    desk.finish()
    assert desk.shared_encoder.threads == [1, 3, 3, 1]
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(("threads", "largest"), [(1, 30), (2, 10)])
def test_of_two_none_takes_all_that_waits(threads, largest):
    desk = Desk(threads=threads, budget=10_000, max_waiting=100_000)
    for _ in range(threads):
        desk.hold()
    tickets = [desk.ask("w" * 100) for _ in range(30)]
    desk.finish()
    sizes = [batch.sequences for batch in desk.metrics.batches]
    assert sum(sizes) == threads + 30
    assert max(sizes) == largest
    assert all(ticket.rows == ["W" * 100] for ticket in tickets)
    assert desk.workers._computing_tokens == 0


class Large:
    """What a pass has in hand."""


def test_a_failure_keeps_neither_what_its_pass_had_nor_its_request():
    seen = []

    class Failing(Slow):
        def compute(self, pieces):
            large = Large()
            seen.append(weakref.ref(large))
            raise RuntimeError("no room")

    ticket = Ticket(Failing(), [Word("a")])
    left = weakref.ref(ticket)
    gc.disable()
    try:
        [(_, failure)] = _compute([(ticket, 0, 1)])
        assert [each() for each in seen] == [None]
        assert "in compute" in "".join(traceback.format_exception(failure)), "the log still has its lines"
        ticket.failure = failure
        del ticket, _, failure
        assert left() is None
    finally:
        gc.enable()


@given(
    st.lists(st.tuples(st.booleans(), st.lists(st.integers(1, 40), min_size=1, max_size=6)), min_size=1, max_size=12),
    st.data(),
)
def test_what_goes_next_is_the_policys_choice_also_where_all_fits(jobs, data):
    """The short cut for what is one batch, and its slow twin."""
    shared_encoders = Slow(), Slow()
    workers = Workers(lambda done: None, Metrics(), budget=100, max_waiting=10_000)
    tickets = [Ticket(shared_encoders[other], [Word("a" * length) for length in lengths]) for other, lengths in jobs]
    assert workers.submit(tickets) == []
    for ticket in tickets:  # as if some of it were computed
        ticket.taken = data.draw(st.integers(0, len(ticket.sequences) - 1))
    workers._waiting_tokens = sum(ticket.tokens_left for ticket in tickets)
    for budget in (20, 100, workers._waiting_tokens, 10_000):
        waiting = [Waiting(ticket.shared_encoder.key, ticket.lengths, ticket.taken) for ticket in tickets]
        assert workers._counts(budget) == next_batch(waiting, budget)
