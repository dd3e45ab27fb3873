"""Two plain text files whose lines belong together: `captions.{en,de}` is captions.en and captions.de."""

import re
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from bertkit.data.tables import Row, Table, TableFile, lines_of
from bertkit.errors import RequestError

TWO_FILES = re.compile(r"^(?P<start>.*)\{(?P<source>[^{},]+),(?P<target>[^{},]+)\}(?P<end>.*)$")


def parallel_files(path: Path) -> tuple[Path, Path] | None:
    """The files of sources and of targets; None if the name has no braces with two parts."""
    found = TWO_FILES.match(path.name)
    if found is None:
        return None
    start, source, target, end = found.groups()
    return path.with_name(f"{start}{source}{end}"), path.with_name(f"{start}{target}{end}")


def parallel_table(file: TableFile) -> Table:
    """A row for each pair of lines, with the columns source and target."""
    return file.table(_rows(file), names=("source", "target"), unit="lines")


def _rows(file: TableFile) -> Iterator[Row]:
    files = parallel_files(file.path)
    if files is None:
        raise RequestError(f"{file.path} is one file; name both, such as 'captions.{{en,de}}'")
    sources, targets = (lines_of(path, file.columns.encoding, file.report) for path in files)
    for number, (source, target) in enumerate(zip_longest(sources, targets), start=1):
        if source is None or target is None:
            longer, shorter = files if target is None else files[::-1]
            raise RequestError(f"{longer} has a line {number}, and {shorter} has none: each line needs its partner")
        yield Row(file.location(number), {"source": source[1], "target": target[1]})
