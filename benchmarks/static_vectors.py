"""Static vectors beside gensim: words per second, and analogies. Interleaved in one run, on the same words.

    python benchmarks/static_vectors.py --corpus wiki.txt.zst --peer-python VENV/bin/python --out RESULT.json

The corpus is cut into words once; both read the same file of words, one sentence a line. Settings: width 100, window 5,
5 negatives, words that occur 5 times, subsampling 1e-3, two threads; rounds of one epoch each, ours and gensim's by
turns, since the machine is shared. Words per second count the text's words, those passed over too, as gensim counts.

Questions: a is to b as c is to d, for every two pairs of a relation of word_relations.json. Right is d as the nearest
of all words but a, b, c. Chance is one in as many words. gensim runs in an environment of its own.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from bertkit.files import whole_file
from bertkit.inside.static.corpus import WordCorpus, read_words
from bertkit.inside.static.files import read_word2vec
from bertkit.inside.static.settings import METHODS, static_settings
from bertkit.inside.static.training import train_vectors
from bertkit.inside.static.vectors import StaticVectors

RELATIONS = json.loads((Path(__file__).parent / "word_relations.json").read_text(encoding="utf-8"))
UNSEEN = ("germanization", "unhappyish", "kingliness", "biochemistries", "footballing")
ARITHMETIC = ("king - man + woman", "paris - france + italy", "dog - puppy + kitten")
PEER = """import sys, time
from gensim.models import Word2Vec
path, out, sg, threads, epochs = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
model = Word2Vec(vector_size=100, window=5, negative=5, min_count=5, sample=1e-3, sg=sg, workers=threads, seed=1)
model.build_vocab(corpus_file=path)
start = time.perf_counter()
model.train(corpus_file=path, total_words=model.corpus_total_words, total_examples=model.corpus_count, epochs=epochs)
print(time.perf_counter() - start)
model.wv.save_word2vec_format(out)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--peer-python", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sentences", type=int, default=None, help="the first so many, for a quick look")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--methods", nargs="*", default=[])
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    start = time.perf_counter()
    corpus = first_sentences(read_words([options.corpus]), options.sentences)
    result = {
        "what": "static vectors beside gensim: text words per second in training, and analogies",
        "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "torch": torch.__version__},
        "corpus": {
            "file": options.corpus.name,
            "words": len(corpus.ids),
            "different words": len(corpus.words),
            "sentences": len(corpus.starts) - 1,
            "seconds to read": round(time.perf_counter() - start, 1),
        },
        "questions": count_questions(),
        "chance": round(1 / len(corpus.words), 7),
        "skip-gram beside gensim": beside(corpus, options),
        "methods": {},
    }
    write(result, options.out)
    for method in options.methods:
        result["methods"][method] = one_method(corpus, method)
        write(result, options.out)
    print(json.dumps(result, indent=2, ensure_ascii=False))


def write(result: dict[str, object], out: Path) -> None:
    """After each part, so that a run that is stopped leaves what it measured."""
    with whole_file(out) as draft:
        draft.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def first_sentences(corpus: WordCorpus, count: int | None) -> WordCorpus:
    """The text's first sentences, with all the words of the whole: rare ones then have few uses."""
    starts = corpus.starts[: None if count is None else count + 1]
    return WordCorpus(corpus.words, corpus.counts, corpus.ids[: starts[-1]], starts)


def beside(corpus: WordCorpus, options: argparse.Namespace) -> dict[str, object]:
    speeds: dict[str, list[float]] = {"ours": [], "gensim": []}
    with tempfile.TemporaryDirectory() as name:
        path, vectors = write_corpus(corpus, Path(name) / "words.txt"), Path(name) / "peer.vec"
        for _ in range(options.rounds):
            seconds, ours = timed(corpus, options.epochs)
            speeds["ours"].append(round(options.epochs * len(corpus.ids) / seconds))
            seconds = peer(options, path, vectors)
            speeds["gensim"].append(round(options.epochs * len(corpus.ids) / seconds))
            print(speeds, file=sys.stderr, flush=True)
        theirs = read_word2vec(vectors)
    ratios = [a / b for a, b in zip(speeds["ours"], speeds["gensim"], strict=True)]
    return {
        "words/s by round": speeds,
        "ratio, median of rounds": round(float(np.median(ratios)), 2),
        "epochs": options.epochs,
        "analogies, ours": accuracy(ours),
        "analogies, gensim": accuracy(theirs),
    }


def timed(corpus: WordCorpus, epochs: int) -> tuple[float, StaticVectors]:
    start = time.perf_counter()
    vectors = train_vectors(corpus, static_settings("skip-gram", epochs=epochs), threads=2)
    return time.perf_counter() - start, vectors


def peer(options: argparse.Namespace, path: Path, out: Path) -> float:
    command = [options.peer_python, "-c", PEER, path, out, "1", "2", str(options.epochs)]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return float(done.stdout.split()[-1])


def write_corpus(corpus: WordCorpus, path: Path) -> Path:
    """One sentence a line; gensim cuts lines over 10,000 words, and there are none."""
    words = np.array(corpus.words, dtype=object)
    with path.open("w", encoding="utf-8") as file:
        for start, stop in zip(corpus.starts[:-1], corpus.starts[1:], strict=True):
            file.write(" ".join(words[corpus.ids[start:stop]]) + "\n")
    return path


def one_method(corpus: WordCorpus, method: str) -> dict[str, object]:
    settings = static_settings(method)
    vectors = train_vectors(corpus, settings, threads=2)
    found: dict[str, object] = {"settings": {**METHODS[method], "epochs": settings.epochs}}
    found["seconds"] = vectors.record["seconds"]
    found["analogies"] = accuracy(vectors)
    found["arithmetic"] = {sum_: [each.word for each in vectors.arithmetic(sum_, 3)] for sum_ in ARITHMETIC}
    if vectors.subwords is not None:
        unseen = [word for word in UNSEEN if word not in vectors]
        found["unseen words"] = {word: [each.word for each in vectors.nearest(word, 5)] for word in unseen}
    return found


def questions(pairs: list[str]) -> list[tuple[str, str, str, str]]:
    split = [tuple(pair.split()) for pair in pairs]
    return [(*one, *other) for one in split for other in split if one != other]


def count_questions() -> int:
    return sum(len(questions(pairs)) for pairs in RELATIONS.values())


def accuracy(vectors: StaticVectors) -> dict[str, float]:
    """By relation, and over all questions; a question with an unknown word is wrong."""
    right = {name: [answered(vectors, *question) for question in questions(pairs)] for name, pairs in RELATIONS.items()}
    found = {name: round(float(np.mean(each)), 3) for name, each in right.items()}
    return found | {"all": round(float(np.mean([one for each in right.values() for one in each])), 4)}


def answered(vectors: StaticVectors, a: str, b: str, c: str, d: str) -> bool:
    if not all(word in vectors for word in (a, b, c, d)):
        return False
    return vectors.arithmetic(f"{b} - {a} + {c}", 1)[0].word == d


if __name__ == "__main__":
    main()
