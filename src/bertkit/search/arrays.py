"""Arrays of an index on disk: .npy files that grow block by block, opened memory-mapped."""

from pathlib import Path
from typing import Any

import numpy as np

from bertkit.errors import RequestError
from bertkit.predict.files.outputs import npy_header


class ArrayWriter:
    """A .npy file that rows are appended to; `close` writes their number into its header."""

    def __init__(self, path: Path, dtype: str, width: int | None = None) -> None:
        self.dtype, self.width, self.rows = np.dtype(dtype), width, 0
        self._file = path.open("wb")
        self._file.write(npy_header(0, width, self.dtype.str))

    def append(self, rows: np.ndarray) -> None:
        """Append rows, [rows] or [rows, width]."""
        self._file.write(np.ascontiguousarray(rows, self.dtype).tobytes())
        self.rows += len(rows)

    def close(self) -> None:
        """Complete the file."""
        self._file.seek(0)
        self._file.write(npy_header(self.rows, self.width, self.dtype.str))
        self._file.close()


def save_array(path: Path, rows: np.ndarray) -> None:
    """An array of one or two dimensions that is in memory."""
    file = ArrayWriter(path, rows.dtype.str, rows.shape[1] if rows.ndim == 2 else None)
    file.append(rows)
    file.close()


def open_array(path: Path) -> np.ndarray[Any, Any]:
    """An array, memory-mapped; what is damaged is refused.

    The mode "c" is for torch, which warns of arrays that cannot be written; they are not.
    """
    try:
        array: np.ndarray[Any, Any] = np.load(path, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise damaged(path) from error
    return array


def damaged(path: Path) -> RequestError:
    """The error for a file of an index that is missing or not as it was written."""
    return RequestError(
        f"{path} is damaged or missing; copy the whole index again, or build it again in another folder"
    )
