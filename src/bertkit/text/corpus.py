"""Files → documents: plain text or JSONL, compressed or not, streamed in bounded memory.

Plain text: each line is a paragraph, a blank line ends a document. JSONL: each row is a document, its `text`
field holds the paragraphs. A file that cannot be read is an error; what was split or left out is counted in the
report.
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

# Limits in characters keep memory bounded for a file without line ends or blank lines.
MAX_PARAGRAPH = 1_000_000  # longer ones are split at a space
MAX_DOCUMENT = 5_000_000  # longer ones are split between paragraphs; War and Peace has 3,200,000
MAX_ROW = 64_000_000  # a JSONL row cannot be split before it is parsed, so a longer one is refused
BLOCK_BYTES = 1 << 18  # read at once
JSONL = (".jsonl", ".ndjson")
COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
MAGIC_BYTES = {
    b"\x1f\x8b": ".gz",
    b"BZh": ".bz2",
    b"\xfd7zXZ\0": ".xz",
    b"\x28\xb5\x2f\xfd": ".zst",
}  # the first bytes of a file
STDIN = Path("-")
LONE_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Document:
    """The paragraphs of one document, none of them blank, and the file and line where it starts."""

    paragraphs: tuple[str, ...]
    source: str
    line: int


@dataclass(frozen=True, slots=True)
class Note:
    """How often something was split or left out, and the first location."""

    count: int
    first: str


@dataclass
class CorpusReport:
    """Counts of a pass over a corpus so far; `bytes` are those on disk, so that they end at `corpus_size`."""

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
        """Count something that was split or left out, and keep its first location."""
        earlier = self.notes.get(reason, Note(0, location))
        self.notes[reason] = Note(earlier.count + count, earlier.first)


def read_documents(paths: Sequence[Path | str] | Path, *, report: CorpusReport) -> Iterator[Document]:
    """Every document of the files, folders and patterns, in order; a missing file is refused before any is read."""
    return _documents(corpus_files(paths, report=report), report)


def corpus_files(paths: Sequence[Path | str] | Path, *, report: CorpusReport | None = None) -> list[Path]:
    """The files of one or several paths: folders and patterns expand to their files, sorted, without hidden ones."""
    paths = [paths] if isinstance(paths, str | Path) else paths
    files: dict[Path, Path] = {}  # by the path that links lead to
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
    """Bytes on disk: the total of a progress bar."""
    return sum(file.stat().st_size for file in files)


def read_lines(
    path: Path,
    *,
    report: CorpusReport,
    longest: int = MAX_PARAGRAPH,
    split: bool = True,
    encoding: str = "utf-8-sig",
) -> Iterator[tuple[int, str]]:
    """Line numbers from 1, and lines without their ends; `report.bytes` counts the bytes read.

    A line over `longest` characters gives several parts with the same number, or is refused if not `split`.
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
    except (OSError, RuntimeError) as error:  # a cycle of links
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
        # A broken link stays in the list, so that opening it is an error.
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
    for number, row in read_lines(file, report=report, longest=MAX_ROW, split=False):
        if row and not row.isspace():
            text = text_of(row, f"{file}, line {number}")
            # A paragraph ends at any line end; io.StringIO translates the three kinds of them.
            lines = [line for line in io.StringIO(text, newline=None) if not line.isspace()]
            if not lines:
                report.note("row with an empty text, left out", f"{file}, line {number}")
            parts = [part for line in lines for part in _cut(line, MAX_PARAGRAPH)]
            if len(parts) > len(lines):
                report.note(_too_long(MAX_PARAGRAPH), f"{file}, line {number}", len(parts) - len(lines))
            yield from _grouped(((number, part) for part in parts), str(file), report)


def _refuse_table(file: Path, report: CorpusReport) -> Iterator[Document]:
    """Refuse a table, whose header and labels would be read as text."""
    raise RequestError(
        f"{file} is a table, and its header and other columns are no text; write its texts to a .txt file, or to "
        ".jsonl with a field 'text'"
    )


# Readers of documents by the file's ending; every other ending is plain text.
TEXT_FORMATS: dict[str, Callable[[Path, CorpusReport], Iterator[Document]]] = {
    **dict.fromkeys(JSONL, _rows_as_documents),
    **dict.fromkeys((".tsv", ".csv", ".parquet"), _refuse_table),
}


