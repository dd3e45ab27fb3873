"""Domain pre-training: the bundled model's held-out loss and disease tagging before and after biomedical text.

    python benchmarks/domain.py --data DIR --work DIR --out RESULT.json [--steps 1500] [--seeds 5] [--jobs 5]

DIR holds corpus/bio_sentences.txt.zst, corpus/bio_heldout.txt.zst and tasks/ncbi-disease. Compared are the bundled
model and the same after `pretrain --from` on the biomedical sentences, each with its own vocabulary and with words of
the domain added to it (`vocab --extend`). Held-out loss is that of masked tokens (15 %, always the same masks).
Losses under two vocabularies cannot be compared per token, so the loss per word, which is the loss per token times
the tokens per word, stands beside it. NCBI-disease: F1 of spans on the test file at the last step; nothing is chosen
on it. Every fact is in RESULT.json as soon as it is known; the same command goes on where it was stopped.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from finetune_tasks import find_file, spread
from many_runs import results_of

from bertkit.checkpoint.bundled import bundled_folder
from bertkit.checkpoint.save_load import Checkpoint, load_checkpoint, save_checkpoint
from bertkit.files import whole_file
from bertkit.finetuning.fine_tuning import run_prepared
from bertkit.finetuning.learner import load_start
from bertkit.finetuning.prepare import Prepared
from bertkit.finetuning.settings import read_settings
from bertkit.pretraining.evaluation import evaluate
from bertkit.pretraining.examples.batches import DataSettings, ExampleSource
from bertkit.pretraining.examples.inputs import to_inputs
from bertkit.pretraining.learner import extended_model
from bertkit.pretraining.objectives.module import ForPretraining
from bertkit.pretraining.objectives.table import objective_rows
from bertkit.pretraining.pretraining import pretrain
from bertkit.pretraining.recipe import build_recipe
from bertkit.progress import progress
from bertkit.tasks.folder import build_task
from bertkit.tasks.read import read_examples
from bertkit.tasks.table import TASKS
from bertkit.tasks.task import Dataset
from bertkit.text.corpus import CorpusReport, read_documents
from bertkit.text.shards.reader import open_shards
from bertkit.text.shards.writer import write_shards
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.vocabulary.extension import extend_vocabulary
from bertkit.train.distributed import Ranks
from bertkit.train.runs import Run

LENGTH = 128
FINE_TUNING = ("epochs=6", "learning_rate=3e-4", "batch=32", "max_length=256", "keep=last")
ROWS = ("bundled", "bundled, words added", "domain", "domain, words added")


class Facts:
    """The result file: each fact is computed once, and written when it is known."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}

    def get(self, *keys: str, make: Callable[[], Any]) -> Any:
        """The fact at these keys; made and written if it is new."""
        place = self.content
        for key in keys[:-1]:
            place = place.setdefault(key, {})
        if keys[-1] not in place:
            place[keys[-1]] = make()
            with whole_file(self.path) as draft:
                draft.write_text(json.dumps(self.content, indent=1) + "\n", encoding="utf-8")
            print(" / ".join(keys), json.dumps(place[keys[-1]])[:200], flush=True)
        return place[keys[-1]]


def limited(source: Path, target: Path, documents: int | None) -> Path:
    """The file itself, or a new one of its first documents, to try things out."""
    if documents is None:
        return source
    found = read_documents([source], report=CorpusReport())
    texts = ["\n".join(document.paragraphs) for document, _ in zip(found, range(documents), strict=False)]
    target.write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    return target


def held_out(model: Checkpoint, shards: Path) -> dict[str, float]:
    """Loss of masked tokens, per token and per word, over the whole held-out text."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    place, opened = Ranks(device=device), open_shards(shards)
    module = ForPretraining(model.model, objective_rows(["mlm"])).to(device)
    settings = DataSettings(length=LENGTH, block=64, static=True, seed=1)
    fixed = LENGTH if device.type == "cuda" else None

    def inputs(examples: Any) -> tuple[Any, ...]:
        return to_inputs(examples, device, fixed_length=fixed, pad_id=model.model.config.pad_id)

    found = evaluate(module, ExampleSource(opened, settings), inputs, place)
    totals = json.loads((shards / "manifest.json").read_text(encoding="utf-8"))["totals"]
    pieces = totals["tokens"] / totals["words"]
    return {**found, "tokens_per_word": round(pieces, 4), "loss_per_word": round(found["mlm_loss"] * pieces, 4)}


def fine_tuned(model: Path, data: Path, seed: int, settings: Sequence[str], rows: int | None) -> dict[str, Any]:
    """Precision, recall and F1 on the test file after one run, times 100."""
    torch.set_num_threads(max(1, torch.get_num_threads() // 4))
    chosen = read_settings(*FINE_TUNING, *settings, f"seed={seed}")
    start = load_checkpoint(model)
    train, test = (find_file(data, f"tasks/ncbi-disease/{name}.tsv") for name in ("train", "test"))
    examples, tested = (read_examples("tag", path).examples for path in (train, test))
    task = build_task("tag", start, chosen.reading, **TASKS["tag"].arguments_from_data(examples, train))
    parts = [
        Dataset(part, [task.windows(example, number) for number, example in enumerate(part)])
        for part in (spread(examples, rows), spread(tested, rows))
    ]
    prepared = Prepared(task, *parts, ())
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        result = run_prepared(Run(Path(folder)), prepared, load_start(start, task, chosen), chosen)
    scores = {
        name: round(100 * result.plain[name], 2) for name in ("precision", "recall", "f1") if name in result.plain
    }
    return {"model": str(model), "seed": seed, **scores, "seconds": round(time.perf_counter() - began, 1)}


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean and standard deviation over the seeds."""
    f1 = [row["f1"] for row in sorted(rows, key=lambda row: row["seed"])]
    spread_of = statistics.stdev(f1) if len(f1) > 1 else 0.0
    return {"f1": round(statistics.fmean(f1), 2), "std": round(spread_of, 2), "seeds": f1}


