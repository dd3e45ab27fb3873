"""A batch: the tokens of its sequences end to end, and their lengths. The padded form is a view that is made of it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, chain, groupby

import numpy as np
import torch
from torch import Tensor

from bertkit.errors import RequestError


@dataclass(frozen=True)
class Layout:
    """Where sequences start, as tensors: compiled code and CUDA graphs read these, and not the lengths."""

    offsets: Tensor  # N+1 int32: where each sequence starts, and where the last one ends
    positions: Tensor  # T: each token's position in its own sequence
    longest: int
    fixed: bool = False  # padded to fixed sizes: the batch's `lengths` are then an example, and must not be read

    def to(self, device: torch.device | str) -> "Layout":
        """The same on another device."""
        return replace(self, offsets=self.offsets.to(device), positions=self.positions.to(device))


@dataclass(frozen=True)
class Batch:
    """Sequences packed end to end."""

    ids: Tensor  # T
    segments: Tensor  # T
    lengths: tuple[int, ...]  # N; every one at least 1, summing to T
    layout: Layout | None = None  # None: computed from the lengths when it is needed

    def __post_init__(self) -> None:
        if self.fixed:
            return
        if sum(self.lengths) != len(self.ids) or min(self.lengths, default=0) < 1:
            raise RequestError(f"lengths {self.lengths[:8]} do not fit {len(self.ids)} tokens: each must be 1 or more")

    @classmethod
    def pack(cls, sequences: Sequence[Sequence[int]], segments: Sequence[Sequence[int]] | None = None) -> "Batch":
        """From lists of token ids, and of segment ids if there are any."""
        ids = _end_to_end(sequences)
        segment_ids = torch.zeros_like(ids) if segments is None else _end_to_end(segments)
        if len(segment_ids) != len(ids):
            raise RequestError(f"{len(segment_ids)} segment ids do not fit {len(ids)} token ids")
        return cls(ids, segment_ids, tuple(map(len, sequences)))

    @classmethod
    def from_padded(cls, ids_NL: Tensor, mask_NL: Tensor | None = None, segments_NL: Tensor | None = None) -> "Batch":
        """From padded tensors; padding, where `mask_NL` is 0, is dropped."""
        mask = torch.ones_like(ids_NL, dtype=torch.bool) if mask_NL is None else mask_NL.bool()
        segments = torch.zeros_like(ids_NL) if segments_NL is None else segments_NL
        return cls(ids_NL[mask], segments[mask], tuple(mask.sum(dim=1).tolist()))

    # Properties over cached ones: compiled code reads a layout's tensors, and cannot enter cached_property's lock.
    @property
    def offsets(self) -> Tensor:
        """N+1 int32: where each sequence starts, and where the last one ends."""
        return self._offsets if self.layout is None else self.layout.offsets

    @property
    def positions(self) -> Tensor:
        """T: each token's position in its own sequence."""
        return self._positions if self.layout is None else self.layout.positions

    @cached_property
    def _offsets(self) -> Tensor:
        return torch.tensor([0, *accumulate(self.lengths)], dtype=torch.int32, device=self.ids.device)

    @cached_property
    def _positions(self) -> Tensor:
        counts = torch.tensor(self.lengths, device=self.ids.device)
        starts = self.offsets[:-1].to(torch.int64)
        return torch.arange(len(self.ids), device=self.ids.device) - starts.repeat_interleave(
            counts, output_size=len(self.ids)
        )

    @property
    def mask(self) -> Tensor:
        """N L bool: where the padded view holds a token."""
        return self._find_mask() if self.fixed else self._mask

    @property
    def cells(self) -> Tensor:
        """T: each token's index in the flattened padded view; without the mask, which would synchronize a GPU."""
        return self._find_cells() if self.fixed else self._cells

    @cached_property
    def _mask(self) -> Tensor:
        return self._find_mask()

    @cached_property
    def _cells(self) -> Tensor:
        return self._find_cells()

    def _find_mask(self) -> Tensor:
        return torch.arange(self.longest, device=self.ids.device) < self.offsets.diff()[:, None]

    def _find_cells(self) -> Tensor:
        indices = torch.arange(len(self.ids), dtype=torch.int32, device=self.ids.device)
        rows = torch.searchsorted(self.offsets[1:], indices, right=True)
        return rows * self.longest + self.positions

    @cached_property
    def pairs(self) -> Tensor:
        """N 1 L L bool: which tokens of the padded view see each other; padding sees only the first token."""
        is_first_L = torch.arange(self.longest, device=self.ids.device) == 0
        return torch.where(self.mask[:, :, None], self.mask[:, None, :], is_first_L)[:, None]

    @cached_property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """(sequences, length) of each run of neighbors with equal length."""
        return tuple((len(list(run)), length) for length, run in groupby(self.lengths))

    @property
    def longest(self) -> int:
        """L of the padded view."""
        return max(self.lengths) if self.layout is None else self.layout.longest

    @property
    def fixed(self) -> bool:
        """Whether the layout has fixed sizes: `lengths` are then an example, and must not be read."""
        return self.layout is not None and self.layout.fixed

    @property
    def padding(self) -> float:
        """Share of the padded view that is padding, which packing saves."""
        return 1 - len(self.ids) / (len(self.lengths) * self.longest)

    def pad(self, x_T: Tensor, fill: float = 0) -> Tensor:
        """The padded view of a value per token: T ... -> N L ..."""
        rows = len(self.offsets) - 1
        padded = x_T.new_full((rows * self.longest, *x_T.shape[1:]), fill)
        return padded.index_copy_(0, self.cells, x_T).view(rows, self.longest, *x_T.shape[1:])

    def unpad(self, x_NL: Tensor) -> Tensor:
        """The inverse of `pad`: N L ... -> T ..."""
        return x_NL.flatten(0, 1).index_select(0, self.cells)

    def split(self, x_T: Tensor) -> tuple[Tensor, ...]:
        """One tensor per sequence, each a view."""
        return torch.split(x_T, list(self.lengths))

    def first(self, x_T: Tensor) -> Tensor:
        """The value at each sequence's first token, [CLS]: T ... -> N ..."""
        return x_T[self.offsets[:-1].long().clamp(max=len(x_T) - 1)]  # a fixed layout ends with empty sequences

    def laid_out(self, longest: int | None = None, sequences: int | None = None) -> "Batch":
        """The same batch with its layout as tensors, which compiled code reads instead of the lengths.

        With `longest` and `sequences` the layout has fixed sizes, so that other lengths do not need another graph: the
        offsets are padded with empty sequences.
        """
        empty = 0 if sequences is None else sequences - len(self.lengths)
        if empty < 0 or (longest is not None and longest < max(self.lengths)):
            raise RequestError(f"{len(self.lengths)} sequences up to {max(self.lengths)} do not fit the fixed layout")
        offsets = torch.cat((self.offsets, self.offsets[-1:].expand(empty)))
        layout = Layout(offsets, self.positions, longest or self.longest, sequences is not None)
        return replace(self, layout=layout)

    @property
    def form(self) -> tuple[object, ...] | None:
        """The sizes of a fixed layout: batches with equal ones share a CUDA graph. None if the layout is not fixed."""
        return (self.longest, *(tensor.shape for tensor in self.tensors)) if self.fixed else None

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors in which two batches of one form differ."""
        return (self.ids, self.segments, self.offsets, self.positions)

    def refilled(self, tensors: Sequence[Tensor]) -> "Batch":
        """A batch of the same form with other tensors."""
        ids, segments, offsets, positions = tensors
        layout = Layout(offsets, positions, self.longest, self.fixed)
        return replace(self, ids=ids, segments=segments, layout=layout)

    def with_segments(self, segments: Tensor) -> "Batch":
        """The same batch with other segments; lengths of a fixed layout are dropped: graphs would depend on them."""
        return replace(self, segments=segments, lengths=() if self.fixed else self.lengths)

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on another device."""
        if self.ids.device == torch.device(device):
            return self
        layout = None if self.layout is None else self.layout.to(device)
        return replace(self, ids=self.ids.to(device), segments=self.segments.to(device), layout=layout)


def _end_to_end(rows: Sequence[Sequence[int]]) -> Tensor:
    """T int64; torch.tensor of a list takes five times as long."""
    return torch.from_numpy(np.fromiter(chain.from_iterable(rows), np.int64, sum(map(len, rows))))
