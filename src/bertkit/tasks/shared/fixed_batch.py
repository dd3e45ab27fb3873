"""A step's examples in tensors of a fixed form, for CUDA: what the loss asks is made on the host, before the forward.

`Task.loss` reads windows, the slow and obvious way; its twin `Task.fixed_loss` reads tensors only, so that a step
needs no copies in its middle and can be recorded once and replayed (train/replay.py). Sequences of padding fill a form
up; they are computed and weigh nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import torch
from torch import Tensor

from bertkit.config import BertConfig
from bertkit.model.batch import Batch, Layout
from bertkit.model.heads import HEADS
from bertkit.tasks.task import LossSettings, Size, Task, Window

GRAIN = 16  # lengths are rounded up to multiples: few forms, and rows that attention kernels like
ROWS = 8  # and numbers of sequences to these


@dataclass(frozen=True)
class FixedBatch:
    """Sequences end to end, with where they start, and what the loss asks of them."""

    ids: Tensor  # T
    segments: Tensor  # T
    positions: Tensor  # T
    offsets: Tensor  # N + 1
    asked: tuple[Tensor, ...]  # in the task's own form; the last is the number of targets
    longest: int

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What differs from step to step."""
        return (self.ids, self.segments, self.positions, self.offsets, *self.asked)

    @property
    def form(self) -> tuple[object, ...]:
        """What does not."""
        return (self.longest, *(tensor.shape for tensor in self.tensors))

    def refilled(self, tensors: Sequence[Tensor]) -> "FixedBatch":
        """The same form around other tensors."""
        ids, segments, positions, offsets, *asked = tensors
        return FixedBatch(ids, segments, positions, offsets, tuple(asked), self.longest)

    def to(self, device: torch.device) -> "FixedBatch":
        """On another device; nobody waits for the copies."""
        return self.refilled([tensor.to(device, non_blocking=True) for tensor in self.tensors])

    def pinned(self) -> "FixedBatch":
        """In memory that a GPU can read by itself."""
        return self.refilled([tensor.pin_memory() for tensor in self.tensors])

    def batch(self) -> Batch:
        """For the model, which reads the layout and never the lengths: those here are only of the right sum."""
        layout = Layout(self.offsets, self.positions, self.longest, fixed=True)
        return Batch(self.ids, self.segments, (len(self.ids),), layout)


def can_fix(task: Task, weights: LossSettings, config: BertConfig) -> bool:
    """Whether the task's loss has a twin here that is the same, whatever its windows are."""
    if task.joins_windows or (HEADS[task.head].pooled and config.parts.pooling != "first"):
        return False
    return task.has_fixed_loss(weights)


def window_segments(windows: Sequence[Window], config: BertConfig) -> list[tuple[int, ...]]:
    """Of each window; a family without a second segment reads both texts of a pair as the first."""
    segments = [window.segments for window in windows]
    if max(map(max, segments)) >= max(config.segments, 1):
        return [(0,) * len(window.ids) for window in windows]
    return segments


def fixed_batch(
    task: Task, windows: Sequence[Window], config: BertConfig, weights: LossSettings, examples: int
) -> FixedBatch | None:
    """The windows of at most `examples` examples, filled up; None where a text has several windows to pool."""
    if task.pools_windows and task.targets(windows) < len(windows):
        return None
    lengths = [len(window.ids) for window in windows]
    longest = min(_rounded(max(lengths), GRAIN), config.max_length)
    tokens = _rounded(sum(lengths), GRAIN * examples)
    room = tokens - sum(lengths)
    filling = [longest] * (room // longest) + [room % longest] * bool(room % longest)
    most = _rounded(len(windows), ROWS) + -(-GRAIN * examples // longest)
    filled = lengths + filling
    ends = [0, *accumulate(filled)]
    ids = [*chain.from_iterable(window.ids for window in windows), *[config.pad_id] * room]
    kinds = [*chain.from_iterable(window_segments(windows, config)), *[0] * room]
    positions = torch.arange(tokens) - torch.tensor(ends[:-1]).repeat_interleave(torch.tensor(filled))
    offsets = torch.tensor(ends + ends[-1:] * (most - len(filled)), dtype=torch.int32)
    size = Size(tokens, most, examples, task.outputs or 1)
    asked = (*task.fixed_targets(windows, size, weights), torch.tensor(task.targets(windows)))
    return FixedBatch(torch.tensor(ids), torch.tensor(kinds), positions, offsets, asked, longest)


def fixed_loss(
    task: Task, logits: Tensor, batch: Batch, asked: Sequence[Tensor], weights: LossSettings
) -> tuple[Tensor, Tensor]:
    """(sum of losses, how many), as `task.loss` gives them for the windows alone."""
    *own, count = asked
    return task.fixed_loss(logits, batch, own, weights.label_smoothing), count


def _rounded(number: int, grain: int) -> int:
    return -(-number // grain) * grain
