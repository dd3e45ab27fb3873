"""MLM and ELECTRA for the same minutes on the same text, by `bertkit` itself: shards, two runs, two reports.

python benchmarks/mlm_against_electra.py TEXT... --heldout F --vocab DIR --minutes 3 --out DIR
"""

import argparse
import json
import shutil
import tempfile
from pathlib import Path

import torch

from bertkit.pretrain.pretraining import pretrain
from bertkit.pretrain.recipe import build_recipe
from bertkit.progress import progress
from bertkit.text.shard_writer import write_shards

SHAPE = {
    "family": "electra", "depth": "12", "width": "256", "heads": "4", "inner": "1024", "embedding_width": "128",
    "dropout": "0", "attention_dropout": "0", "length": "128", "block": "1024", "batch": "1024",
    "log_every": "20", "evaluate_every": "500", "save_every": "1000000", "keep": "1",
}  # fmt: skip
RUNS = {
    "mlm": {"objective": "mlm", "learning_rate": "1e-3", "warmup": "800"},
    "electra": {"objective": "rtd", "learning_rate": "5e-4", "warmup": "800"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path, nargs="+")
    parser.add_argument("--heldout", type=Path, required=True)
    parser.add_argument("--vocab", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    result = {"device": device, "torch": torch.__version__, "minutes": options.minutes, "shape": SHAPE}
    with tempfile.TemporaryDirectory() as folder:
        shards, held = Path(folder) / "shards", Path(folder) / "heldout"
        totals = write_shards(options.texts, options.vocab, shards)
        result["shards"] = {key: value for key, value in totals.items() if key != "out"}
        write_shards([options.heldout], options.vocab, held)
        for name, settings in RUNS.items():
            chosen = {**SHAPE, **settings, "minutes": str(options.minutes), "shards": str(shards), "heldout": str(held)}
            run = Path(folder) / name
            report = pretrain(build_recipe(chosen), run, show=progress)
            lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
            logged = [line for line in lines if "loss" in line]
            evaluations = [{"step": line["step"], **line["evaluation"]} for line in lines if "evaluation" in line]
            result[name] = {"last": logged[-1], "evaluations": evaluations, "filled": lines[-1].get("filled")}
            print(name, report.progress, evaluations[-1:], flush=True)
            shutil.copy(run / "report.html", options.out / f"{name}.html")
            (options.out / "result.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
