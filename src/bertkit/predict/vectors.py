"""Texts from a file, vectors to a file."""

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bertkit.errors import RequestError
from bertkit.files import whole_file

ENDINGS = (".npy", ".parquet")


def check_output(path: Path) -> None:
    """Before any work: the ending must be one we write, and nobody's file is in the way."""
    if path.suffix not in ENDINGS:
        raise RequestError(f"{path} must end in {' or '.join(ENDINGS)}")
    if path.exists():
        raise RequestError(f"{path} exists already; name another --out or remove it first")


def read_texts(path: Path) -> list[str]:
    """One text per line, in order, empty ones too; `-` is standard input."""
    try:
        data = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except FileNotFoundError as error:
        raise RequestError(f"{path} does not exist") from error
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}") from error
    if not data:
        raise RequestError(f"{path} is empty; it should hold one text per line")
    if b"\0" in data:
        line = data[: data.index(b"\0")].count(b"\n") + 1
        raise RequestError(
            f"{path} has a NUL byte in line {line}; if it is UTF-16, convert it: iconv -f utf-16 -t utf-8"
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise RequestError(
            f"{path} is not UTF-8: byte {error.start}, line {line}; convert it: iconv -f latin1 -t utf-8"
        ) from error
    lines = text.replace("\r\n", "\n").split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def write_vectors(path: Path, vectors: np.ndarray, texts: Sequence[str]) -> None:
    """`.npy`: the matrix alone; `.parquet`: a row for each text with its vector. Whole or not at all."""
    with whole_file(path) as draft:
        if path.suffix == ".npy":
            np.save(draft, vectors)
        else:
            import pyarrow as pa
            import pyarrow.parquet as pq

            column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
            pq.write_table(pa.table({"text": list(texts), "vector": column}), draft)
