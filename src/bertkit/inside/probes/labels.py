"""Linear probes of each layer, with a control task that only memorization can solve.

Hewitt & Liang 2019: in the control task each word type has a random label, drawn with the frequencies of the real
labels. A probe that learns it as well as the real task has memorized words: selectivity is the difference.
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
from bertkit.inside.probes.word_vectors import TrainAndTest, Untrained, WordVectors
from bertkit.progress import ShowProgress, silent
from bertkit.tasks.metrics.spans import span_f1

MIN_GAIN = 0.005  # of all layers over the embeddings; less is noise, and the mean layer is not meaningful
Rows = list[tuple[tuple[int, ...], str, str]]  # numbers of the probed words, type of the first, its label


@dataclass(frozen=True)
class LayerScore:
    """The accuracies of one layer's probe on the test sentences."""

    layer: int  # 0: the embeddings
    accuracy: float
    control: float
    selectivity: float  # accuracy - control
    random: float  # the same probe on an untrained encoder
    cumulative: float  # of a probe on a learned mixture of the layers up to this one
    f1: float | None  # span F1, for names


@dataclass(frozen=True, kw_only=True)
class LabelReport(ProbeReport):
    """The probes of all layers, with baselines that need no encoder."""

    labels: tuple[str, ...]
    rows: dict[str, int]  # train, test
    layers: tuple[LayerScore, ...]
    majority: float  # accuracy of the most frequent label
    by_word: float  # accuracy of each word's most frequent label in training
    mix: tuple[float, ...]  # weight of each layer in the mixture of all
    gravity: float  # mean layer, weighted by `mix`
    expected: float | None  # mean layer, weighted by what each adds to the mixture of the lower layers

    @property
    def best(self) -> LayerScore:
        """The layer with the highest accuracy."""
        return max(self.layers, key=lambda layer: layer.accuracy)


@dataclass(frozen=True)
class ProbeTask:
    """Labeled words, or pairs of words, for training and test."""

    names: tuple[str, ...]
    train: Rows
    test: Rows
    bounds: tuple[tuple[int, int], ...]  # words [first, end) of each test sentence
    control_seed: int = 0

    def shares(self) -> NDArray[np.float64]:
        """The relative frequency of each label in training."""
        counts = Counter(label for _, _, label in self.train)
        return np.array([counts[name] for name in self.names]) / len(self.train)

    def rows(self, side: Rows, vectors: WordVectors) -> ProbeRows:
        """Rows with two tasks: the labels and those of the control. Labels that training lacks are -1."""
        number = {name: index for index, name in enumerate(self.names)}
        words = tuple(np.array(column) for column in zip(*(words for words, _, _ in side), strict=True))
        bounds = self.shares().cumsum()
        kinds = {kind: control_label(kind, bounds, self.control_seed) for kind in {kind for _, kind, _ in side}}
        labels = np.array([[number.get(label, -1) for _, _, label in side], [kinds[kind] for _, kind, _ in side]])
        return ProbeRows(vectors, words, labels)


def control_label(word: str, bounds: NDArray[np.float64], seed: int) -> int:
    """A random label for a word type, a function of word and seed; `bounds` are cumulative frequencies."""
    digest = blake2b(f"{seed}:{word}".encode(), digest_size=8).digest()
    return min(int(np.searchsorted(bounds, int.from_bytes(digest, "big") / 2**64, side="right")), len(bounds) - 1)


def label_task(
    train: Sequence[Probed], test: Sequence[Probed], seed: int, fold: Callable[[str], str] = str
) -> ProbeTask:
    """The task to predict the tag of every word, or the relation of every arc; `fold` maps a word to its type."""
    train_rows, test_rows = (_rows(part, fold) for part in (train, test))
    names = tuple(sorted({label for _, _, label in train_rows}))
    if len(names) < 2:
        raise RequestError(f"{train[0].location.file} has fewer than two different labels; a probe needs two or more")
    if not test_rows:
        raise RequestError(f"{test[0].location.file} has nothing to test on; give longer sentences")
    bounds = tuple(pairwise(accumulate((len(sentence.words) for sentence in test), initial=0)))
    return ProbeTask(names, train_rows, test_rows, bounds, control_seed=seed)


