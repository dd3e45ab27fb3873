"""Facts about what vectors represent: trees, labels by layer, and static word vectors.

Vectors are constructed from known trees and labels, so that the correct result of a probe is known. Senses, and
arithmetic with BERT's input embeddings, are in `trained`.
"""

from collections.abc import Sequence
from functools import cache
from itertools import permutations

import numpy as np
import torch
from numpy.typing import NDArray

from bertkit.data.examples import TaggedExample
from bertkit.facts.fact import Facts, Outcome, holds
from bertkit.facts.setup import PLACE, is_refused
from bertkit.inside.probes.data import ProbeSettings
from bertkit.inside.probes.labels import LabelReport, label_task, probe_labels
from bertkit.inside.probes.structure import StructureReport, probe_structure
from bertkit.inside.probes.tree_files import Tree
from bertkit.inside.probes.trees import tree_depths
from bertkit.inside.probes.word_vectors import WordVectors
from bertkit.inside.static.corpus import WordCorpus
from bertkit.inside.static.settings import static_settings
from bertkit.inside.static.training import train_vectors
from bertkit.inside.static.vectors import StaticVectors

facts = Facts()
WIDTH = 16
ANIMALS = (("cat", "kitten"), ("dog", "puppy"), ("cow", "calf"), ("horse", "foal"))
CONTEXT_WORDS = 12  # of each kind of animal, and of each age


def _random_tree(rng: np.random.Generator, size: int) -> Tree:
    """A tree in which the head of each word is a random word before it in a random order."""
    order, heads = rng.permutation(size), [-1] * size
    for index in range(1, size):
        heads[order[index]] = int(order[rng.integers(0, index)])
    return Tree(tuple(f"w{n}" for n in range(size)), ("X",) * size, tuple(heads), ("dep",) * size, PLACE)


def _trees_and_vectors(seed: int, count: int) -> tuple[WordVectors, list[Tree]]:
    rng = np.random.default_rng(seed)
    trees = [_random_tree(rng, int(rng.integers(5, 11))) for _ in range(count)]
    return tree_vectors(trees, rng), trees


def tree_vectors(trees: Sequence[Tree], rng: np.random.Generator) -> WordVectors:
    """Layer 0 is noise; in layer 1 the vector of a word is that of its head plus a new unit vector, times a matrix.

    So squared distances in some space are tree distances, and squared norms are depths.
    """
    matrix = np.random.default_rng(99).normal(size=(WIDTH, WIDTH)) / np.sqrt(WIDTH)
    rows = []
    for tree in trees:
        points = np.zeros((len(tree.words), WIDTH))
        for word in np.argsort(tree_depths(tree.heads)):
            if tree.heads[word] >= 0:
                points[word] = points[tree.heads[word]]
                points[word, word] = 1
        rows.append(points @ matrix)
    vectors = np.concatenate(rows)
    values = np.stack([rng.normal(size=vectors.shape), vectors]).astype(np.float16)
    return WordVectors(values, tuple(np.cumsum([0, *(len(tree.words) for tree in trees)]).tolist()))


@cache
def trees_probed() -> StructureReport:
    """The structural probe on these trees; the vectors of the untrained encoder are noise."""
    (train_vectors, train), (test_vectors, test) = _trees_and_vectors(0, 300), _trees_and_vectors(1, 60)
    noise = [WordVectors(vectors.values[[0, 0]], vectors.starts) for vectors in (train_vectors, test_vectors)]
    settings = ProbeSettings(what="structure", rank=WIDTH, epochs=30)
    with torch.enable_grad():
        return probe_structure(train, test, (train_vectors, test_vectors), lambda: (noise[0], noise[1]), settings)


@facts("I5", "E187-205", "structural probe: if squared distances are tree distances, it finds the trees")
def structural_probe() -> Outcome:
    noise, layer = trees_probed().layers
    measured = f"UUAS {layer.uuas:.0%}; noise {noise.uuas:.0%}, chain {trees_probed().chain.uuas:.0%}"
    return holds("over 90 %, noise below 60 %", measured, layer.uuas > 0.9 and noise.uuas < 0.6)


@facts("I5b", "E187-205", "a second linear map predicts depths: the root has the smallest norm; ranks correlate")
def depths_predicted() -> Outcome:
    layer = trees_probed().layers[1]
    measured = f"roots {layer.root:.0%}, Spearman {layer.distance_spearman:.2f}"
    return holds("over 90 %, over 0.9", measured, layer.root > 0.9 and (layer.distance_spearman or 0) > 0.9)


