"""What a small Transformer learns from nothing on a CPU: dates ("2 March 1999" to "1999-03-02") and one French line.

    PYTHONPATH=src python benchmarks/dates.py --out dates

prints the share of held-out dates that are written exactly, whether the line was learned, and the seconds it took.
"""

import argparse
import json
import random
import tempfile
import time
from datetime import date, timedelta
from pathlib import Path

import bertkit

LINE = {"source": "tu t'appelles lebowski", "target": "your name is lebowski"}
FORMS = ("%-d %B %Y", "%B %-d, %Y", "%d/%m/%Y")
SETTINGS: dict[str, object] = {
    "width": 128,
    "depth": 2,
    "heads": 4,
    "inner": 256,
    "vocab_size": 600,
    "max_length": 32,
    "batch": 128,
    "epochs": 12,
    "warmup_steps": 100,
    "learning_rate": 2e-3,
    "decay": "linear",
    "dropout": 0.1,
}


def dates(count: int, seed: int) -> list[dict[str, str]]:
    """Different days between 1900 and 2030, each in one of three forms."""
    draw = random.Random(seed)
    days = [date(1900, 1, 1) + timedelta(days=number) for number in draw.sample(range(47_000), count)]
    return [{"source": day.strftime(draw.choice(FORMS)), "target": day.isoformat()} for day in days]


def main() -> None:
    """Train, write, and print the scores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder of the run; by default a temporary one")
    parser.add_argument("settings", nargs="*", help="changes such as epochs=20")
    arguments = parser.parse_args()
    rows = dates(9_000, 0)
    training, dev, held_out = rows[:8_000] + [LINE] * 40, rows[8_000:8_500], rows[8_500:]
    started = time.perf_counter()
    changes = dict(pair.split("=", 1) for pair in arguments.settings)
    with tempfile.TemporaryDirectory() as folder:
        out = arguments.out or Path(folder) / "run"
        run = bertkit.finetune("write", training, dev, out=out, **{**SETTINGS, **changes})
        seconds = time.perf_counter() - started
        written = run.model.write([row["source"] for row in held_out])
        right = [each.text == row["target"] for each, row in zip(written, held_out, strict=True)]
        result = {
            "held_out_exact": round(sum(right) / len(right), 4),
            "line_learned": run.model.write(LINE["source"]).text == LINE["target"],
            "2 March 1999": run.model.write("2 March 1999").text,
            "seconds": round(seconds, 1),
        }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
