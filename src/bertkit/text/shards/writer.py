"""Corpus → shards: one process reads the text in blocks, the others make a shard of each.

Where a block ends depends on the text alone, so the same input gives the same bytes with any number of processes. A
run that was stopped continues: complete shards that were made from the same text are kept, and the manifest is written
last. So does a run over a finished folder whose text has changed.
"""

import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bertkit._version import __version__
from bertkit.errors import BertkitError, RequestError
from bertkit.files import locked, refuse_to_overwrite, whole_file, whole_folder
from bertkit.progress import Meter, ShowProgress, silent
from bertkit.text.corpus import CorpusReport, corpus_files, corpus_size, read_documents
from bertkit.text.shards.entities import names_hash, read_names
from bertkit.text.shards.maker import Block, Record, text_checksum
from bertkit.text.shards.pool import make_shards
from bertkit.text.shards.reader import DTYPES, FORMAT, MANIFEST, REQUEST, TOKENIZER, VERSION, open_shards, shard_folder
from bertkit.text.shards.sentence_ids import ids_dtype
from bertkit.text.tokenizer import Tokenizer

BLOCK_BYTES = 32_000_000  # of text, 7 million tokens of English: a few seconds of work for one process
SETTINGS = {  # field of a request -> its name in messages
    "tokenizer": "vocabulary",
    "sources": "text files",
    "entities": "entity names",
    "block_bytes": "block size",
    "bertkit": "version of bertkit",
}


@dataclass(frozen=True)
class ShardJob:
    """Everything that determines the shards, and the number of processes."""

    files: Sequence[Path]
    tokenizer: Tokenizer
    names: Sequence[str] | None
    block_bytes: int
    processes: int

    @cached_property
    def request(self) -> dict[str, Any]:
        """The settings that a later run must have to continue this one; the first part of the manifest."""
        dtype = {code: name for name, code in DTYPES.items()}[ids_dtype(self.tokenizer.size)]
        names = self.names
        return {
            "format": FORMAT,
            "version": VERSION,
            "bertkit": __version__,
            "tokenizer": self.tokenizer.hash,
            "vocabulary": self.tokenizer.size,
            "dtype": dtype,
            "block_bytes": self.block_bytes,
            "sources": [{"name": file.name, "bytes": file.stat().st_size} for file in self.files],
            "entities": None if names is None else {"names": len(names), "sha256": names_hash(names)},
        }


def write_shards(
    texts: Sequence[Path | str] | Path,
    vocab: Path | str,
    out: Path | str,
    *,
    processes: int | None = None,
    entities: Path | str | None = None,
    block_bytes: int = BLOCK_BYTES,
    show: ShowProgress = silent,
) -> dict[str, Any]:
    """Tokenize the texts into the folder `out`, or continue there, and report what was done.

    `processes` is the number of workers, by default one per core; `entities` is a file of names, one per line.
    """
    started, report = time.monotonic(), CorpusReport()
    processes = os.cpu_count() or 1 if processes is None else processes
    for name, value in {"processes": processes, "block_bytes": block_bytes}.items():
        if value < 1:
            raise RequestError(f"{name}={value} must be at least 1")
    files = corpus_files(texts, report=report)
    names = None if entities is None else read_names(entities)
    job = ShardJob(files, Tokenizer.load(vocab), names, block_bytes, processes)
    with _claimed(Path(out), job) as folder:
        manifest, kept, compared = _finished(folder), None, deepcopy(report)
        if manifest is not None and _same_text(job, manifest, compared, show):
            report = compared
        else:
            manifest, kept = _make_missing(job, folder, report, show)
    return _report(manifest, kept, report, Path(out), time.monotonic() - started)


def cut_into_blocks(files: Sequence[Path], size: int, report: CorpusReport) -> Iterator[Block]:
    """The documents in blocks of at least `size` bytes, the last one shorter."""
    number = length = read_before = 0
    texts: list[bytes] = []
    for document in read_documents(files, report=report):
        texts.append("\n".join(document.paragraphs).encode())
        length += len(texts[-1])
        if length >= size:
            yield Block(number, b"\n\n".join(texts), report.bytes - read_before)
            number, length, read_before, texts = number + 1, 0, report.bytes, []
    if texts:
        yield Block(number, b"\n\n".join(texts), report.bytes - read_before)


def _make_missing(job: ShardJob, out: Path, report: CorpusReport, show: ShowProgress) -> tuple[dict[str, Any], int]:
    """Make the missing shards, then the manifest; returns it with the number of shards of an earlier run."""
    earlier = (out / MANIFEST).read_bytes() if (out / MANIFEST).is_file() else None
    (out / MANIFEST).unlink(missing_ok=True)
    for draft in out.glob(".*.part"):  # of a run that was killed
        shutil.rmtree(draft, ignore_errors=True)
    try:
        with show("writing shards", corpus_size(job.files)) as meter:
            records, kept = _make_all(job, out, report, meter)
        totals = _totals(records)
        if not totals["tokens"]:
            _remove_from(0, out)
            raise RequestError(f"{job.files[-1]}: no token is left of this text; give some with words in it")
        _remove_from(len(records), out)
        manifest = {**job.request, "totals": totals, "shards": records}
        with whole_file(out / MANIFEST) as draft:
            draft.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    except BertkitError as error:
        if earlier is not None:
            _restore_manifest(earlier, out)
        if isinstance(error, RequestError):
            raise
        raise BertkitError(f"{error}; finished shards are kept: the same command, given again, goes on") from error
    return manifest, kept


