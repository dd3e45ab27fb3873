"""Resumable output: finished blocks are kept beside the output file until it is complete, with the state of the run.

`vectors.npy.part/` holds the bytes written so far and `state.json`. A block is written and flushed before the state
counts it, and bytes beyond the counted ones are truncated on resuming: so that each row is written exactly once.
"""

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

from bertkit.checkpoint.tensors import read_object
from bertkit.errors import BertkitError, RequestError
from bertkit.files import flush, locked, refuse_unwritable, whole_file

ROWS_STREAM = "rows"  # the stream that becomes the output file; the others become files beside it


@dataclass(frozen=True, kw_only=True)
class State:
    """The state of a run after a block."""

    blocks: int = 0
    rows: int = 0  # of the input
    written: int = 0  # rows of the output
    skipped: int = 0  # rows that could not be used
    long: int = 0  # texts that were truncated or read through windows
    longest: int = 0  # tokens of the longest of them
    longest_at: str = ""  # its location
    digest: str = ""  # of the rows so far
    sizes: Mapping[str, int] = field(default_factory=dict)  # bytes of each stream
    settings: Mapping[str, str] = field(default_factory=dict)  # that a resumed run must have in common


class Draft:
    """The unfinished output, in a folder beside it; `streams` maps the name of a stream to the file it becomes."""

    def __init__(self, out: Path, streams: Mapping[str, Path], state: State) -> None:
        self.out, self.streams, self.state = out, dict(streams), state
        self.folder = part_folder(out)
        self._files: dict[str, BinaryIO] = {}
        self.published = False

    def path(self, name: str) -> Path:
        """The file that a stream is written to."""
        return self.folder / name

    def cut(self) -> None:
        """Truncate the streams after the last block that counts, and open them."""
        for name in self.streams:
            size, path = self.state.sizes.get(name, 0), self.path(name)
            path.touch()
            if path.stat().st_size < size:
                raise RequestError(f"{self.folder} has lost some of its bytes; remove it and begin again")
            os.truncate(path, size)
            self._files[name] = path.open("ab")

    def append(self, parts: Mapping[str, bytes]) -> None:
        """Append bytes to streams."""
        for name, data in parts.items():
            self._files[name].write(data)

    def save(self, state: State) -> None:
        """Flush the streams, then save the state: from now on all blocks written so far count."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        sizes = {name: file.tell() for name, file in self._files.items()}
        state = replace(state, sizes=sizes, settings=self.state.settings)
        with whole_file(self.folder / "state.json") as draft:
            draft.write_text(json.dumps(asdict(state), indent=2) + "\n", encoding="utf-8")
        self.state = state

    def flush(self) -> None:
        """Flush the streams to disk and close them."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
            file.close()

    def publish(self, finished: Path) -> None:
        """Rename the other streams to their files, then `finished` to the output, and remove the folder."""
        for name, final in self.streams.items():
            if name != ROWS_STREAM and self.path(name).stat().st_size:
                self.path(name).replace(final)
        flush(finished)
        finished.replace(self.out)
        self.published = True
        shutil.rmtree(self.folder, ignore_errors=True)

    def close(self) -> None:
        """Close the files; bytes that are not flushed yet are lost, and do not count."""
        for file in self._files.values():
            try:
                file.close()
            except OSError:  # the disk is full
                continue


def part_folder(out: Path) -> Path:
    """The folder of the unfinished output."""
    return out.with_name(f"{out.name}.part")


