"""Rows of vectors that many threads read and move at once, without locks: Hogwild.

Two threads seldom move one row in the same moment, and where they do a small step is lost, which does no harm.
"""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

# Steps of one batch are computed from the same rows and then added up. A word that occurs fifty times in the batch
# would take fifty steps in one direction, and fly off: so rate x pairs is held under this for every row. 1 to 6 give
# equal quality; without it a batch of 2,048 words diverges.
FARTHEST = 2.0


class WordTable:
    """One vector for each word."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows  # W D, shared by all threads
        self._pull = torch.zeros(len(rows))  # scratch of this thread, zero between calls

    def beside(self) -> "WordTable":
        """The same rows, for another thread."""
        return WordTable(self.rows)

    def read(self, ids: Tensor) -> Tensor:
        """... D: the vectors of the words."""
        return self.rows.index_select(0, ids.flatten()).view(*ids.shape, -1)

    def add(self, ids: Tensor, steps: Tensor, pulls: Tensor) -> None:
        """Move each word by its steps [n, D]; `pulls` [n] say how strong they are together, as rate x pairs."""
        self._pull.index_add_(0, ids, pulls)
        steps *= (FARTHEST / self._pull[ids].clamp_(min=FARTHEST))[:, None]
        self._pull[ids] = 0
        self.rows.scatter_add_(0, ids[:, None].expand_as(steps), steps)  # twice as fast as index_add_

    def all(self) -> Tensor:
        """W D: the vector of every word."""
        return self.rows


class SubwordTable:
    """fastText's: a word's vector is the mean of its own row and those of its n-grams, which words share."""

    def __init__(self, rows: Tensor, bags: Sequence[Sequence[int]] | tuple[Tensor, Tensor]) -> None:
        self._table = WordTable(rows)
        if not isinstance(bags, tuple):
            lengths = torch.tensor([len(bag) for bag in bags])
            bags = torch.tensor([row for bag in bags for row in bag]), lengths.cumsum(0) - lengths
        self._members, self._starts = bags  # the rows of every word end to end, and where each word's begin
        self._lengths = torch.diff(self._starts, append=torch.tensor([len(self._members)]))

    @property
    def rows(self) -> Tensor:
        """(W + buckets) D."""
        return self._table.rows

    def beside(self) -> "SubwordTable":
        """The same rows, for another thread."""
        return SubwordTable(self.rows, (self._members, self._starts))

    def read(self, ids: Tensor) -> Tensor:
        """... D: the means. A word that stands many times among the ids is computed once."""
        words, places = _different(ids)
        members, lengths = self._rows_of(words)
        means = F.embedding_bag(members, self.rows, lengths.cumsum(0) - lengths, mode="mean")
        return means[places]

    def add(self, ids: Tensor, steps: Tensor, pulls: Tensor) -> None:
        """Each row of a word takes the word's whole step, as in fastText."""
        words, places = _different(ids)
        members, lengths = self._rows_of(words)
        sums = steps.new_zeros(len(words), steps.shape[1]).index_add_(0, places, steps)
        pulled = pulls.new_zeros(len(words)).index_add_(0, places, pulls)
        owners = torch.arange(len(words)).repeat_interleave(lengths)
        self._table.add(members, sums[owners], pulled[owners])

    def all(self) -> Tensor:
        """W D: the vector of every word, from its rows."""
        return F.embedding_bag(self._members, self.rows, self._starts, mode="mean")

    def _rows_of(self, words: Tensor) -> tuple[Tensor, Tensor]:
        lengths = self._lengths[words]
        shift = (self._starts[words] - (lengths.cumsum(0) - lengths)).repeat_interleave(lengths)
        return self._members[shift + torch.arange(len(shift))], lengths


def _different(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Each of the ids once, and where among these every one of them is."""
    words, places = np.unique(ids.numpy(), return_inverse=True)
    return torch.from_numpy(words), torch.from_numpy(places).view(ids.shape)


AnyTable = WordTable | SubwordTable