def _restore_manifest(manifest: bytes, out: Path) -> None:
    """Write the manifest of a finished folder again, if the failed run has not changed its shards."""
    (out / MANIFEST).write_bytes(manifest)
    if _finished(out) is None:
        (out / MANIFEST).unlink()


def _make_all(job: ShardJob, out: Path, report: CorpusReport, meter: Meter) -> tuple[list[Record], int]:
    records: dict[int, Record] = {}
    read = kept = new_tokens = 0
    started = time.monotonic()
    blocks = cut_into_blocks(job.files, job.block_bytes, report)
    with closing(make_shards(blocks, out, job.names, job.processes)) as shards:
        for shard in shards:
            records[shard.number] = shard.record
            read += shard.read
            kept += shard.kept
            new_tokens += 0 if shard.kept else shard.record["counts"]["tokens"]
            meter.update(read, {"tokens/s": f"{new_tokens / (time.monotonic() - started):,.0f}"})
    return [records[number] for number in sorted(records)], kept


@contextmanager
def _claimed(out: Path, job: ShardJob) -> Iterator[Path]:
    """Lock a folder for this job: a new one, or one in which the same job was started."""
    is_new = not (out / REQUEST).is_file()
    if is_new:
        with whole_folder(out) as draft:
            _write_request(draft, job)
    with locked(out):
        _require_same(out, job.request)
        _repair_tokenizer(out, job.tokenizer)
        try:
            yield out
        except RequestError:
            if is_new and not shard_folder(out, 0).exists():
                shutil.rmtree(out)  # a wrong request leaves nothing
            raise


def _write_request(folder: Path, job: ShardJob) -> None:
    text = json.dumps(job.request, indent=1) + "\n"
    (folder / REQUEST).write_text(text, encoding="utf-8")
    job.tokenizer.save(folder / TOKENIZER)


def _require_same(out: Path, request: dict[str, Any]) -> None:
    try:
        earlier = json.loads((out / REQUEST).read_text(encoding="utf-8"))
        changed = [label for name, label in SETTINGS.items() if earlier[name] != request[name]]
    except (ValueError, KeyError, TypeError):
        refuse_to_overwrite(out)
        raise
    if changed:
        raise RequestError(
            f"{out} was begun with other settings ({', '.join(changed)}); give the same arguments to go on with it, "
            "or remove it, or name another place"
        )


def _repair_tokenizer(out: Path, tokenizer: Tokenizer) -> None:
    try:
        intact = Tokenizer.load(out / TOKENIZER).hash == tokenizer.hash
    except RequestError:
        intact = False
    if not intact:
        shutil.rmtree(out / TOKENIZER, ignore_errors=True)
        with whole_folder(out / TOKENIZER) as draft:
            tokenizer.save(draft)


def _finished(out: Path) -> dict[str, Any] | None:
    """The manifest of a complete folder, else None."""
    try:
        return dict(open_shards(out, verify=True).manifest)
    except RequestError:
        return None


def _same_text(job: ShardJob, manifest: dict[str, Any], report: CorpusReport, show: ShowProgress) -> bool:
    """Whether the shards were made from the current text. A pipe can be read only once, so it counts as changed."""
    if not manifest["totals"]["tokens"] or not all(file.is_file() for file in job.files):
        return False
    checksums, equal = [shard["text_sha256"] for shard in manifest["shards"]], 0
    with show("comparing with the text", corpus_size(job.files)) as meter:
        for block in cut_into_blocks(job.files, job.block_bytes, report):
            if checksums[equal : equal + 1] != [text_checksum(block.text)]:
                return False
            equal += 1
            meter.update(report.bytes)
    return equal == len(checksums)


def _remove_from(number: int, out: Path) -> None:
    """Remove shards from a number on: they are from an earlier run over a longer text."""
    while shard_folder(out, number).exists():
        shutil.rmtree(shard_folder(out, number))
        number += 1


def _totals(records: Sequence[Record]) -> dict[str, int]:
    names = ("tokens", "words", "sentences", "paragraphs", "documents", "entities")
    return {name: sum(record["counts"][name] for record in records) for name in names}


def _report(
    manifest: dict[str, Any], kept: int | None, report: CorpusReport, out: Path, seconds: float
) -> dict[str, Any]:
    """The report of a run; `kept` is None if nothing had to be done."""
    shards = manifest["shards"]
    return {
        "out": str(out),
        **manifest["totals"],
        "shards": len(shards),
        "kept": len(shards) if kept is None else kept,
        "seconds": round(seconds, 2),
        "notes": {reason: asdict(note) for reason, note in report.notes.items()},
    }
