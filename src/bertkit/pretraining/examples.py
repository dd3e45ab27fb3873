"""Examples of the loader, as the tensors that an objective reads; on CUDA in shapes that never change."""

import numpy as np
import torch
from torch import Tensor

from bertkit.model.batch import Batch
from bertkit.model.word_loss import IGNORE
from bertkit.pretraining.batches import Examples
from bertkit.pretraining.objectives import Targets
from bertkit.pretraining.packing import Limits

SLOTS = 1024  # a fixed shape has room for a multiple of this many chosen positions


def to_inputs(
    examples: Examples,
    device: torch.device,
    *,
    causal: bool = False,
    fixed_length: int | None = None,
    rate: float = 0.15,
    pad_id: int = 0,
) -> tuple[Batch, Targets]:
    """A batch and its targets; with `fixed_length` filled up to the limits of its source, for compiled code."""
    ids, segments = _tensor(examples.ids), _tensor(examples.segments)
    lengths = examples.lengths.tolist()
    chosen, words = _tensor(examples.chosen), _tensor(examples.targets)
    pairs = _tensor(examples.pair_labels) if examples.pair_labels is not None else torch.empty(0, dtype=torch.long)
    if causal:
        chosen, words = next_words(ids, examples.lengths)
    sequences = None
    if fixed_length is not None:
        limits = fixed_limits(examples, fixed_length)
        room, sequences = limits.tokens - len(ids), limits.sequences
        lengths += [fixed_length] * (room // fixed_length) + [room % fixed_length] * bool(room % fixed_length)
        ids, segments = _filled(ids, limits.tokens, pad_id), _filled(segments, limits.tokens, 0)
        slots = slots_for(limits.tokens, 1.0 if causal else rate, len(chosen))
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


def next_words(ids: Tensor, lengths: np.ndarray) -> tuple[Tensor, Tensor]:
    """Left to right: every position but the last of each sequence, and the id that follows it."""
    ends = torch.from_numpy(np.cumsum(lengths) - 1)
    has_next = torch.ones(len(ids), dtype=torch.bool)
    has_next[ends] = False
    chosen = has_next.nonzero().squeeze(1)
    return chosen, ids[chosen + 1]


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int64))


def _filled(x: Tensor, size: int, value: int) -> Tensor:
    return torch.cat((x, x.new_full((size - len(x),), value)))
