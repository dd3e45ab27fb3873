"""Texts from a file, vectors to a file, a block at a time."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from bertkit.errors import RequestError
from bertkit.files import refuse_unwritable, whole_file
from bertkit.text.corpus import LONGEST_ROW, STDIN, CorpusReport, is_jsonl, read_lines, text_of

ENDINGS = (".npy", ".parquet")
HEADER = 128  # bytes before the numbers of a .npy file, enough for any shape

Write = Callable[[Sequence[str], np.ndarray], None]


def check_output(path: Path) -> None:
    """Before any work: the ending must be one we write, and nobody's file is in the way."""
    if path.suffix not in ENDINGS:
        raise RequestError(f"{path} must end in {' or '.join(ENDINGS)}")
    if path.exists():
        raise RequestError(f"{path} exists already; name another place or remove it first")
    refuse_unwritable(path)


def read_texts(path: Path, report: CorpusReport) -> Iterator[str]:
    """One text per line, in order, empty ones too; of .jsonl the field `text`; compressed or not; `-` is stdin."""
    for number, line in read_lines(
        STDIN if str(path) == "-" else path, report=report, longest=LONGEST_ROW, split=False
    ):
        yield text_of(line, f"{path}, line {number}") if is_jsonl(path) else line


@contextmanager
def vector_file(path: Path, width: int) -> Iterator[Write]:
    """A function that adds texts with their vectors to the file, which appears when all is done.

    `.npy`: the matrix alone; `.parquet`: a row for each text with its vector.
    """
    with whole_file(path) as draft, (_npy if path.suffix == ".npy" else _parquet)(draft, width) as write:
        yield write


@contextmanager
def _npy(path: Path, width: int) -> Iterator[Write]:
    rows = 0
    with path.open("wb") as file:
        file.seek(HEADER)

        def write(_: Sequence[str], vectors: np.ndarray) -> None:
            nonlocal rows
            rows += len(vectors)
            file.write(np.ascontiguousarray(vectors, dtype="<f4").tobytes())

        yield write
        described = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {width}), }}"
        file.seek(0)
        magic = b"\x93NUMPY\x01\x00" + (HEADER - 10).to_bytes(2, "little")
        file.write(magic + described.encode().ljust(HEADER - 11) + b"\n")


@contextmanager
def _parquet(path: Path, width: int) -> Iterator[Write]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([("text", pa.string()), ("vector", pa.list_(pa.float32(), width))])
    with pq.ParquetWriter(path, schema) as file:

        def write(texts: Sequence[str], vectors: np.ndarray) -> None:
            column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), width)
            file.write_table(pa.table([pa.array(texts, pa.string()), column], schema=schema))

        yield write
