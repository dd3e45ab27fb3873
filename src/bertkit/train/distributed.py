"""Ranks: one process, or several started by torchrun; sums over all of them, and tensors spread over them."""

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bertkit.errors import RequestError

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Ranks:
    """Who this process is among how many, and where its tensors live."""

    rank: int = 0
    size: int = 1
    device: torch.device = CPU

    @property
    def first(self) -> bool:
        """The one that writes files and speaks."""
        return self.rank == 0

    def share(self, items: range) -> range:
        """The part of this rank in a range that divides evenly."""
        if len(items) % self.size:
            raise RequestError(
                f"{len(items)} blocks a step do not divide evenly over {self.size} ranks; raise batch or lower block"
            )
        each = len(items) // self.size
        return items[self.rank * each : (self.rank + 1) * each]

    def sum(self, tensor: Tensor) -> Tensor:
        """The tensor added up over all ranks, in ranks."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any rank: what all must do together is decided together."""
        return bool(self.sum(torch.tensor(int(flag), device=self.device))) if self.size > 1 else flag

    def from_first_rank(self, number: float) -> float:
        """The first rank's number, on every rank: clocks differ, and one decides."""
        mine = torch.tensor(number if self.first else 0.0, dtype=torch.float64, device=self.device)
        return float(self.sum(mine)) if self.size > 1 else number

    def gather(self, mine: str | None) -> list[str | None]:
        """What each rank has, in the order of ranks, on every rank."""
        each = [mine] * self.size
        if self.size > 1:
            dist.all_gather_object(each, mine)
        return each

    def wait(self) -> None:
        """Until all ranks are here."""
        if self.size > 1:
            dist.barrier()


@contextmanager
def process_group(device: str | None = None) -> Iterator[Ranks]:
    """Where this process stands: alone, or as torchrun's environment says, with NCCL on CUDA and gloo on the CPU."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_RANK", "0"))
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    where = torch.device(kind, local) if kind == "cuda" else torch.device(kind)
    if kind == "cuda":
        torch.cuda.set_device(where)
    if size == 1:
        yield Ranks(device=where)
        return
    ours = not dist.is_initialized()  # a caller who has made the group keeps it
    if ours:
        dist.init_process_group("nccl" if kind == "cuda" else "gloo")
    try:
        yield Ranks(dist.get_rank(), size, where)
    finally:
        if ours:
            dist.destroy_process_group()


@contextmanager
def stop_requests(ranks: Ranks) -> Iterator[Callable[[], bool]]:
    """Whether SIGTERM or Ctrl-C has come to any rank; what stood there before is put back at the end."""
    asked: list[int] = []
    before = {}
    if threading.current_thread() is threading.main_thread():  # elsewhere Python hears no signals
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, lambda number, _: asked.append(number))
    try:
        yield lambda: ranks.any(bool(asked))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def shard(module: nn.Module, blocks: Iterable[nn.Module], ranks: Ranks) -> None:
    """FSDP2: each rank keeps a part of every tensor, and a block's tensors are whole only while it computes."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(ranks.device.type, (ranks.size,))
    for block in blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(module, mesh=mesh)


def reshard(module: nn.Module) -> None:
    """Back to each rank's part after a forward without a backward, which leaves the root's tensors whole.

    `parameters()` would give those whole tensors, which have no gradients: there is nothing to clear in them.
    """
    from torch.distributed.fsdp import FSDPModule

    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.reshard()


def full_tensor(tensor: Tensor) -> Tensor:
    """All of a tensor that may be spread over ranks; if it is, every rank must ask."""
    gather = getattr(tensor, "full_tensor", None)
    return tensor if gather is None else gather()


def sharded_like(tensor: Tensor, example: Tensor) -> Tensor:
    """The way back: this rank's part of a whole tensor, spread as `example` is."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(example, DTensor):
        return tensor
    # Every rank has the whole already: nothing needs to be sent.
    return distribute_tensor(tensor, example.device_mesh, example.placements, src_data_rank=None)
