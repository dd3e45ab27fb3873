"""Search: quality on CISI and SQuAD beside BM25, and an index of a million documents (seconds, memory, query times).

    python benchmarks/search.py quality --data DATA --model MINILM --out RESULT.json
    python benchmarks/search.py vectors --out RESULT.json
    python benchmarks/search.py million --texts CORPUS.txt.zst [...] --out RESULT.json

DATA has cisi/ in BEIR's shape and squad/dev-v1.1.json.zst. Intervals are those of 10,000 paired resamples of queries.
Weights of learned fusion are fitted on four fifths of the queries and used for the others.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

import bertkit
from bertkit.checkpoint.save_load import save_checkpoint
from bertkit.data.tables import Columns, lines_of, open_table
from bertkit.files import whole_file
from bertkit.model.model import new_model
from bertkit.search.build import DOCUMENTS_PER_SEGMENT
from bertkit.search.fusion import fit_weights, fused
from bertkit.search.index import CANDIDATES, Index, build_index
from bertkit.search.retrievers.dense import nearest
from bertkit.search.retrievers.formats import FORMATS, VectorsWriter, exact_scores
from bertkit.search.retrievers.retriever import Segment, best
from bertkit.tasks.metrics.ranking import RANKING_METRICS, query_scores
from bertkit.text.corpus import CorpusReport, read_lines

Judged = tuple[list[str], list[dict[str, float]]]  # queries, and for each the relevant documents by id
RESAMPLES = 10_000
FOLDS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--model", type=Path, help="of dense; by default the bundled one")
    parser.add_argument("--ranker", type=Path, help="a model that was fine-tuned to rank")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--texts", type=Path, nargs="+")
    parser.add_argument(
        "--layers", type=int, help="million: use the model's first layers only, to take less time; 0: no layer"
    )
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--work", type=Path, help="a folder that keeps the indexes for another run")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    result = PARTS[options.part](options)
    with whole_file(options.out) as draft:
        draft.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2))


def quality(options: argparse.Namespace) -> dict[str, Any]:
    """nDCG@10 and the other metrics of each retriever, of fusion and of re-ranking, with differences from BM25."""
    with tempfile.TemporaryDirectory() as folder:
        return {name: task_quality((options.work or Path(folder)) / name, name, options) for name in options.tasks}


def task_quality(folder: Path, name: str, options: argparse.Namespace) -> dict[str, Any]:
    documents, (queries, relevance) = TASKS[name](options.data)
    if not folder.exists():
        build_index(documents, folder, kinds=["bm25", "dense"], model=options.model)
    index = Index(folder)
    found = index._found(queries, None, CANDIDATES)
    each = [{kind: hits[n] for kind, hits in found.items()} for n in range(len(queries))]
    ids = [str(index.document(number)[0]) for number in range(len(index))]
    rankings = {kind: [own[kind][0] for own in each] for kind in index.kinds}
    even = dict.fromkeys(index.kinds, 1 / len(index.kinds))
    rankings["fused by ranks"] = [fused(own, None, CANDIDATES)[0] for own in each]
    rankings["fused by scores, even weights"] = [fused(own, even, CANDIDATES)[0] for own in each]
    rankings["fused by scores, weights of the other folds"] = cross_fitted(each, relevance, ids)
    if options.ranker:
        rankings["re-ranked"] = reranked(
            index, queries, rankings["fused by scores, even weights"], bertkit.load(options.ranker)
        )
    scores = {
        how: [query_scores(judged, [ids[n] for n in own]) for judged, own in zip(relevance, ranked, strict=True)]
        for how, ranked in rankings.items()
    }
    rows = {how: compared(own, scores["bm25"]) for how, own in scores.items()}
    return {"documents": len(ids), "queries": len(queries), **rows}


def compared(scores: Sequence[Mapping[str, float]], baseline: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Mean metrics, and nDCG@10 minus BM25's with the interval of paired resamples."""
    means = {metric: round(float(np.mean([own[metric] for own in scores])), 4) for metric in RANKING_METRICS}
    values, others = (np.array([own["ndcg@10"] for own in column]) for column in (scores, baseline))
    draws = np.random.default_rng(0).integers(len(values), size=(RESAMPLES, len(values)))
    bounds = np.quantile((values - others)[draws].mean(axis=1), (0.025, 0.975))
    error = (1 - values.mean()) / (1 - others.mean())
    return {
        **means,
        "ndcg@10 minus bm25's": round(float((values - others).mean()), 4),
        "95% interval": [round(float(bound), 4) for bound in bounds],
        "(1 - ndcg@10) / bm25's": round(float(error), 4),
    }