def make_models(options: argparse.Namespace, facts: Facts) -> dict[str, tuple[Path, Path]]:
    """Each model's folder and the held-out shards under its vocabulary."""
    work, bundled = options.work, bundled_folder()
    corpus = {
        name: limited(find_file(options.data, f"corpus/{file}.txt"), work / f"{name}.txt", options.documents)
        for name, file in (("train", "bio_sentences"), ("heldout", "bio_heldout"))
    }
    old = Tokenizer.load(bundled)
    if not (work / "vocab").is_dir():
        extension = extend_vocabulary([corpus["train"]], old, old.size + options.words)
        extension.save(work / "vocab")
    facts.get("vocabulary", make=lambda: json.loads((work / "vocab/report.json").read_text(encoding="utf-8")))
    for vocabulary, folder in (("old", bundled), ("new", work / "vocab")):
        for part, text in corpus.items():
            if not (work / f"{part}-{vocabulary}").is_dir():
                write_shards([text], folder, work / f"{part}-{vocabulary}")
    added = work / "bundled-added"
    if not added.is_dir():
        start, new = load_checkpoint(bundled), Tokenizer.load(work / "vocab")
        model = extended_model(start.model, old, new)
        save_checkpoint(Checkpoint(model=model, tokenizer=new, max_length=start.max_length), added)
    for vocabulary in ("old", "new"):
        facts.get("pre-training", vocabulary, make=lambda name=vocabulary: continued(options, name, bundled))
    return {
        "bundled": (bundled, work / "heldout-old"),
        "bundled, words added": (added, work / "heldout-new"),
        "domain": (work / "run-old/model", work / "heldout-old"),
        "domain, words added": (work / "run-new/model", work / "heldout-new"),
    }


def continued(options: argparse.Namespace, vocabulary: str, start: Path) -> dict[str, Any]:
    """`pretrain --from` the bundled model; its run in a few numbers."""
    settings = {"shards": str(options.work / f"train-{vocabulary}"), "objective": "mlm", "length": str(LENGTH)}
    settings |= {"family": "electra", "optimizer": "muon", "learning_rate": "3e-4", "warmup": "100", "keep": "1"}
    settings |= {"block": str(min(256, options.batch)), "batch": str(options.batch), "steps": str(options.steps)}
    settings |= {"dropout": "0", "attention_dropout": "0", "save_every": "100000", "seed": "1"}
    began = time.perf_counter()
    report = pretrain(
        build_recipe(settings), options.work / f"run-{vocabulary}", start=start, resume=True, show=progress
    )
    wall = round(time.perf_counter() - began, 1)
    return {"wall_seconds": wall, "steps": options.steps, "tokens": report.progress.tokens if report else None}


def table(facts: dict[str, Any]) -> str:
    """The result as Markdown."""
    lines = ["| model | held-out loss per token | per word | NCBI-disease F1 (test) |", "|---|---|---|---|"]
    for name in ROWS:
        held, tagged = facts["held-out"][name], facts["ncbi"][name]
        score = f"{tagged['f1']:.1f} ± {tagged['std']:.1f}"
        lines.append(f"| {name} | {held['mlm_loss']:.3f} | {held['loss_per_word']:.3f} | {score} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--words", type=int, default=4000, help="added to the vocabulary")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1, help="fine-tunings at once: one of them leaves a GPU idle")
    parser.add_argument("--finetune", nargs="*", default=[], metavar="KEY=VALUE")
    parser.add_argument("--documents", type=int, help="of the corpus, at most: to try things out")
    parser.add_argument("--rows", type=int, help="of the task, at most: to try things out")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    facts = Facts(options.out)
    about = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    facts.get("device", make=lambda: {"name": about, "torch": torch.__version__})
    facts.get("fine-tuning", make=lambda: [*FINE_TUNING, *options.finetune])
    models = make_models(options, facts)
    for name, (model, shards) in models.items():
        facts.get("held-out", name, make=lambda a=model, b=shards: held_out(load_checkpoint(a), b))
    wanted = [name for name in ROWS if name not in facts.content.get("ncbi", {})]
    calls = [
        (models[name][0], options.data, seed, tuple(options.finetune), options.rows)
        for name in wanted
        for seed in range(options.seeds)
    ]
    found: dict[str, list[dict[str, Any]]] = {}
    for row in results_of(fine_tuned, calls, options.jobs) if calls else ():
        name = next(name for name in ROWS if str(models[name][0]) == row["model"])
        found.setdefault(name, []).append(row)
        print(name, row["seed"], row, flush=True)
        if len(found[name]) == options.seeds:
            facts.get("ncbi", name, make=lambda rows=found[name]: summary(rows))
    print(table(facts.content))


if __name__ == "__main__":
    main()