@cache
def labels_probed(layer: int) -> LabelReport:
    """Label probes on five layers of noise; from `layer` on, the vector of a word contains its label."""
    rng = np.random.default_rng(layer)
    parts, vectors = [], []
    for count in (300, 100):
        labels = rng.integers(0, 4, (count, 6))
        words = rng.integers(0, 40, (count, 6))
        parts.append([_tagged(*row) for row in zip(words, labels, strict=True)])
        values = rng.normal(size=(5, count * 6, WIDTH))
        values[layer:, np.arange(count * 6), labels.ravel()] += 4
        vectors.append(WordVectors(values.astype(np.float16), tuple(range(0, count * 6 + 1, 6))))
    noise = [WordVectors(rng.normal(size=part.values.shape).astype(np.float16), part.starts) for part in vectors]
    task = label_task(parts[0], parts[1], 0)
    with torch.enable_grad():
        return probe_labels(task, (vectors[0], vectors[1]), lambda: (noise[0], noise[1]), ProbeSettings())


def _tagged(words: NDArray[np.int64], labels: NDArray[np.int64]) -> TaggedExample:
    return TaggedExample(tuple(f"w{word}" for word in words), tuple(f"L{label}" for label in labels), PLACE)


@facts("I6", "E194-196", "layer scoring: labels present from layer 1 on and from layer 3 on have their center there")
def layer_scoring() -> Outcome:
    low, high = (labels_probed(layer).expected or 0.0 for layer in (1, 3))
    return holds("about 1 and 3", f"{low:.2f} and {high:.2f}", abs(low - 1) < 0.5 and abs(high - 3) < 0.5)


@facts("I6b", "E194-196", "a control task that only memorization solves is not solved")
def control_task() -> Outcome:
    report = labels_probed(1)
    best = report.best
    measured = f"accuracy {best.accuracy:.0%}, control {best.control:.0%}; noise {best.random:.0%}"
    return holds("selectivity over 40 %", measured, best.selectivity > 0.4 and best.random < 0.5)


@cache
def animals(method: str) -> StaticVectors:
    """Vectors trained on sentences of an animal with words for its kind and words for its age."""
    names = [name for pair in ANIMALS for name in pair]
    words = [
        *names,
        *(f"{kind}{n}" for kind in ("cats", "dogs", "cows", "horses", "old", "young") for n in range(CONTEXT_WORDS)),
    ]
    rng, rows = np.random.default_rng(0), []
    for _ in range(3000):
        kind, age = int(rng.integers(4)), int(rng.integers(2))
        context = np.repeat([kind, 4 + age], 3) * CONTEXT_WORDS + rng.integers(0, CONTEXT_WORDS, 6)
        rows.append(rng.permutation([2 * kind + age, *(len(names) + context)]))
    ids = np.concatenate(rows)
    counts = np.bincount(ids, minlength=len(words))
    order = np.argsort(-counts, kind="stable")
    corpus = WordCorpus(
        tuple(words[n] for n in order),
        counts[order],
        np.argsort(order)[ids].astype(np.int32),
        np.arange(0, len(ids) + 1, 7),
    )
    settings = static_settings(method, width=24, min_count=1, subsample=0.0, epochs=8, buckets=2000)
    with torch.enable_grad():
        return train_vectors(corpus, settings, threads=1)


@facts("I8b", "A29, C84", "cat - kitten = dog - puppy: arithmetic with skip-gram vectors, for every two animals")
def arithmetic() -> Outcome:
    vectors, ranks = animals("skip-gram"), []
    for (old, young), (other, answer) in permutations(ANIMALS, 2):
        nearest = vectors.arithmetic(f"{other} - {old} + {young}", top=len(vectors.words))
        ranks.append(1 + [neighbor.word for neighbor in nearest].index(answer))
    first = ranks.count(1)
    return holds("rank 1 in most", f"rank 1 in {first} of {len(ranks)}, worst {max(ranks)}", first > len(ranks) / 2)


@facts("I9", "E30-46, E87-103", "skip-gram, CBOW, GloVe and fastText learn similar vectors for similar words")
def methods_learn() -> Outcome:
    differences = {}
    for method in ("skip-gram", "cbow", "glove", "fasttext"):
        vectors = animals(method)
        same, other = (
            np.mean([vectors.similarity("cats0", f"{kind}{n}") for n in range(1, CONTEXT_WORDS)])
            for kind in ("cats", "dogs")
        )
        differences[method] = float(same - other)
    measured = ", ".join(f"{name} {difference:+.2f}" for name, difference in differences.items())
    return holds("nearer to words of the same kind, all four", measured, min(differences.values()) > 0.1)


@facts("I9b", "E87-103", "fastText has a vector for an unseen word; word2vec has none")
def unseen_word() -> Outcome:
    nearest = [neighbor.word for neighbor in animals("fasttext").nearest("horses99", top=5)]
    refused = is_refused(lambda: animals("skip-gram").vector("horses99"))
    ok = refused and sum(word.startswith("horse") for word in nearest) >= 3
    return holds("near similar words; refused", f"{', '.join(nearest)}; refused: {refused}", ok)
