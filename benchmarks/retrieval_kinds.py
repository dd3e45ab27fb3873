"""Dense, sparse and late vectors, trained alike on half of SQuAD's articles, beside BM25 on the other half.

    python benchmarks/retrieval_kinds.py sparse --data DATA --minutes 6 --out RESULT.json
    python benchmarks/retrieval_kinds.py late --model MINILM --data DATA --minutes 6 --out RESULT.json

DATA has squad/dev-v1.1.json.zst. A pair is a question and its paragraph, of every second article; every fifth question
of the other articles is searched in their paragraphs. The last weights are scored: nothing is chosen on the test half.
Rows are added to the result file.
"""

import argparse
import csv
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import bertkit
from bertkit.data.tables import lines_of
from bertkit.files import whole_file
from bertkit.search.index import build_index
from bertkit.tasks.metrics.ranking import RANKING_METRICS, query_scores

RESAMPLES = 10_000
EVERY = 5  # test questions: one of so many


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["dense", "sparse", "late"])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default="bundled", help="to start from")
    parser.add_argument("--minutes", type=float, default=6.0, help="of training at most")
    parser.add_argument("--settings", nargs="*", default=[], help="of finetune vectors, such as flops=1e-3")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    train, test = halves(options.data)
    with tempfile.TemporaryDirectory() as folder:
        row = trained(options, Path(folder), train, test)
    result = json.loads(options.out.read_text(encoding="utf-8")) if options.out.is_file() else {}
    result |= {" ".join([options.kind, *options.settings]): row}
    with whole_file(options.out) as draft:
        draft.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(row, indent=2))


def halves(data: Path) -> list[list[tuple[str, str]]]:
    """(question, paragraph) pairs of every second article, and of the others."""
    [(_, content)] = lines_of(data / "squad" / "dev-v1.1.json.zst", "utf-8")
    articles = json.loads(content)["data"]
    return [
        [
            (question["question"], paragraph["context"])
            for article in articles[half::2]
            for paragraph in article["paragraphs"]
            for question in paragraph["qas"]
        ]
        for half in range(2)
    ]


def trained(options: argparse.Namespace, folder: Path, train: list[Any], test: list[Any]) -> dict[str, Any]:
    """Train, index and search; scores beside BM25's on the same questions."""
    pairs = folder / "pairs.csv"
    with pairs.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("sentence1", "sentence2"), *train])
    settings = dict(pair.split("=") for pair in options.settings)
    began = time.perf_counter()
    run = bertkit.finetune(
        "vectors", train=pairs, model=options.model, out=folder / "run", vectors=options.kind, epochs=1, batch=16,
        max_length=96, minutes=options.minutes, **settings,
    )  # fmt: skip
    seconds = time.perf_counter() - began
    documents = list(dict.fromkeys(paragraph for _, paragraph in test))
    model = folder / "run" / "model"
    index = build_index(documents, folder / "index", kinds=["bm25", options.kind], model=model)
    numbers = {text: n for n, text in enumerate(documents)}
    asked = test[::EVERY]
    relevance = [{str(numbers[paragraph]): 1.0} for _, paragraph in asked]
    scores = {}
    for kind in ("bm25", options.kind):
        hits = index.search([question for question, _ in asked], 100, kinds=[kind])
        ranked = [[str(hit.index) for hit in own] for own in hits]
        scores[kind] = [query_scores(*pair) for pair in zip(relevance, ranked, strict=True)]
    own, others = (np.array([each["ndcg@10"] for each in scores[kind]]) for kind in (options.kind, "bm25"))
    draws = np.random.default_rng(0).integers(len(own), size=(RESAMPLES, len(own)))
    bounds = np.quantile((own - others)[draws].mean(axis=1), (0.025, 0.975))
    means = {
        kind: {metric: round(float(np.mean([each[metric] for each in rows])), 4) for metric in RANKING_METRICS}
        for kind, rows in scores.items()
    }
    sizes = {path.name: path.stat().st_size for path in sorted((folder / "index").rglob(f"{options.kind}/*.npy"))}
    result = {
        "start": Path(options.model).name,
        "pairs": len(train),
        "steps": run.steps,
        "training seconds": round(seconds),
        "documents": len(documents),
        "questions": len(asked),
        "bytes of the index": sum(sizes.values()),
        **means,
        "ndcg@10 minus bm25's": round(float((own - others).mean()), 4),
        "95% interval": [round(float(bound), 4) for bound in bounds],
    }
    if options.kind == "sparse":
        bert = bertkit.load(model)
        lengths = (
            [len(each.ids) for each in bert.sparse(documents[::10])],
            [len(each.ids) for each in bert.sparse([question for question, _ in asked[::10]], query=True)],
        )
        result["pieces of a document, of a question"] = [round(float(np.mean(own)), 1) for own in lengths]
    return result


if __name__ == "__main__":
    main()
