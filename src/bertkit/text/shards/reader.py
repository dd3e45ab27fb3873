"""Shards → arrays: a tokenized corpus, memory-mapped, from which every objective makes its examples.

A folder holds manifest.json, a copy of the tokenizer in tokenizer/, and shard-00000/, shard-00001/ and so on, each with
the arrays of `array_sizes` as raw little-endian files. They have no special tokens, no empty sentences and no empty
documents, and a document is always in one shard. `writer` makes them.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bertkit.errors import RequestError

if TYPE_CHECKING:
    from bertkit.text.tokenizer import Tokenizer

Integers = NDArray[np.int64]
Flags = NDArray[np.uint8]
Ids = NDArray[Any]  # uint16 or uint32, as the manifest says

FORMAT, VERSION = "bertkit shards", 1
MANIFEST = "manifest.json"
REQUEST = "request.json"  # the settings of the run; written first, and the manifest last
TOKENIZER = "tokenizer"
DTYPES = {"uint16": "<u2", "uint32": "<u4"}
MAX_OPEN_FILES = 256  # mapped at once: each takes one of usually 1,024 file descriptors
REPAIR_HINT = "the 'bertkit shards' command that made the folder, given again, repairs it"


def open_shards(folder: Path | str, *, verify: bool = False) -> "ShardSet":
    """The shards of a folder; file sizes are always checked, checksums with `verify`."""
    folder = Path(folder)
    manifest = _read_manifest(folder)
    for number, shard in enumerate(manifest["shards"]):
        check_shard(shard_folder(folder, number), shard, verify=verify)
    return ShardSet(folder, manifest)


@dataclass(frozen=True, eq=False)
class ShardSet:
    """All shards of a folder as one text: tokens, sentences and documents are numbered across shards."""

    folder: Path
    manifest: Mapping[str, Any]

    def __reduce__(self) -> tuple[Any, ...]:
        return open_shards, (self.folder,)

    @property
    def tokens(self) -> int:
        """The number of tokens."""
        return int(self.manifest["totals"]["tokens"])

    @property
    def sentences(self) -> int:
        """The number of sentences."""
        return int(self.manifest["totals"]["sentences"])

    @property
    def documents(self) -> int:
        """The number of documents."""
        return int(self.manifest["totals"]["documents"])

    @property
    def has_entities(self) -> bool:
        """Whether the shards were made with a list of names."""
        return self.manifest["entities"] is not None

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over the vocabulary and the checksums of all files."""
        content = [self.manifest["tokenizer"], *(shard["files"] for shard in self.manifest["shards"])]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    @cached_property
    def tokenizer(self) -> "Tokenizer":
        """The tokenizer that made the shards."""
        from bertkit.text.tokenizer import Tokenizer

        tokenizer = Tokenizer.load(self.folder / TOKENIZER)
        self.require_tokenizer(tokenizer)
        return tokenizer

    def require_tokenizer(self, tokenizer: "Tokenizer") -> None:
        """Refuse a tokenizer that gives other ids."""
        made_with = self.manifest["tokenizer"]
        if tokenizer.hash != made_with:
            raise RequestError(
                f"{self.folder} was made with another vocabulary (its tokenizer is {made_with[:12]}, this one is "
                f"{tokenizer.hash[:12]}); make shards with this one, or use the one in {self.folder / TOKENIZER}"
            )

    @cached_property
    def shard_starts(self) -> Integers:
        """[shards + 1]: the first token of each shard, and the end."""
        return self._sums("tokens")

    @cached_property
    def sentence_starts(self) -> Integers:
        """[sentences + 1]: the first token of each sentence, and the end."""
        return self._all_starts("sentences", "tokens")

    @cached_property
    def document_starts(self) -> Integers:
        """[documents + 1]: the first sentence of each document, and the end."""
        return self._all_starts("documents", "sentences")

    @cached_property
    def entities(self) -> Integers:
        """[spans, 2]: start and end token of every name, in order and without overlap."""
        if not self.has_entities:
            raise RequestError(f"{self.folder} holds no entity spans; make the shards with --entities FILE")
        starts = enumerate(self.shard_starts[:-1].tolist())
        parts = [self._array(shard, "entities").reshape(-1, 2) + start for shard, start in starts]
        return np.concatenate([np.empty((0, 2), np.int64), *parts])

    def read(self, start: int, stop: int) -> tuple[Ids, Flags]:
        """Ids and word starts of the tokens from `start` to `stop`, which are in one shard; not copied."""
        if not 0 <= start <= stop <= self.tokens:
            raise RequestError(f"tokens {start} to {stop} were asked for; {self.folder} has 0 to {self.tokens}")
        if start == stop:
            return np.empty(0, self._dtype), np.empty(0, np.uint8)
        shard = int(np.searchsorted(self.shard_starts, start, "right")) - 1
        shard_start, end = self.shard_starts[shard : shard + 2].tolist()
        if stop > end:
            raise RequestError(f"tokens {start} to {stop} reach over the end of shard {shard} at {end}; use gather")
        tokens = slice(start - shard_start, stop - shard_start)
        return self._array(shard, "tokens")[tokens], self._array(shard, "words")[tokens]

    def gather(self, starts: ArrayLike, lengths: ArrayLike) -> tuple[Ids, Flags]:
        """Ids and word starts of many ranges, concatenated in their order; a range may span several shards."""
        starts, lengths = np.asarray(starts, np.int64), np.asarray(lengths, np.int64)
        if len(starts) and (starts.min() < 0 or lengths.min() < 0 or (starts + lengths).max() > self.tokens):
            raise RequestError(f"a range outside the tokens 0 to {self.tokens} of {self.folder} was asked for")
        total = int(lengths.sum())
        ids, words = np.empty(total, self._dtype), np.empty(total, np.uint8)
        for shard, source, target in self._plan(starts, lengths):
            ids[target] = self._array(shard, "tokens")[source]
            words[target] = self._array(shard, "words")[source]
        if total and ids.max() >= (size := self.manifest["vocabulary"]):
            raise RequestError(
                f"{self.folder} is damaged: it holds the id {ids.max()}, and its vocabulary ends at {size - 1}; "
                f"{REPAIR_HINT}"
            )
        return ids, words

    def _plan(self, starts: Integers, lengths: Integers) -> Iterator[tuple[int, Integers, Integers]]:
        """(shard, indices of its tokens, indices in the result) for each shard that is needed."""
        shards, starts, lengths = _split_at(self.shard_starts, starts, lengths)
        targets = np.cumsum(lengths) - lengths
        by_shard = np.argsort(shards, kind="stable")
        bounds = np.flatnonzero(np.diff(shards[by_shard])) + 1
        for group in np.split(by_shard, bounds) if len(shards) else ():
            shard = int(shards[group[0]])
            source = _ranges(starts[group] - self.shard_starts[shard], lengths[group])
            yield shard, source, _ranges(targets[group], lengths[group])

    @property
    def _dtype(self) -> str:
        return DTYPES[self.manifest["dtype"]]

    def _sums(self, unit: str) -> Integers:
        counts = [shard["counts"][unit] for shard in self.manifest["shards"]]
        return np.cumsum([0, *counts], dtype=np.int64)

    def _all_starts(self, name: str, unit: str) -> Integers:
        """The starts of all sentences or documents, numbered across shards, and the end."""
        sums = self._sums(unit)
        parts = []
        for shard, offset in enumerate(sums[:-1].tolist()):
            bounds = self._array(shard, name)
            if bounds[0] != 0 or bounds[-1] != sums[shard + 1] - offset or (np.diff(bounds) <= 0).any():
                path = shard_folder(self.folder, shard) / f"{name}.bin"
                raise RequestError(f"{path} is damaged: its bounds are not in order; {REPAIR_HINT}")
            parts.append(bounds[:-1] + offset)
        return np.concatenate([*parts, sums[-1:]])

    @cached_property
    def _array(self) -> Callable[[int, str], NDArray[Any]]:
        def mapped(shard: int, name: str) -> NDArray[Any]:
            dtype, size = array_sizes(self.manifest["shards"][shard]["counts"], self._dtype, self.has_entities)[name]
            if not size:
                return np.empty(0, dtype)
            path = shard_folder(self.folder, shard) / f"{name}.bin"
            return np.memmap(path, dtype, "r", shape=(size,)).view(np.ndarray)

        return lru_cache(MAX_OPEN_FILES)(mapped)


