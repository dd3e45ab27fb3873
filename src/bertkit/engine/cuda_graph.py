"""Records what a function does on a GPU as a CUDA graph: one launch instead of hundreds."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

Run = Callable[[], Tensor]
Recorder = Callable[[Run], tuple[Callable[[], Any], Callable[[], Tensor]]]  # a function -> (replay, output)

_RECORDING = Lock()  # torch records one graph at a time in a process


class CudaRecorder:
    """Records on a CUDA graph. All graphs share one memory pool, because they never run at the same time.

    A function must have run before it is recorded: kernels are compiled at the first run, which is not allowed during a
    recording. The caller keeps alive the tensors that the function reads and writes: a graph knows only their
    addresses.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device
        self.failed: list[torch.cuda.CUDAGraph] = []
        self.graphs: WeakSet[torch.cuda.CUDAGraph] = WeakSet()
        with torch.cuda.device(device):
            self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def __call__(self, run: Run) -> tuple[Callable[[], Any], Callable[[], Tensor]]:
        """(replay, output) of a function; its kernels are recorded, not run."""
        with _RECORDING, _no_garbage_collection(), torch.cuda.device(self.device):
            before, graph = torch.cuda.current_stream(), torch.cuda.CUDAGraph()
            if not self.graphs:  # a pool ends with the last graph in it
                self.pool = torch.cuda.graph_pool_handle()
            try:
                # Other threads may use the GPU meanwhile: their work is not recorded.
                with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
                    output = run()
            except RuntimeError:
                torch.cuda.set_stream(before)
                self._abandon(graph)
                raise
            self.graphs.add(graph)
        return graph.replay, lambda: output

    def _abandon(self, graph: torch.cuda.CUDAGraph) -> None:
        """Clean up after a recording that failed, which torch still treats as running."""
        self.failed.append(graph)  # the allocator may still refer to it
        with suppress(RuntimeError):  # if it did end
            torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), self.pool)
        self.pool = torch.cuda.graph_pool_handle()
        # The random number generator still waits for the end of the recording; a copy of it does not.
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        generator.graphsafe_set_state(generator.clone_state())


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """An older graph that is collected as garbage would be destroyed, which ends the recording."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
