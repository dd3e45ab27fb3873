"""A file of a million short lines to vectors: time and memory of a straight run, and of one killed again and again.

    python benchmarks/embed_file.py --out RESULT.json

The model is tiny and random, so that reading, writing and keeping track are what is measured, not the encoder. The
second run is killed with SIGKILL at random moments and resumed; both files must be equal byte for byte.
"""

import argparse
import hashlib
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from bertkit.checkpoint.save_load import Checkpoint, save_checkpoint
from bertkit.config import family_config
from bertkit.files import whole_file
from bertkit.model.model import new_model
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.wordpiece import SPECIALS

LETTERS = "abcdefghijklmnopqrstuvwxyz"
PIECES = [*SPECIALS, *LETTERS, *(f"##{c}" for c in LETTERS)]
SHAPE = {"depth": 1, "width": 32, "heads": 2, "inner": 64, "max_length": 64}
RUN = """import sys
from bertkit.cli.main import run
code = run(sys.argv[1:])
print([line for line in open("/proc/self/status") if line.startswith("VmHWM")][0].split()[1])
sys.exit(code)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model, texts = tiny_model(folder / "model"), write_lines(folder / "lines.txt", options.lines)
        straight, killed = folder / "straight.npy", folder / "killed.npy"
        first = run(model, texts, straight)
        kills = kill_and_resume(model, texts, killed, options.kills, first["seconds"])
        shape = list(np.load(killed, mmap_mode="r").shape)
        equal = digest(straight) == digest(killed)
    result = {
        "what": f"bertkit embed of {options.lines:,} short lines to .npy",
        "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "threads": 1},
        "model": f"random, {SHAPE}",
        "straight": first | {"rows_per_second": round(options.lines / first["seconds"])},
        "killed_and_resumed": kills,
        "shape": shape,
        "equal_bytes": equal,
    }
    with whole_file(options.out) as draft:
        draft.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2))
    sys.exit(0 if equal and len(kills["rows_finished_at_each"]) == options.kills else 1)


def tiny_model(folder: Path) -> Path:
    config = family_config("bert", "tiny", vocab_size=len(PIECES), init_std=0.2, **SHAPE)
    save_checkpoint(
        Checkpoint(model=new_model(config, {}), tokenizer=Tokenizer.from_vocab(PIECES), max_length=64), folder
    )
    return folder


def write_lines(path: Path, count: int) -> Path:
    draw = random.Random(0)
    with path.open("w") as file:
        for _ in range(count):
            file.write(" ".join(draw.choices(LETTERS, k=draw.randint(1, 12))) + "\n")
    return path


def command(model: Path, texts: Path, out: Path, *more: str) -> list[str]:
    return [sys.executable, "-c", RUN, "embed", str(texts), "--model", str(model), "--out", str(out), *more]


def environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def run(model: Path, texts: Path, out: Path, *more: str) -> dict[str, float]:
    """Seconds and peak resident memory of one run to its end."""
    began = time.perf_counter()
    done = subprocess.run(
        command(model, texts, out, *more), capture_output=True, text=True, check=True, env=environment()
    )
    return {"seconds": round(time.perf_counter() - began, 1), "peak_mib": int(done.stdout.split()[-1]) // 1024}


def kill_and_resume(model: Path, texts: Path, out: Path, kills: int, seconds: float) -> dict[str, object]:
    """Start, kill at a random moment, start again; at last let it end. A run is given so long that all kills hit."""
    draw, finished = random.Random(0), []
    for _ in range(kills):
        child = subprocess.Popen(
            command(model, texts, out, "--resume"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment(),
        )
        before = rows_finished(out)
        while child.poll() is None and rows_finished(out) == before:  # it starts, and reads over what is finished
            time.sleep(0.01)
        time.sleep(draw.random() * seconds / (kills + 1))
        child.kill()
        if child.wait() == 0:
            break
        finished.append(rows_finished(out))
    last = run(model, texts, out, "--resume") if not out.exists() else {}
    return {"rows_finished_at_each": finished, "last_run": last}


def rows_finished(out: Path) -> int:
    state = out.with_name(f"{out.name}.part") / "state.json"
    return int(json.loads(state.read_text())["rows"]) if state.exists() else 0


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    main()
