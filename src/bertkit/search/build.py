"""Building an index folder: segment by segment, each complete or not there, so that a killed build goes on."""

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertkit.errors import BertkitError, RequestError
from bertkit.files import claimed, refuse_to_overwrite, whole_folder
from bertkit.search.manifest import MANIFEST, SEGMENTS, Manifest, RetrieverRecord, SegmentRecord, read_manifest
from bertkit.search.retrievers.retriever import PartWriter, Retriever
from bertkit.search.retrievers.table import RETRIEVERS
from bertkit.search.sources import DocumentBlock, HowToRead, file_blocks, python_blocks, source_name
from bertkit.search.strings import StringsWriter
from bertkit.settings import pick, read_pairs, rules
from bertkit.text.corpus import STDIN, corpus_files

# A segment ends after so many documents or characters: they are in memory, and lost if the build is killed.
DOCUMENTS_PER_SEGMENT = 16_384
CHARACTERS_PER_SEGMENT = 8 << 20
SKIPPED = "skipped.txt"
DEFAULT_KINDS = tuple(RETRIEVERS)[:2]
Models = Mapping[str, Path | str]
NAMELESS = ""  # key of a model in Models that is for every retriever that needs one
Retrievers = dict[str, Retriever[Any]]


@dataclass(frozen=True)
class Built:
    """The result of a build."""

    documents: int  # in the index
    added: int
    skipped: int  # rows that could not be used
    notes: tuple[str, ...]


def build_folder(
    texts: Iterable[Any],
    folder: Path,
    kinds: Sequence[str] | None,
    models: Models,
    settings: Sequence[str],
    reading: HowToRead,
) -> Built:
    """Index documents in a new folder, or append them to an index; Paths are files, anything else is a document.

    What is in the index already is not read into it again, so that the same command goes on after a kill.
    """
    exists = (folder / MANIFEST).is_file()
    if not exists and not (folder / SEGMENTS).is_dir():  # which a killed build has left
        refuse_to_overwrite(folder)
    before = read_manifest(folder) if exists else None
    retrievers = _appending(folder, before, kinds, models, settings) if before else _new(kinds, models, settings)
    manifest = before or Manifest(retrievers={name: _record(each) for name, each in retrievers.items()})
    with claimed(folder):
        if exists:
            manifest = read_manifest(folder)  # another process may have appended meanwhile
        _remove_unfinished(folder, manifest)
        blocks = _blocks(texts, manifest, reading)
        after, skipped = _write_segments(folder, manifest, retrievers, blocks)
    notes = tuple(f"{name}: {each.note}" for name, each in retrievers.items() if each.note)
    return Built(after.documents, after.documents - manifest.documents, skipped, notes)


def made_retriever(kind: str, settings: Mapping[str, Any], model: Path | str | None) -> Retriever[Any]:
    """A retriever with settings of its own."""
    implementation = pick(RETRIEVERS, kind, "kind of retriever").load()
    return implementation(implementation.settings_type(**settings), None if model is None else Path(model))


def model_of(kind: str, models: Models) -> Path | str | None:
    """The model that was named for a retriever, or for all."""
    return models.get(kind, models.get(NAMELESS)) if pick(RETRIEVERS, kind, "kind of retriever").model else None


def setting_names(kinds: Iterable[str]) -> list[str]:
    """The names of the settings of these retrievers."""
    types = [pick(RETRIEVERS, kind, "kind of retriever").load().settings_type for kind in kinds]
    return list(dict.fromkeys(name for each in types for name in rules(each())))


def _new(kinds: Sequence[str] | None, models: Models, settings: Sequence[str]) -> Retrievers:
    kinds = tuple(dict.fromkeys(DEFAULT_KINDS if kinds is None else kinds))
    if not kinds:
        raise RequestError(f"name at least one kind of retriever: {', '.join(RETRIEVERS)}")
    needing = [kind for kind in kinds if pick(RETRIEVERS, kind, "kind of retriever").model]
    for kind in set(models) - {NAMELESS, *needing}:
        raise RequestError(f"there is no model for '{kind}' in this index; name one of: {', '.join(needing) or 'none'}")
    types = [RETRIEVERS[kind].load() for kind in kinds]
    chosen = read_pairs(settings, *(each.settings_type() for each in types))
    made = zip(kinds, types, chosen, strict=True)
    paths = {kind: model_of(kind, models) for kind in kinds}
    return {kind: each(own, None if paths[kind] is None else Path(str(paths[kind]))) for kind, each, own in made}


def _appending(
    folder: Path, manifest: Manifest, kinds: Sequence[str] | None, models: Models, settings: Sequence[str]
) -> Retrievers:
    """The retrievers of an index; other ones, and other settings than it was made with, are refused."""
    if kinds is not None and set(kinds) != set(manifest.retrievers):
        raise RequestError(
            f"{folder} was made with the kinds {', '.join(manifest.retrievers)}, and these are {', '.join(kinds)}; "
            "leave --kind out, or name another folder"
        )
    retrievers = open_retrievers(manifest, models)
    defaults = [retriever.settings for retriever in retrievers.values()]
    if settings and tuple(defaults) != read_pairs(settings, *defaults):
        raise RequestError(f"{folder} was made with other settings than {' '.join(settings)}; leave them out")
    for name, retriever in retrievers.items():
        check_identity(folder, name, retriever, manifest.retrievers[name])
    return retrievers


