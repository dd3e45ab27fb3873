"""Work on a file that may be killed at any moment: finished blocks lie beside the output, with a note of how far it is.

`vectors.npy.part/` holds what is written so far and `state.json`. A block is written and flushed before the state
counts it; what lies behind the counted bytes is cut off on resuming. So each row is there once, whatever happens.
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

ROWS = "rows"  # the stream that becomes the output; the others become files beside it


@dataclass(frozen=True, kw_only=True)
class State:
    """Where the work stands after a block."""

    blocks: int = 0
    rows: int = 0  # of the input
    written: int = 0
    skipped: int = 0
    long: int = 0  # texts that were cut or read through windows
    longest: int = 0  # tokens of the longest of them
    longest_at: str = ""
    digest: str = ""  # over the rows so far
    sizes: Mapping[str, int] = field(default_factory=dict)  # bytes of each stream
    settings: Mapping[str, str] = field(default_factory=dict)


class Draft:
    """The files that grow beside the output; `streams` maps a name to the file that it becomes."""

    def __init__(self, out: Path, streams: Mapping[str, Path], state: State) -> None:
        self.out, self.streams, self.state = out, dict(streams), state
        self.folder = part_folder(out)
        self._files: dict[str, BinaryIO] = {}
        self.published = False

    def path(self, name: str) -> Path:
        """Where a stream is written."""
        return self.folder / name

    def cut(self) -> None:
        """Drop what was written after the last block that counts."""
        for name in self.streams:
            size, path = self.state.sizes.get(name, 0), self.path(name)
            path.touch()
            if path.stat().st_size < size:
                raise RequestError(f"{self.folder} has lost some of its bytes; remove it and begin again")
            os.truncate(path, size)
            self._files[name] = path.open("ab")

    def append(self, parts: Mapping[str, bytes]) -> None:
        """Write behind what is there."""
        for name, data in parts.items():
            self._files[name].write(data)

    def save(self, state: State) -> None:
        """From here on everything up to now counts."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        sizes = {name: file.tell() for name, file in self._files.items()}
        state = replace(state, sizes=sizes, settings=self.state.settings)
        with whole_file(self.folder / "state.json") as draft:
            draft.write_text(json.dumps(asdict(state), indent=2) + "\n", encoding="utf-8")
        self.state = state

    def flush(self) -> None:
        """Everything is on the disk, and nothing more will be written."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
            file.close()

    def publish(self, finished: Path) -> None:
        """The files beside the output get their names, then `finished` gets the output's: that is the end."""
        for name, final in self.streams.items():
            if name != ROWS and self.path(name).stat().st_size:
                self.path(name).replace(final)
        flush(finished)
        finished.replace(self.out)
        self.published = True
        shutil.rmtree(self.folder, ignore_errors=True)

    def close(self) -> None:
        """Let go of the files; what was not yet flushed is lost, and does not count."""
        for file in self._files.values():
            try:
                file.close()
            except OSError:  # the full disk, once more
                continue


def part_folder(out: Path) -> Path:
    """The folder of what is not yet finished."""
    return out.with_name(f"{out.name}.part")


@contextmanager
def draft_of(
    out: Path, streams: Mapping[str, Path], settings: Mapping[str, str], *, resume: bool, again: bool = True
) -> Iterator[Draft]:
    """A draft to fill and publish. Whatever stops the work, finished blocks stay for `resume`.

    Not `again`: the input, a pipe, cannot be read a second time, so that nothing stays.
    """
    check_outputs(out, streams, resume=resume)
    with ExitStack() as stack:
        draft = _opened(out, streams, settings, resume, stack)
        try:
            yield draft
        except KeyboardInterrupt:
            if stays := _stays(draft, again):
                print(f"bertkit: note: {stays}", file=sys.stderr)
            raise
        except (BertkitError, OSError) as error:
            raise _with_remedy(error, draft, again) from error
        finally:
            draft.close()
            if not draft.published and not (draft.state.blocks and again):
                shutil.rmtree(draft.folder, ignore_errors=True)


def check_outputs(out: Path, streams: Mapping[str, Path], *, resume: bool) -> None:
    """Before any work: nobody's file is in the way, and something can be written."""
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
    _compare(folder, state.settings, settings)
    for name, final in streams.items():
        if name != ROWS and final.exists() and not (folder / name).exists():
            final.replace(folder / name)  # killed between the files' names: everything goes back
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


def _compare(folder: Path, begun: Mapping[str, Any], now: Mapping[str, str]) -> None:
    for name in dict.fromkeys([*begun, *now]):
        if begun.get(name) != now.get(name):
            raise RequestError(
                f"{folder} was begun with {name} {begun.get(name)}, and this is {now.get(name)}; "
                f"ask as before, or remove {folder} and begin again"
            )


def _stays(draft: Draft, again: bool) -> str:
    if not (draft.state.blocks and again):
        return ""
    return f"{draft.state.rows:,} rows are finished in {draft.folder}; --resume goes on from there"


def _with_remedy(error: BertkitError | OSError, draft: Draft, again: bool) -> BertkitError:
    """The same error with what became of the work."""
    stays = _stays(draft, again)
    if isinstance(error, RequestError):
        return RequestError(f"{error}; {stays}" if stays else str(error))
    if isinstance(error, OSError) or isinstance(error.__cause__, OSError):
        cause = error if isinstance(error, OSError) else error.__cause__
        why = getattr(cause, "strerror", None) or cause
        return BertkitError(f"{draft.out} was not written: {why}; {stays or 'nothing is left of it'}")
    return BertkitError(f"{error}; {stays}" if stays else str(error))
