"""Linear probes of each layer, with a control task that only memorization can solve.

Hewitt & Liang 2019: in the control task each word type has a random label, drawn once from the labels' own shares. A
probe that learns it as well as the real task reads words and not their use: selectivity is the difference.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from bertkit.errors import RequestError
from bertkit.inside.probes.data import Probed, ProbeReport, ProbeSettings
from bertkit.inside.probes.linear import LinearSettings, ProbeRows, fit_probes
from bertkit.inside.probes.tree_files import Tree
from bertkit.inside.probes.word_vectors import BothSides, Untrained, WordVectors
from bertkit.progress import ShowProgress, silent
from bertkit.tasks.metrics.spans import span_f1

LEAST_GAIN = 0.005  # of all layers over the embeddings; less is chance, and its mean layer says nothing
Rows = list[tuple[tuple[int, ...], str, str]]  # the words probed, the type of the first, its label


@dataclass(frozen=True)
class LayerScore:
    """One layer's probe on sentences it has not seen; shares of correct labels."""

    layer: int  # 0: the embeddings
    accuracy: float
    control: float
    selectivity: float  # accuracy - control
    random: float  # the same probe on an untrained encoder
    cumulative: float  # on a learned mixture of the layers up to this one
    f1: float | None  # of whole names


@dataclass(frozen=True, kw_only=True)
class LabelReport(ProbeReport):
    """A probe of labels at every layer, with baselines that need no encoder."""

    labels: tuple[str, ...]
    rows: dict[str, int]  # train, test
    layers: tuple[LayerScore, ...]
    majority: float  # always the most frequent label
    by_word: float  # each word's most frequent label in the training file
    mix: tuple[float, ...]  # weight of each layer in the mixture of all
    gravity: float  # the mean layer by these weights
    expected: float | None  # the mean layer by what each adds to the mixture of those below it

    @property
    def best(self) -> LayerScore:
        """The layer with the highest accuracy."""
        return max(self.layers, key=lambda each: each.accuracy)


@dataclass(frozen=True)
class ProbeTask:
    """Labeled words, or pairs of words, on both sides, as numbers that a probe takes."""

    names: tuple[str, ...]
    train: Rows
    test: Rows
    bounds: tuple[tuple[int, int], ...]  # words [first, end) of each test sentence
    control_seed: int = 0

    def shares(self) -> NDArray[np.float64]:
        """How frequent each label is in training."""
        counts = Counter(label for _, _, label in self.train)
        return np.array([counts[name] for name in self.names]) / len(self.train)

    def rows(self, side: Rows, vectors: WordVectors) -> ProbeRows:
        """With two tasks: the labels, and those of the control. A label that training lacks is -1: never correct."""
        number = {name: at for at, name in enumerate(self.names)}
        words = tuple(np.array(column) for column in zip(*(words for words, _, _ in side), strict=True))
        bounds = self.shares().cumsum()
        kinds = {kind: control_label(kind, bounds, self.control_seed) for kind in {kind for _, kind, _ in side}}
        labels = np.array([[number.get(label, -1) for _, _, label in side], [kinds[kind] for _, kind, _ in side]])
        return ProbeRows(vectors, words, labels)


def control_label(word: str, bounds: NDArray[np.float64], seed: int) -> int:
    """A random label for a word type, a pure function of the word and the seed; `bounds` are cumulated shares."""
    digest = blake2b(f"{seed}:{word}".encode(), digest_size=8).digest()
    return min(int(np.searchsorted(bounds, int.from_bytes(digest, "big") / 2**64, side="right")), len(bounds) - 1)


def label_task(
    train: Sequence[Probed], test: Sequence[Probed], seed: int, fold: Callable[[str], str] = str
) -> ProbeTask:
    """Every word with its tag, or every arc with its relation; `fold` makes a word its type."""
    sides = [_rows(side, fold) for side in (train, test)]
    names = tuple(sorted({label for _, _, label in sides[0]}))
    if len(names) < 2:
        raise RequestError(
            f"{train[0].location.file} holds labels of fewer than two kinds; a probe tells two or more apart"
        )
    if not sides[1]:
        raise RequestError(f"{test[0].location.file} holds nothing to be measured on; give longer sentences")
    bounds = tuple(pairwise(accumulate((len(sentence.words) for sentence in test), initial=0)))
    return ProbeTask(names, sides[0], sides[1], bounds, control_seed=seed)


