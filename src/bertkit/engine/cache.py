"""A key-value cache: each new token is computed alone, and attends to the keys and values of the tokens before it.

A recurrent layer has its state in place of keys and values.

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
from bertkit.model.recurrent.cell import Cell, Memory

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


@dataclass
class CachedState:
    """A recurrent layer's state before and after the newest token, N H each, and the source it attends to.

    A pass reads one and writes the other, so that it can be repeated, as a recording of it is.
    """

    before: tuple[Tensor, ...]
    after: tuple[Tensor, ...]
    memory: Memory | None

    def advance(self) -> None:
        """The newest token is the one before from now on."""
        for old, new in zip(self.before, self.after, strict=True):
            old.copy_(new)

    def select(self, rows_N: Tensor, *, in_place: bool) -> None:
        """Continue these rows."""
        memory = () if self.memory is None else tuple(self.memory)
        chosen = [_rows(part, rows_N, in_place=in_place) for part in (*self.before, *self.after, *memory)]
        count = len(self.after)
        self.before, self.after = tuple(chosen[:count]), tuple(chosen[count : 2 * count])
        self.memory = Memory(*chosen[2 * count :]) if memory else None


class CachedOperations(Operations):
    """`ops` with a cache for one stack of layers: the first pass reads the prompts, each later one a token more."""

    def __init__(self, ops: Operations, capacity: int) -> None:
        for name in DELEGATED:
            setattr(self, name, getattr(ops, name))
        self._attend_prompts, self._attend_first_source = ops.attend, ops.attend_source
        self.capacity = -(-capacity // SLOTS) * SLOTS
        self.layers: list[CachedLayer] = []
        self.sources: list[CachedSource] = []
        self.states: list[CachedState] = []  # of recurrent layers
        self.lengths: list[int] = []  # tokens of each sequence in the cache
        self.visible = 0  # slots that attention reads, the longest sequence's at least
        self._first_pass, self._layer, self._cross_layer, self._state = True, 0, 0, 0
        self._mask: Tensor | None = None  # N 1 1 C, where sequences have different lengths
        self._slot: int | None = None  # of every sequence's new token, where they have one length

    # A pass calls these, in the order of the layers.

    def prepare(self, batch: Batch) -> Batch:
        """The batch itself; a new pass begins."""
        self._layer = self._cross_layer = self._state = 0
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
        if self._slot is None:
            rows = torch.arange(len(query_THK), device=query_THK.device)
            layer.keys[rows, :, batch.positions] = key_THK
            layer.values[rows, :, batch.positions] = value_THK
        else:
            layer.keys.select(2, self._slot).copy_(key_THK)
            layer.values.select(2, self._slot).copy_(value_THK)
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

    def recur(self, cell: nn.Module, x_TI: Tensor, batch: Batch, source: Source | None = None) -> Tensor:
        """T D: prompts from their first token; one new token of each sequence from the state before it."""
        assert isinstance(cell, Cell)
        if self._first_pass:
            out_TD, state = _read_prompts(cell, x_TI, batch, None if source is None else cell.memory(source))
            self.states.append(state)
            return out_TD
        state = self.states[self._state]
        self._state += 1
        out_N1D, after = cell.run(x_TI[:, None], state.before, state.memory)
        for kept, new in zip(state.after, after, strict=True):
            kept.copy_(new)
        return out_N1D[:, 0]

    # Between two passes.

    def next_batch(self, ids_N: Tensor) -> Batch:
        """A batch of one new token for each sequence, at the position after its last one."""
        positions_N, equal = self.advance(ids_N.device), len(set(self.lengths)) == 1
        batch = self.at_positions(ids_N, positions_N, max(self.lengths), masked=not equal)
        self._slot = self.lengths[0] - 1 if equal else None
        return batch

    def advance(self, device: torch.device) -> Tensor:
        """N: the positions of the next tokens, which count as cached from now on."""
        self.lengths = [length + 1 for length in self.lengths]
        for state in self.states:
            state.advance()
        return torch.tensor(self.lengths, device=device) - 1

    def at_positions(self, ids_N: Tensor, positions_N: Tensor, visible: int, *, masked: bool) -> Batch:
        """One token for each sequence; attention reads `visible` slots, those after a position only if not `masked`."""
        self.visible, self._mask, self._slot = visible, None, None
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
        for state in self.states:
            state.select(rows_N, in_place=len(rows_N) == count)
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


def _read_prompts(cell: Cell, x_TI: Tensor, batch: Batch, memory: Memory | None) -> tuple[Tensor, CachedState]:
    """T D and the state after each prompt; prompts of one length are read together, because padding would be read."""
    outputs, states, row, token = [], [], 0, 0
    for count, length in batch.runs:
        part = None if memory is None else Memory(*(each[row : row + count] for each in memory))
        x_NLI = x_TI[token : token + count * length].view(count, length, -1)
        out_NLD, state = cell.run(x_NLI, None, part)
        outputs.append(out_NLD.flatten(0, 1))
        states.append(state)
        row, token = row + count, token + count * length
    if memory is not None:
        memory = memory._replace(mask=memory.mask.clone())  # each layer's rows are selected
    after = tuple(torch.cat(parts) for parts in zip(*states, strict=True))
    return torch.cat(outputs), CachedState(tuple(part.clone() for part in after), after, memory)


def _rows(x_N: Tensor, rows_N: Tensor, *, in_place: bool) -> Tensor:
    """The chosen rows, in the same memory if there are as many as before."""
    chosen = x_N[rows_N]
    return x_N.copy_(chosen) if in_place else chosen


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
