"""What the recorder does around torch's graphs, with a GPU that only takes notes."""

import gc
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch

from bertkit.engine.cuda_graph import CudaRecorder


@pytest.fixture
def notes(monkeypatch):
    """What was asked of torch.cuda; a recording that fails leaves torch on its stream, as the real one does."""
    notes, pools, now = [], [], SimpleNamespace(stream="usual")
    generator = SimpleNamespace(clone_state=lambda: "copy", graphsafe_set_state=lambda state: notes.append(state))

    def set_stream(stream):
        notes.append(f"on {stream}")
        now.stream = stream

    @contextmanager
    def graph(made, *, pool, stream, capture_error_mode):
        assert (pool, capture_error_mode) == (pools[-1], "thread_local")
        before, now.stream = now.stream, stream
        yield
        notes.append(f"recorded on {now.stream}")
        now.stream = before

    class Graph:
        def replay(self):
            notes.append("replayed")

    stubs = {
        "device": lambda device: nullcontext(),
        "graph_pool_handle": lambda: pools.append(f"pool {len(pools) + 1}") or pools[-1],
        "Stream": lambda: "aside",
        "current_stream": lambda: now.stream,
        "set_stream": set_stream,
        "CUDAGraph": Graph,
        "graph": graph,
        "default_generators": [generator],
        "current_device": lambda: 0,
    }
    for name, stub in stubs.items():
        assert hasattr(torch.cuda, name)
        monkeypatch.setattr(torch.cuda, name, stub)
    monkeypatch.setattr(
        torch._C, "_cuda_endAllocateToPool", lambda device, pool: notes.append(f"ended {pool}"), raising=False
    )
    return notes


def test_a_function_becomes_a_replay_and_its_output(notes):
    replay, output = CudaRecorder()(lambda: torch.ones(2))
    replay()
    assert notes == ["recorded on aside", "replayed"]
    assert output().tolist() == [1, 1]


def test_after_a_failure_torch_is_where_it_was_and_the_next_can_be_recorded(notes):
    def refused():
        raise RuntimeError("no graph can hold this")

    recorder = CudaRecorder()
    with pytest.raises(RuntimeError, match="no graph can hold this"):
        recorder(refused)
    assert notes == ["on usual", "ended pool 1", "copy"]
    recorder(lambda: torch.ones(2))
    assert notes[-1] == "recorded on aside"


@pytest.mark.parametrize("before", [True, False])
def test_no_garbage_is_searched_while_recording(notes, before):
    """It may hold an older graph; destroying that ends the recording (seen on an H200)."""
    found = []

    def run():
        found.append(gc.isenabled())
        return torch.ones(2)

    def refused():
        run()
        raise RuntimeError("no graph can hold this")

    usual = gc.isenabled()
    try:
        (gc.enable if before else gc.disable)()
        CudaRecorder()(run)
        assert gc.isenabled() == before
        with pytest.raises(RuntimeError, match="no graph"):
            CudaRecorder()(refused)
        assert (found, gc.isenabled()) == ([False, False], before)
    finally:
        (gc.enable if usual else gc.disable)()


def test_a_pool_is_used_as_long_as_one_of_its_graphs_is_there(notes):
    """torch ends a pool with its last graph, and fails if it is used again (seen on an H200)."""
    recorder = CudaRecorder()
    kept = recorder(lambda: torch.ones(2))
    first = recorder.pool
    kept = (kept, recorder(lambda: torch.ones(2)))
    assert recorder.pool == first
    del kept
    gc.collect()
    recorder(lambda: torch.ones(2))
    assert recorder.pool != first
