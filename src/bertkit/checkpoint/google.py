"""Google's TensorFlow checkpoints, read without TensorFlow.

`NAME.index` is a sorted table in LevelDB's format: variable name -> dtype, shape, offset and checksum, as a
protocol buffer. `NAME.data-0000i-of-0000n` hold the little-endian bytes. Neither file is trusted: every length is
compared with the file before memory is allocated, and every checksum is verified.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit.checkpoint.crc32c import crc32c, masked
from bertkit.checkpoint.google_index import BFLOAT16, COPY_AGAIN, STORED_DTYPES, Entry, Unreadable, parse_index
from bertkit.errors import RequestError

Array = NDArray[Any]

# A real index is far smaller (SimBERT's has 3 kB); the limit keeps a hostile one from filling memory.
MAX_FILE_BYTES = 8 << 20


@dataclass(frozen=True)
class GoogleCheckpoint:
    """A checkpoint: its settings, every variable under its TensorFlow name, its vocabulary file."""

    config: dict[str, Any]
    variables: dict[str, Array]
    vocab: Path | None


def is_google(folder: Path) -> bool:
    """Whether a folder holds, or an .index file or prefix names, an index with data files beside it."""
    try:
        return any(_has_data(prefix) for prefix in _prefixes(Path(folder)))
    except OSError:  # such as a name that is too long, or a folder without read access
        return False


def read_google(path: Path) -> GoogleCheckpoint:
    """Read the checkpoint at a folder, an .index file or a prefix; all floats become float32."""
    try:
        prefix = _choose_prefix(Path(path))
        vocab = prefix.parent / "vocab.txt"
        config = _read_config(prefix.parent)
        return GoogleCheckpoint(config, _read_variables(prefix), vocab if vocab.is_file() else None)
    except OSError as error:
        raise RequestError(f"{error.filename or path} cannot be read: {error.strerror or error}") from error


# Which files: a folder may hold several checkpoints of one training run.


def _prefixes(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(index.with_suffix("") for index in path.glob("*.index"))
    prefix = path.with_suffix("") if path.suffix == ".index" else path
    return [prefix] if Path(f"{prefix}.index").is_file() else []


def _has_data(prefix: Path) -> bool:
    return any(file.name.startswith(f"{prefix.name}.data-") for file in prefix.parent.iterdir())


def _choose_prefix(path: Path) -> Path:
    prefixes = _prefixes(path)
    if not prefixes:
        raise RequestError(f"{path} holds no Google checkpoint; name a folder with NAME.index and its data")
    if len(prefixes) > 1:
        names = ", ".join(f"{prefix.name}.index" for prefix in prefixes)
        prefixes = [prefix for prefix in prefixes if prefix.name == _latest(path)]
    if not prefixes:
        raise RequestError(f"{path} holds several checkpoints; name one of them: {names}")
    return prefixes[0]


def _latest(folder: Path) -> str | None:
    """The name in the folder's `checkpoint` text file, without its path, which is from another machine."""
    record = folder / "checkpoint"
    text = _read_bytes(record).decode("utf-8", errors="replace") if record.is_file() else ""
    match = re.search(r'^model_checkpoint_path:\s*"(?:[^"\n]*[/\\])?([^"\n]+)"', text, re.MULTILINE)
    return match and match[1]


def _read_config(folder: Path) -> dict[str, Any]:
    """bert_config.json, or the only other *config*.json (ALBERT's is albert_config.json)."""
    files = [folder / "bert_config.json"]
    if not files[0].is_file():
        files = sorted(folder.glob("*config*.json"))
    if len(files) != 1:
        names = ", ".join(file.name for file in files) or "none"
        raise RequestError(f"{folder} needs a bert_config.json with the model's settings; found: {names}")
    try:
        config = json.loads(_read_bytes(files[0]))
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{files[0]} is not JSON ({error}); {COPY_AGAIN}") from error
    if not isinstance(config, dict):
        raise RequestError(f"{files[0]} must hold one JSON object with the model's settings; {COPY_AGAIN}")
    return config


def _read_bytes(file: Path) -> bytes:
    """The bytes of a small file: the index, the settings, the name of the latest checkpoint."""
    if file.stat().st_size > MAX_FILE_BYTES:
        raise RequestError(f"{file} has over {MAX_FILE_BYTES >> 20} MiB, too many for what it is; {COPY_AGAIN}")
    return file.read_bytes()


# The variables: the index says where each is in the data files.


def _read_variables(prefix: Path) -> dict[str, Array]:
    index = Path(f"{prefix}.index")
    try:
        shards, entries = parse_index(_read_bytes(index))
    except Unreadable as error:
        raise RequestError(f"{index} {error}") from error
    files = [Path(f"{prefix}.data-{shard:05d}-of-{shards:05d}") for shard in range(shards)]
    _check_extents(files, entries)
    return {entry.name: _read_variable(files[entry.shard], entry) for entry in entries}


def _check_extents(files: list[Path], entries: list[Entry]) -> None:
    """Refuse variables that lie outside their file, or together are larger than it."""
    for shard, file in enumerate(files):
        if not file.is_file():
            raise RequestError(f"{file} is missing; copy it beside the .index file")
        length = unclaimed = file.stat().st_size
        for entry in (entry for entry in entries if entry.shard == shard):
            unclaimed -= entry.size
            if entry.offset + entry.size > length or unclaimed < 0:
                raise RequestError(f"{file} has {length} bytes, too few for {entry.name!r}; {COPY_AGAIN}")


def _read_variable(file: Path, entry: Entry) -> Array:
    raw = np.fromfile(file, np.uint8, count=entry.size, offset=entry.offset)
    if len(raw) != entry.size or masked(crc32c(raw)) != entry.checksum:
        raise RequestError(f"{file} is damaged: the checksum of {entry.name!r} is wrong; {COPY_AGAIN}")
    try:
        return _decode(raw, entry.dtype).reshape(entry.shape)
    except FloatingPointError as error:
        problem = f"{file} holds values in {entry.name!r} beyond float32's range"
        raise RequestError(f"{problem}; save it again as float32") from error


def _decode(raw: NDArray[np.uint8], dtype: int) -> Array:
    array: Array = raw.view(STORED_DTYPES[dtype])
    if dtype == BFLOAT16:  # the upper half of a float32
        return (array.astype(np.uint32) << 16).view(np.float32)
    if array.dtype.kind == "f":
        with np.errstate(over="raise", invalid="ignore"):
            return array.astype(np.float32, copy=False)
    return array.astype(array.dtype.newbyteorder("="), copy=False)
