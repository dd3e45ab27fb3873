"""Records what a function does on a GPU as a CUDA graph: one launch in place of hundreds."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Any

import torch
from torch import Tensor

Run = Callable[[], Tensor]
Recorder = Callable[[Run], tuple[Callable[[], Any], Callable[[], Tensor]]]  # a function -> (replay, output)

_ONE = Lock()  # torch records one graph at a time in a process


class CudaRecorder:
    """Records on a CUDA graph. All graphs share one pool of memory, because they never run at the same time.

    What is recorded has run before, since kernels are compiled the first time, which no graph may do. Whoever replays
    keeps alive what the function reads and writes: a graph knows only where it was.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device
        self.failed: list[torch.cuda.CUDAGraph] = []
        with torch.cuda.device(device):
            self.pool = torch.cuda.graph_pool_handle()
            self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def __call__(self, run: Run) -> tuple[Callable[[], Any], Callable[[], Tensor]]:
        """Nothing is computed here: the graph only learns what to do."""
        with _ONE, _garbage_kept(), torch.cuda.device(self.device):
            before, graph = torch.cuda.current_stream(), torch.cuda.CUDAGraph()
            try:
                # Other threads use the GPU meanwhile: what they do is not ours to record.
                with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
                    output = run()
            except RuntimeError:
                torch.cuda.set_stream(before)
                self._forget(graph)
                raise
        return graph.replay, lambda: output

    def _forget(self, graph: torch.cuda.CUDAGraph) -> None:
        """After a recording that failed, which torch believes to be under way."""
        self.failed.append(graph)  # the allocator may still ask it
        with suppress(RuntimeError):  # where it did end
            torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), self.pool)
        self.pool = torch.cuda.graph_pool_handle()
        # The generator of random numbers still waits for the end; a copy of it does not.
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        generator.graphsafe_set_state(generator.clone_state())


@contextmanager
def _garbage_kept() -> Iterator[None]:
    """No search for garbage: an older graph that is found in it would be destroyed, which ends the recording."""
    searching = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if searching:
            gc.enable()
