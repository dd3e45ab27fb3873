"""The folder of a run: its last few checkpoints, written atomically, and its metrics.

run/settings.toml  metrics.jsonl  checkpoints/step-00001000/{state.json, optimizer.safetensors, model/, ...}  model/
"""

import json
import math
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from bertkit.checkpoint.tensors import read_object, write_tensors
from bertkit.errors import BertkitError, RequestError
from bertkit.files import FORMAT_VERSION, VERSION_KEY, check_format_version, whole_file, whole_folder

OPTIMIZER_FILE = "optimizer.safetensors"  # in a checkpoint
STEP_FOLDER = re.compile(r"step-(\d{8})")


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress of a run: what resuming needs besides the weights and the optimizer's state."""

    step: int = 0  # steps done
    seconds: float = 0.0  # of training so far, over all sessions
    tokens: int = 0
    skipped: int = 0  # steps skipped because of a NaN
    skipped_in_a_row: int = 0
    begun: tuple[int, ...] = ()  # the first step of each stage after the first, if a run has stages


@dataclass(frozen=True)
class Run:
    """One run's folder."""

    folder: Path

    @property
    def metrics(self) -> Path:
        """metrics.jsonl: one JSON object per line."""
        return self.folder / "metrics.jsonl"

    def checkpoints(self) -> list[Path]:
        """The checkpoints, oldest first."""
        folders = sorted((self.folder / "checkpoints").glob("step-*"))
        return [path for path in folders if STEP_FOLDER.fullmatch(path.name)]

    def save(self, progress: Progress, parts: Mapping[str, Any], optimizer: Mapping[str, Tensor], keep: int) -> Path:
        """Write a checkpoint and remove all but the last `keep`; `parts` maps names to objects with `save(path)`."""
        path = self.folder / "checkpoints" / f"step-{progress.step:08d}"
        if not path.exists():  # if it exists, it is complete, and the same step gives the same bytes
            with whole_folder(path) as draft:
                for name, part in parts.items():
                    part.save(draft / name)
                write_tensors(optimizer, draft / OPTIMIZER_FILE)
                state = {VERSION_KEY: FORMAT_VERSION, **asdict(progress)}
                (draft / "state.json").write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")
        for old in self.checkpoints()[:-keep]:
            # Renamed first: a kill while files are removed must not leave an incomplete checkpoint.
            shutil.rmtree(old.rename(old.with_name(f".{old.name}.old.part")))
        return path

    def remove_partial(self) -> None:
        """Remove partial files and folders that a killed process left behind."""
        for folder in (self.folder, self.folder / "checkpoints"):
            for leftover in folder.glob(".*.part"):
                shutil.rmtree(leftover, ignore_errors=True)

    def latest(self) -> Path | None:
        """The newest checkpoint, or None."""
        return next(iter(reversed(self.checkpoints())), None)

    def append(self, line: Mapping[str, Any]) -> None:
        """Add a line to the metrics."""
        try:
            with self.metrics.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise BertkitError(f"{self.metrics} was not written: {error.strerror}; make room, then --resume") from error

    def truncate_metrics(self, step: int) -> None:
        """Remove the lines of steps after `step`, which will be run again."""
        if not self.metrics.is_file():
            return
        lines = self.metrics.read_text(encoding="utf-8").splitlines()
        kept = [line for line in lines if _step_of(line) <= step]
        with whole_file(self.metrics) as draft:
            draft.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")


def read_progress(checkpoint: Path | None) -> Progress:
    """The progress stored in a checkpoint; without a checkpoint, that of a new run."""
    if checkpoint is None:
        return Progress()
    try:
        state = read_object(checkpoint / "state.json")
        check_format_version(state.pop(VERSION_KEY, None), checkpoint / "state.json")
        progress = Progress(**{**state, "begun": tuple(state.get("begun", ()))})
        _check_numbers(progress)
        return progress
    except TypeError as error:
        raise RequestError(f"{checkpoint / 'state.json'} is not a run's state: {error}") from error


def _check_numbers(progress: Progress) -> None:
    """Raise TypeError for values that are not counts, or not a time."""
    for name, value in asdict(progress).items():
        kinds = (int, float) if name == "seconds" else (int,)
        for item in value if name == "begun" else (value,):
            if type(item) not in kinds or not 0 <= item < math.inf:
                raise TypeError(f"{name} is {item!r}")


@dataclass(frozen=True)
class SavedTensors:
    """Tensors that a checkpoint stores in a file of their own."""

    tensors: Mapping[str, Tensor]

    def save(self, path: Path) -> None:
        """Write one safetensors file."""
        write_tensors(self.tensors, path)


def read_tensor_file(path: Path) -> dict[str, Tensor]:
    """The tensors of one safetensors file of a checkpoint."""
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise RequestError(f"{path} is truncated or corrupt: {error}") from error


def _step_of(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):  # a line cut off by a kill
        return float("inf")
