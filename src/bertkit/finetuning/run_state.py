"""Where a fine-tuning run stands: the best model so far, and the folder that a kill cannot spoil."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from bertkit.checkpoint.tensors import read_object, write_tensors
from bertkit.errors import RequestError
from bertkit.files import FORMAT_VERSION, VERSION_KEY, check_format_version, refuse_to_overwrite, whole_file
from bertkit.folder_lock import claimed
from bertkit.tasks.metrics.table import is_better
from bertkit.train.records import number, read_records, write_code_version
from bertkit.train.runs import Run

SETTINGS = "run.json"
RESULT = "result.json"
WEIGHTS = "state.safetensors"

State = Mapping[str, Tensor]


@dataclass(frozen=True)
class Best:
    """The best evaluation so far, how many came after it, and the weights it was made with."""

    step: int = 0
    score: float = float("nan")
    loss: float = float("nan")  # on dev: of equal scores the one with less of it is better
    since: int = 0  # evaluations without a better score
    state: State | None = None

    def after(self, step: int, metric: str, score: float, loss: float, state: Callable[[], State]) -> "Best":
        """With one more evaluation; `state` is asked for the weights where it is the best."""
        if self.state is None or is_better(metric, score, self.score):
            return Best(step, score, loss, 0, state())
        if score == self.score and is_better("loss", loss, self.loss):
            return Best(step, score, loss, self.since + 1, state())
        return replace(self, since=self.since + 1)


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Hold the folder of one or several runs; torchrun's other processes would wait for it in vain."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise RequestError("fine-tuning runs on one device; start it without torchrun")
    with claimed(folder):
        yield


def copied_to_host(tensor: Tensor) -> Tensor:
    """A copy in ordinary memory."""
    return tensor.detach().to("cpu", copy=True).contiguous()


@dataclass(frozen=True)
class SavedState:
    """Weights as a part of a checkpoint."""

    state: State

    def save(self, folder: Path) -> None:
        """One file."""
        folder.mkdir()
        write_tensors(self.state, folder / WEIGHTS)


def read_state(folder: Path) -> dict[str, Tensor]:
    """The weights that `SavedState` wrote."""
    try:
        return load_file(folder / WEIGHTS)
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise RequestError(
            f"{folder / WEIGHTS} is truncated or corrupt ({error}); "
            f"remove {folder.parent}, and the run begins anew, or goes on from the checkpoint before it if there is one"
        ) from error


def best_so_far(run: Run, checkpoint: Path, metric: str) -> Best:
    """The best of the evaluations that metrics.jsonl holds, with the weights that the checkpoint kept of it."""
    best = Best()
    for line in read_records(run.metrics).evaluations:
        scores = line["evaluation"]
        best = best.after(int(line["step"]), metric, number(scores.get(metric)), number(scores.get("loss")), dict)
    return best if best.state is None else replace(best, state=read_state(checkpoint / "best"))


def begin_folder(run: Run, description: Mapping[str, Any], *, resume: bool) -> None:
    """A new folder, or one that was begun with the same task, data and settings."""
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
    """The result of a run that is done, or None. Of several seeds, only the median's model is kept, one folder up.

    It must have been begun so. A description without data is compared without: what files hold now is not read.
    """
    path, kept = run.folder / RESULT, (run.folder / "model", run.folder.parent / "seeds.json")
    if not path.is_file() or (with_model and not any(place.exists() for place in kept)):
        return None
    found = read_object(path)
    if not found.get("finished"):
        return None
    begun = run.folder / SETTINGS
    if begun.is_file():
        before = read_object(begun)
        _require_same(before, {"data": before.get("data"), **description}, begun)
    return found


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """A JSON file that appears whole."""
    with whole_file(path) as draft:
        draft.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _require_same(before: Mapping[str, Any], now: Mapping[str, Any], path: Path) -> None:
    check_format_version(before.get(VERSION_KEY), path)
    old, new = _flat(before), _flat(json.loads(json.dumps(now)))
    # A setting that a run of an earlier version does not know has no value to differ from.
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