def cross_fitted(
    found: list[dict[str, Any]], relevance: list[dict[str, float]], ids: Sequence[str]
) -> list[np.ndarray[Any, Any]]:
    """Fusion with weights fitted on the other folds."""
    rankings: dict[int, Any] = {}
    keys = [{n: ids[n] for hits in own.values() for n in hits[0].tolist()} for own in found]
    for fold in range(FOLDS):
        train = [n for n in range(len(found)) if n % FOLDS != fold]
        train = train[:: max(1, len(train) // 1000)]  # a thousand queries are enough for one number
        weights = fit_weights([found[n] for n in train], [relevance[n] for n in train], [keys[n] for n in train])
        print(f"fold {fold}: {weights}", file=sys.stderr)
        rankings |= {n: fused(found[n], weights, CANDIDATES)[0] for n in range(fold, len(found), FOLDS)}
    return [rankings[n] for n in range(len(found))]


def reranked(index: Index, queries: list[str], rankings: list[Any], ranker: Any) -> list[Any]:
    """The first 30 of the fused list, in the order of a ranker."""
    ordered = []
    for query, numbers in zip(queries, rankings, strict=True):
        first = numbers[:30]
        ranked = ranker.rank(query, [index.document(int(n))[1] for n in first])
        ordered.append([*(first[each.index] for each in ranked), *numbers[30:]])
    return ordered


def cisi(data: Path) -> tuple[list[dict[str, str]], Judged]:
    """1,460 abstracts on information science; 76 of the 112 queries are judged."""
    folder = data / "cisi"
    documents = [dict(row.values) for row in open_table(folder / "corpus.jsonl.zst", Columns()).rows]
    texts = {row.values["_id"]: row.values["text"] for row in open_table(folder / "queries.jsonl", Columns()).rows}
    judged: dict[str, dict[str, float]] = {}
    for _, line in islice(lines_of(folder / "qrels.tsv", "utf-8"), 1, None):
        query, document, relevance = line.split("\t")
        judged.setdefault(query, {})[document] = float(relevance)
    return documents, ([texts[query] for query in judged], list(judged.values()))


def squad(data: Path) -> tuple[list[dict[str, str]], Judged]:
    """Every question of the development set; the paragraph that it was asked about is the only relevant document."""
    [(_, content)] = lines_of(data / "squad" / "dev-v1.1.json.zst", "utf-8")
    passages: dict[str, str] = {}
    queries, relevance = list[str](), list[dict[str, float]]()
    for paragraph in (paragraph for article in json.loads(content)["data"] for paragraph in article["paragraphs"]):
        id = passages.setdefault(paragraph["context"], str(len(passages)))
        for question in paragraph["qas"]:
            queries.append(question["question"])
            relevance.append({id: 1.0})
    return [{"id": id, "text": text} for text, id in passages.items()], (queries, relevance)


TASKS: dict[str, Callable[[Path], tuple[list[dict[str, str]], Judged]]] = {"cisi": cisi, "squad": squad}


def million(options: argparse.Namespace) -> dict[str, Any]:
    """Index so many lines with BM25 and dense int8 vectors in a process of its own, then query."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_documents(options.texts, folder / "texts.jsonl", options.documents)
        cut = options.layers is not None
        model = first_layers(options.model, folder / "model", options.layers) if cut else options.model
        command = ["index", folder / "texts.jsonl", "--kind", "bm25,dense", "--out", folder / "index"]
        command += ["--model", model] if model else []
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "bertkit", *map(str, command)], check=True)
        seconds = time.perf_counter() - began
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        words = round(float(np.mean([len(text.split()) for text in some_texts(folder / "texts.jsonl")])), 1)
        bytes_on_disk = sum(path.stat().st_size for path in (folder / "index").rglob("*") if path.is_file())
        built = {
            "documents": options.documents,
            "mean words": words,
            "layers": options.layers if cut else "all",
            "seconds": round(seconds),
            "CPU seconds": round(used.ru_utime + used.ru_stime),
            "peak MiB": round(used.ru_maxrss / 1024),
        }
        return {**built, "MB on disk": round(bytes_on_disk / 1e6), **query_times(folder / "index")}


def write_documents(texts: Sequence[Path], path: Path, count: int) -> None:
    """Different sentences of 4 to 24 words."""
    with path.open("w", encoding="utf-8") as file:
        for number, text in enumerate(islice(sentences(texts), count)):
            file.write(json.dumps({"id": number, "text": text}) + "\n")


def some_texts(path: Path) -> list[str]:
    """The first ten thousand documents."""
    with path.open(encoding="utf-8") as file:
        return [json.loads(line)["text"] for line in islice(file, 10_000)]


def first_layers(model: Path | None, folder: Path, layers: int) -> Path:
    """A folder with the first layers of a model (0: the mean of its embeddings), which takes a fraction of the time."""
    checkpoint = bertkit.load(model).embedder.checkpoint
    cut = new_model(replace(checkpoint.model.config, depth=max(1, layers)), {})
    weights = checkpoint.model.state_dict()
    cut.load_state_dict({name: weights[name] for name in cut.state_dict()})
    save_checkpoint(replace(checkpoint, model=cut, embed=checkpoint.embed_settings(layers=layers)), folder)
    return folder


def sentences(texts: Sequence[Path]) -> Iterator[str]:
    seen: set[int] = set()
    for path in texts:
        for _, line in read_lines(path, report=CorpusReport()):
            for sentence in line.replace("? ", ". ").replace("! ", ". ").split(". "):
                if 4 <= len(sentence.split()) <= 24 and hash(sentence) not in seen:
                    seen.add(hash(sentence))
                    yield sentence.strip()


def query_times(folder: Path) -> dict[str, Any]:
    """Milliseconds of a query with its encoding, by each retriever: the first, the median of 50, the least."""
    index = Index(folder)
    queries = [index.document(number)[1] for number in range(0, len(index), max(1, len(index) // 50))][:50]
    result: dict[str, Any] = {"load average": round(os.getloadavg()[0], 1)}
    for kinds in (*([kind] for kind in index.kinds), list(index.kinds)):
        times = [timed(lambda query=query, kinds=kinds: index.search(query, kinds=kinds)) for query in queries]
        middle = {"median": round(float(np.median(times)), 1), "least": round(min(times), 1)}
        result[f"{'+'.join(kinds)}, ms"] = {"first": round(times[0], 1), **middle}
    return result


def vectors(options: argparse.Namespace) -> dict[str, Any]:
    """The nearest of so many int8 vectors of 384 numbers in 2,000 groups: milliseconds, and whether they are exact."""
    draw = np.random.default_rng(0)
    centers = draw.standard_normal((2000, 384), dtype=np.float32)
    queries = centers[:50] + 0.5 * draw.standard_normal((50, 384))
    with tempfile.TemporaryDirectory() as folder:
        segments = list(grouped_vectors(Path(folder), centers, options.documents, draw))
        processor = time.process_time()
        times = [timed(lambda query=query: nearest(segments, FORMATS["int8"], query, 10)) for query in queries]
        processor = 1000 * (time.process_time() - processor) / len(queries)
        exact = [same_as_all(segments, query) for query in queries[:5]]
    middle = {"median ms": round(float(np.median(times)), 1), "least ms": round(min(times), 1)}
    load = {"load average": round(os.getloadavg()[0], 1), "threads": torch.get_num_threads()}
    return {"vectors": options.documents, **middle, "CPU ms": round(processor, 1), "exact": all(exact), **load}


def grouped_vectors(
    folder: Path, centers: np.ndarray[Any, Any], count: int, draw: np.random.Generator
) -> Iterator[Segment[Any]]:
    """Segments of vectors, each a center with as much noise."""
    for first in range(0, count, DOCUMENTS_PER_SEGMENT):
        number = min(DOCUMENTS_PER_SEGMENT, count - first)
        path = folder / str(first)
        path.mkdir()
        writer = VectorsWriter(path, FORMATS["int8"])
        noise = draw.standard_normal((number, centers.shape[1]), dtype=np.float32)
        writer.append(centers[draw.integers(len(centers), size=number)] + noise)
        writer.close()
        yield Segment(FORMATS["int8"].open(path), first, number)


def same_as_all(segments: Sequence[Segment[Any]], query: np.ndarray[Any, Any]) -> bool:
    """Whether the nearest are those of all cosines, computed in float64."""
    unit = FORMATS["int8"].prepare(query / np.linalg.norm(query))
    scores = np.concatenate([exact_scores(unit, segment.part["vectors"]) for segment in segments])
    expected = best(np.arange(len(scores)), scores, 10)
    found = nearest(segments, FORMATS["int8"], query, 10)
    return all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))


def timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - began)


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "quality": quality,
    "vectors": vectors,
    "million": million,
}

if __name__ == "__main__":
    main()
