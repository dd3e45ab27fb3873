"""Facts about what vectors know: trees, layers, and words as single vectors.

Trees and labels are planted in vectors, so that what a probe has to find is known. Senses, and sums of a BERT's input
embeddings, are in `trained`.
"""

from collections.abc import Sequence
from functools import cache
from itertools import permutations

import numpy as np
import torch
from numpy.typing import NDArray

from bertkit.data.examples import TaggedExample
from bertkit.errors import RequestError
from bertkit.facts.fact import Facts, Outcome, Vocabularies, holds
from bertkit.facts.topics import PLACE
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
CONTEXT = 12  # words that go with an animal, and as many with an age


def _tree(draw: np.random.Generator, size: int) -> Tree:
    """Each word hangs on one of those before it, in an order of its own."""
    order, heads = draw.permutation(size), [-1] * size
    for at in range(1, size):
        heads[order[at]] = int(order[draw.integers(0, at)])
    return Tree(tuple(f"w{n}" for n in range(size)), ("X",) * size, tuple(heads), ("dep",) * size, PLACE)


def _planted_trees(seed: int, count: int) -> tuple[WordVectors, list[Tree]]:
    draw = np.random.default_rng(seed)
    trees = [_tree(draw, int(draw.integers(5, 11))) for _ in range(count)]
    return planted_vectors(trees, draw), trees


def planted_vectors(trees: Sequence[Tree], draw: np.random.Generator) -> WordVectors:
    """Layer 0 is noise; in layer 1 a word is its head's place and a step of its own, all turned around.

    So squared distances in some space are tree distances, and squared norms are depths.
    """
    turn = np.random.default_rng(99).normal(size=(WIDTH, WIDTH)) / np.sqrt(WIDTH)
    rows = []
    for tree in trees:
        places = np.zeros((len(tree.words), WIDTH))
        for word in np.argsort(tree_depths(tree.heads)):
            if tree.heads[word] >= 0:
                places[word] = places[tree.heads[word]]
                places[word, word] = 1
        rows.append(places @ turn)
    known = np.concatenate(rows)
    values = np.stack([draw.normal(size=known.shape), known]).astype(np.float16)
    return WordVectors(values, tuple(np.cumsum([0, *(len(tree.words) for tree in trees)]).tolist()))


@cache
def trees_probed() -> StructureReport:
    """The structural probe on planted trees; the random encoder's vectors are noise."""
    (known, train), (unknown, test) = _planted_trees(0, 300), _planted_trees(1, 60)
    noise = [WordVectors(side.values[[0, 0]], side.starts) for side in (known, unknown)]
    settings = ProbeSettings(what="structure", rank=WIDTH, epochs=30)
    with torch.enable_grad():
        return probe_structure(train, test, (known, unknown), lambda: (noise[0], noise[1]), settings)


@facts("I5", "E187-205", "structural probe: where squared distances are tree distances, it finds the trees")
def structural_probe(_: Vocabularies) -> Outcome:
    noise, found = trees_probed().layers
    measured = f"UUAS {found.uuas:.0%}; noise {noise.uuas:.0%}, chain {trees_probed().chain.uuas:.0%}"
    return holds("over 90 %, noise below 60 %", measured, found.uuas > 0.9 and noise.uuas < 0.6)


@facts("I5b", "E187-205", "a second map reads depths: the root is the word of the least norm; ranks agree")
def depths_read(_: Vocabularies) -> Outcome:
    found = trees_probed().layers[1]
    measured = f"roots {found.root:.0%}, Spearman {found.distance_spearman:.2f}"
    return holds("over 90 %, over 0.9", measured, found.root > 0.9 and (found.distance_spearman or 0) > 0.9)


@cache
def labels_probed(layer: int) -> LabelReport:
    """Five layers of noise; from `layer` on a word's label is in its vector, whatever the word."""
    draw = np.random.default_rng(layer)
    sides, vectors = [], []
    for count in (300, 100):
        labels = draw.integers(0, 4, (count, 6))
        words = draw.integers(0, 40, (count, 6))
        sides.append([_tagged(*row) for row in zip(words, labels, strict=True)])
        values = draw.normal(size=(5, count * 6, WIDTH))
        values[layer:, np.arange(count * 6), labels.ravel()] += 4
        vectors.append(WordVectors(values.astype(np.float16), tuple(range(0, count * 6 + 1, 6))))
    noise = [WordVectors(draw.normal(size=side.values.shape).astype(np.float16), side.starts) for side in vectors]
    task = label_task(sides[0], sides[1], 0)
    with torch.enable_grad():
        return probe_labels(task, (vectors[0], vectors[1]), lambda: (noise[0], noise[1]), ProbeSettings())


