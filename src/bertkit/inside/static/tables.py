"""Tables of vectors that several threads read and update without locks (Hogwild).

Two threads seldom update one row at the same time; if they do, one small update is lost, which does no harm.
"""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

# The updates of a batch are computed from the same rows and added. A word that occurs fifty times in a batch would get
# fifty updates in about one direction: so rate x pairs is limited to this for every row. 1 to 6 give equal quality;
# without a limit, training with batches of 2,048 words diverges. Threads that work at the same time read the same rows
# too: their limits together are at most that of three (16 threads with this limit each diverged on 39 million words).
MAX_STRENGTH = 2.0
FULL_STRENGTH_THREADS = 3


class WordTable:
    """One vector for each word."""

    def __init__(self, rows: Tensor, threads: int = 1) -> None:
        self.rows = rows  # W D, shared by all threads
        self._limit = MAX_STRENGTH * min(1.0, FULL_STRENGTH_THREADS / threads)
        self._strength = torch.zeros(len(rows))  # a buffer of this thread, zero between calls

    def for_thread(self, threads: int) -> "WordTable":
        """A table with the same rows, for one of so many threads."""
        return WordTable(self.rows, threads)

    def read(self, ids: Tensor) -> Tensor:
        """... D: the vectors of the words."""
        return self.rows.index_select(0, ids.flatten()).view(*ids.shape, -1)

    def add(self, ids: Tensor, steps: Tensor, strengths: Tensor) -> None:
        """Add the steps n D to the words; the strength n of a step is rate x pairs."""
        self._strength.index_add_(0, ids, strengths)
        steps *= (self._limit / self._strength[ids].clamp_(min=self._limit))[:, None]
        self._strength[ids] = 0
        self.rows.scatter_add_(0, ids[:, None].expand_as(steps), steps)  # twice as fast as index_add_

    def all(self) -> Tensor:
        """W D: the vector of every word."""
        return self.rows


class SubwordTable:
    """A fastText table: a word's vector is the mean of its own row and of the rows of its n-grams."""

    def __init__(self, rows: Tensor, bags: Sequence[Sequence[int]] | tuple[Tensor, Tensor], threads: int = 1) -> None:
        self._table = WordTable(rows, threads)
        if not isinstance(bags, tuple):
            lengths = torch.tensor([len(bag) for bag in bags])
            bags = torch.tensor([row for bag in bags for row in bag]), lengths.cumsum(0) - lengths
        self._members, self._starts = bags  # the rows of all words, concatenated, and the start of each word's rows
        self._lengths = torch.diff(self._starts, append=torch.tensor([len(self._members)]))

    @property
    def rows(self) -> Tensor:
        """(W + buckets) D: the rows of words, then of n-grams."""
        return self._table.rows

    def for_thread(self, threads: int) -> "SubwordTable":
        """A table with the same rows, for one of so many threads."""
        return SubwordTable(self.rows, (self._members, self._starts), threads)

    def read(self, ids: Tensor) -> Tensor:
        """... D: the vectors of the words; a repeated word is computed once."""
        words, inverse = _unique(ids)
        members, lengths = self._rows_of(words)
        means = F.embedding_bag(members, self.rows, lengths.cumsum(0) - lengths, mode="mean")
        return means[inverse]

    def add(self, ids: Tensor, steps: Tensor, strengths: Tensor) -> None:
        """Add the full step of a word to each of its rows, as in fastText."""
        words, inverse = _unique(ids)
        members, lengths = self._rows_of(words)
        sums = steps.new_zeros(len(words), steps.shape[1]).index_add_(0, inverse, steps)
        summed = strengths.new_zeros(len(words)).index_add_(0, inverse, strengths)
        owners = torch.arange(len(words)).repeat_interleave(lengths)
        self._table.add(members, sums[owners], summed[owners])

    def all(self) -> Tensor:
        """W D: the vector of every word."""
        return F.embedding_bag(self._members, self.rows, self._starts, mode="mean")

    def _rows_of(self, words: Tensor) -> tuple[Tensor, Tensor]:
        lengths = self._lengths[words]
        shift = (self._starts[words] - (lengths.cumsum(0) - lengths)).repeat_interleave(lengths)
        return self._members[shift + torch.arange(len(shift))], lengths


def _unique(ids: Tensor) -> tuple[Tensor, Tensor]:
    """The unique ids, and the index of each id among them."""
    words, inverse = np.unique(ids.numpy(), return_inverse=True)
    return torch.from_numpy(words), torch.from_numpy(inverse).view(ids.shape)


AnyTable = WordTable | SubwordTable
