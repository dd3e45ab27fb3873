"""A step's examples in tensors of a fixed form, for CUDA: what the loss asks is made on the host, before the forward.

`Task.loss` reads windows, the slow and obvious way; here each task has a twin that reads tensors only, so that a step
needs no copies in its middle and can be recorded once and replayed (train/replay.py). Sequences of padding fill a form
up; they are computed and weigh nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, groupby

import torch
import torch.nn.functional as F
from torch import Tensor

from bertkit.config import BertConfig
from bertkit.model.batch import Batch, Layout
from bertkit.model.word_loss import IGNORE
from bertkit.tasks.choice_loss import choice_losses
from bertkit.tasks.classify import TextTask
from bertkit.tasks.task import LossSettings, Task, Window

GRAIN = 16  # lengths are rounded up to multiples: few forms, and rows that attention kernels like
ROWS = 8  # and numbers of sequences to these
POOLED = ("classify", "choose")  # heads that read one vector of each text


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
    if getattr(task, "joins_windows", False) or (task.head in POOLED and config.parts.pooling != "first"):
        return False
    # Torch smooths a weighted loss by all labels' weights; a weight for each row is not that.
    return not (task.name == "tag" and weights.class_weights and weights.label_smoothing)


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
    if isinstance(task, TextTask) and task.targets(windows) < len(windows):
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
    places = torch.arange(tokens) - torch.tensor(ends[:-1]).repeat_interleave(torch.tensor(filled))
    offsets = torch.tensor(ends + ends[-1:] * (most - len(filled)), dtype=torch.int32)
    size = Size(tokens, most, examples, task.outputs or 1)
    asked = (*ASKED[task.name](windows, size, weights), torch.tensor(task.targets(windows)))
    return FixedBatch(torch.tensor(ids), torch.tensor(kinds), places, offsets, asked, longest)


def fixed_loss(
    task: Task, logits: Tensor, batch: Batch, asked: Sequence[Tensor], weights: LossSettings
) -> tuple[Tensor, Tensor]:
    """(sum of losses, how many), as `task.loss` gives them for the windows alone."""
    *own, count = asked
    return LOSSES[task.name](logits, batch, own, weights.label_smoothing), count


@dataclass(frozen=True)
class Size:
    """How many tokens, sequences and examples a form has room for, and how many numbers the head gives."""

    tokens: int
    sequences: int
    examples: int
    outputs: int


Asked = Callable[[Sequence[Window], Size, LossSettings], tuple[Tensor, ...]]
Loss = Callable[[Tensor, Batch, Sequence[Tensor], float], Tensor]


def _ask_class(windows: Sequence[Window], size: Size, weights: LossSettings) -> tuple[Tensor, ...]:
    """A label and its weight for each sequence."""
    wanted = [window.target for window in windows]
    balance = weights.class_weights
    return _row(wanted, size.sequences, 0), _row([balance[w] if balance else 1.0 for w in wanted], size.sequences, 0.0)


def _ask_tags(windows: Sequence[Window], size: Size, weights: LossSettings) -> tuple[Tensor, ...]:
    """A label and its weight for each token; none where no word begins."""
    wanted = list(chain.from_iterable(window.target for window in windows))
    balance = weights.class_weights
    shares = [0.0 if tag == IGNORE else balance[tag] if balance else 1.0 for tag in wanted]
    return _row([max(tag, 0) for tag in wanted], size.tokens, 0), _row(shares, size.tokens, 0.0)


def _class_loss(logits: Tensor, batch: Batch, asked: Sequence[Tensor], smoothing: float) -> Tensor:
    wanted, shares = asked
    return (F.cross_entropy(logits, wanted, reduction="none", label_smoothing=smoothing) * shares).sum()


def _ask_labels(windows: Sequence[Window], size: Size, weights: LossSettings) -> tuple[Tensor, ...]:
    """Yes or no to each label for each sequence, the weight of each label's yes, and whether a sequence counts."""
    wanted = torch.zeros(size.sequences, size.outputs)
    for row, window in zip(wanted, windows, strict=False):  # the other rows are filling
        row[list(window.target)] = 1.0
    yes = torch.tensor(weights.class_weights or (1.0,) * size.outputs)
    return wanted, yes, _row([1.0] * len(windows), size.sequences, 0.0)


