"""Re-ranking by a cross-encoder: sentences for questions of SQuAD, on articles that were not trained on.

    PYTHONPATH=src python benchmarks/rerank.py dev-v1.1.json.zst MODEL --train 320 --test 150 --out rerank.json
        pooling=mean learning_rate=1e-3

The 48 articles are split: questions of 30 are trained on, those of six choose the weights, those of 12 are scored. A
question's relevant sentence is the one in which its answer begins; candidates are the 30 best sentences of all articles
of the split by BM25, which is also where the other texts of a training question come from. The result has nDCG@10 of
BM25, of the model's cosines, and of the cross-encoder, over the same candidates.
"""

import argparse
import json
import platform
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.feature_extraction.text import CountVectorizer

import bertkit
from bertkit.data.tables import parse_json
from bertkit.tasks.metrics.ranking import query_scores
from bertkit.text.sentences import split_sentences

CANDIDATES = 30
NEGATIVES = 7  # of a training question, drawn from its candidates
SETTINGS: dict[str, object] = {"epochs": 1, "batch": 8, "list_size": 8, "max_length": 96, "warmup": 0.1}


@dataclass(frozen=True)
class Question:
    """A question and the index of the sentence in which its answer begins."""

    text: str
    relevant: int


def read_split(articles: Sequence[dict]) -> tuple[list[str], list[Question]]:
    """The sentences of some articles, and the questions about them."""
    texts, questions = [], []
    for paragraph in (paragraph for article in articles for paragraph in article["paragraphs"]):
        spans = split_sentences(paragraph["context"])
        starts = [start for start, _ in spans]
        for asked in paragraph["qas"]:
            inside = np.searchsorted(starts, asked["answers"][0]["answer_start"], side="right") - 1
            questions.append(Question(asked["question"], len(texts) + int(inside)))
        texts += [paragraph["context"][start:end] for start, end in spans]
    return texts, questions


class Bm25:
    """Okapi BM25 (k1 = 1.2, b = 0.75) over words, without stemming."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.words = CountVectorizer(token_pattern=r"\w+")
        counts = self.words.fit_transform(texts).tocsr().astype(float)
        lengths = np.asarray(counts.sum(axis=1)).ravel()
        with_word = np.asarray((counts > 0).sum(axis=0)).ravel()
        idf = np.log(1 + (len(texts) - with_word + 0.5) / (with_word + 0.5))
        rows = np.repeat(np.arange(len(texts)), np.diff(counts.indptr))
        damping = 1.2 * (0.25 + 0.75 * lengths[rows] / lengths.mean())
        counts.data = idf[counts.indices] * counts.data * 2.2 / (counts.data + damping)
        self.weights = counts

    def best(self, question: str, count: int) -> list[int]:
        """The indices of the best texts."""
        scores = (self.weights @ self.words.transform([question]).T).toarray().ravel()
        return np.argsort(-scores, kind="stable")[:count].tolist()


def training_rows(articles: Sequence[dict], count: int, draw: random.Random) -> list[dict]:
    """Questions, each with its sentence and others that BM25 finds."""
    texts, questions = read_split(articles)
    index, rows = Bm25(texts), []
    for question in draw.sample(questions, min(count, len(questions))):
        others = [n for n in index.best(question.text, CANDIDATES) if n != question.relevant]
        negatives = [texts[n] for n in draw.sample(others, NEGATIVES)]
        rows.append({"query": question.text, "positives": [texts[question.relevant]], "negatives": negatives})
    return rows


def ndcg(questions: Sequence[Question], rankings: Sequence[Sequence[int]]) -> list[float]:
    """nDCG@10 of each question; a relevant sentence that is no candidate counts as not found."""
    pairs = zip(questions, rankings, strict=True)
    return [query_scores({question.relevant: 1.0}, ranking)["ndcg@10"] for question, ranking in pairs]


def by_cosine(bert: bertkit.Bert, texts: Sequence[str], questions: Sequence[Question], found: list[list[int]]):
    """The candidates by the cosines of the model that the training starts from."""
    needed = sorted({n for each in found for n in each})
    vectors = dict(zip(needed, bert.embed([texts[n] for n in needed], normalize=True), strict=True))
    asked = bert.embed([question.text for question in questions], normalize=True)
    return [sorted(each, key=lambda n: -float(vectors[n] @ v)) for each, v in zip(found, asked, strict=True)]


def reranked(bert: bertkit.Bert, texts: Sequence[str], questions: Sequence[Question], found: list[list[int]]):
    """The candidates by the cross-encoder."""
    ranked = bert.rank([q.text for q in questions], [[texts[n] for n in each] for each in found])
    return [[each[r.index] for r in ranking] for each, ranking in zip(found, ranked, strict=True)]


def interval(differences: Sequence[float]) -> list[float]:
    """The 95 % interval of a mean of paired differences, by 10,000 resamples of the questions."""
    draws, values = np.random.default_rng(0), np.array(differences)
    means = [values[draws.integers(len(values), size=len(values))].mean() for _ in range(10_000)]
    return [round(float(bound), 4) for bound in np.quantile(means, (0.025, 0.975))]


def main() -> None:
    """Train, re-rank, write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("squad", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--train", type=int, default=1000, help="questions to train on")
    parser.add_argument("--test", type=int, default=300, help="questions to score")
    parser.add_argument("--only-dev", action="store_true", help="score the dev questions of training alone")
    parser.add_argument("settings", nargs="*", help="changes such as epochs=2")
    arguments = parser.parse_intermixed_args()
    settings = SETTINGS | dict(pair.split("=", 1) for pair in arguments.settings)
    draw, articles = random.Random(0), parse_json(arguments.squad, "utf-8")["data"]
    draw.shuffle(articles)
    train, dev = training_rows(articles[:30], arguments.train, draw), training_rows(articles[30:36], 60, draw)
    started = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        run = bertkit.finetune("rank", train, dev, model=arguments.model, out=Path(folder) / "run", **settings)
        seconds = round(time.process_time() - started)
        scores = {"train": len(train), "settings": settings, "dev": dict(run.scores), "training_cpu_seconds": seconds}
        result = scores if arguments.only_dev else scores | test(arguments, articles[36:], run.model, draw)
    print(json.dumps(result, indent=2))
    if arguments.out:
        arguments.out.write_text(json.dumps({**result, "machine": platform.machine()}, indent=2) + "\n")


def test(arguments: argparse.Namespace, articles: Sequence[dict], model: bertkit.Bert, draw: random.Random) -> dict:
    """The scores of the three orders on questions of other articles."""
    texts, questions = read_split(articles)
    questions, index = draw.sample(questions, arguments.test), Bm25(texts)
    found = [index.best(question.text, CANDIDATES) for question in questions]
    before, cosine = ndcg(questions, found), by_cosine(bertkit.load(arguments.model), texts, questions, found)
    started = time.process_time()
    after = ndcg(questions, reranked(model, texts, questions, found))
    seconds = time.process_time() - started
    orders = {"bm25": before, "cosine": ndcg(questions, cosine), "reranked": after}
    return {
        "questions": len(questions),
        "sentences": len(texts),
        "recall@30": round(float(np.mean([q.relevant in each for q, each in zip(questions, found, strict=True)])), 4),
        "ndcg@10": {name: round(float(np.mean(scores)), 4) for name, scores in orders.items()},
        "gain over bm25": interval(np.subtract(after, before)),
        "gain over cosine": interval(np.subtract(after, orders["cosine"])),
        "reranking_cpu_seconds": round(seconds, 1),
    }


if __name__ == "__main__":
    main()