def _rows(sentences: Sequence[Probed], fold: Callable[[str], str]) -> Rows:
    rows: Rows = []
    start = 0
    for sentence in sentences:
        if isinstance(sentence, Tree):
            arcs = zip(sentence.words, sentence.heads, sentence.relations, strict=True)
            rows += [
                ((start + index, start + head), fold(word), label)
                for index, (word, head, label) in enumerate(arcs)
                if head >= 0
            ]
        else:
            tagged = zip(sentence.words, sentence.tags or (), strict=True)
            rows += [((start + index,), fold(word), tag) for index, (word, tag) in enumerate(tagged)]
        start += len(sentence.words)
    return rows


def fit_and_predict(
    task: ProbeTask, vectors: TrainAndTest, settings: ProbeSettings, kind: str, show: ShowProgress
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64] | None]:
    """Predictions for the test rows T P n, accuracies T P, and the weights of the mixture, if there is one.

    `kind`: "both" trains on the task and its control, "plain" on the task alone, "mix" on mixtures of layers.
    """
    train, test = task.rows(task.train, vectors[0]), task.rows(task.test, vectors[1])
    if kind != "both":  # the control would influence the weights of the mixture
        train, test = (replace(rows, labels=rows.labels[:1]) for rows in (train, test))
    training = LinearSettings(epochs=settings.epochs, seed=settings.seed)
    with show(f"{settings.what} probes, {kind}", training.epochs * len(train)) as meter:
        probes = fit_probes(train, len(task.names), training, mix=kind == "mix", meter=meter)
    predicted = probes.predict(test)
    mix = None if probes.mix is None else probes.mix.numpy().astype(np.float64)
    return predicted, (predicted == test.labels[:, None]).mean(axis=-1), mix


def probe_labels(
    task: ProbeTask, vectors: TrainAndTest, random: Untrained, settings: ProbeSettings, show: ShowProgress = silent
) -> LabelReport:
    """Probe every layer; `random` gives the vectors of an untrained encoder."""
    predicted, accuracy, _ = fit_and_predict(task, vectors, settings, "both", show)
    _, cumulative, mix = fit_and_predict(task, vectors, settings, "mix", show)
    _, untrained, _ = fit_and_predict(task, random(), settings, "plain", show)
    assert mix is not None  # of kind "mix"
    f1 = [_name_f1(task, labels) if settings.what == "ner" else None for labels in predicted[0]]
    rows = zip(accuracy[0], accuracy[1], untrained[0], cumulative[0], f1, strict=True)
    layers = tuple(
        LayerScore(layer, float(real), float(control), float(real - control), float(fresh), float(mixed), name_f1)
        for layer, (real, control, fresh, mixed, name_f1) in enumerate(rows)
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
    """The mean layer, weighted by what each adds to the lower ones (Tenney et al. 2019); None if they add nothing."""
    gains = [after - before for before, after in pairwise(cumulative)]
    if sum(gains) < MIN_GAIN:
        return None
    return sum(layer * gain for layer, gain in enumerate(gains, start=1)) / sum(gains)


def _baselines(task: ProbeTask) -> tuple[float, float]:
    """Accuracies of the most frequent label, and of the most frequent label of each word type."""
    most = Counter(label for _, _, label in task.train).most_common(1)[0][0]
    by_word: dict[str, Counter[str]] = defaultdict(Counter)
    for _, kind, label in task.train:
        by_word[kind][label] += 1
    most_of_word = {kind: labels.most_common(1)[0][0] for kind, labels in by_word.items()}
    gold = [label for _, _, label in task.test]
    correct = sum(label == most_of_word.get(kind, most) for _, kind, label in task.test)
    return gold.count(most) / len(gold), correct / len(gold)


def _name_f1(task: ProbeTask, predicted: NDArray[np.int64]) -> float:
    """F1 of names with their exact bounds and kind, as in seqeval."""
    gold = [label for _, _, label in task.test]
    tags = [task.names[number] for number in predicted]
    return span_f1([gold[a:b] for a, b in task.bounds], [tags[a:b] for a, b in task.bounds])
