"""The batching policy on lists of numbers: no server, no sleep."""

from hypothesis import given
from hypothesis import strategies as st

from bertkit.serve.queue import EFFICIENT_TOKENS, Waiting, fair_budget, next_batch, seconds_to_wait

BUDGET = 64
lengths = st.lists(st.integers(1, BUDGET // 2), min_size=1, max_size=20)
requests = st.lists(lengths, min_size=1, max_size=12)
any_lengths = st.lists(st.integers(1, 3 * BUDGET), min_size=1, max_size=12)


def tokens(waiting, counts):
    return sum(sum(w.lengths[w.start : w.start + n]) for w, n in zip(waiting, counts, strict=True))


def play(jobs, arrivals=()):
    """Batches until all is computed: for each job the number of the batch that finished it.

    `arrivals` are (batch, encoder, lengths): requests that come while others wait.
    """
    queue = [[number, encoder, own, 0] for number, (encoder, own) in enumerate(jobs)]
    later = sorted(arrivals, key=lambda arrival: arrival[0])
    finished, batch, number = {}, 0, len(jobs)
    while queue or later:
        while later and (later[0][0] <= batch or not queue):
            _, encoder, own = later.pop(0)
            queue.append([number, encoder, own, 0])
            number += 1
        waiting = [Waiting(encoder, own, start) for _, encoder, own, start in queue]
        counts = next_batch(waiting, BUDGET)
        batch += 1
        assert counts[0] >= 1, "the oldest always moves on"
        used = tokens(waiting, counts)
        assert used <= BUDGET or sum(counts) == 1, "the budget is kept; a single long sequence goes alone"
        assert len({w.encoder for w, n in zip(waiting, counts, strict=True) if n}) == 1
        for job, count in zip(queue, counts, strict=True):
            job[3] += count
            assert job[3] <= len(job[2])
            if job[3] == len(job[2]):
                finished[job[0]] = batch
        queue = [job for job in queue if job[3] < len(job[2])]
    return finished


def test_nothing_waits():
    assert next_batch([], BUDGET) == []


def test_everything_that_fits_goes_at_once():
    assert next_batch([Waiting("a", [10, 10]), Waiting("a", [20]), Waiting("a", [24])], BUDGET) == [2, 1, 1]


def test_other_encoders_wait_for_their_turn():
    waiting = [Waiting("a", [10]), Waiting("b", [10]), Waiting("a", [10])]
    assert next_batch(waiting, BUDGET) == [1, 0, 1]


def test_a_sequence_over_the_budget_goes_alone():
    assert next_batch([Waiting("a", [100, 1]), Waiting("a", [1])], BUDGET) == [1, 0]


def test_a_small_request_passes_a_large_one():
    """Half of the batch is shared evenly: what is not over its share goes next, however much waits before it."""
    large, small = Waiting("a", [16] * 1000), Waiting("a", [8])
    assert next_batch([large, small], BUDGET) == [3, 1]


def test_a_large_request_is_not_starved_by_small_ones():
    """New small requests come with every batch; the large one still gets half of each."""
    arrivals = [(batch, "a", [8] * 8) for batch in range(200)]
    finished = play([("a", [8] * 80)], arrivals)
    assert finished[0] <= 2 * 80 * 8 / BUDGET


@given(requests)
def test_a_batch_is_as_full_as_it_can_be(jobs):
    waiting = [Waiting("a", own) for own in jobs]
    counts = next_batch(waiting, BUDGET)
    room = BUDGET - tokens(waiting, counts)
    left = [own[n] for own, n in zip(jobs, counts, strict=True) if n < len(own)]
    assert all(length > room for length in left), "what is left would have fitted"


@given(requests, st.lists(st.tuples(st.integers(0, 20), st.just("a"), lengths), max_size=12))
def test_nobody_waits_for_those_who_came_later(jobs, arrivals):
    """The bound: with W tokens before and of it, a request is done after 4 W / budget batches, and one for each
    request before it, whoever comes later. Sequences are at most half a batch here."""
    finished = play([("a", own) for own in jobs], arrivals)
    work = 0
    for number, own in enumerate(jobs):
        work += sum(own)
        assert finished[number] <= 4 * work / BUDGET + number + 1


@given(requests, st.integers(1, 4))
def test_what_is_not_over_its_share_goes_next(jobs, small):
    """However large the others are; the oldest's first sequence may take half of the batch and no more."""
    waiting = [*(Waiting("a", own) for own in jobs), Waiting("a", [small])]
    if small <= (BUDGET // 2) // len(waiting):
        assert next_batch(waiting, BUDGET)[-1] == 1


@given(st.lists(st.tuples(st.sampled_from("abc"), any_lengths), min_size=1, max_size=10))
def test_all_is_computed_once_whatever_the_lanes_and_lengths(jobs):
    finished = play(jobs)
    assert set(finished) == set(range(len(jobs)))
    steps = 0
    for number, (_, own) in enumerate(jobs):
        steps += len(own)
        assert finished[number] <= steps, "each batch takes a sequence of the oldest at least"


def test_retry_after_is_about_when_there_is_room():
    assert seconds_to_wait(10_000, 1000.0) == 10
    assert seconds_to_wait(1, 1000.0) == 1
    assert seconds_to_wait(10**9, 1.0) == 60
    assert seconds_to_wait(10, 0.0) == 1


def test_one_worker_takes_what_it_can_and_several_leave_each_other_something():
    assert fair_budget(1_000_000, 1, max_tokens=4096) == fair_budget(10, 1, max_tokens=4096) == 4096
    assert fair_budget(3000, 2, max_tokens=4096) == 1000
    assert fair_budget(1_000_000, 4, max_tokens=4096) == 4096
    assert fair_budget(10, 2, max_tokens=4096) == EFFICIENT_TOKENS, "few tokens are not worth dividing"
    assert fair_budget(10, 2, max_tokens=100) == 100
