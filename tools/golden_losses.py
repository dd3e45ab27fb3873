"""The golden loss curves of tests/golden/losses.json: 20 steps of every objective on a fixed text.

python tools/golden_losses.py           compare, and print the largest differences
python tools/golden_losses.py --write   record them again, after an intended change

Recorded on the CPU in float32.
"""

import argparse
import json
import tempfile
from pathlib import Path

GOLDEN = Path(__file__).parents[1] / "tests" / "golden"
STEPS = 20
RUNS = {
    "mlm": {},
    "mlm + nsp": {"objective": "mlm,nsp"},
    "mlm + sop": {"objective": "mlm,sop"},
    "whole-word": {"masking": "whole-word"},
    "n-gram": {"masking": "n-gram"},
    "rtd": {"objective": "rtd"},
    "causal": {"objective": "causal"},
    "bilm": {"objective": "bilm", "family": "elmo"},
    "mlm + sbo": {"objective": "mlm,sbo", "masking": "span"},
}
# No dropout, because its random numbers depend on the math library.
COMMON = {"size": "tiny", "width": 32, "depth": 2, "heads": 2, "inner": 64, "max_length": 32, "dropout": 0}
COMMON |= {"attention_dropout": 0, "length": 32, "block": 8, "batch": 16, "steps": STEPS, "warmup": 4, "log_every": 1}
COMMON |= {"learning_rate": 0.003, "save_every": 1000, "evaluate_every": 1000, "seed": 11}

Curves = dict[str, dict[str, list[float]]]


def make_shards(folder: Path) -> Path:
    """Write shards of the fixed text with the fixed vocabulary."""
    from bertkit.text.shards.writer import write_shards

    write_shards([GOLDEN / "corpus.txt"], GOLDEN / "vocab.txt", folder / "shards", processes=1)
    return folder / "shards"


def curve(name: str, shards: Path, out: Path) -> dict[str, list[float]]:
    """The losses of one run: name -> value of each step."""
    from bertkit.pretraining.pretraining import pretrain
    from bertkit.pretraining.recipe import build_recipe
    from bertkit.train.records import read_records

    settings = COMMON | RUNS[name] | {"shards": shards}
    pretrain(build_recipe({key: str(value) for key, value in settings.items()}), out, device="cpu")
    curves = read_records(out / "metrics.jsonl").curves("loss")
    return {loss: [float(f"{value:.8g}") for _, value in points] for loss, points in curves.items()}


def read_golden() -> Curves:
    """The recorded curves."""
    curves: Curves = json.loads((GOLDEN / "losses.json").read_text(encoding="utf-8"))
    return curves


def difference(ours: dict[str, list[float]], expected: dict[str, list[float]]) -> float:
    """The largest relative difference between two runs of the same losses."""
    pairs = [pair for loss in expected for pair in zip(ours[loss], expected[loss], strict=True)]
    return max(abs(a - b) / abs(b) for a, b in pairs)


def main() -> None:
    """Run all objectives; compare or write the curves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="record the curves again")
    write = parser.parse_args().write
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shards = make_shards(folder)
        curves = {run: curve(run, shards, folder / run) for run in RUNS}
    if write:
        (GOLDEN / "losses.json").write_text(json.dumps(curves, indent=1) + "\n", encoding="utf-8")
    for run, losses in curves.items():
        ends = ", ".join(f"{loss} {values[0]:.3f} -> {values[-1]:.3f}" for loss, values in losses.items())
        print(f"{run:12} {ends}" + ("" if write else f"; off by {difference(losses, read_golden()[run]):.1e}"))


if __name__ == "__main__":
    main()
