"""The records of a run: metrics.jsonl as curves, and the version of the code."""

import hashlib
import json
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bertkit._version import __version__
from bertkit.files import whole_file
from bertkit.report.chart import Point, finite
from bertkit.train.loss import Loss

Line = Mapping[str, Any]
CODE_FILE = "code.json"


@dataclass(frozen=True)
class Records:
    """The lines of metrics.jsonl in the order of their steps; incomplete lines are left out."""

    training: Sequence[Line]
    evaluations: Sequence[Line]
    samples: Sequence[Line]
    losses: Mapping[str, Loss] = field(default_factory=dict)  # by name

    def title(self, name: str) -> str:
        """The title of a metric: for `mlm_loss` the title of the loss `mlm`, then `loss`."""
        first, _, rest = name.partition("_")
        title = self.losses[first].title if first in self.losses else first
        rest = {"right": "accuracy"}.get(rest, rest.replace("_", " "))
        return " ".join(part for part in (title, rest) if part)

    def curve(self, name: str) -> list[Point]:
        """(step, value) of a metric of the training lines; a line without it gives no point."""
        return [(number(line["step"]), number(line[name])) for line in self.training if name in line]

    def curves(self, name: str) -> dict[str, list[Point]]:
        """A curve for each entry of a table of metrics in the training lines, such as the losses."""
        return _curves((line["step"], line.get(name)) for line in self.training)

    def evaluated(self, weights: str = "evaluation") -> dict[str, list[Point]]:
        """A curve for each metric of the evaluations: mlm_loss, mlm_right, ...; "averaged": of the averaged weights."""
        return _curves((line["step"], line.get(weights)) for line in self.evaluations)

    def speed(self) -> list[Point]:
        """Tokens per second between one line and the next; the recorded value is a mean since the start."""
        points = []
        for before, after in zip(self.training, self.training[1:], strict=False):
            seconds = number(after.get("seconds")) - number(before.get("seconds"))
            if seconds > 0:
                tokens = number(after.get("tokens")) - number(before.get("tokens"))
                points.append((number(after["step"]), tokens / seconds))
        return points


def read_records(path: Path, losses: Iterable[Loss] = ()) -> Records:
    """The records of a metrics.jsonl file; a missing file has none."""
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    lines = sorted(filter(_has_step, map(_parse, text.splitlines())), key=lambda line: number(line["step"]))
    evaluations = [line for line in lines if "evaluation" in line]
    samples = [line for line in lines if isinstance(line.get("filled"), list)]
    training = [line for line in lines if "evaluation" not in line and "filled" not in line]
    return Records(training, evaluations, samples, {loss.name: loss for loss in losses})


def number(value: object) -> float:
    """A JSON value as a float; NaN, which charts leave out, for anything that is not a number."""
    try:
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else float("nan")
    except OverflowError:
        return float("nan")


def write_code_version(run_folder: Path) -> None:
    """Write code.json into a run's folder: versions of the code, Python and torch."""
    text = json.dumps(code_version(), indent=2) + "\n"
    with whole_file(run_folder / CODE_FILE) as draft:
        draft.write_text(text, encoding="utf-8")


def code_version() -> dict[str, str]:
    """The version, a hash of the source, the commit if run from bertkit's own checkout, and torch and Python."""
    import torch

    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package).as_posix()}\0".encode() + path.read_bytes() + b"\0")
    versions = {"bertkit": __version__, "source": digest.hexdigest()[:16], "commit": _commit(package.parents[1])}
    versions |= {"torch": torch.__version__, "python": platform.python_version()}
    return {name: version for name, version in versions.items() if version}


def write_tensorboard(run_folder: Path) -> bool:
    """Write the curves as TensorBoard events, if TensorBoard is installed; return whether it is."""
    if find_spec("tensorboard") is None:
        return False
    from torch.utils.tensorboard import SummaryWriter

    folder = run_folder / "tensorboard"
    for old in folder.glob("events.out.tfevents.*"):  # of an earlier call: points would appear twice
        old.unlink()
    records = read_records(run_folder / "metrics.jsonl")
    writer: Any = SummaryWriter  # it has no types
    with writer(str(folder)) as events:
        for name, points in _all_curves(records).items():
            for step, value in finite(points):
                events.add_scalar(name, value, int(step))
    return True


def _all_curves(records: Records) -> dict[str, list[Point]]:
    curves = {f"{table}/{name}": c for table in ("loss", "right") for name, c in records.curves(table).items()}
    for weights in ("evaluation", "averaged"):
        curves |= {f"{weights}/{name}": points for name, points in records.evaluated(weights).items()}
    plain = ("rate", "norm", "tokens_per_second", "skipped", "padding", "share", "memory_gib")
    return curves | {f"training/{name}": points for name in plain if (points := records.curve(name))}


def _curves(rows: Any) -> dict[str, list[Point]]:
    curves: dict[str, list[Point]] = {}
    for step, table in rows:
        for name, value in table.items() if isinstance(table, dict) else ():
            curves.setdefault(str(name), []).append((number(step), number(value)))
    return curves


def _parse(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):  # cut off by a kill, or not JSON
        return None


def _has_step(line: Any) -> bool:
    return isinstance(line, dict) and number(line.get("step")) >= 0


def _commit(checkout: Path) -> str:
    """The commit of bertkit's own checkout; "" for an installed package, even inside another repository."""
    if not (checkout / ".git").exists() or not (checkout / "src" / "bertkit").is_dir():
        return ""
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
