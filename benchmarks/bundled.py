"""The models inside the package: words on held-out text and on text of another kind, thirty blanks, vectors, size.

    python benchmarks/bundled.py --heldout HELDOUT.txt.zst --tasks TASKS --out RESULT.json

Losses are measured with the yardstick of `recipes_gpu`: 15 % of tokens chosen, masks that never change; lengths over
what the model reads are left out. The words that would do for a blank were written down before the model was asked.
TASKS holds glue-stsb/ and sts12-16/, which are scored as in `sentence_vectors_gpu`, without any teaching.
The wheel is built by pip; seconds and memory are those of a fresh process that loads the model and fills one blank.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from docstrings import write_corpus
from recipes_gpu import LENGTHS, held_out
from sentence_vectors_gpu import scores, yardsticks

import bertkit
from bertkit.checkpoint.bundled import bundled_folder
from bertkit.files import whole_file
from bertkit.model.pooling import EmbedSettings
from bertkit.text.shards.writer import write_shards

ROOT = Path(__file__).parents[1]
MODULES = 100
LOADS = 5
BLANKS = Path(__file__).with_name("blanks.tsv")  # a sentence, and the words that would do; two sets of thirty
FRESH = """
import json, resource, time
import bertkit, torch
before = int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
began = time.perf_counter()
bert = bertkit.load()
loaded = time.perf_counter()
bert.fill("Rome is the capital of [MASK].")
filled = time.perf_counter()
after = int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
print(json.dumps({"load": loaded - began, "first fill": filled - loaded, "before": before, "after": after}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heldout", type=Path, required=True)
    parser.add_argument("--tasks", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        report = {
            "model": (bundled_folder() / "model.small.sha256").read_text(encoding="utf-8").split()[0],
            "words": words(options.heldout, folder),
            "blanks": blanks(),
            "vectors": vectors(options.tasks),
            "fresh process": fresh(),
            "wheel bytes": wheel(folder / "wheel"),
        }
    with whole_file(options.out) as draft:
        draft.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(json.dumps({key: value for key, value in report.items() if key != "blanks"}, indent=1))
    for name in ("first", "second"):
        found = report["blanks"][name]
        print(f"{name} thirty: {found['first']} first words would do, {found['top 5']} in the top 5")


def words(heldout: Path, folder: Path) -> dict[str, dict[str, dict[str, float]]]:
    """Loss, share right and perplexity by kind of text and length."""
    bert, found = bertkit.load(), {}
    docstrings = folder / "docstrings.txt"
    write_corpus(docstrings, MODULES)
    for kind, text in {"held-out": heldout, "docstrings": docstrings}.items():
        write_shards([text], bundled_folder(), folder / kind)
        read = held_out(bundled_folder(), folder / kind)
        within = [str(length) for length in LENGTHS if length <= bert.checkpoint.max_length]
        found[kind] = {length: numbers for length, numbers in read.items() if length in within}
    return found


def blanks() -> dict[str, Any]:
    """The five likeliest words of each blank, with their probabilities, and how many of them would do, by set."""
    bert, rows = bertkit.load(), []
    lines = [line.split("\t") for line in BLANKS.read_text(encoding="utf-8").splitlines()[1:]]
    for name, text, good in lines:
        found = bert.fill(text, top=5)
        do = [candidate.word in good.split() for candidate in found]
        top = {candidate.word: round(candidate.probability, 3) for candidate in found}
        rows.append(
            {"set": name, "text": text, "top 5": top, "would do": [w for w, ok in zip(top, do, strict=True) if ok]}
        )
    counts = {
        name: {
            "first": sum(next(iter(row["top 5"])) in row["would do"] for row in rows if row["set"] == name),
            "top 5": sum(bool(row["would do"]) for row in rows if row["set"] == name),
        }
        for name in dict.fromkeys(line[0] for line in lines)
    }
    return {**counts, "rows": rows}


def vectors(tasks: Path) -> dict[str, dict[str, float]]:
    """Spearman times 100 of cosines with what people said, by each model: the plain one's vectors are means, too."""
    sticks = yardsticks(tasks)
    plain = replace(bertkit.load().checkpoint, embed=EmbedSettings(pooling="mean", normalize=True))
    return {"bundled": scores(plain, sticks), "sentences": scores(bertkit.load("sentences").checkpoint, sticks)}


def fresh() -> dict[str, float]:
    """Medians over processes: seconds to load and to fill the first blank, and the memory that both have taken."""
    runs = [json.loads(subprocess.check_output([sys.executable, "-c", FRESH], text=True)) for _ in range(LOADS)]
    took = {f"{name} seconds": round(median(run[name] for run in runs), 3) for name in ("load", "first fill")}
    return took | {"MiB taken": round(median(run["after"] - run["before"] for run in runs) / 2**20, 1)}


def wheel(folder: Path) -> int:
    """Bytes of the wheel."""
    shutil.rmtree(ROOT / "build", ignore_errors=True)  # files that are gone since an earlier build would be in it
    command = [sys.executable, "-m", "pip", "wheel", str(ROOT), "--no-deps", "--quiet", "--wheel-dir", str(folder)]
    subprocess.run(command, check=True)
    [built] = folder.glob("*.whl")
    return built.stat().st_size


if __name__ == "__main__":
    main()
