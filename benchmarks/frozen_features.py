"""What a small classifier reads off frozen vectors: of a model's layers, or of static vectors. Used by `family`.

A text is the mean of its tokens' vectors, and a pair of texts, which are read apart, is |u - v| and u * v side by side,
so that static vectors and models answer the same question in the same way. A word is its first piece. On top is the
package's classifier on a learned mixture of all layers (`bertkit finetune --features`), and the same on each layer
alone. STS-B's similarities are learned as six classes, and scored by the mean of the classes' probabilities.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from glue_scores import METRICS
from torch import Tensor

from bertkit.checkpoint.save_load import Checkpoint
from bertkit.data.examples import Example, TaggedExample, TextExample
from bertkit.finetuning.explore.features import layer_features, mixture_logits
from bertkit.finetuning.explore.glue import GlueFiles
from bertkit.finetuning.explore.search import training_subset
from bertkit.finetuning.prepare import DataFiles, Prepared, read_files
from bertkit.inside.static.vectors import StaticVectors
from bertkit.tasks.folder import build_task
from bertkit.tasks.metrics.classes import accuracy, matthews
from bertkit.tasks.metrics.correlation import spearman
from bertkit.tasks.metrics.spans import span_f1
from bertkit.tasks.shared.length import ReadingSettings
from bertkit.tasks.task import Dataset, Task
from bertkit.text.vocabulary.word_counts import split_chunk

READING = ReadingSettings(max_length=128)
Place = tuple[int, int]  # number of the sentence, number of the word in it


class Encoder(Protocol):
    """Vectors [texts or words, layers, width]."""

    def texts(self, texts: Sequence[str]) -> np.ndarray:
        """A vector for each text, by layer."""

    def words(self, sentences: Sequence[TaggedExample]) -> tuple[np.ndarray, list[Place]]:
        """A vector for each word, by layer, and where the words are."""


@dataclass(frozen=True)
class ModelLayers:
    """All layers of a model."""

    checkpoint: Checkpoint

    def texts(self, texts: Sequence[str]) -> np.ndarray:
        """The mean over each text's tokens."""
        task = build_task("classify", self.checkpoint, READING, labels=("any", "other"))
        examples: list[Example] = [TextExample(text, None, "any", NOWHERE) for text in texts]
        return layer_features(self.checkpoint.model, task, windows_of(task, examples))

    def words(self, sentences: Sequence[TaggedExample]) -> tuple[np.ndarray, list[Place]]:
        """The first piece of each word."""
        labels = tuple(sorted({tag for each in sentences for tag in each.tags or ()}))
        task = build_task("tag", self.checkpoint, READING, labels=labels)
        dataset = windows_of(task, list(sentences))
        places = [(window.example, word) for window in dataset.flat for word in window.detail.words]
        return layer_features(self.checkpoint.model, task, dataset), places


@dataclass(frozen=True)
class StaticLayer:
    """One vector for each word; words without one are left out of means, and are zeros where they stand alone."""

    vectors: StaticVectors

    def texts(self, texts: Sequence[str]) -> np.ndarray:
        """The mean over each text's words."""
        return np.stack([self._mean(text) for text in texts])[:, None]

    def words(self, sentences: Sequence[TaggedExample]) -> tuple[np.ndarray, list[Place]]:
        """Each word's own vector."""
        places = [(number, word) for number, each in enumerate(sentences) for word in range(len(each.words))]
        return self.texts([sentences[number].words[word] for number, word in places]), places

    def _mean(self, text: str) -> np.ndarray:
        words = [word for chunk in text.split() for word in split_chunk(chunk, lowercase=True)]
        known = [self.vectors.vector(word) for word in words if word in self.vectors]
        return np.mean(known, axis=0) if known else np.zeros(self.vectors.vectors.shape[1], np.float32)


NOWHERE: Any = None  # the place in a file, for examples that are made here


def windows_of(task: Task, examples: list[Example]) -> Dataset:
    """Examples as the model reads them."""
    return Dataset(examples, [task.windows(example, number) for number, example in enumerate(examples)])


