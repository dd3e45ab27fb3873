"""The protocol of retrievers: how one builds its part of an index, opens it and answers queries.

An index is a list of segments, each of some thousand documents, written once and never changed: a killed build loses
the segment that it was writing, and appending adds segments. A retriever has a folder of its own in every segment.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

Part = TypeVar("Part")
Hits = tuple[NDArray[np.int64], NDArray[np.float32]]  # numbers of documents in the index, and scores; best first
NO_HITS: Hits = (np.zeros(0, np.int64), np.zeros(0, np.float32))


@dataclass(frozen=True)
class RetrieverRow:
    """A row of RETRIEVERS: what can be known of a retriever without torch."""

    name: str
    summary: str  # for --help and the lists in docs
    implementation: str  # module:class in this package, imported on use
    model: str = ""  # what its model is called in messages; empty: it needs none

    def load(self) -> "type[Retriever[Any]]":
        """The class."""
        module, _, name = self.implementation.partition(":")
        loaded: type[Retriever[Any]] = getattr(import_module(f"bertkit.search.retrievers.{module}"), name)
        return loaded


class PartWriter(Protocol):
    """Writes a retriever's part of one segment, into a folder that exists, in memory bounded by a segment's texts."""

    def add(self, texts: Sequence[str]) -> None:
        """The next documents, a few thousand at most; none is empty."""

    def finish(self) -> None:
        """Complete the files. The index flushes the folder and renames it."""


@dataclass(frozen=True)
class Segment(Generic[Part]):
    """An open part of one segment; its documents are numbered in the index from `first`."""

    part: Part
    first: int
    documents: int


class Retriever(ABC, Generic[Part]):
    """A retriever of one index: writes its part of each segment, opens it, and answers queries over all of them.

    `settings` is a frozen dataclass with a default for every field, which `bertkit.settings.read_pairs` can read.
    `model` is the folder or name of its model, which is loaded when it is first needed.
    """

    settings_type: ClassVar[type[Any]]

    def __init__(self, settings: Any, model: Path | None) -> None:
        self.settings, self.model = settings, model

    @property
    def model_name(self) -> str | None:
        """What is written into the index to find the model again, wherever it is searched from; None without one."""
        if self.model is None:
            return None
        return str(self.model.absolute() if self.model.exists() else self.model)

    @property
    @abstractmethod
    def identity(self) -> Mapping[str, str]:
        """All that its files and answers depend on but the texts, such as the model's checksum; may load the model.

        An index keeps it, and refuses to be searched or appended to by a retriever with another.
        """

    @property
    def note(self) -> str:
        """What users should know of the documents written so far, such as how many were truncated."""
        return ""

    @abstractmethod
    def writer(self, folder: Path) -> PartWriter:
        """A writer of one segment's part."""

    @abstractmethod
    def open(self, folder: Path) -> Part:
        """A finished part, with its arrays memory-mapped (`bertkit.search.arrays.open_array`)."""

    @abstractmethod
    def search(self, segments: Sequence[Segment[Part]], queries: Sequence[str], k: int) -> list[Hits]:
        """The best `k` documents of each query, best first, equal ones in order of their numbers."""


def best(numbers: NDArray[np.int64], scores: NDArray[Any], k: int) -> Hits:
    """The `k` highest scores, best first; `numbers` ascend, and of equal scores the lower number is first."""
    if len(scores) > k:
        kept = np.flatnonzero(scores >= np.partition(scores, len(scores) - k)[len(scores) - k])
        numbers, scores = numbers[kept], scores[kept]
    order = np.argsort(-scores, kind="stable")[:k]
    return numbers[order], scores[order].astype(np.float32)


def joined(hits: Sequence[Hits], k: int) -> Hits:
    """The best `k` of several lists of hits, whose numbers ascend from list to list, as those of segments do."""
    numbers = np.concatenate([NO_HITS[0], *(each[0] for each in hits)])
    order = np.argsort(numbers)
    return best(numbers[order], np.concatenate([NO_HITS[1], *(each[1] for each in hits)])[order], k)