def array_sizes(counts: Mapping[str, int], dtype: str, entities: bool) -> dict[str, tuple[str, int]]:
    """The arrays of one shard: name -> (dtype, length)."""
    sizes = {
        "tokens": (dtype, counts["tokens"]),  # ids end to end
        "words": ("<u1", counts["tokens"]),  # 1 where a word starts
        "sentences": ("<i8", counts["sentences"] + 1),  # first token of each, and the end
        "documents": ("<i8", counts["documents"] + 1),  # first sentence of each, and the end
    }
    return {**sizes, "entities": ("<i8", 2 * counts["entities"])} if entities else sizes


def shard_folder(folder: Path, number: int) -> Path:
    """The folder of a shard."""
    return folder / f"shard-{number:05}"


def file_checksum(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_shard(folder: Path, shard: Mapping[str, Any], *, verify: bool) -> None:
    """Refuse a shard with a missing or truncated file or, with `verify`, a changed one."""
    for name, file in shard["files"].items():
        path = folder / name
        if not path.is_file():
            raise RequestError(f"{path} is missing; {REPAIR_HINT}")
        if path.stat().st_size != file["bytes"]:
            raise RequestError(f"{path} has {path.stat().st_size:,} bytes, not {file['bytes']:,}; {REPAIR_HINT}")
        if verify and file_checksum(path) != file["sha256"]:
            raise RequestError(f"{path} is damaged: its checksum is not that of the manifest; {REPAIR_HINT}")


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.is_file():
        if (folder / REQUEST).is_file():
            raise RequestError(f"{folder} is unfinished; give the 'bertkit shards' command again and it goes on")
        raise RequestError(f"{folder} holds no shards; make some: bertkit shards TEXT... --vocab DIR --out {folder}")
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if (manifest["format"], manifest["version"]) != (FORMAT, VERSION):
            raise RequestError(f"{path} is of version {manifest['version']!r}, not {VERSION}; make the shards again")
        _check_counts(manifest)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, RequestError):
            raise
        raise RequestError(f"{path} is damaged ({type(error).__name__}: {error}); {REPAIR_HINT}") from error
    return manifest


