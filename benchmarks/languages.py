"""Two languages in one model: how often it finds a caption's translation, though nobody told it what translates what.

    python benchmarks/languages.py --data DIR --work DIR --out RESULT.json [--steps 4000] [--jobs 4]

DIR holds tasks/multi30k (captions in English and German). Small models of one shape, one cased vocabulary and as many
steps read different text: captions of both languages, each a document; the same where no image has captions in both
languages (English ones of the first half, German ones of the second); English alone; and, as an upper bound, each
caption in one sequence with its translation (XLM's translation language model). Then 1,000 test captions of one
language look for theirs in the other by the cosine of mean-pooled vectors. The layer is chosen on the validation
captions. A language has a direction of its own in such vectors; with `centered`, its mean is subtracted first. Beside
it: chance (0.1 %), and the same shape untrained, which knows only which pieces both captions share (names, numbers,
signs).
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from domain import Facts
from finetune_tasks import find_file
from many_runs import results_of

from bertkit.checkpoint.save_load import Checkpoint, save_checkpoint
from bertkit.model.model import new_model
from bertkit.predict.bert import Bert, load
from bertkit.pretraining.pretraining import pretrain
from bertkit.pretraining.recipe import Recipe, build_recipe
from bertkit.progress import progress
from bertkit.text.corpus import CorpusReport, read_lines
from bertkit.text.shards.writer import write_shards
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.vocabulary.build import VocabularySettings, make_vocabulary

LANGUAGES = ("en", "de")
SHAPE = {"family": "bert", "depth": "6", "width": "256", "heads": "4", "inner": "1024", "max_length": "128"}
MODELS = ("both languages", "both, no image twice", "English alone", "pairs in one sequence")


def captions(data: Path, part: str, language: str, most: int | None = None) -> list[str]:
    """The lines of a file of Multi30k."""
    path = find_file(data, f"tasks/multi30k/{part}.{language}")
    return [line for _, line in read_lines(path, report=CorpusReport())][:most]


def documents(english: Sequence[str], german: Sequence[str]) -> dict[str, list[str]]:
    """The text of each model: every caption is a document of its own, but in pairs."""
    half = len(english) // 2
    return {
        "both languages": [*english, *german],
        "both, no image twice": [*english[:half], *german[half:]],
        "English alone": [*english],
        "pairs in one sequence": [f"{one}\n{other}" for one, other in zip(english, german, strict=True)],
    }


def recipe(options: argparse.Namespace, shards: Path) -> Recipe:
    """One shape and one budget for all; captions are short, so a batch has many."""
    settings = SHAPE | {"shards": str(shards), "objective": "mlm", "length": "128", "rate": "0.2"}
    settings |= {"dropout": "0.1", "attention_dropout": "0.1", "optimizer": "muon", "learning_rate": "1e-3"}
    settings |= {"steps": str(options.steps), "warmup": "100", "batch": str(options.batch), "keep": "1"}
    settings |= {"block": str(options.batch), "save_every": "100000", "seed": "1"}
    return build_recipe(settings | dict(pair.split("=", 1) for pair in options.settings))


def trained(options: argparse.Namespace, name: str, texts: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Pre-train one model; its name, and its run in a few numbers."""
    folder = options.work / name.replace(" ", "-").replace(",", "")
    text, shards = folder.with_suffix(".txt"), folder.with_suffix(".shards")
    text.write_text("\n\n".join(texts) + "\n", encoding="utf-8")
    if not shards.is_dir():
        write_shards([text], options.work / "vocab", shards)
    began = time.perf_counter()
    report = pretrain(recipe(options, shards), folder, resume=True, show=progress)
    words = sum(len(each.split()) for each in texts)
    facts = {"model": str(folder / "model"), "documents": len(texts), "words": words}
    facts |= {"wall_seconds": round(time.perf_counter() - began, 1)}
    ended = {"steps": report.progress.step, "loss": round(report.losses["mlm"], 3)} if report else {}
    return name, facts | ended


