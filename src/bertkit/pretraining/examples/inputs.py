"""Examples as tensors, the inputs of a training module; on CUDA with fixed shapes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertkit.model.batch import Batch
from bertkit.model.word_loss import IGNORE
from bertkit.pretraining.examples.arrays import Examples
from bertkit.pretraining.examples.packing import Limits
from bertkit.pretraining.objectives.table import token_row
from bertkit.pretraining.objectives.targets import Targets

TARGET_MULTIPLE = 1024  # a fixed shape has room for a multiple of this many target positions


def to_inputs(
    examples: Examples,
    device: torch.device,
    *,
    objective: Sequence[str] = ("mlm",),
    fixed_length: int | None = None,
    rate: float = 0.15,
    pad_id: int = 0,
) -> tuple[Batch, Targets]:
    """A batch and its targets; with `fixed_length` padded to the limits of its source, for compiled code."""
    ids, segments = _tensor(examples.ids), _tensor(examples.segments)
    lengths = examples.lengths.tolist()
    row = token_row(objective)
    positions, target_ids = row.targets(examples)
    chosen, words = _tensor(positions), _tensor(target_ids)
    pairs = _tensor(examples.pair_labels) if examples.pair_labels is not None else torch.empty(0, dtype=torch.long)
    sequences = None
    if fixed_length is not None:
        limits = fixed_limits(examples, fixed_length)
        room, sequences = limits.tokens - len(ids), limits.sequences
        lengths += [fixed_length] * (room // fixed_length) + [room % fixed_length] * bool(room % fixed_length)
        ids, segments = _padded(ids, limits.tokens, pad_id), _padded(segments, limits.tokens, 0)
        count = target_slots(limits.tokens, row.target_share(rate), len(chosen))
        chosen, words = _padded(chosen, count, 0), _padded(words, count, IGNORE)
        pairs = _padded(pairs, sequences if len(pairs) else 0, IGNORE)
    batch = Batch(ids, segments, tuple(lengths)).to(device).laid_out(fixed_length, sequences)
    return batch, Targets(chosen.to(device), words.to(device), pairs.to(device))


def fixed_limits(examples: Examples, length: int) -> Limits:
    """Tokens and sequences of the fixed shape, with room for padding sequences.

    Examples without limits are assumed to be of full length.
    """
    limits = examples.limits or Limits(len(examples.lengths) * length, len(examples.lengths))
    padding = -(-limits.tokens // length)
    return Limits(limits.tokens, max(limits.sequences, len(examples.lengths)) + padding)


def target_slots(tokens: int, rate: float, chosen: int = 0) -> int:
    """The number of target positions in a fixed shape: enough for `rate` of a batch without padding."""
    return -(-max(int(tokens * rate), chosen) // TARGET_MULTIPLE) * TARGET_MULTIPLE


def _tensor(array: NDArray[Any]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int64))


def _padded(x: Tensor, size: int, value: int) -> Tensor:
    return torch.cat((x, x.new_full((size - len(x),), value)))
