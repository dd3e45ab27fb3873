"""What an index folder holds, in `index.json`: its retrievers, its segments, and how far each source was read."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from bertkit.checkpoint.tensors import read_object
from bertkit.errors import RequestError
from bertkit.files import whole_file
from bertkit.search.arrays import damaged

MANIFEST = "index.json"
SEGMENTS = "segments"
FORMAT_VERSION = 1  # of the files of an index
Record = TypeVar("Record")


@dataclass(frozen=True)
class RetrieverRecord:
    """A retriever of the index: its settings, where its model was, and all that its answers depend on."""

    settings: Mapping[str, Any]
    model: str | None
    identity: Mapping[str, str]


@dataclass(frozen=True)
class SegmentRecord:
    """A finished segment: its documents, and the bytes of each of its files, which show what was cut short."""

    name: str
    documents: int
    skipped: int  # rows that could not be used
    sizes: Mapping[str, int]


@dataclass(frozen=True)
class SourceRecord:
    """How far a file was read."""

    columns: str
    rows: int = 0
    digest: str = ""  # of these rows
    size: int = -1  # bytes of the file once all of it was read


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The content of `index.json`."""

    format_version: int = FORMAT_VERSION
    retrievers: Mapping[str, RetrieverRecord]
    segments: tuple[SegmentRecord, ...] = ()
    sources: Mapping[str, SourceRecord] = field(default_factory=dict)  # by path
    fusion: Mapping[str, float] = field(default_factory=dict)  # weights by retriever, where they were fitted

    @property
    def documents(self) -> int:
        """Documents of all segments."""
        return sum(segment.documents for segment in self.segments)

    def save(self, folder: Path) -> None:
        """Write `index.json`: from now on the segments that it names count."""
        with whole_file(folder / MANIFEST) as draft:
            draft.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> Manifest:
    """The content of `index.json`; a folder without one, and one of a later version, are refused."""
    path = folder / MANIFEST
    if not path.is_file():
        state = "is no index" if folder.exists() else "does not exist"
        raise RequestError(f"{folder} {state}; make one with: bertkit index TEXTS --out {folder}")
    try:
        content = read_object(path)
    except RequestError as error:
        raise damaged(path) from error
    version = content.get("format_version")
    if type(version) is not int:
        raise damaged(path)
    if version > FORMAT_VERSION:
        raise RequestError(
            f"{folder} is of format {version}, and this bertkit reads up to {FORMAT_VERSION}; update bertkit"
        )
    try:
        return Manifest(
            format_version=version,
            retrievers={name: _record(RetrieverRecord, each) for name, each in content["retrievers"].items()},
            segments=tuple(_record(SegmentRecord, each) for each in content["segments"]),
            sources={name: _record(SourceRecord, each) for name, each in content["sources"].items()},
            fusion=content["fusion"],
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise damaged(path) from error


def check_files(folder: Path, segment: SegmentRecord) -> None:
    """Refuse a segment with a file that is missing or not as long as it was."""
    for name, size in segment.sizes.items():
        path = folder / SEGMENTS / segment.name / name
        if not path.is_file() or path.stat().st_size != size:
            raise damaged(path)


def _record(kind: type[Record], values: Any) -> Record:
    """A record with all of its fields and no others."""
    names = {each.name for each in fields(kind)}  # type: ignore[arg-type]
    if set(values) != names:
        raise KeyError(*(set(values) ^ names))
    return kind(**values)