def untrained(options: argparse.Namespace) -> Path:
    """The same shape with new weights."""
    folder = options.work / "untrained"
    if not folder.is_dir():
        tokenizer, shards = Tokenizer.load(options.work / "vocab"), next(options.work.glob("*.shards"))
        config = recipe(options, shards).model
        model = new_model(type(config)(**{**vars(config), "vocab_size": tokenizer.size}), seed=1)
        save_checkpoint(Checkpoint(model=model.eval(), tokenizer=tokenizer, max_length=config.max_length), folder)
    return folder


def found_share(one: np.ndarray, other: np.ndarray, *, centered: bool) -> float:
    """Per cent of rows of `one` whose nearest row of `other`, by cosine, is the one at their place."""
    if centered:
        one, other = one - one.mean(axis=0), other - other.mean(axis=0)
    one, other = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (one, other))
    return round(100 * float(((one @ other.T).argmax(axis=1) == np.arange(len(one))).mean()), 1)


def retrieval(bert: Bert, data: Path, most: int | None) -> dict[str, Any]:
    """Accuracy in both directions at the layer that is best on the validation captions; and that of every layer."""
    vectors = {
        (part, language, layer): bert.embed(captions(data, part, language, most), pooling="mean", layers=layer)
        for part in ("val", "test_2016_flickr")
        for language in LANGUAGES
        for layer in range(bert.model.config.depth + 1)
    }

    def both(part: str, layer: int, *, centered: bool) -> list[float]:
        pair = [vectors[part, language, layer] for language in LANGUAGES]
        return [found_share(*pair, centered=centered), found_share(*pair[::-1], centered=centered)]

    result: dict[str, Any] = {}
    for centered in (False, True):
        chosen = [sum(both("val", layer, centered=centered)) for layer in range(bert.model.config.depth + 1)]
        layer = int(np.argmax(chosen))
        forth, back = both("test_2016_flickr", layer, centered=centered)
        every = [both("test_2016_flickr", each, centered=centered)[0] for each in range(bert.model.config.depth + 1)]
        name = "centered" if centered else "plain"
        result[name] = {"layer": layer, "en-de": forth, "de-en": back, "en-de of every layer": every}
    return result


def table(facts: dict[str, Any]) -> str:
    """The result as Markdown."""
    lines = ["| text | en→de | de→en | centered: en→de | de→en |", "|---|---|---|---|---|"]
    for name in ("untrained", *MODELS):
        row = facts["retrieval"][name]
        numbers = [f"{row[kind][way]:.1f} %" for kind in ("plain", "centered") for way in ("en-de", "de-en")]
        lines.append(f"| {name} | {' | '.join(numbers)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=4000, help="for each of the four models")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--jobs", type=int, default=1, help="models at once")
    parser.add_argument("--vocabulary", type=int, default=12_000)
    parser.add_argument("--most", type=int, help="captions of each file, at most: to try things out")
    parser.add_argument("--settings", nargs="*", default=[], metavar="KEY=VALUE", help="changes to the recipe")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    facts = Facts(options.out)
    about = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    facts.get("device", make=lambda: {"name": about, "torch": torch.__version__, "steps": options.steps})
    english, german = (captions(options.data, "train", language, options.most) for language in LANGUAGES)
    if not (options.work / "vocab").is_dir():
        text = options.work / "captions.txt"
        text.write_text("\n\n".join([*english, *german]) + "\n", encoding="utf-8")
        make_vocabulary([text], VocabularySettings(size=options.vocabulary, lowercase=False)).save(
            options.work / "vocab"
        )
    known = facts.content.get("training", {})
    calls = [(options, name, texts) for name, texts in documents(english, german).items() if name not in known]
    for name, result in results_of(trained, calls, options.jobs):
        facts.get("training", name, make=lambda result=result: result)
    folders = {"untrained": str(untrained(options))} | {
        name: facts.content["training"][name]["model"] for name in MODELS
    }
    for name, folder in folders.items():

        def measure(folder: str = folder) -> dict[str, Any]:
            bert = load(folder)
            return retrieval(bert.to("cuda") if torch.cuda.is_available() else bert, options.data, options.most)

        facts.get("retrieval", name, make=measure)
    facts.get(
        "chance", make=lambda: round(100 / len(captions(options.data, "test_2016_flickr", "en", options.most)), 2)
    )
    print(json.dumps(facts.content["device"]))
    print(table(facts.content))


if __name__ == "__main__":
    main()