def _tagged(words: NDArray[np.int64], labels: NDArray[np.int64]) -> TaggedExample:
    return TaggedExample(tuple(f"w{word}" for word in words), tuple(f"L{label}" for label in labels), PLACE)


@facts("I6", "E194-196", "layer scoring: what is known from layer 1 on and from layer 3 on has its center there")
def layer_scoring(_: Vocabularies) -> Outcome:
    low, high = (labels_probed(layer).expected or 0.0 for layer in (1, 3))
    return holds("about 1 and 3", f"{low:.2f} and {high:.2f}", abs(low - 1) < 0.5 and abs(high - 3) < 0.5)


@facts("I6b", "E194-196", "a control task, that only memory solves, is not solved: the probe reads use, not words")
def control_task(_: Vocabularies) -> Outcome:
    report = labels_probed(1)
    best = report.best
    measured = f"accuracy {best.accuracy:.0%}, control {best.control:.0%}; noise {best.random:.0%}"
    return holds("selectivity over 40 %", measured, best.selectivity > 0.4 and best.random < 0.5)


@cache
def animals(method: str) -> StaticVectors:
    """Vectors from sentences where an animal stands among words of its kind and words of its age."""
    names = [name for pair in ANIMALS for name in pair]
    words = [
        *names,
        *(f"{kind}{n}" for kind in ("cats", "dogs", "cows", "horses", "old", "young") for n in range(CONTEXT)),
    ]
    rng, rows = np.random.default_rng(0), []
    for _ in range(3000):
        kind, age = int(rng.integers(4)), int(rng.integers(2))
        around = len(names) + np.concatenate(
            [kind * CONTEXT + rng.integers(0, CONTEXT, 3), (4 + age) * CONTEXT + rng.integers(0, CONTEXT, 3)]
        )
        rows.append(rng.permutation([2 * kind + age, *around]))
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


@facts(
    "I8b",
    "A29, C84",
    "cat - kitten = dog - puppy: sums of skip-gram vectors, trained here, answer for every two animals",
)
def arithmetic(_: Vocabularies) -> Outcome:
    vectors, ranks = animals("skip-gram"), []
    for (old, young), (other, answer) in permutations(ANIMALS, 2):
        near = [each.word for each in vectors.arithmetic(f"{other} - {old} + {young}", top=len(vectors.words))]
        ranks.append(1 + near.index(answer))
    first = ranks.count(1)
    return holds("rank 1 in most", f"rank 1 in {first} of {len(ranks)}, worst {max(ranks)}", first > len(ranks) / 2)


@facts("I9", "E30-46, E87-103", "skip-gram, CBOW, GloVe and fastText learn from one text that like words are alike")
def families_train(_: Vocabularies) -> Outcome:
    found = {}
    for method in ("skip-gram", "cbow", "glove", "fasttext"):
        vectors = animals(method)
        alike = np.mean([vectors.similarity("cats0", f"cats{n}") for n in range(1, CONTEXT)])
        apart = np.mean([vectors.similarity("cats0", f"dogs{n}") for n in range(1, CONTEXT)])
        found[method] = float(alike - apart)
    measured = ", ".join(f"{name} {gap:+.2f}" for name, gap in found.items())
    return holds("nearer to its own kind, all four", measured, min(found.values()) > 0.1)


@facts("I9b", "E87-103", "fastText has a vector for a word it never saw; word2vec has none")
def unseen_word(_: Vocabularies) -> Outcome:
    near = [each.word for each in animals("fasttext").nearest("horses99", top=5)]
    try:
        animals("skip-gram").vector("horses99")
        refused = False
    except RequestError:
        refused = True
    right = refused and sum(word.startswith("horse") for word in near) >= 3
    return holds("near its likes; refused", f"{', '.join(near)}; refused: {refused}", right)
