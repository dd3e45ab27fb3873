"""Examples of the loader, as the tensors that an objective reads; on CUDA in shapes that never change."""

import numpy as np
import torch
from torch import Tensor

from bertkit.model.batch import Batch
from bertkit.pretrain.batches import Examples
from bertkit.pretrain.objectives import IGNORE, Targets

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
    """A batch and its targets; with `fixed_length` filled up to sequences x length tokens, for compiled code."""
    ids, segments = _tensor(examples.ids), _tensor(examples.segments)
    lengths = examples.lengths.tolist()
    chosen, words = _tensor(examples.chosen), _tensor(examples.targets)
    pairs = _tensor(examples.pair_labels) if examples.pair_labels is not None else torch.empty(0, dtype=torch.long)
    if causal:
        chosen, words = next_words(ids, examples.lengths)
    sequences = None
    if fixed_length is not None:
        room = len(lengths) * fixed_length - len(ids)
        filler = [fixed_length] * (room // fixed_length) + [room % fixed_length] * bool(room % fixed_length)
        sequences = 2 * len(lengths)
        ids, segments = _filled(ids, len(ids) + room, pad_id), _filled(segments, len(segments) + room, 0)
        # Room for the rate of a batch without any padding: one shape for all batches, so one graph.
        spare = max(slots_for(len(ids), 1.0 if causal else rate), len(chosen)) - len(chosen)
        chosen, words = _filled(chosen, len(chosen) + spare, 0), _filled(words, len(words) + spare, IGNORE)
        pairs = _filled(pairs, sequences if len(pairs) else 0, IGNORE)
        lengths += filler
    batch = Batch(ids, segments, tuple(lengths), causal).to(device).laid_out(fixed_length, sequences)
    return batch, Targets(chosen.to(device), words.to(device), pairs.to(device))


def slots_for(tokens: int, rate: float) -> int:
    """Chosen positions that a batch of so many tokens has room for."""
    return -(-int(tokens * rate) // SLOTS) * SLOTS


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
