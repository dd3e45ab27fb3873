"""Files → documents: plain text or JSONL, compressed or not, streamed in bounded memory.

Plain text: each line is a paragraph, a blank line ends a document. JSONL: each row is a document, its `text`
field holds the paragraphs. What cannot be read stops the run with one sentence; what was split or left out is
counted in the report.
"""

import codecs
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertkit.errors import BertkitError, RequestError

# Caps in characters keep memory bounded for a file without line ends or blank lines.
LONGEST_PARAGRAPH = 1_000_000  # longer ones are split at a space
LONGEST_DOCUMENT = 5_000_000  # longer ones are split between paragraphs; War and Peace has 3,200,000
LONGEST_ROW = 64_000_000  # a JSONL row cannot be split before it is parsed, so a longer one is refused
BLOCK = 1 << 18  # bytes read at once
JSONL = (".jsonl", ".ndjson")
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
MAGIC = {b"\x1f\x8b": ".gz", b"BZh": ".bz2", b"\xfd7zXZ\0": ".xz", b"\x28\xb5\x2f\xfd": ".zst"}  # first bytes
STDIN = Path("-")
LONE_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Document:
    """The paragraphs of one document, none of them blank, and the file and line where it begins."""

    paragraphs: tuple[str, ...]
    source: str
    line: int


@dataclass(frozen=True, slots=True)
class Note:
    """How often something was split or left out, and where it happened first."""

    count: int
    first: str


@dataclass
class CorpusReport:
    """What a pass over a corpus saw so far; `bytes` are those on disk, so they end at `corpus_size`."""

    files: int = 0
    bytes: int = 0
    text_bytes: int = 0  # after decompression
    documents: int = 0
    paragraphs: int = 0
    sentences: int | None = None  # None: not counted in this pass
    words: int | None = None
    unique_words: int | None = None
    notes: dict[str, Note] = field(default_factory=dict)

    def note(self, reason: str, location: str, count: int = 1) -> None:
        """Count something that was split or left out, with the location where it happened first."""
        seen = self.notes.get(reason, Note(0, location))
        self.notes[reason] = Note(seen.count + count, seen.first)


def read_documents(paths: Sequence[Path | str] | Path, *, report: CorpusReport) -> Iterator[Document]:
    """Every document of the files, folders and patterns, in order; a missing one is refused at once."""
    return _documents(corpus_files(paths, report=report), report)


def corpus_files(paths: Sequence[Path | str] | Path, *, report: CorpusReport | None = None) -> list[Path]:
    """The files that `paths` mean, or one path: folders and patterns expand to their files, sorted, hidden ones not."""
    paths = [paths] if isinstance(paths, str | Path) else paths
    files: dict[Path, Path] = {}  # by where links lead
    for path in paths:
        if str(path) in ("", ".") and not isinstance(path, Path):
            raise RequestError("a file name is empty; an unset variable on the command line does that")
        for file in _expand(Path(path)):
            target = _resolved(file)
            if target in files and report:
                report.note("file named twice, read once", str(file))
            files.setdefault(target, file)
    if not files:
        raise RequestError("no text files were named; name at least one file or folder")
    return list(files.values())


def corpus_size(files: Iterable[Path]) -> int:
    """Bytes on disk, the total for a progress bar."""
    return sum(file.stat().st_size for file in files)


def read_lines(
    path: Path,
    *,
    report: CorpusReport,
    longest: int = LONGEST_PARAGRAPH,
    split: bool = True,
    encoding: str = "utf-8-sig",
) -> Iterator[tuple[int, str]]:
    """Line numbers from 1 and lines without their ends, while `report.bytes` counts.

    A line over `longest` characters comes in several parts under one number, or is refused if not `split`.
    """
    number, parts, size = 1, [""], 0
    for block in _decoded_blocks(path, report, encoding):
        first, *rest = block.split("\n")
        parts.append(first)
        if rest:
            yield number, "".join(parts)
            yield from enumerate(rest[:-1], start=number + 1)
            number, parts, size = number + len(rest), [rest[-1]], 0
        size += len(parts[-1])
        if size > longest:
            if not split:
                raise RequestError(f"{path}, line {number}: the row is over {longest:,} characters; split it")
            report.note(_too_long(longest), f"{path}, line {number}")
            *full, rest_of_line = _cut("".join(parts), longest)
            yield from ((number, part) for part in full)
            parts, size = [rest_of_line], len(rest_of_line)
    if last := "".join(parts):
        yield number, last


def _resolved(file: Path) -> Path:
    try:
        return file.resolve()
    except (OSError, RuntimeError) as error:  # links that lead in a circle
        raise RequestError(f"{file} cannot be read: {error}") from error


