"""Strings of an index on disk, such as texts and ids: one file of UTF-8 and an array of where each ends."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit.search.arrays import ArrayWriter, damaged, open_array


class StringsWriter:
    """`name.npy`, the bytes, and `name.ends.npy`, which grow block by block."""

    def __init__(self, folder: Path, name: str) -> None:
        self._bytes = ArrayWriter(folder / f"{name}.npy", "|u1")
        self._ends = ArrayWriter(folder / f"{name}.ends.npy", "<i8")

    def append(self, strings: Sequence[str]) -> None:
        """Append strings."""
        encoded = [string.encode("utf-8") for string in strings]
        ends = self._bytes.rows + np.cumsum([len(each) for each in encoded], dtype=np.int64)
        self._bytes.append(np.frombuffer(b"".join(encoded), np.uint8))
        self._ends.append(ends)

    def close(self) -> None:
        """Complete the files."""
        self._bytes.close()
        self._ends.close()


@dataclass(frozen=True)
class Strings:
    """Strings by their number, memory-mapped."""

    path: Path
    data: NDArray[Any]
    ends: NDArray[Any]

    @classmethod
    def open(cls, folder: Path, name: str) -> "Strings":
        """Those that a StringsWriter has written."""
        return cls(folder / f"{name}.npy", open_array(folder / f"{name}.npy"), open_array(folder / f"{name}.ends.npy"))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, number: int) -> str:
        start = int(self.ends[number - 1]) if number else 0
        try:
            return self.data[start : int(self.ends[number])].tobytes().decode("utf-8")
        except UnicodeDecodeError as error:
            raise damaged(self.path) from error