def _label_loss(logits: Tensor, batch: Batch, asked: Sequence[Tensor], smoothing: float) -> Tensor:
    wanted, yes, shares = asked
    smooth = wanted * (1 - smoothing) + smoothing / 2
    losses = F.binary_cross_entropy_with_logits(logits, smooth, reduction="none", pos_weight=yes)
    return (losses.mean(dim=1) * shares).sum()


def _ask_number(windows: Sequence[Window], size: Size, weights: LossSettings) -> tuple[Tensor, ...]:
    """A number for each sequence, and whether it counts."""
    wanted = [float(window.target) for window in windows]
    return _row(wanted, size.sequences, 0.0), _row([1.0] * len(wanted), size.sequences, 0.0)


def _number_loss(logits: Tensor, batch: Batch, asked: Sequence[Tensor], smoothing: float) -> Tensor:
    wanted, shares = asked
    return ((logits.squeeze(-1) - wanted).square() * shares).sum()


def _ask_span(windows: Sequence[Window], size: Size, weights: LossSettings) -> tuple[Tensor, ...]:
    """Start and end for each sequence, and whether it counts."""
    starts, ends = ([window.target[side] for window in windows] for side in (0, 1))
    shares = _row([1.0] * len(windows), size.sequences, 0.0)
    return _row(starts, size.sequences, 0), _row(ends, size.sequences, 0), shares


def _span_loss(logits: Tensor, batch: Batch, asked: Sequence[Tensor], smoothing: float) -> Tensor:
    *sides, shares = asked
    padded_NL2 = batch.pad(logits, -torch.inf).masked_fill(shares[:, None, None] == 0, 0.0)  # an empty row has no sum
    halves = [choice_losses(padded_NL2[..., side], target, smoothing) for side, target in enumerate(sides)]
    return ((halves[0] + halves[1]) * shares).sum() / 2


def _ask_choice(windows: Sequence[Window], size: Size, weights: LossSettings) -> tuple[Tensor, ...]:
    """For each example its sequences by number (-1: no such choice), the right one, and whether it counts."""
    groups = [[number for number, _ in run] for _, run in groupby(enumerate(windows), key=lambda pair: pair[1].example)]
    most = max(map(len, groups))
    spare = [[0] * most] * (size.examples - len(groups))
    table = torch.tensor([*(own + [-1] * (most - len(own)) for own in groups), *spare])
    wanted = [windows[own[0]].target for own in groups]
    return table, _row(wanted, size.examples, 0), _row([1.0] * len(groups), size.examples, 0.0)


def _choice_loss(logits: Tensor, batch: Batch, asked: Sequence[Tensor], smoothing: float) -> Tensor:
    table_NC, wanted, shares = asked
    there = logits.flatten().index_select(0, table_NC.flatten().clamp_min(0)).view_as(table_NC)
    rows_NC = there.masked_fill(table_NC < 0, -torch.inf)
    return (choice_losses(rows_NC, wanted, smoothing) * shares).sum()


ASKED: dict[str, Asked] = {
    "classify": _ask_class,
    "multilabel": _ask_labels,
    "regress": _ask_number,
    "tag": _ask_tags,
    "answer": _ask_span,
    "choose": _ask_choice,
}
LOSSES: dict[str, Loss] = {
    "classify": _class_loss,
    "multilabel": _label_loss,
    "regress": _number_loss,
    "tag": _class_loss,
    "answer": _span_loss,
    "choose": _choice_loss,
}


def _row(values: Sequence[float], size: int, fill: float) -> Tensor:
    return torch.tensor([*values, *[fill] * (size - len(values))])


def _rounded(number: int, grain: int) -> int:
    return -(-number // grain) * grain