def _check_counts(manifest: Mapping[str, Any]) -> None:
    """Raise ValueError or KeyError if the manifest's counts are inconsistent."""
    entities = manifest["entities"] is not None
    if not isinstance(manifest["vocabulary"], int):
        raise ValueError("the size of the vocabulary is no number")
    for shard in manifest["shards"]:
        sizes = array_sizes(shard["counts"], DTYPES[manifest["dtype"]], entities)
        expected = {f"{name}.bin": np.dtype(dtype).itemsize * size for name, (dtype, size) in sizes.items()}
        if {name: file["bytes"] for name, file in shard["files"].items()} != expected:
            raise ValueError("counts and sizes differ")
    for unit, total in manifest["totals"].items():
        if total != sum(shard["counts"][unit] for shard in manifest["shards"]):
            raise ValueError(f"the shards do not add up to {total} {unit}")


def _split_at(shard_starts: Integers, starts: Integers, lengths: Integers) -> tuple[Integers, Integers, Integers]:
    """Shard, start and length of each range; a range over several shards is split into one for each."""
    starts, lengths = starts[lengths > 0], lengths[lengths > 0]
    stops = starts + lengths
    first = np.searchsorted(shard_starts, starts, "right") - 1
    parts = np.searchsorted(shard_starts, stops, "left") - first
    if (parts == 1).all():
        return first, starts, lengths
    source = np.repeat(np.arange(len(starts)), parts)
    shards = _ranges(first, parts)
    part_starts = np.maximum(starts[source], shard_starts[shards])
    return shards, part_starts, np.minimum(stops[source], shard_starts[shards + 1]) - part_starts


def _ranges(starts: Integers, lengths: Integers) -> Integers:
    """start, start + 1, ... for each range, concatenated."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(lengths.sum())