def _expand(path: Path) -> list[Path]:
    try:
        if path.is_dir():
            return _inside(path)
        if path.exists():
            return [path]
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}") from error
    if not re.search(r"[*?[]", str(path)):
        raise RequestError(f"{path} does not exist; check the spelling and the working folder")
    pattern = str(path.relative_to(path.anchor))
    try:
        matches = sorted(match for match in Path(path.anchor).glob(pattern) if not match.is_dir())
    except ValueError as error:
        raise RequestError(f"{path} is no pattern: {error}") from error
    files = [match for match in matches if not match.name.startswith(".")]
    if not files:
        raise RequestError(f"no file matches {path}; check the pattern and the working folder")
    return files


def _inside(folder: Path) -> list[Path]:
    files = [
        file
        for file in sorted(folder.rglob("*"))
        # A link to nowhere stays in the list, so that opening it says so.
        if (file.is_file() or (file.is_symlink() and not file.is_dir()))
        and not any(part.startswith(".") for part in file.relative_to(folder).parts)
    ]
    if not files:
        raise RequestError(f"{folder} holds no files; name a folder with text in it")
    return files


def _documents(files: list[Path], report: CorpusReport) -> Iterator[Document]:
    for file in files:
        report.files += 1
        documents_before = report.documents
        for document in TEXT_FORMATS.get(_ending(file), _plain)(file, report):
            report.documents += 1
            report.paragraphs += len(document.paragraphs)
            yield document
        if report.documents == documents_before:
            raise RequestError(f"{file} holds no text; leave it out of the request")


def is_jsonl(file: Path) -> bool:
    """Whether a file's name says that each of its lines is a JSON object."""
    return _ending(file) in JSONL


def _ending(file: Path) -> str:
    return (file.with_suffix("") if file.suffix.lower() in COMPRESSED else file).suffix.lower()


def _plain(file: Path, report: CorpusReport) -> Iterator[Document]:
    return _grouped(read_lines(file, report=report), str(file), report)


def _rows_as_documents(file: Path, report: CorpusReport) -> Iterator[Document]:
    for number, row in read_lines(file, report=report, longest=LONGEST_ROW, split=False):
        if row and not row.isspace():
            text = text_of(row, f"{file}, line {number}")
            # A paragraph ends at any line end; io.StringIO translates the three kinds of them.
            lines = [line for line in io.StringIO(text, newline=None) if not line.isspace()]
            if not lines:
                report.note("row with an empty text, left out", f"{file}, line {number}")
            parts = [part for line in lines for part in _cut(line, LONGEST_PARAGRAPH)]
            if len(parts) > len(lines):
                report.note(_too_long(LONGEST_PARAGRAPH), f"{file}, line {number}", len(parts) - len(lines))
            yield from _grouped(((number, part) for part in parts), str(file), report)


# What reads the documents of a file, by its ending; every other ending is plain text.
TEXT_FORMATS: dict[str, Callable[[Path, CorpusReport], Iterator[Document]]] = dict.fromkeys(JSONL, _rows_as_documents)


def _grouped(lines: Iterable[tuple[int, str]], source: str, report: CorpusReport) -> Iterator[Document]:
    """Lines up to a blank one, or up to the cap, are a document."""
    paragraphs: list[str] = []
    size = begin = 0
    for number, line in lines:
        text = line.strip()
        full = size + len(text) > LONGEST_DOCUMENT
        if paragraphs and (full or not text):
            if full:
                what = f"document over {LONGEST_DOCUMENT:,} characters, split between paragraphs"
                report.note(what, f"{source}, line {number}")
            yield Document(tuple(paragraphs), source, begin)
            paragraphs, size = [], 0
        if text:
            begin = begin if paragraphs else number
            paragraphs.append(text)
            size += len(text)
    if paragraphs:
        yield Document(tuple(paragraphs), source, begin)


def text_of(row: str, location: str) -> str:
    """The `text` field of a JSONL row, or an error that names the location."""
    try:
        fields: Any = json.loads(row)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{location}: the row is torn or no JSON ({error}); repair or remove it") from error
    if not isinstance(fields, dict) or "text" not in fields:
        keys = ", ".join(map(repr, list(fields)[:5])) if isinstance(fields, dict) else type(fields).__name__
        raise RequestError(f"{location}: no field 'text' (the row has: {keys or 'nothing'}); rename the field")
    text = fields["text"]
    if not isinstance(text, str):
        raise RequestError(f"{location}: 'text' is {type(text).__name__}, not a string; repair or remove it")
    if "\\u" in row and (lone := LONE_SURROGATE.search(text)):
        raise RequestError(
            f"{location}: 'text' holds half a surrogate pair (\\u{ord(lone[0]):04x}), which is no character; "
            "write it in UTF-8 or repair the escape"
        )
    return text