def open_retrievers(manifest: Manifest, models: Models) -> Retrievers:
    """The retrievers that an index was made with; models that are named replace the recorded paths."""
    return {
        name: made_retriever(name, record.settings, model_of(name, models) or record.model)
        for name, record in manifest.retrievers.items()
    }


def check_identity(folder: Path, name: str, retriever: Retriever[Any], record: RetrieverRecord) -> None:
    """Refuse a retriever that is not the one which the index was made with."""
    now = retriever.identity
    for key in dict.fromkeys([*record.identity, *now]):
        if record.identity.get(key) != now.get(key):
            raise RequestError(
                f"{folder}: '{name}' was made with {key} {record.identity.get(key)}, and this is {now.get(key)}; name "
                f"the model that it was made with, --model {name}=FOLDER, or build the index again"
            )


def _record(retriever: Retriever[Any]) -> RetrieverRecord:
    settings = {name: getattr(retriever.settings, name) for name in rules(retriever.settings)}
    return RetrieverRecord(settings, retriever.model_name, dict(retriever.identity))


def _remove_unfinished(folder: Path, manifest: Manifest) -> None:
    """Remove segments that a killed build has not counted."""
    counted = {segment.name for segment in manifest.segments}
    for path in (folder / SEGMENTS).glob("*"):
        if path.name not in counted:
            shutil.rmtree(path)


def _blocks(texts: Iterable[Any], manifest: Manifest, reading: HowToRead) -> Iterator[DocumentBlock]:
    """Blocks of files, and of documents from Python, which come after files."""
    listed = list(texts) if isinstance(texts, list | tuple) else texts
    if isinstance(listed, list) and listed and all(isinstance(each, Path) for each in listed):
        files = [STDIN] if listed == [STDIN] else corpus_files(listed)
        for path in files:
            yield from file_blocks(path, reading, manifest.sources.get(source_name(path)))
    else:
        yield from python_blocks(listed, reading)


def _write_segments(
    folder: Path, manifest: Manifest, retrievers: Retrievers, blocks: Iterable[DocumentBlock]
) -> tuple[Manifest, int]:
    """Write segments until there are no more blocks; the last manifest, and how many rows were skipped."""
    skipped = 0
    for group in _groups(blocks):
        faults = [fault for block in group for fault in block.faults]
        try:
            manifest = _write_segment(folder, manifest, retrievers, group, faults)
        except BertkitError as error:
            raise _with_remedy(error, folder, manifest) from error
        skipped += len(faults)
    if not (folder / MANIFEST).is_file():
        manifest.save(folder)
    return manifest, skipped


def _with_remedy(error: BertkitError, folder: Path, manifest: Manifest) -> BertkitError:
    """The same error, with how many documents are kept, where it was the disk."""
    kept = f"; {manifest.documents:,} documents are finished in {folder}, and the same command goes on from there"
    return error if isinstance(error, RequestError) or not manifest.documents else BertkitError(f"{error}{kept}")


def _groups(blocks: Iterable[DocumentBlock]) -> Iterator[list[DocumentBlock]]:
    """Blocks of one segment each; an error in reading is raised after the documents before it were written."""
    group: list[DocumentBlock] = []
    failure: BaseException | None = None
    source = iter(blocks)
    while failure is None:
        try:
            group.append(next(source))
        except StopIteration:
            break
        except BertkitError as error:
            failure = error
            break
        documents, size = sum(len(b.texts) for b in group), sum(len(text) for b in group for text in b.texts)
        if documents >= DOCUMENTS_PER_SEGMENT or size >= CHARACTERS_PER_SEGMENT:
            yield group
            group = []
    if group:
        yield group
    if failure is not None:
        raise failure


def _write_segment(
    folder: Path, manifest: Manifest, retrievers: Retrievers, group: list[DocumentBlock], faults: list[str]
) -> Manifest:
    sources = {**manifest.sources, **{block.name: block.record for block in group if block.record is not None}}
    documents = sum(len(block.texts) for block in group)
    manifest = replace(manifest, sources=sources)
    if documents or faults:
        path = folder / SEGMENTS / f"{len(manifest.segments):06d}"
        with whole_folder(path) as draft:
            _fill(draft, retrievers, group, faults)
        files = (file for file in sorted(path.rglob("*")) if file.is_file())
        sizes = {file.relative_to(path).as_posix(): file.stat().st_size for file in files}
        segment = SegmentRecord(path.name, documents, len(faults), sizes)
        manifest = replace(manifest, segments=(*manifest.segments, segment))
    manifest.save(folder)
    return manifest


def _fill(draft: Path, retrievers: Retrievers, group: list[DocumentBlock], faults: list[str]) -> None:
    """All files of a segment."""
    texts, ids = StringsWriter(draft, "texts"), StringsWriter(draft, "ids")
    writers = [_writer(draft / name, retriever.writer) for name, retriever in retrievers.items()]
    for block in group:
        texts.append(block.texts)
        ids.append(block.ids)
        for writer in writers if block.texts else ():
            writer.add(block.texts)
    for writer in writers:
        writer.finish()
    texts.close()
    ids.close()
    if faults:
        lines = "".join(f"{' '.join(fault.split())}\n" for fault in faults)
        (draft / SKIPPED).write_text(lines, encoding="utf-8", errors="backslashreplace")


def _writer(folder: Path, make: Callable[[Path], PartWriter]) -> PartWriter:
    folder.mkdir()
    return make(folder)
