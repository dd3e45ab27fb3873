"""Chains, as TransBERT's: several tasks one after the other, each from the model of the one before, in one folder.

Step n of a chain in `out` is the run `out/n-TASK`; `out/model` is the last step's; `out/report.html` lists them all.
"""

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertkit.checkpoint.tensors import read_object
from bertkit.errors import RequestError
from bertkit.files import whole_folder
from bertkit.finetuning.result import FineTuned, result_from_json
from bertkit.finetuning.run_state import RESULT, SETTINGS
from bertkit.report.page import REPORT_FILE, render_page, save_page

NEXT_SETTING = re.compile(r",(?=\w+=)")  # a comma inside a value is none


def read_step(text: str) -> dict[str, Any]:
    """A step as the command line writes it: TASK,train=FILE,dev=FILE,epochs=3."""
    task, *pairs = NEXT_SETTING.split(text)
    if not task or any("=" not in pair for pair in pairs) or "=" in task or "," in task:
        raise RequestError(f"--then {text} is no step; write it as TASK,train=FILE,dev=FILE,epochs=3")
    step: dict[str, Any] = dict(pair.split("=", 1) for pair in pairs)
    files: dict[str, Any] = {name: Path(str(step[name])) for name in ("train", "dev") if name in step}
    return check_step({"task": task, **step, **files}, f"--then {text}")


def check_step(step: Mapping[str, object], where: str) -> dict[str, Any]:
    """Refuse, before the first step is trained, one without a task or examples, or whose files are missing."""
    for name in ("task", "train"):
        if step.get(name) is None:
            raise RequestError(f"{where} has no '{name}'; every step needs a task and examples to train on")
    for name in ("train", "dev"):
        if isinstance(step.get(name), str | Path) and not Path(str(step[name])).exists():
            raise RequestError(f"{where}: {step[name]} does not exist")
    return dict(step)


def step_folders(out: Path, tasks: Sequence[object]) -> list[Path]:
    """The folder of each step's run."""
    return [out / f"{number}-{task}" for number, task in enumerate(tasks, start=1)]


def finish_chain(out: Path, folders: Sequence[Path]) -> None:
    """Copy the last step's model to `out/model`, and write the page that lists all steps."""
    if not (out / "model").exists():
        with whole_folder(out / "model") as draft:
            shutil.copytree(folders[-1] / "model", draft, dirs_exist_ok=True)
    results = {folder: result_from_json(read_object(folder / RESULT)) for folder in folders}
    rows = [_row(folder, result) for folder, result in results.items()]
    title = f"{out.absolute().name}: {len(folders)} tasks"
    save_page(render_page("chain.html", title=title, rows=rows), out / REPORT_FILE)


def _row(folder: Path, result: FineTuned) -> dict[str, str]:
    run = read_object(folder / SETTINGS)
    files = {name: Path(str(run[name])).name if run.get(name) else "" for name in ("from", "train")}
    start = str(run.get("from", ""))
    scores = ", ".join(f"{name} {value:.4g}" for name, value in result.scores.items() if name != result.metric)
    return {
        "name": folder.name,
        "link": f"{folder.name}/{REPORT_FILE}",
        "from": Path(start).parent.name if files["from"] == "model" else start,
        "train": files["train"],
        "score": f"{result.metric} {result.score:.4f}",
        "others": scores,
        "steps": f"{result.steps:,}",
    }
