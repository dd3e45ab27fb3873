"""Peak memory and time of one step of `finetune vectors` over thousands of pairs, on the CPU.

    python benchmarks/gradcache.py --model MODEL --corpus TEXT... --out RESULTS.json [--steps 512:128 4096:8]

Pairs are neighboring sentences of the corpus; 4096:8 is a step of 4,096 pairs whose texts are cut to 8 tokens. Each
step has a process of its own, whose peak is measured.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

STEPS = ("512:128", "4096:128")


def step(model: Path, corpus: list[Path], pairs: int, length: int) -> dict[str, object]:
    """One step of so many pairs: seconds, peak of the process in GiB, tokens, number of parts."""
    import torch

    from bertkit.checkpoint.save_load import load_checkpoint
    from bertkit.finetuning.embeddings.data import TextRows, read_texts
    from bertkit.finetuning.embeddings.session import VectorData
    from bertkit.finetuning.embeddings.settings import read_vector_request
    from bertkit.finetuning.embeddings.tuning import encode, open_vectors
    from bertkit.train.distributed import Ranks
    from bertkit.train.runs import Progress, Run

    settings = read_vector_request(f"batch={pairs}", f"max_length={length}")[0]
    rows = read_texts(corpus, kind="neighbors", most=2 * pairs)
    rows = TextRows(rows.texts, rows.rows[:pairs], kind=rows.kind)
    start = load_checkpoint(model)
    data = VectorData("pairs", rows, encode(start, rows.texts, settings.max_length))
    before = peak()
    with tempfile.TemporaryDirectory() as folder:
        session, _ = open_vectors(Run(Path(folder)), data, start, settings, Ranks())
        parts, began = len(session.micro_batches(0)), time.perf_counter()
        report = next(session.steps(Progress()))
    return {
        "pairs": len(rows),
        "max_length": length,
        "tokens": report.progress.tokens,
        "parts": parts,
        "seconds": round(time.perf_counter() - began, 1),
        "peak_gib": round(peak(), 2),
        "before_gib": round(before, 2),
        "loss": round(report.losses["task"], 4),
        "threads": torch.get_num_threads(),
    }


def peak() -> float:
    """The largest resident size of this process so far, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    """Each step in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--corpus", type=Path, nargs="+", required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--steps", nargs="+", default=STEPS)
    given = parser.parse_args()
    if not given.out:  # one step, in this process
        pairs, length = map(int, given.steps[0].split(":"))
        print(json.dumps(step(given.model, given.corpus, pairs, length)))
        return
    import torch

    facts = {"date": str(date.today()), "torch": torch.__version__, "cores": os.cpu_count(), "model": given.model.name}
    facts["command"] = f"python benchmarks/gradcache.py --model ... --corpus ... --steps {' '.join(given.steps)}"
    rows = []
    for each in given.steps:
        command = [sys.executable, __file__, "--model", str(given.model), "--steps", each, "--corpus"]
        command += map(str, given.corpus)
        passive = {**os.environ, "OMP_WAIT_POLICY": "passive"}  # as the commands choose on a busy machine
        done = subprocess.run(command, env=passive, capture_output=True, text=True, check=True)
        rows.append(json.loads(done.stdout))
        print(rows[-1], flush=True)
        given.out.write_text(json.dumps({**facts, "steps": rows}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