def _rows(sentences: Sequence[Probed], fold: Callable[[str], str]) -> Rows:
    rows: Rows = []
    start = 0
    for sentence in sentences:
        if isinstance(sentence, Tree):
            arcs = zip(sentence.words, sentence.heads, sentence.relations, strict=True)
            rows += [
                ((start + at, start + head), fold(word), label)
                for at, (word, head, label) in enumerate(arcs)
                if head >= 0
            ]
        else:
            tagged = zip(sentence.words, sentence.tags or (), strict=True)
            rows += [((start + at,), fold(word), tag) for at, (word, tag) in enumerate(tagged)]
        start += len(sentence.words)
    return rows


def fit_and_say(
    task: ProbeTask, vectors: BothSides, settings: ProbeSettings, kind: str, show: ShowProgress
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64] | None]:
    """What probes say of the test rows, their accuracy, tasks P each, and the mixture's weights where there is one.

    `kind`: "both" learns the task and its control, "plain" the task alone, "mix" the task on mixtures of layers.
    """
    train, test = task.rows(task.train, vectors[0]), task.rows(task.test, vectors[1])
    if kind != "both":  # a control would pull the mixture its own way
        train, test = (replace(side, labels=side.labels[:1]) for side in (train, test))
    how = LinearSettings(epochs=settings.epochs, seed=settings.seed)
    with show(f"{settings.what} probes, {kind}", how.epochs * len(train)) as meter:
        probes = fit_probes(train, len(task.names), how, mix=kind == "mix", meter=meter)
    said = probes.say(test)
    mix = None if probes.mix is None else probes.mix.numpy().astype(np.float64)
    return said, (said == test.labels[:, None]).mean(axis=-1), mix


def probe_labels(
    task: ProbeTask, vectors: BothSides, random: Untrained, settings: ProbeSettings, show: ShowProgress = silent
) -> LabelReport:
    """Probe every layer; `random` gives the vectors of an encoder that was never trained."""
    said, right, _ = fit_and_say(task, vectors, settings, "both", show)
    _, cumulative, mix = fit_and_say(task, vectors, settings, "mix", show)
    _, untrained, _ = fit_and_say(task, random(), settings, "plain", show)
    assert mix is not None  # asked for
    f1 = [_name_f1(task, each) if settings.what == "ner" else None for each in said[0]]
    layers = tuple(
        LayerScore(
            layer, float(task_right), float(control), float(task_right - control), float(fresh), float(mixed), name_f1
        )
        for layer, (task_right, control, fresh, mixed, name_f1) in enumerate(
            zip(right[0], right[1], untrained[0], cumulative[0], f1, strict=True)
        )
    )
    majority, by_word = _baselines(task)
    return LabelReport(
        what=settings.what,
        labels=task.names,
        rows={"train": len(task.train), "test": len(task.test)},
        layers=layers,
        majority=majority,
        by_word=by_word,
        mix=tuple(mix[-1].tolist()),
        gravity=float(mix[-1] @ np.arange(len(layers))),
        expected=expected_layer(cumulative[0].tolist()),
    )


def expected_layer(cumulative: Sequence[float]) -> float | None:
    """The mean layer, weighed by what each adds to those below it (Tenney et al. 2019); None if they add nothing."""
    gains = [after - before for before, after in pairwise(cumulative)]
    if sum(gains) < LEAST_GAIN:
        return None
    return sum(layer * gain for layer, gain in enumerate(gains, start=1)) / sum(gains)


def _baselines(task: ProbeTask) -> tuple[float, float]:
    """The most frequent label for all, and each word type's own."""
    most = Counter(label for _, _, label in task.train).most_common(1)[0][0]
    by_word: dict[str, Counter[str]] = defaultdict(Counter)
    for _, kind, label in task.train:
        by_word[kind][label] += 1
    usual = {kind: labels.most_common(1)[0][0] for kind, labels in by_word.items()}
    gold = [label for _, _, label in task.test]
    said = [usual.get(kind, most) for _, kind, _ in task.test]
    right = sum(map(str.__eq__, gold, said))
    return gold.count(most) / len(gold), right / len(gold)


def _name_f1(task: ProbeTask, said: NDArray[np.int64]) -> float:
    """Whole names found with their bounds and kind, as seqeval counts."""
    gold = [label for _, _, label in task.test]
    tags = [task.names[number] for number in said]
    return span_f1([gold[a:b] for a, b in task.bounds], [tags[a:b] for a, b in task.bounds])
