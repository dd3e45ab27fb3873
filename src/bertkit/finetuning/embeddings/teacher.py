"""A teacher's vectors: computed once, kept on disk in 16 bits, and found again by what they were made from."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from bertkit.checkpoint.save_load import Checkpoint
from bertkit.checkpoint.tensors import fingerprint
from bertkit.checkpoint.text_vectors import text_vectors
from bertkit.errors import RequestError
from bertkit.files import whole_file
from bertkit.progress import ShowProgress, silent

Vectors = NDArray[np.float16]


def teacher_vectors(
    teacher: Checkpoint,
    texts: Sequence[str],
    length: int,
    folder: Path,
    device: torch.device,
    *,
    show: ShowProgress = silent,
) -> Vectors:
    """float16 [texts, width], mapped from a file in `folder` that is written if it is not there yet.

    Its name hangs on the teacher's weights and settings, the texts and the length: another file is other vectors.
    """
    path = folder / f"teacher-{_key(teacher, texts, length)}.npy"
    if not path.is_file():
        teacher.model.to(device)
        vectors = text_vectors(teacher, texts, length=length, kind="float16", show=show)
        with whole_file(path) as draft, draft.open("wb") as file:
            np.save(file, vectors)
    return _mapped(path, len(texts))


def _key(teacher: Checkpoint, texts: Sequence[str], length: int) -> str:
    digest = hashlib.sha256(fingerprint(teacher.model.state_dict()).encode())
    digest.update(f"{teacher.embed} {length} {len(texts)}\0".encode())
    for text in texts:
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()[:16]


def _mapped(path: Path, count: int) -> Vectors:
    try:
        vectors: Vectors = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise RequestError(f"{path} is damaged ({error}); remove it, and it will be made again") from error
    if vectors.ndim != 2 or len(vectors) != count or vectors.dtype != np.float16:
        raise RequestError(f"{path} does not hold {count:,} vectors in 16 bits; remove it, and it will be made again")
    return vectors