@dataclass(frozen=True)
class TaskExamples:
    """A task's examples, at most `rows` to learn from: the same ones as in fine-tuning."""

    data: GlueFiles
    rows: int

    @cached_property
    def parts(self) -> tuple[list[Example], list[Example]]:
        """Training and dev examples."""
        files = DataFiles(train=Path(self.data.train), dev=Path(self.data.dev))
        train, dev, *_ = read_files(self.data.task.task, files, seed=0)
        whole: Any = Prepared(None, Dataset(train, [[] for _ in train]), Dataset([], []), ())  # type: ignore[arg-type]
        return training_subset(whole, min(self.rows, len(train)), seed=0).train.examples, dev


def score_features(encoder: Encoder, data: TaskExamples, device: str) -> dict[str, Any]:
    """The metric times 100: of a mixture of all layers, and of each layer; and the weight of each in the mixture."""
    score_part = score_tags if data.data.task.task == "tag" else score_texts
    found: dict[str, Any] = score_part(encoder, data, device)
    return found | {"metric": METRICS[data.data.task.name], "rows": len(data.parts[0])}


def score_texts(encoder: Encoder, data: TaskExamples, device: str) -> dict[str, Any]:
    """Labels or numbers of texts and of pairs."""
    train, dev = (text_vectors(encoder, part, device) for part in data.parts)
    metric = METRICS[data.data.task.name]
    golds = [[example.label for example in part if isinstance(example, TextExample)] for part in data.parts]
    if metric == "spearman":
        numbers = [[float(label) for label in gold] for gold in golds]  # type: ignore[arg-type]
        labels = torch.tensor(numbers[0]).round().long()

        def score(logits: Tensor) -> float:
            means = logits.softmax(-1).double() @ torch.arange(logits.shape[-1], device=device).double()
            return spearman(numbers[1], means.tolist())

    else:
        names = sorted({str(label) for label in golds[0]})
        labels, gold = (torch.tensor([names.index(str(label)) for label in each]) for each in golds)

        def score(logits: Tensor) -> float:
            predicted = logits.argmax(-1).tolist()
            return (matthews if metric == "matthews" else accuracy)(gold.tolist(), predicted)

    return scored(train, labels.to(device), dev, score)


def text_vectors(encoder: Encoder, examples: Sequence[Example], device: str) -> Tensor:
    """[examples, layers, width]: of texts; twice as wide of pairs."""
    sides = [list(side) for side in zip(*(example.texts for example in examples), strict=True)]
    vectors = [torch.from_numpy(encoder.texts(side)).to(device) for side in sides]
    if len(vectors) == 1:
        return vectors[0]
    one, other = vectors
    return torch.cat(((one - other).abs(), one * other), dim=-1)


def score_tags(encoder: Encoder, data: TaskExamples, device: str) -> dict[str, Any]:
    """Tags of words, by F1 of spans."""
    sides = [[example for example in part if isinstance(example, TaggedExample)] for part in data.parts]
    (train, train_places), (dev, dev_places) = (encoder.words(side) for side in sides)
    tags = [[list(example.tags or ()) for example in side] for side in sides]
    names = sorted({tag for sentence in tags[0] for tag in sentence})
    labels = torch.tensor([names.index(tags[0][number][word]) for number, word in train_places], device=device)

    def score(logits: Tensor) -> float:
        predicted = [["O"] * len(sentence) for sentence in tags[1]]
        for (number, word), label in zip(dev_places, logits.argmax(-1).tolist(), strict=True):
            predicted[number][word] = names[label]
        return span_f1(tags[1], predicted)

    return scored(torch.from_numpy(train).to(device), labels, torch.from_numpy(dev).to(device), score)


def scored(train: Tensor, labels: Tensor, dev: Tensor, score: Any) -> dict[str, Any]:
    """The mixture's score, its weights, and each layer's score."""
    logits, weights = mixture_logits(train, labels, dev)
    layers = [score(mixture_logits(train[:, [n]], labels, dev[:, [n]])[0]) for n in range(train.shape[1])]
    found = {"mixture": round(100 * score(logits), 2), "layers": [round(100 * each, 2) for each in layers]}
    return found | {"weights": [round(weight, 3) for weight in weights.tolist()]}
