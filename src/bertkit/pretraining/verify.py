"""Check on this machine that a killed and resumed run ends with the same bytes as an uninterrupted one."""

import random
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from bertkit.errors import BertkitError, RequestError
from bertkit.pretraining.recipe import Recipe, recipe_toml
from bertkit.train.runs import Run

STEPS, KILLS = 12, 2  # of the trial run


def verify_resume(recipe: Recipe, *, start: Path | None = None, steps: int = STEPS, kills: int = KILLS) -> str:
    """Run the first steps uninterrupted, and again with kill -9: the result, or an error that names a file."""
    train = replace(recipe.train, minutes=None, steps=min(steps, recipe.train.steps or steps), save_every=2)
    short = replace(recipe, heldout=None, train=train)
    with tempfile.TemporaryDirectory(prefix="bertkit-verify-") as name:
        folder = Path(name)
        (folder / "recipe.toml").write_text(recipe_toml(short), encoding="utf-8")
        before = time.monotonic()
        _finish(_start(folder, "straight", start))
        seconds = time.monotonic() - before
        killed = sum(_kill_once(folder, start, seconds) for _ in range(kills))
        _finish(_start(folder, "killed", start))
        compared = _compare(Run(folder / "straight").checkpoints()[-1], Run(folder / "killed").checkpoints()[-1])
    return f"{train.steps} steps straight, and killed {killed} times and resumed: {compared} files equal byte for byte"


def _start(folder: Path, name: str, start: Path | None) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bertkit", "pretrain", str(folder / "recipe.toml"), "--resume"]
    command += ["--out", str(folder / name), *(["--from", str(start.absolute())] if start else [])]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def _finish(process: subprocess.Popen[str]) -> None:
    _, errors = process.communicate()
    if process.returncode:
        last = (errors.strip().splitlines() or ["no error message"])[-1].removeprefix("bertkit: ")
        raise (RequestError if process.returncode == 2 else BertkitError)(last)


def _kill_once(folder: Path, start: Path | None, seconds: float) -> bool:
    """Kill -9 at a random moment after the next checkpoint; return whether the process was still running."""
    run = Run(folder / "killed")
    before, process = run.latest(), _start(folder, "killed", start)
    deadline = time.monotonic() + 10 * seconds
    while process.poll() is None and run.latest() == before and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(random.uniform(0, 0.02))
    alive = process.poll() is None
    process.kill()
    process.communicate()
    return alive


def _compare(straight: Path, killed: Path) -> int:
    """The number of equal files; all must be equal, except for the seconds in state.json."""
    names = sorted(str(path.relative_to(straight)) for path in straight.rglob("*") if path.is_file())
    names.remove("state.json")
    for name in names:
        if killed.name != straight.name or (straight / name).read_bytes() != (killed / name).read_bytes():
            raise BertkitError(f"resuming is not exact here: {killed.name}/{name} differs from the uninterrupted run's")
    return len(names)
