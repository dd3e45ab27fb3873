"""Work with its own number of threads leaves torch's counts alone, whatever overlaps."""

import os
import threading

import pytest
import torch

from bertkit.checkpoint.save_load import Checkpoint
from bertkit.config import family_config
from bertkit.engine import embed as embedding
from bertkit.engine.threads import map_in_threads, set_thread_count, threads_for
from bertkit.errors import RequestError
from bertkit.model.model import new_model
from bertkit.predict.bert import Bert
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.wordpiece import SPECIALS

CPU = torch.device("cpu")
PATIENCE = 60.0  # seconds that no step of these tests takes


@pytest.fixture(autouse=True)
def _two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def bert():
    pieces = [*SPECIALS, *"abcdefgh"]
    config = family_config("bert", "tiny", vocab_size=len(pieces), max_length=64)
    return Bert(Checkpoint(model=new_model(config).eval(), tokenizer=Tokenizer.from_vocab(pieces), max_length=64))


def in_new_thread(ask=torch.get_num_threads):
    found = []
    thread = threading.Thread(target=lambda: found.append(ask()))
    thread.start()
    thread.join()
    return found[0]


class Gate:
    """A batch of so many tokens stops in the middle of its computation until it is let go."""

    def __init__(self, tokens):
        self.tokens, self.inside, self.go = tokens, threading.Event(), threading.Event()

    def pass_through(self, batch):
        if batch.lengths[0] == self.tokens and not self.inside.is_set():
            self.inside.set()
            assert self.go.wait(PATIENCE)


@pytest.fixture
def gates(monkeypatch):
    """A gate for the call of many texts, of 22 tokens each, and one for the call of a short one, of 5."""
    made, original = (Gate(22), Gate(5)), embedding.layer_vectors

    def careful(forward, batch, layers):
        for gate in made:
            gate.pass_through(batch)
        return original(forward, batch, layers)

    monkeypatch.setattr(embedding, "layer_vectors", careful)
    yield made
    for gate in made:
        gate.go.set()


MANY, SHORT = ["a b c d " * 5] * 100, ["a b c"]


@pytest.mark.parametrize("first", [0, 1])
def test_calls_that_overlap_leave_the_counts_as_they_were(bert, gates, first):
    """One begins, the other begins in a thread that is new, the first ends, the second ends; in both orders."""
    order = [(gates[0], MANY), (gates[1], SHORT)]
    counts, threads = {}, []
    for number, (gate, texts) in enumerate(order if first == 0 else order[::-1]):

        def embed(number=number, texts=texts):
            counts[number, "before"] = torch.get_num_threads()
            bert.embed(texts)
            counts[number, "after"] = torch.get_num_threads()

        threads.append(threading.Thread(target=embed))
        threads[-1].start()
        assert gate.inside.wait(PATIENCE)
        assert in_new_thread() == torch.get_num_threads() == 2, "while they compute"
    for thread, (gate, _) in zip(threads, order if first == 0 else order[::-1], strict=True):
        gate.go.set()
        thread.join()
        assert in_new_thread() == torch.get_num_threads() == 2
    assert set(counts.values()) == {2}


def test_a_count_that_is_set_meanwhile_stays(bert, gates):
    thread = threading.Thread(target=bert.embed, args=(SHORT,))
    thread.start()
    assert gates[1].inside.wait(PATIENCE)
    torch.set_num_threads(3)
    gates[1].go.set()
    thread.join()
    assert in_new_thread() == torch.get_num_threads() == 3


@pytest.mark.parametrize(("tokens", "most", "expected"), [(1, None, 1), (64, 4, 1), (65, None, 2), (65, 4, 4)])
def test_few_tokens_take_one_thread(tokens, most, expected):
    with threads_for(tokens, CPU, most):
        assert torch.get_num_threads() == expected
        assert in_new_thread() == 2
    assert in_new_thread() == torch.get_num_threads() == 2


def test_what_fails_fails_in_the_caller():
    def compute(number=3):
        if number == 3:
            raise RequestError("number 3")
        return torch.get_num_threads()

    with pytest.raises(RequestError, match="number 3"), threads_for(1, CPU):
        compute()
    assert torch.get_num_threads() == 2
    with pytest.raises(RequestError, match="number 3"):
        list(map_in_threads(compute, range(50), 2))
    assert list(map_in_threads(compute, range(2), 2)) == [1, 1]


def test_a_gpus_work_keeps_its_count():
    with threads_for(1, torch.device("cuda")):
        assert torch.get_num_threads() == 2


def test_a_thread_may_have_a_count_of_its_own():
    def own():
        set_thread_count(5)
        return torch.get_num_threads(), in_new_thread()

    assert in_new_thread(own) == (5, 2)
    assert torch.get_num_threads() == 2


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_process_begins_with_workers_of_its_own():
    assert list(map_in_threads(lambda _: torch.get_num_threads(), range(2), 2)) == [1, 1]
    child = os.fork()
    if child == 0:
        finished = threading.Thread(target=lambda: list(map_in_threads(int, range(2), 2)), daemon=True)
        finished.start()
        finished.join(PATIENCE)
        os._exit(int(finished.is_alive()))
    assert os.waitpid(child, 0)[1] == 0