def _too_long(longest: int) -> str:
    return f"paragraph over {longest:,} characters, split at a space"


def _cut(text: str, longest: int) -> list[str]:
    """Parts of at most `longest` characters, ending after a space where there is one in the second half."""
    parts, start = [], 0
    while len(text) - start > longest:
        space = text.rfind(" ", start + longest // 2, start + longest)
        end = space + 1 if space >= 0 else start + longest
        parts.append(text[start:end])
        start = end
    return [*parts, text[start:]]


class _CountedFile(io.FileIO):
    """A file that knows how many bytes were taken from it, also when it is a pipe."""

    taken = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(-1 if size is None else size) or b""
        self.taken += len(data)
        return data


def _decoded_blocks(path: Path, report: CorpusReport, encoding: str) -> Iterator[str]:
    """The file as text with line ends made uniform and a byte order mark dropped, in blocks of any length."""
    # utf-8-sig drops the mark; the newline decoder keeps a "\r" back until it has seen what follows.
    decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder(encoding)(), translate=True)
    offset, line = 0, 1
    for block in _byte_blocks(path, report):
        if offset == 0 or b"\0" in block:
            _refuse_binary(path, block, offset, line)
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            raise _not_utf8(path, error, offset + len(block), line) from error
        offset += len(block)
        line += text.count("\n")
        yield text
    if offset == 0:
        raise RequestError(f"{path} is empty; leave it out of the request")


def _byte_blocks(path: Path, report: CorpusReport) -> Iterator[bytes]:
    """The decompressed bytes; the last block is empty."""
    try:
        raw = _CountedFile(0, closefd=False) if path is STDIN else _CountedFile(path)
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}") from error
    with closing(raw):
        stream, block, size = _decompressed(raw, path.suffix.lower()), b"?", 0
        while block:
            before = raw.taken
            block = _read_block(stream, path, size)
            size += len(block)
            report.bytes += raw.taken - before
            report.text_bytes += len(block)
            yield block


def _decompressed(raw: _CountedFile, suffix: str) -> Any:
    """Something with `read(size)`; the modules are imported when a file needs them."""
    if suffix == ".gz":
        import gzip

        return gzip.GzipFile(fileobj=raw)
    if suffix == ".bz2":
        import bz2

        return bz2.BZ2File(raw)
    if suffix == ".xz":
        import lzma

        return lzma.LZMAFile(raw)
    if suffix == ".zst":
        import pyarrow

        return pyarrow.CompressedInputStream(pyarrow.PythonFile(raw, mode="r"), "zstd")
    return raw


def _read_block(stream: Any, path: Path, size: int) -> bytes:
    import lzma
    import zlib

    try:
        return bytes(stream.read(BLOCK))
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        if isinstance(error, OSError) and error.errno:  # the disk, not the data
            raise BertkitError(f"{path} cannot be read: {error.strerror}") from error
        raise RequestError(
            f"{path} is cut off or damaged after {size:,} bytes of text ({error}); copy or compress it again"
        ) from error


def _refuse_binary(path: Path, block: bytes, offset: int, line: int) -> None:
    """Say what a file is that is certainly not UTF-8 text."""
    for start, suffix in MAGIC.items():
        if offset == 0 and block.startswith(start):
            raise RequestError(f"{path} is a {suffix} file without that ending; rename it")
    zeros = block.count(0)
    utf16 = block.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or zeros > len(block) // 5
    if offset == 0 and utf16:
        remedy = f"iconv -f utf-16 -t utf-8 {path.name}"
        raise RequestError(f"{path} looks like UTF-16, not UTF-8; convert it first, for example with: {remedy}")
    if zeros:
        at = block.index(0)
        line += block.count(b"\n", 0, at)
        raise RequestError(f"{path}, line {line}: a NUL byte at offset {offset + at:,}; this is damaged or no text")


def _not_utf8(path: Path, error: UnicodeDecodeError, end: int, line: int) -> RequestError:
    """`end` is the file offset at the end of the bytes that the decoder was given."""
    at = end - len(error.object) + error.start
    line += error.object.count(b"\n", 0, error.start)
    what = "the text ends inside a character" if "unexpected end" in error.reason else error.reason
    return RequestError(
        f"{path}, line {line}: byte {error.object[error.start]:#04x} at offset {at:,} is not UTF-8 ({what}); "
        f"if the file is in Latin-1, convert it with: iconv -f latin1 -t utf-8 {path.name}"
    )
