"""Examples of the loader, as the tensors that an objective reads; on CUDA in shapes that never change."""

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

SLOTS = 1024  # a fixed shape has room for a multiple of this many chosen positions


def to_inputs(
    examples: Examples,
    device: torch.device,
    *,
    objective: Sequence[str] = ("mlm",),
    fixed_length: int | None = None,
    rate: float = 0.15,
    pad_id: int = 0,
) -> tuple[Batch, Targets]:
    """A batch and its targets; with `fixed_length` filled up to the limits of its source, for compiled code."""
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
        ids, segments = _filled(ids, limits.tokens, pad_id), _filled(segments, limits.tokens, 0)
        slots = slots_for(limits.tokens, row.target_share(rate), len(chosen))
        chosen, words = _filled(chosen, slots, 0), _filled(words, slots, IGNORE)
        pairs = _filled(pairs, sequences if len(pairs) else 0, IGNORE)
    batch = Batch(ids, segments, tuple(lengths)).to(device).laid_out(fixed_length, sequences)
    return batch, Targets(chosen.to(device), words.to(device), pairs.to(device))


def fixed_limits(examples: Examples, length: int) -> Limits:
    """Tokens and sequences of the fixed shape, with room for the sequences that only fill it.

    Examples that are of no source could all be of full length.
    """
    limits = examples.limits or Limits(len(examples.lengths) * length, len(examples.lengths))
    filling = -(-limits.tokens // length)
    return Limits(limits.tokens, max(limits.sequences, len(examples.lengths)) + filling)


def slots_for(tokens: int, rate: float, chosen: int = 0) -> int:
    """Room for the rate of a batch without any padding: one shape for all batches, so one graph."""
    return -(-max(int(tokens * rate), chosen) // SLOTS) * SLOTS


def _tensor(array: NDArray[Any]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int64))


def _filled(x: Tensor, size: int, value: int) -> Tensor:
    return torch.cat((x, x.new_full((size - len(x),), value)))
