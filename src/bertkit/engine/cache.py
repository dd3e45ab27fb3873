"""A key-value cache: each new token is computed alone, and attends to the keys and values of the tokens before it.

`CachedOperations` are an engine's operations with another `attend`; the layers are the same. The slow twin is a forward
pass over the whole sequence; `tests/engine/test_cache.py` compares them for every family that generates.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.errors import RequestError
from bertkit.model.attention import AttentionPattern
from bertkit.model.batch import Batch, Layout
from bertkit.model.operations import Operations, Source

SLOTS = 64  # the cache grows by a multiple of so many tokens
DELEGATED = ("embed", "project", "activate", "gate", "output", "add", "add_norm", "norm")


@dataclass
class CachedLayer:
    """The keys and values of one layer's tokens so far, N H C K each, C of them for each sequence."""

    keys: Tensor
    values: Tensor


@dataclass
class CachedSource:
    """The keys and values of the source for one layer's cross-attention, N H S K each; the mask is N 1 1 S."""

    keys: Tensor
    values: Tensor
    mask: Tensor | None


class CachedOperations(Operations):
    """`ops` with a cache for one stack of layers: the first pass reads the prompts, each later one a token more."""

    def __init__(self, ops: Operations, capacity: int) -> None:
        for name in DELEGATED:
            setattr(self, name, getattr(ops, name))
        self._attend_prompts, self._attend_first_source = ops.attend, ops.attend_source
        self.capacity = -(-capacity // SLOTS) * SLOTS
        self.layers: list[CachedLayer] = []
        self.sources: list[CachedSource] = []
        self.lengths: list[int] = []  # tokens of each sequence in the cache
        self.visible = 0  # slots that attention reads, the longest sequence's at least
        self._first_pass, self._layer, self._cross_layer = True, 0, 0
        self._mask: Tensor | None = None  # N 1 1 C, where sequences have different lengths

    # A pass calls these, in the order of the layers.

    def prepare(self, batch: Batch) -> Batch:
        """The batch itself; a new pass begins."""
        self._layer = self._cross_layer = 0
        return batch

    def finish(self, x_TD: Tensor, batch: Batch) -> Tensor:
        """T D; the prompts or tokens of this pass are in the cache from now on."""
        if self._first_pass:
            self.lengths, self._first_pass = list(batch.lengths), False
        return x_TD

    def attend(self, qkv_TX: Tensor, batch: Batch, pattern: AttentionPattern, dropout: float) -> Tensor:
        """T D: prompts as in any forward pass; one new token of each sequence over what the cache holds."""
        if pattern.window.radius is not None:
            raise RequestError("a model with local attention windows cannot generate")
        if pattern.bias is not None:
            raise RequestError("a model with relative positions cannot generate")
        query_THK, key_THK, value_THK = pattern.split(qkv_TX, batch).unbind(dim=1)
        if self._first_pass:
            self.layers.append(self._new_layer(key_THK, value_THK, batch))
            return self._attend_prompts(qkv_TX, batch, pattern, dropout)
        layer = self.layers[self._layer]
        self._layer += 1
        rows = torch.arange(len(query_THK), device=query_THK.device)
        layer.keys[rows, :, batch.positions] = key_THK
        layer.values[rows, :, batch.positions] = value_THK
        keys, values = layer.keys[:, :, : self.visible], layer.values[:, :, : self.visible]
        mixed_NH1K = F.scaled_dot_product_attention(query_THK[:, :, None], keys, values, attn_mask=self._mask)
        return mixed_NH1K.flatten(1)

    def project_source(self, linear: nn.Linear, source: Source) -> Tensor:
        """S 2D at the first pass; later passes read the cache instead."""
        return super().project_source(linear, source) if self._first_pass else source.hidden_SD

    def attend_source(
        self, query_TD: Tensor, key_value_SX: Tensor, batch: Batch, source: Batch, heads: int, dropout: float
    ) -> Tensor:
        """T D."""
        if self._first_pass:
            self.sources.append(_padded_source(key_value_SX, source, heads))
            return self._attend_first_source(query_TD, key_value_SX, batch, source, heads, dropout)
        known = self.sources[self._cross_layer]
        self._cross_layer += 1
        query_NH1K = query_TD.view(len(query_TD), heads, 1, -1)
        mixed = F.scaled_dot_product_attention(query_NH1K, known.keys, known.values, attn_mask=known.mask)
        return mixed.flatten(1)

    # Between two passes.

    def next_batch(self, ids_N: Tensor) -> Batch:
        """A batch of one new token for each sequence, at the position after its last one."""
        positions_N = self.advance(ids_N.device)
        return self.at_positions(ids_N, positions_N, max(self.lengths), masked=len(set(self.lengths)) > 1)

    def advance(self, device: torch.device) -> Tensor:
        """N: the positions of the next tokens, which count as cached from now on."""
        self.lengths = [length + 1 for length in self.lengths]
        return torch.tensor(self.lengths, device=device) - 1

    def at_positions(self, ids_N: Tensor, positions_N: Tensor, visible: int, *, masked: bool) -> Batch:
        """One token for each sequence; attention reads `visible` slots, those after a position only if not `masked`."""
        self.visible, self._mask = visible, None
        if masked:
            slots_C = torch.arange(visible, device=ids_N.device)
            self._mask = (slots_C <= positions_N[:, None])[:, None, None]
        return one_token_batch(ids_N, positions_N)

    def select(self, rows_N: Tensor) -> bool:
        """Continue these rows, which may repeat: the beams that go on, or the sequences that have not ended.

        Whether the cache stays where it is in memory: it does if there are as many rows as before.
        """
        used, count = max(self.lengths), len(self.lengths)
        self.lengths = [self.lengths[row] for row in rows_N.tolist()]
        cached = [(part, name) for part in (*self.layers, *self.sources) for name in ("keys", "values")]
        for part, name in cached:
            slots = used if isinstance(part, CachedLayer) else None
            setattr(part, name, _selected(getattr(part, name), rows_N, slots, in_place=len(rows_N) == count))
        for source in self.sources:
            if source.mask is not None:
                source.mask = _selected(source.mask, rows_N, None, in_place=len(rows_N) == count)
        return len(rows_N) == count

    def _new_layer(self, key_THK: Tensor, value_THK: Tensor, batch: Batch) -> CachedLayer:
        count, (heads, width) = len(batch.lengths), key_THK.shape[1:]
        keys, values = (key_THK.new_zeros(count, heads, self.capacity, width) for _ in range(2))
        rows_T = torch.repeat_interleave(batch.offsets.diff()).to(key_THK.device)
        keys[rows_T, :, batch.positions], values[rows_T, :, batch.positions] = key_THK, value_THK
        return CachedLayer(keys, values)


def one_token_batch(ids_N: Tensor, positions_N: Tensor) -> Batch:
    """Sequences of one token each, which stand at these positions."""
    count = len(ids_N)
    offsets = torch.arange(count + 1, dtype=torch.int32, device=ids_N.device)
    return Batch(ids_N, torch.zeros_like(ids_N), (1,) * count, Layout(offsets, positions_N, 1))


def _padded_source(key_value_SX: Tensor, source: Batch, heads: int) -> CachedSource:
    padded = source.pad(key_value_SX.view(len(key_value_SX), 2, heads, -1))
    keys, values = padded.permute(2, 0, 3, 1, 4).contiguous().unbind(0)
    mask = None if len(source.runs) == 1 else source.mask[:, None, None].clone()  # each layer's rows are selected
    return CachedSource(keys, values, mask)


def _selected(cached: Tensor, rows_N: Tensor, used: int | None, *, in_place: bool) -> Tensor:
    """The rows, with the first `used` slots copied."""
    chosen = cached if in_place else cached.new_zeros(len(rows_N), *cached.shape[1:])
    chosen[:, :, :used] = cached[rows_N, :, :used]
    return chosen
