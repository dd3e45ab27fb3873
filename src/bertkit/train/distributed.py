"""Distributed training: one process, or several started by torchrun; sums over ranks and sharded tensors."""

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
    """The rank of this process, the number of ranks, and the device of its tensors."""

    rank: int = 0
    size: int = 1
    device: torch.device = CPU

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which writes files and shows progress."""
        return self.rank == 0

    def share(self, items: range) -> range:
        """The part of this rank in a range, which must divide evenly."""
        if len(items) % self.size:
            raise RequestError(
                f"{len(items)} blocks per step do not divide evenly over {self.size} ranks; raise batch or lower block"
            )
        count = len(items) // self.size
        return items[self.rank * count : (self.rank + 1) * count]

    def seed(self, seed: int) -> None:
        """Seed the generators of the CPU and of this rank's device, as `torch.manual_seed` does.

        That also visits every kind of device that is not there, each with a formatted stack: 0.2 ms a step or more.
        """
        torch.default_generator.manual_seed(seed)
        if self.device.type != "cpu":
            torch.get_device_module(self.device).manual_seed_all(seed)

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of the tensor over all ranks, on every rank (in place)."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any rank, so that all ranks take the same decision."""
        return bool(self.sum(torch.tensor(int(flag), device=self.device))) if self.size > 1 else flag

    def from_first_rank(self, number: float) -> float:
        """The number of rank 0, on every rank: their clocks differ."""
        local = torch.tensor(number if self.first else 0.0, dtype=torch.float64, device=self.device)
        return float(self.sum(local)) if self.size > 1 else number

    def gather(self, text: str | None) -> list[str | None]:
        """The texts of all ranks in order, on every rank."""
        texts = [text] * self.size
        if self.size > 1:
            dist.all_gather_object(texts, text)
        return texts

    def wait(self) -> None:
        """Wait until all ranks have reached this point (barrier)."""
        if self.size > 1:
            dist.barrier()


@contextmanager
def process_group(device: str | None = None) -> Iterator[Ranks]:
    """The ranks of this process: alone, or as torchrun's environment says, with NCCL on CUDA and gloo on the CPU."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_RANK", "0"))
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    local_device = torch.device(kind, local) if kind == "cuda" else torch.device(kind)
    if kind == "cuda":
        torch.cuda.set_device(local_device)
    if size == 1:
        yield Ranks(device=local_device)
        return
    created = not dist.is_initialized()  # a group that the caller made stays open
    if created:
        dist.init_process_group("nccl" if kind == "cuda" else "gloo")
    try:
        yield Ranks(dist.get_rank(), size, local_device)
    finally:
        if created:
            dist.destroy_process_group()


@contextmanager
def stop_requests(ranks: Ranks) -> Iterator[Callable[[], bool]]:
    """A function that says whether any rank got SIGTERM or Ctrl-C; the previous handlers are restored at the end."""
    received: list[int] = []
    previous = {}
    if threading.current_thread() is threading.main_thread():  # other threads cannot install handlers
        for number in (signal.SIGTERM, signal.SIGINT):
            previous[number] = signal.signal(number, lambda number, _: received.append(number))
    try:
        yield lambda: ranks.any(bool(received))
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def shard(module: nn.Module, blocks: Iterable[nn.Module], ranks: Ranks) -> None:
    """Shard with FSDP2: each rank keeps a part of every tensor; a block's tensors are gathered while it computes."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(ranks.device.type, (ranks.size,))
    for block in blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(module, mesh=mesh)


def reshard(module: nn.Module) -> None:
    """Free the gathered tensors of the FSDP root, which a forward without a backward leaves behind.

    `parameters()` would return those full tensors, which have no gradients, so zero_grad would clear nothing.
    """
    from torch.distributed.fsdp import FSDPModule

    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.reshard()


def full_tensor(tensor: Tensor) -> Tensor:
    """The full tensor of one that may be sharded; if it is, every rank must call this."""
    gather = getattr(tensor, "full_tensor", None)
    return tensor if gather is None else gather()


def sharded_like(tensor: Tensor, example: Tensor) -> Tensor:
    """The inverse of `full_tensor`: this rank's part of a full tensor, sharded as `example` is."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if not isinstance(example, DTensor):
        return tensor
    # Every rank has the full tensor already: nothing is sent.
    return distribute_tensor(tensor, example.device_mesh, example.placements, src_data_rank=None)
