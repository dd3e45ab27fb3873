"""The state of a fine-tuning run on disk: its folder, its settings, and the best weights so far."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from bertkit.checkpoint.tensors import read_object, write_tensors
from bertkit.errors import RequestError
from bertkit.files import FORMAT_VERSION, VERSION_KEY, check_format_version, claimed, refuse_to_overwrite, whole_file
from bertkit.tasks.metrics.table import is_better
from bertkit.train.records import number, read_records, write_code_version
from bertkit.train.runs import Run

SETTINGS = "run.json"
RESULT = "result.json"
WEIGHTS = "state.safetensors"

State = Mapping[str, Tensor]


@dataclass(frozen=True)
class Best:
    """The best evaluation so far, with its weights."""

    step: int = 0  # 0: none so far
    score: float = float("nan")
    loss: float = float("nan")  # on dev; the lower one wins between equal scores
    since: int = 0  # number of evaluations since then without a better score
    state: State | None = None

    def after(self, step: int, metric: str, score: float, loss: float) -> "Best":
        """The best after one more evaluation; without weights if that one is the new best."""
        if not self.step or is_better(metric, score, self.score):
            return Best(step, score, loss)
        if score == self.score and is_better("loss", loss, self.loss):
            return Best(step, score, loss, self.since + 1)
        return replace(self, since=self.since + 1)


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of the folder of one or several runs; under torchrun, other processes would wait for it forever."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise RequestError("fine-tuning runs on one device; start it without torchrun")
    with claimed(folder):
        yield


def copied_to_host(tensor: Tensor) -> Tensor:
    """A copy in host memory."""
    return tensor.detach().to("cpu", copy=True).contiguous()


@dataclass(frozen=True)
class SavedState:
    """Weights as a folder in a checkpoint."""

    state: State

    def save(self, folder: Path) -> None:
        """Write the folder with one file."""
        folder.mkdir()
        write_tensors(self.state, folder / WEIGHTS)


def read_state(folder: Path) -> dict[str, Tensor]:
    """The weights of a folder that `SavedState` wrote."""
    try:
        return load_file(folder / WEIGHTS)
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise RequestError(
            f"{folder / WEIGHTS} is truncated or corrupt ({error}); "
            f"remove {folder.parent}: the run then resumes from the checkpoint before it, or starts again"
        ) from error


def best_so_far(run: Run, checkpoint: Path, metric: str) -> Best:
    """The best evaluation in metrics.jsonl, with its weights from the checkpoint."""
    best = Best()
    for line in read_records(run.metrics).evaluations:
        scores = line["evaluation"]
        best = best.after(int(line["step"]), metric, number(scores.get(metric)), number(scores.get("loss")))
    return best if not best.step else replace(best, state=read_state(checkpoint / "best"))


def begin_folder(run: Run, description: Mapping[str, Any], *, resume: bool) -> None:
    """Create the folder of a run; with `resume` it may exist if it has the same task, data and settings."""
    path = run.folder / SETTINGS
    if resume and path.is_file():
        _require_same(read_object(path), description, path)
    else:
        refuse_to_overwrite(run.folder)
        run.folder.mkdir(parents=True, exist_ok=True)
        write_json(path, {VERSION_KEY: FORMAT_VERSION, **description})
    run.remove_partial()
    write_code_version(run.folder)


def finished(run: Run, description: Mapping[str, Any], *, with_model: bool = True) -> dict[str, Any] | None:
    """The content of result.json if the run has finished, else None; another description is refused.

    With `with_model` the model must exist; of several seeds only the median's is kept, one folder up. A description
    without "data" is compared without it, so that the files need not be read.
    """
    path, models = run.folder / RESULT, (run.folder / "model", run.folder.parent / "seeds.json")
    if not path.is_file() or (with_model and not any(model.exists() for model in models)):
        return None
    result = read_object(path)
    if not result.get("finished"):
        return None
    settings = run.folder / SETTINGS
    if settings.is_file():
        before = read_object(settings)
        _require_same(before, {"data": before.get("data"), **description}, settings)
    return result


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file atomically."""
    with whole_file(path) as draft:
        draft.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_json_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a JSONL file atomically."""
    with whole_file(path) as draft, draft.open("w", encoding="utf-8", errors="backslashreplace") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _require_same(before: Mapping[str, Any], now: Mapping[str, Any], path: Path) -> None:
    check_format_version(before.get(VERSION_KEY), path)
    old, new = _flat(before), _flat(json.loads(json.dumps(now)))
    # A setting that is newer than the run cannot differ.
    added = now.get("settings", {}).keys() - before.get("settings", {}).keys()
    changed = [name for name in {**old, **new} if name not in added and old.get(name) != new.get(name)]
    if changed:
        name = changed[0]
        raise RequestError(
            f"{path}: this run was begun with {name}={old.get(name)}, not {new.get(name)}; "
            "resume it as it was begun, or name another folder"
        )


def _flat(table: Mapping[str, Any]) -> dict[str, Any]:
    settings = table.get("settings", {})
    return {**{key: value for key, value in table.items() if key not in ("settings", VERSION_KEY)}, **settings}
