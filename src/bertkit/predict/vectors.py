"""Texts from a file, vectors to a file."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bertkit.errors import RequestError
from bertkit.files import refuse_unwritable, whole_file
from bertkit.text.corpus import LONGEST_ROW, CorpusReport, read_lines

ENDINGS = (".npy", ".parquet")


def check_output(path: Path) -> None:
    """Before any work: the ending must be one we write, and nobody's file is in the way."""
    if path.suffix not in ENDINGS:
        raise RequestError(f"{path} must end in {' or '.join(ENDINGS)}")
    if path.exists():
        raise RequestError(f"{path} exists already; name another place or remove it first")
    refuse_unwritable(path)


def read_texts(path: Path) -> list[str]:
    """One text per line, in order, empty ones too; compressed or not; `-` is standard input."""
    file = Path("/dev/stdin") if str(path) == "-" else path
    return [line for _, line in read_lines(file, report=CorpusReport(), longest=LONGEST_ROW, split=False)]


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
