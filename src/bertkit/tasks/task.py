"""What a task is: examples to windows, logits to a loss, outputs to predictions, predictions to a score.

Training, evaluation and prediction call the same `windows` and `decode`, so what is measured is what is served. This
file has the part that computes; `row.py` has the part that can be read without torch.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from itertools import groupby
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from bertkit.data.examples import Example
from bertkit.errors import RequestError
from bertkit.model.batch import Batch
from bertkit.tasks.row import TaskRow
from bertkit.tasks.shared.calibration import guesses_labels
from bertkit.tasks.shared.decision import Decision, Fitted, fit_table
from bertkit.tasks.shared.length import LengthPolicy, check_policy
from bertkit.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from bertkit.model.model import BertModel
    from bertkit.tasks.metrics.classes import LabelScore
    from bertkit.tasks.shared.explain import Request, Target

Rows = Sequence[np.ndarray]  # the head's outputs for each window
# A frozen dataclass of the task's own: Classified, Labeled, Rated, Tagged, RatedWords, Answered, Chosen.
Prediction = Any
OF_THE_ROW = LengthPolicy()  # stands for the length policy of a task's row
Predict = Callable[[Sequence[Example]], list[Prediction]]


@dataclass(frozen=True)
class Window:
    """One sequence that goes through the model, with [CLS] and [SEP]."""

    ids: tuple[int, ...]
    segments: tuple[int, ...]
    example: int  # number of the example it belongs to
    target: Any  # what the loss asks of it, in the task's own form; None when unlabeled
    detail: Any = None  # what decoding needs: word starts, character offsets, how much was cut


@dataclass(frozen=True)
class Part:
    """Examples with their windows."""

    examples: list[Example]
    windows: list[list[Window]]  # of each example

    @property
    def lengths(self) -> tuple[int, ...]:
        """Tokens of each example."""
        return tuple(sum(len(window.ids) for window in own) for own in self.windows)

    @property
    def flat(self) -> list[Window]:
        """The windows of all examples."""
        return [window for own in self.windows for window in own]


@dataclass(frozen=True, kw_only=True)
class LossSettings:
    """How errors are weighted."""

    label_smoothing: float = 0.0  # this share of a label's weight is spread over all labels
    class_weights: tuple[float, ...] | None = None  # for each label, 1 on average over the training data


@dataclass(frozen=True)
class Size:
    """How many tokens, sequences and examples a fixed batch has room for, and how many outputs the head has."""

    tokens: int
    sequences: int
    examples: int
    outputs: int


@dataclass(frozen=True)
class Mistake:
    """A prediction that is not the label, for the report: how wrong, and the texts to show."""

    weight: float
    text: str
    truth: str
    predicted: str


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """A task bound to a tokenizer and what the training data decided. All windows of an example share one batch."""

    row: ClassVar[TaskRow]
    answer_unit: ClassVar[str] = "examples"  # what gets one answer each
    pools_windows: ClassVar[bool] = False  # whether a text's windows have one answer together
    tokenizer: Tokenizer
    limit: int  # tokens in a sequence
    length: LengthPolicy = OF_THE_ROW
    labels: tuple[str, ...] = ()  # in the order of the head's outputs; empty where there are none

    def __post_init__(self) -> None:
        if self.length is OF_THE_ROW:
            object.__setattr__(self, "length", self.row.length)
        check_policy(self.row.name, self.length, self.limit, self.row.lengths)

    @property
    def name(self) -> str:
        """Its key in TASKS."""
        return self.row.name

    @property
    def head(self) -> str:
        """A key of model.heads.HEADS."""
        return self.row.head

    @property
    def outputs(self) -> int:
        """How many outputs the head has: one for each label."""
        return len(self.labels)

    @cached_property
    def label_numbers(self) -> Mapping[str, int]:
        """The number of each label among the outputs."""
        return {label: number for number, label in enumerate(self.labels)}

    @property
    def main(self) -> str:
        """The metric of `score` that is watched."""
        return self.row.metrics.main

    @property
    def metrics(self) -> tuple[str, ...]:
        """Every metric that `score` gives."""
        return self.row.metrics.names

    @property
    def saved(self) -> dict[str, Any]:
        """What the training data decided besides the labels, for bertkit.json."""
        return {name: getattr(self, name) for name in self.row.saved}

    @property
    def joins_windows(self) -> bool:
        """Whether a text's windows are joined to one vector before the head."""
        return False

    def ready(self, example: Example) -> Example:
        """An example of a request in the form that `windows` takes."""
        return example

    @abstractmethod
    def windows(self, example: Example, number: int) -> list[Window]:
        """The sequences of an example, at least one; the length policy is applied here."""

    def targets(self, windows: Sequence[Window]) -> int:
        """How many answers the loss asks of these windows: one for each example. Known before the forward pass."""
        return len({window.example for window in windows})

    def loss(
        self, logits: Tensor, batch: Batch, windows: Sequence[Window], weights: LossSettings
    ) -> tuple[Tensor, Tensor]:
        """(sum of losses, how many): divided once, over everything in a step."""
        total = self.loss_sum(logits, batch, windows, weights)
        return total, torch.tensor(self.targets(windows), device=logits.device)

    @abstractmethod
    def loss_sum(self, logits: Tensor, batch: Batch, windows: Sequence[Window], weights: LossSettings) -> Tensor:
        """The sum of the losses of all targets."""

    @abstractmethod
    def fixed_targets(self, windows: Sequence[Window], size: Size, weights: LossSettings) -> tuple[Tensor, ...]:
        """What `fixed_loss` reads, in tensors whose shapes depend on `size` alone: for CUDA graphs."""

    @abstractmethod
    def fixed_loss(self, logits: Tensor, batch: Batch, targets: Sequence[Tensor], smoothing: float) -> Tensor:
        """The sum that `loss` gives, from tensors only."""

    def has_fixed_loss(self, weights: LossSettings) -> bool:
        """Whether `fixed_loss` is the same as `loss` under these weights."""
        return True

    @abstractmethod
    def distance(
        self,
        teacher: "Task",
        ours: Tensor,
        theirs: Tensor,
        batch: Batch,
        windows: Sequence[Window],
        temperature: float,
    ) -> Tensor:
        """How far a student's logits are from its teacher's, summed over what the task asks."""

    def decode(
        self, examples: Sequence[Example], windows: Sequence[Window], outputs: Rows, decision: Decision
    ) -> list[Prediction]:
        """A prediction for each example; outputs[i] are the head's outputs for windows[i]."""
        runs = by_example(examples, windows, outputs)
        return [self.decode_one(example, own, rows, decision) for example, own, rows in runs]

    @abstractmethod
    def decode_one(self, example: Example, windows: Sequence[Window], outputs: Rows, decision: Decision) -> Prediction:
        """The prediction for one example from the outputs of its windows."""

    @abstractmethod
    def score(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, float]:
        """All metrics by name."""

    def calibration_table(self, dev: Part, outputs: Rows) -> tuple[np.ndarray, np.ndarray] | None:
        """(logits, gold) as `calibration` takes them; None where the task has no probabilities to calibrate."""
        return None

    def fit_decision(self, dev: Part, outputs: Rows, abstain: float | None = None) -> Fitted:
        """How outputs become answers, fitted on dev data: the temperature, where there are probabilities."""
        return fit_table(self.calibration_table(dev, outputs))

    def class_weights(self, counts: Mapping[str, int], examples: int) -> tuple[float, ...]:
        """Weights that make rare labels count as much as frequent ones."""
        raise RequestError(f"class_weights=balanced goes with labels; '{self.name}' has none")

    def prior(self, train: Part, weights: LossSettings) -> tuple[float, ...] | None:
        """The bias of a new head that minimizes the loss without reading; None: it starts at zero."""
        return None

    def answers(self, example: Example, prediction: Prediction, decision: Decision) -> list[tuple[str, str]]:
        """(truth, prediction) of what gets one answer each; nothing where answers are no names."""
        return []

    def guessing(
        self, dev: Part, outputs: Rows, loss: float | None, predictions: Sequence[Prediction], least: float
    ) -> str | None:
        """A message if the model saves less than the share `least` of the loss of guessing; None: it learned."""
        return guesses_labels(self.calibration_table(dev, outputs), least)

    @abstractmethod
    def mistake(self, example: Example, prediction: Prediction) -> Mistake | None:
        """The error of a prediction; None if it is correct."""

    def label_scores(self, dev: Part, predictions: Sequence[Prediction]) -> "dict[str, LabelScore]":
        """Precision and recall of each label, or of each kind of span; nothing for tasks without labels."""
        return {}

    def explain(self, model: "BertModel", request: "Request", predict: Predict) -> "Target":
        """The output that an attribution explains: of what was asked for, or of what the model predicts."""
        raise RequestError(f"predictions of '{self.name}' are not explained")


def task_class(row: TaskRow) -> type[Task]:
    """The class that computes what a row describes."""
    module, name = row.implementation.split(":")
    found: type[Task] = getattr(import_module(module), name)
    return found


def by_example(
    examples: Sequence[Example], windows: Sequence[Window], outputs: Rows
) -> Iterator[tuple[Example, list[Window], list[np.ndarray]]]:
    """Each example with its windows and their outputs; windows stand in the order of the examples."""
    runs = groupby(zip(windows, outputs, strict=True), key=lambda pair: pair[0].example)
    for example, (_, run) in zip(examples, runs, strict=True):
        own, rows = zip(*run, strict=True)
        yield example, list(own), list(rows)
