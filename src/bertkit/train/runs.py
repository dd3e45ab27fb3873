"""A run's folder: checkpoints that appear whole, the last few kept, and a record that only grows.

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

OPTIMIZER = "optimizer.safetensors"  # in a checkpoint
STEP = re.compile(r"step-(\d{8})")


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a run stands: all that resuming needs besides weights and the optimizer's memory."""

    step: int = 0  # steps done
    seconds: float = 0.0  # trained so far, over all sessions
    tokens: int = 0
    skipped: int = 0  # steps left out because of a NaN
    skipped_in_a_row: int = 0
    begun: tuple[int, ...] = ()  # the first steps of the stages after the first, where a run has some


@dataclass(frozen=True)
class Run:
    """One run's folder."""

    folder: Path

    @property
    def metrics(self) -> Path:
        """One JSON object a line."""
        return self.folder / "metrics.jsonl"

    def checkpoints(self) -> list[Path]:
        """Whole checkpoints, oldest first."""
        found = sorted((self.folder / "checkpoints").glob("step-*"))
        return [path for path in found if STEP.fullmatch(path.name)]

    def save(self, progress: Progress, parts: Mapping[str, Any], optimizer: Mapping[str, Tensor], keep: int) -> Path:
        """Write a checkpoint; `parts` maps a name to something with `save(folder)`. Older ones than `keep` go."""
        path = self.folder / "checkpoints" / f"step-{progress.step:08d}"
        if not path.exists():  # or else it is whole, and the same step gives the same bytes
            with whole_folder(path) as draft:
                for name, part in parts.items():
                    part.save(draft / name)
                write_tensors(optimizer, draft / OPTIMIZER)
                state = {VERSION_KEY: FORMAT_VERSION, **asdict(progress)}
                (draft / "state.json").write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")
        for old in self.checkpoints()[:-keep]:
            # Out of sight first: a kill while files are removed must not leave a checkpoint that lacks some.
            shutil.rmtree(old.rename(old.with_name(f".{old.name}.old.part")))
        return path

    def sweep(self) -> None:
        """Remove what a killed process left half-written or half-removed."""
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
        """Forget lines of steps after `step`: they are about to be done again."""
        if not self.metrics.is_file():
            return
        lines = self.metrics.read_text(encoding="utf-8").splitlines()
        kept = [line for line in lines if _step_of(line) <= step]
        with whole_file(self.metrics) as draft:
            draft.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")


def read_progress(checkpoint: Path | None) -> Progress:
    """The progress that a checkpoint was saved with; without one, the beginning."""
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
    """Raise TypeError for what is no count, or no time."""
    for name, value in asdict(progress).items():
        kinds = (int, float) if name == "seconds" else (int,)
        for each in value if name == "begun" else (value,):
            if type(each) not in kinds or not 0 <= each < math.inf:
                raise TypeError(f"{name} is {each!r}")


@dataclass(frozen=True)
class SavedTensors:
    """Tensors that a checkpoint writes as a file of their own."""

    tensors: Mapping[str, Tensor]

    def save(self, path: Path) -> None:
        """One safetensors file."""
        write_tensors(self.tensors, path)


def read_part(path: Path) -> dict[str, Tensor]:
    """The tensors of one file of a checkpoint."""
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise RequestError(f"{path} is truncated or corrupt: {error}") from error


def _step_of(line: str) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):  # a line torn by a kill
        return float("inf")