@contextmanager
def draft_of(
    out: Path, streams: Mapping[str, Path], settings: Mapping[str, str], *, resume: bool, rereadable: bool = True
) -> Iterator[Draft]:
    """A draft to fill and publish. If the run stops before that, finished blocks are kept for `resume`.

    They are removed where the input is not `rereadable`: a pipe.
    """
    check_outputs(out, streams, resume=resume)
    with ExitStack() as stack:
        draft = _opened(out, streams, settings, resume, stack)
        try:
            yield draft
        except KeyboardInterrupt:
            if kept := _kept_note(draft, rereadable):
                print(f"bertkit: note: {kept}", file=sys.stderr)
            raise
        except (BertkitError, OSError) as error:
            raise _with_remedy(error, draft, rereadable) from error
        finally:
            draft.close()
            if not draft.published and not (draft.state.blocks and rereadable):
                shutil.rmtree(draft.folder, ignore_errors=True)


def check_outputs(out: Path, streams: Mapping[str, Path], *, resume: bool) -> None:
    """Check before the work that no output exists already, and that the folder can be written to."""
    if out.exists():
        finished = "; it is finished, so --resume has nothing to do" if resume else ""
        raise RequestError(f"{out} exists already{finished}; name another place or remove it first")
    if part_folder(out).exists() and not resume:
        raise RequestError(f"{part_folder(out)} is left from a run that was stopped; --resume goes on, or remove it")
    for path in () if resume else streams.values():
        if path.exists():
            raise RequestError(f"{path} exists already; name another place or remove it first")
    refuse_unwritable(out)


def _opened(
    out: Path, streams: Mapping[str, Path], settings: Mapping[str, str], resume: bool, stack: ExitStack
) -> Draft:
    folder = part_folder(out)
    try:
        folder.mkdir(parents=True, exist_ok=resume)
    except OSError as error:
        raise RequestError(f"{out} cannot be written: {error.strerror}") from error
    stack.enter_context(locked(folder, timeout=0.0))
    state = _read_state(folder) if (folder / "state.json").exists() else State(settings=settings)
    refuse_other_settings(folder, state.settings, settings)
    for name, final in streams.items():
        if name != ROWS_STREAM and final.exists() and not (folder / name).exists():
            final.replace(folder / name)  # the run was killed while it renamed the streams: undo it
    return Draft(out, streams, state)


def _read_state(folder: Path) -> State:
    try:
        state = State(**read_object(folder / "state.json"))
        numbers = [state.blocks, state.rows, state.written, state.skipped, *state.sizes.values()]
        if all(isinstance(number, int) and number >= 0 for number in numbers) and isinstance(state.settings, dict):
            return state
    except (TypeError, AttributeError, RequestError) as error:
        raise RequestError(f"{folder / 'state.json'} is damaged; remove {folder} and begin again") from error
    raise RequestError(f"{folder / 'state.json'} is damaged; remove {folder} and begin again")


def refuse_other_settings(folder: Path, saved: Mapping[str, Any], current: Mapping[str, str]) -> None:
    """Refuse to resume a run with other settings."""
    for name in dict.fromkeys([*saved, *current]):
        if saved.get(name) != current.get(name):
            raise RequestError(
                f"{folder} was begun with {name} {saved.get(name)}, and this is {current.get(name)}; "
                f"use the settings of the first run, or remove {folder} and begin again"
            )


def _kept_note(draft: Draft, rereadable: bool) -> str:
    """How many rows are kept for --resume; empty if none."""
    if not (draft.state.blocks and rereadable):
        return ""
    return f"{draft.state.rows:,} rows are finished in {draft.folder}; --resume goes on from there"


def _with_remedy(error: BertkitError | OSError, draft: Draft, rereadable: bool) -> BertkitError:
    """The same error, with a note on the rows that are kept."""
    kept = _kept_note(draft, rereadable)
    if isinstance(error, RequestError):
        return RequestError(f"{error}; {kept}" if kept else str(error))
    if isinstance(error, OSError) or isinstance(error.__cause__, OSError):
        cause = error if isinstance(error, OSError) else error.__cause__
        reason = getattr(cause, "strerror", None) or cause
        return BertkitError(f"{draft.out} was not written: {reason}; {kept or 'nothing is left of it'}")
    return BertkitError(f"{error}; {kept}" if kept else str(error))
