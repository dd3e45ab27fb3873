"""Batches with fixed tensor shapes, for CUDA graphs: the targets of a step are tensors made on the host beforehand.

`Task.loss` reads windows, which is simple and slow; `Task.fixed_loss` computes the same from tensors alone, so that a
step has no copies from the host and can be recorded once and replayed (train/replay.py). Sequences of padding fill a
batch up to its shape; they are computed and have weight 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import torch
from torch import Tensor

from bertkit.config import BertConfig
from bertkit.model.batch import Batch, Layout
from bertkit.model.heads import HEADS
from bertkit.tasks.task import FixedSize, LossSettings, Task, Window

LENGTH_MULTIPLE = 16  # lengths are rounded up to it: fewer shapes to record, and aligned rows for attention kernels
MOST_PADDING = 1024  # tokens in a batch; a graph for another size costs less than they do
SEQUENCE_MULTIPLE = 8  # numbers of sequences are rounded up to it


@dataclass(frozen=True)
class FixedBatch:
    """Packed sequences with the targets of their loss."""

    ids: Tensor  # T
    segments: Tensor  # T
    positions: Tensor  # T
    offsets: Tensor  # N + 1: where sequences start
    targets: tuple[Tensor, ...]  # those of Task.fixed_targets, and the number of targets
    longest: int

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors: their values differ from step to step."""
        return (self.ids, self.segments, self.positions, self.offsets, *self.targets)

    @property
    def form(self) -> tuple[object, ...]:
        """All shapes: steps with equal ones can share a CUDA graph."""
        return (self.longest, *(tensor.shape for tensor in self.tensors))

    def refilled(self, tensors: Sequence[Tensor]) -> "FixedBatch":
        """A batch of the same shape with other tensors."""
        ids, segments, positions, offsets, *targets = tensors
        return FixedBatch(ids, segments, positions, offsets, tuple(targets), self.longest)

    def to(self, device: torch.device) -> "FixedBatch":
        """On another device; the copies are asynchronous."""
        return self.refilled([tensor.to(device, non_blocking=True) for tensor in self.tensors])

    def pinned(self) -> "FixedBatch":
        """In page-locked memory, so that copies to a GPU are asynchronous."""
        return self.refilled([tensor.pin_memory() for tensor in self.tensors])

    def batch(self) -> Batch:
        """The batch for the model, which reads the layout and not the lengths: here a single one with the same sum."""
        layout = Layout(self.offsets, self.positions, self.longest, fixed=True)
        return Batch(self.ids, self.segments, (len(self.ids),), layout)


def supports_fixed_batches(task: Task, weights: LossSettings, config: BertConfig) -> bool:
    """Whether the task's `fixed_loss` equals its `loss` for these loss settings and this model."""
    if task.joins_windows or (HEADS[task.head].pooled and config.parts.pooling != "first"):
        return False
    return task.has_fixed_loss(weights)


def window_segments(windows: Sequence[Window], config: BertConfig) -> list[tuple[int, ...]]:
    """The segment ids of each window; all zero for a model without a second segment."""
    segments = [window.segments for window in windows]
    if max(map(max, segments)) >= max(config.segments, 1):
        return [(0,) * len(window.ids) for window in windows]
    return segments


def fixed_batch(
    task: Task, windows: Sequence[Window], config: BertConfig, weights: LossSettings, examples: int
) -> FixedBatch | None:
    """The windows of at most `examples` examples, padded; None if a text has several windows, whose logits are pooled.

    Padding is added as sequences of at most `longest` tokens, then as empty sequences.
    """
    if task.pools_windows and task.count_targets(windows) < len(windows):
        return None
    lengths = [len(window.ids) for window in windows]
    longest = min(round_up(max(lengths), LENGTH_MULTIPLE), config.max_length)
    tokens = padded_tokens(sum(lengths), examples)
    padding = tokens - sum(lengths)
    sequences = round_up(len(windows), SEQUENCE_MULTIPLE) + -(-token_multiple(examples) // longest)
    ids = [*chain.from_iterable(window.ids for window in windows), *[config.pad_id] * padding]
    segments = [*chain.from_iterable(window_segments(windows, config)), *[0] * padding]
    positions, offsets = padded_layout(lengths, padding, longest, sequences)
    size = FixedSize(tokens, sequences, examples, task.outputs or 1, longest)
    targets = (*task.fixed_targets(windows, size, weights), torch.tensor(task.count_targets(windows)))
    return FixedBatch(torch.tensor(ids), torch.tensor(segments), positions, offsets, targets, longest)


def token_multiple(examples: int) -> int:
    """What the tokens of a batch are rounded up to: LENGTH_MULTIPLE for each example, but not too much of a batch."""
    return min(LENGTH_MULTIPLE * examples, MOST_PADDING)


def padded_tokens(tokens: int, examples: int) -> int:
    """The tokens of a fixed batch that has so many."""
    return round_up(tokens, token_multiple(examples))


def padded_layout(lengths: list[int], padding: int, longest: int, sequences: int) -> tuple[Tensor, Tensor]:
    """(positions, offsets) of so many sequences, with tokens of padding in sequences of at most `longest`."""
    padded = lengths + [longest] * (padding // longest) + [padding % longest] * bool(padding % longest)
    ends = [0, *accumulate(padded)]
    positions = torch.arange(ends[-1]) - torch.tensor(ends[:-1]).repeat_interleave(torch.tensor(padded))
    return positions, torch.tensor(ends + ends[-1:] * (sequences - len(padded)), dtype=torch.int32)


def fixed_loss(
    task: Task, logits: Tensor, batch: Batch, targets: Sequence[Tensor], weights: LossSettings
) -> tuple[Tensor, Tensor]:
    """(sum of losses, number of targets), the same as `task.loss` of the windows."""
    *task_targets, count = targets
    return task.fixed_loss(logits, batch, task_targets, weights.label_smoothing), count


def round_up(number: int, multiple: int) -> int:
    """The next multiple of a number."""
    return -(-number // multiple) * multiple
