"""Translation of image captions (Multi30k, English to German or French) by a Transformer that starts from nothing.

Train on a GPU and write the translations of the test captions, which needs no sacrebleu:

    PYTHONPATH=src python benchmarks/multi30k.py --data DIR --language de --minutes 8 --out OUT

DIR holds train, val and test_2016_flickr with the endings .en.gz, .de.gz and .fr.gz. Settings can follow: `family=rnn
width=512 inner=512 depth=1` trains a recurrent model with additive attention. Score where sacrebleu is:

    PYTHONPATH=src python benchmarks/multi30k.py --score OUT
"""

import argparse
import gzip
import json
import sys
import time
from pathlib import Path

import torch

import bertkit

# A small model, much dropout: there are 29,000 pairs (Wu 2021's Transformer-Tiny, wider).
SETTINGS: dict[str, object] = {
    "width": 256,
    "depth": 4,
    "heads": 4,
    "inner": 1024,
    "vocab_size": 8000,
    "max_length": 128,
    "batch": 256,
    "learning_rate": 1.5e-3,
    "warmup_steps": 2000,
    "decay": "inverse-sqrt",
    "weight_decay": 1e-4,
    "dropout": 0.3,
    "attention_dropout": 0.1,
    "label_smoothing": 0.1,
    "evaluations": 0.1,
    "average": 0.15,
    "keep": "last",
    "new_tokens": 100,
    "save_minutes": 60,
}

TEST = "test_2016_flickr"


def captions(folder: Path, part: str, language: str) -> list[str]:
    """The captions of a file, one a line."""
    with gzip.open(folder / f"{part}.{language}.gz", "rt", encoding="utf-8") as file:
        return [line.strip() for line in file]


def pairs(folder: Path, part: str, language: str) -> list[dict[str, str]]:
    """English captions with their translations."""
    sides = captions(folder, part, "en"), captions(folder, part, language)
    return [{"source": source, "target": target} for source, target in zip(*sides, strict=True)]


def train(arguments: argparse.Namespace, changes: dict[str, object]) -> None:
    """Train, translate the test captions, and write what `score` needs."""
    language, data, out = arguments.language, arguments.data, arguments.out
    training, val, test = (pairs(data, part, language)[: arguments.examples] for part in ("train", "val", TEST))
    started = time.perf_counter()
    settings = {**SETTINGS, "minutes": arguments.minutes, **changes}
    result = bertkit.finetune("write", training, val, out=out / "run", **settings)
    trained = time.perf_counter()
    model = result.model.to("cuda" if torch.cuda.is_available() else "cpu")

    def translated(part: list[dict[str, str]]) -> list[str]:
        return [each.text for each in model.write([pair["source"] for pair in part], beams=5, tokens=100)]

    record = {
        "language": language,
        "settings": settings,
        "training_seconds": round(trained - started, 1),
        "parameters": sum(each.numel() for each in model.model.parameters()),
        "scores_on_val": dict(result.scores),
        "val": {"targets": [pair["target"] for pair in val], "written": translated(val)},
        "test": {"targets": [pair["target"] for pair in test], "written": translated(test)},
    }
    path = out / "hypotheses.json"
    path.write_text(json.dumps(record, ensure_ascii=False, indent=1), encoding="utf-8")
    print(json.dumps({name: record[name] for name in ("training_seconds", "scores_on_val")}))
    print(*record["test"]["written"][:5], f"written: {path}", sep="\n")


def score(path: Path) -> None:
    """Print BLEU and chrF of the written captions, lower-cased and cased; settings are chosen by val alone."""
    import sacrebleu

    record = json.loads((path / "hypotheses.json" if path.is_dir() else path).read_text(encoding="utf-8"))
    result = {name: record[name] for name in ("language", "settings", "parameters", "training_seconds")}
    for part in ("val", "test"):
        gold, written = [record[part]["targets"]], record[part]["written"]
        result[part] = {
            "bleu_lowercase": round(sacrebleu.corpus_bleu(written, gold, lowercase=True).score, 2),
            "bleu_cased": round(sacrebleu.corpus_bleu(written, gold).score, 2),
            "chrf": round(sacrebleu.corpus_chrf(written, gold).score, 2),
            "texts": len(written),
        }
    print(json.dumps(result))


def main() -> None:
    """Train, or score."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with the captions")
    parser.add_argument("--language", choices=("de", "fr"), default="de")
    parser.add_argument("--minutes", type=float, default=8.0, help="of training")
    parser.add_argument("--out", type=Path, help="folder for the run and hypotheses.json")
    parser.add_argument("--examples", type=int, help="use so many pairs only, to try it out")
    parser.add_argument("--score", type=Path, help="score a folder that was written before; needs sacrebleu")
    parser.add_argument("settings", nargs="*", help="changes such as width=128")
    arguments = parser.parse_args()
    if arguments.score:
        score(arguments.score)
    elif arguments.data and arguments.out:
        train(arguments, dict(pair.split("=", 1) for pair in arguments.settings))
    else:
        sys.exit("give --data and --out, or --score")


if __name__ == "__main__":
    main()