def _grouped(lines: Iterable[tuple[int, str]], source: str, report: CorpusReport) -> Iterator[Document]:
    """Documents: lines up to a blank one, or up to MAX_DOCUMENT characters."""
    paragraphs: list[str] = []
    size = first_line = 0
    for number, line in lines:
        text = line.strip()
        full = size + len(text) > MAX_DOCUMENT
        if paragraphs and (full or not text):
            if full:
                reason = f"document over {MAX_DOCUMENT:,} characters, split between paragraphs"
                report.note(reason, f"{source}, line {number}")
            yield Document(tuple(paragraphs), source, first_line)
            paragraphs, size = [], 0
        if text:
            first_line = first_line if paragraphs else number
            paragraphs.append(text)
            size += len(text)
    if paragraphs:
        yield Document(tuple(paragraphs), source, first_line)


def text_of(row: str, location: str) -> str:
    """The `text` field of a JSONL row; errors name `location`."""
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
    """Parts of at most `longest` characters, split after a space if there is one in the second half."""
    parts, start = [], 0
    while len(text) - start > longest:
        space = text.rfind(" ", start + longest // 2, start + longest)
        end = space + 1 if space >= 0 else start + longest
        parts.append(text[start:end])
        start = end
    return [*parts, text[start:]]


class _CountedFile(io.FileIO):
    """A file that counts the bytes read from it, also if it is a pipe."""

    bytes_read = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(-1 if size is None else size) or b""
        self.bytes_read += len(data)
        return data


def _decoded_blocks(path: Path, report: CorpusReport, encoding: str) -> Iterator[str]:
    """The file as text in blocks of any length, with uniform line ends, without a byte order mark."""
    # utf-8-sig drops the mark; the newline decoder holds a "\r" back until it has seen the next character.
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
            before = raw.bytes_read
            block = _read_block(stream, path, size)
            size += len(block)
            report.bytes += raw.bytes_read - before
            report.text_bytes += len(block)
            yield block


def _decompressed(raw: _CountedFile, suffix: str) -> Any:
    """A stream with `read(size)`; decompression modules are imported only if a file needs them."""
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
        return bytes(stream.read(BLOCK_BYTES))
    except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
        if isinstance(error, OSError) and error.errno:  # a fault of the disk, not of the data
            raise BertkitError(f"{path} cannot be read: {error.strerror}") from error
        raise RequestError(
            f"{path} is cut off or damaged after {size:,} bytes of text ({error}); copy or compress it again"
        ) from error


def _refuse_binary(path: Path, block: bytes, offset: int, line: int) -> None:
    """Refuse a file that is compressed, UTF-16 or binary, and say which."""
    for start, suffix in MAGIC_BYTES.items():
        if offset == 0 and block.startswith(start):
            raise RequestError(f"{path} is a {suffix} file without that ending; rename it")
    zeros = block.count(0)
    utf16 = block.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or zeros > len(block) // 5
    if offset == 0 and utf16:
        remedy = f"iconv -f utf-16 -t utf-8 {path.name} > utf8-{path.name}"
        raise RequestError(f"{path} looks like UTF-16, not UTF-8; convert it first, for example with: {remedy}")
    if zeros:
        index = block.index(0)
        line += block.count(b"\n", 0, index)
        raise RequestError(f"{path}, line {line}: a NUL byte at offset {offset + index:,}; this is damaged or no text")


def _not_utf8(path: Path, error: UnicodeDecodeError, end: int, line: int) -> RequestError:
    """The error of a byte that is not UTF-8; `end` is the file offset after the bytes that were decoded."""
    offset = end - len(error.object) + error.start
    line += error.object.count(b"\n", 0, error.start)
    reason = "the text ends inside a character" if "unexpected end" in error.reason else error.reason
    return RequestError(
        f"{path}, line {line}: byte {error.object[error.start]:#04x} at offset {offset:,} is not UTF-8 ({reason}); "
        f"if the file is in Latin-1, convert it with: iconv -f latin1 -t utf-8 {path.name} > utf8-{path.name}"
    )
