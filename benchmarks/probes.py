"""What probes read off each layer of a model: parts of speech, relations, trees and names, each beside its baselines.

    python benchmarks/probes.py --model MODEL --train TRAIN.conllu --test TEST.conllu --out NAME
        [--names TRAIN.txt TEST.txt] [--sentences 4000] [--threads 1]

Writes NAME.json with every number, NAME-pos.svg and NAME-uuas.svg with the curves, and NAME-tree.svg with one
sentence's gold and predicted trees.
"""

import argparse
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

import torch
from pictures import svg_files

from bertkit.files import whole_file
from bertkit.inside.probes.data import ProbeSettings
from bertkit.inside.probes.page import probe_page, probe_table
from bertkit.inside.probes.probe import probe
from bertkit.predict.bert import Bert, load
from bertkit.progress import progress

PICTURES = {"pos": {"pos": 0}, "structure": {"uuas": 0, "tree": 4, "space": 5}}  # name: number of the page's svg


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--name", help="what the result calls the model; else the name of its folder")
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--test", type=Path, required=True)
    parser.add_argument("--names", type=Path, nargs=2)
    parser.add_argument("--sentences", type=int)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    bert, name = load(options.model), options.name or options.model.absolute().name
    trees = [options.train, options.test]
    work = {"pos": trees, "arcs": trees, "structure": trees} | ({"ner": options.names} if options.names else {})
    result: dict[str, Any] = {
        "model": name,
        "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "threads": options.threads},
        "torch": torch.__version__,
    }
    for what, files in work.items():
        result[what] = measure(bert, files, ProbeSettings(what=what, sentences=options.sentences), name, options.out)
        write(options.out.with_name(f"{options.out.name}.json"), json.dumps(result, indent=1) + "\n")


def measure(bert: Bert, files: list[Path], settings: ProbeSettings, name: str, out: Path) -> dict[str, Any]:
    """One probe's numbers, without the drawn sentences, and how long it took; its pictures go to files."""
    began = time.perf_counter()
    report = probe(bert, files, settings, show=progress)
    seconds = round(time.perf_counter() - began, 1)
    table = probe_table(report)
    print(table.title, *(" ".join(f"{cell:>14}" for cell in row) for row in (table.columns, *table.rows)), sep="\n")
    print(*table.notes, f"{seconds} s", "", sep="\n", flush=True)
    for picture, number in PICTURES.get(settings.what, {}).items():
        write(out.with_name(f"{out.name}-{picture}.svg"), svg_files(probe_page(report, name))[number])
    found = {key: value for key, value in report.to_json().items() if key != "drawn"}
    return {"files": [file.name for file in files], "seconds": seconds, **rounded(found)}


def rounded(value: Any) -> Any:
    """Four digits after the point are more than a probe is good for."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    return round(value, 4) if isinstance(value, float) else value


def write(path: Path, text: str) -> None:
    with whole_file(path) as draft:
        draft.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
