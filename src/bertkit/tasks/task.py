"""The interface of a task: examples to windows, logits to a loss, outputs to predictions, predictions to scores.

Training, evaluation and prediction call the same `windows` and `decode`, so what is measured is what is served. This
module has the part that computes; `row.py` has the part that can be read without torch.
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
from bertkit.model.heads import HEADS
from bertkit.tasks.row import TaskRow
from bertkit.tasks.shared.calibration import label_collapse
from bertkit.tasks.shared.decision import Decision, FittedDecision, calibrated_decision
from bertkit.tasks.shared.length import LengthPolicy, check_policy
from bertkit.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from bertkit.config import BertConfig
    from bertkit.model.model import BertModel
    from bertkit.tasks.metrics.classes import LabelScore
    from bertkit.tasks.shared.explain import Request, Target

HeadOutputs = Sequence[np.ndarray]  # the head's outputs for each window
Prediction = Any  # a frozen dataclass: Classified, Labeled, Rated, Tagged, RatedWords, Answered or Chosen
Predict = Callable[[Sequence[Example]], list[Prediction]]
ROW_DEFAULT = LengthPolicy()  # sentinel for the length policy of the task's row


@dataclass(frozen=True)
class Window:
    """One sequence that goes through the model, with its special tokens."""

    ids: tuple[int, ...]
    segments: tuple[int, ...]
    example: int  # index of its example
    target: Any  # target of the loss, in a form of the task; None if unlabeled
    detail: Any = None  # what the task's `decode` needs: word starts, character offsets, how much was cut


@dataclass(frozen=True)
class Dataset:
    """Examples with their windows."""

    examples: list[Example]
    windows: list[list[Window]]  # of each example

    @property
    def lengths(self) -> tuple[int, ...]:
        """The number of tokens in the windows of each example."""
        return tuple(sum(len(window.ids) for window in windows) for windows in self.windows)

    @property
    def flat(self) -> list[Window]:
        """The windows of all examples."""
        return [window for windows in self.windows for window in windows]


@dataclass(frozen=True, kw_only=True)
class LossSettings:
    """Label smoothing and class weights."""

    label_smoothing: float = 0.0
    class_weights: tuple[float, ...] | None = None  # for each label, 1 on average over the training data


@dataclass(frozen=True)
class FixedSize:
    """The size of a fixed batch: tokens, sequences and examples with padding, and outputs of the head."""

    tokens: int
    sequences: int
    examples: int
    outputs: int
    longest: int  # tokens of a sequence


@dataclass(frozen=True)
class Mistake:
    """A wrong prediction for the report; mistakes are sorted by `weight`."""

    weight: float
    text: str
    truth: str
    predicted: str


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """A task with its tokenizer, sequence limit and labels. All windows of an example must be in one batch."""

    row: ClassVar[TaskRow]
    answer_unit: ClassVar[str] = "examples"  # what has one prediction each, for messages
    independent_windows: ClassVar[bool] = False  # whether the windows of an example are texts of their own
    pools_windows: ClassVar[bool] = False  # whether the windows of a text have one prediction together
    tokenizer: Tokenizer
    limit: int  # tokens in a sequence
    length: LengthPolicy = ROW_DEFAULT
    labels: tuple[str, ...] = ()  # in the order of the head's outputs; empty for tasks without labels

    def __post_init__(self) -> None:
        if self.length is ROW_DEFAULT:
            object.__setattr__(self, "length", self.row.length)
        check_policy(self.row.name, self.length, self.limit, self.row.length_kinds)

    @property
    def name(self) -> str:
        """The key in TASKS."""
        return self.row.name

    @property
    def head(self) -> str:
        """A key of model.heads.HEADS."""
        return self.row.head

    @property
    def outputs(self) -> int:
        """The number of the head's outputs: one for each label."""
        return len(self.labels)

    @cached_property
    def label_ids(self) -> Mapping[str, int]:
        """The index of each label among the outputs."""
        return {label: index for index, label in enumerate(self.labels)}

    @property
    def passes(self) -> int:
        """The sequences that a text of a request is read in, besides windows."""
        return 1

    @property
    def main_metric(self) -> str:
        """The metric of `score` by which the best model is chosen."""
        return self.row.metrics.main

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of all metrics of `score`."""
        return self.row.metrics.names

    @property
    def score_notes(self) -> tuple[str, ...]:
        """Sentences about metrics that cannot be computed here."""
        return ()

    @property
    def saved_fields(self) -> dict[str, Any]:
        """Fields besides the labels that come from the training data, for bertkit.json."""
        return {name: getattr(self, name) for name in self.row.saved_fields}

    @property
    def config_fields(self) -> dict[str, Any]:
        """Fields of config.json that tell other tools what the head is for."""
        return {"problem_type": self.row.problem_type} if self.row.problem_type else {}

    @property
    def joins_windows(self) -> bool:
        """Whether the windows of a text are averaged to one vector before the head."""
        return False

    def preprocess(self, example: Example) -> Example:
        """An example of a request in the form that `windows` expects."""
        return example

    def training_examples(self, examples: Sequence[Example]) -> list[Example]:
        """The examples to train on: those of the file, or parts of them."""
        return list(examples)

    @abstractmethod
    def windows(self, example: Example, number: int) -> list[Window]:
        """The sequences of example `number`, at least one, by the length policy."""

    def model_config(self, config: "BertConfig") -> "BertConfig":
        """The config of the model that is trained, from that of the model to start from."""
        return config

    def start_weights(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """Weights of a new head that are copied from the model to start from."""
        return {}

    def pack(self, batch: Batch, windows: Sequence[Window]) -> Batch:
        """The windows' packed batch, with what else is needed on the device in a training step."""
        return batch

    def read_head(self, model: "BertModel", hidden_TD: Tensor, batch: Batch, windows: Sequence[Window]) -> Tensor:
        """The head's outputs for a batch from the encoder's, T D."""
        return model.read(self.head, hidden_TD, batch)

    def window_outputs(
        self, model: "BertModel", logits: Tensor, batch: Batch, windows: Sequence[Window]
    ) -> list[np.ndarray]:
        """What `decode` reads of each window: one row of a pooled head, or a row for each token."""
        logits = logits.cpu()
        parts = list(logits) if HEADS[self.head].pooled else list(batch.split(logits))
        return [part.numpy() for part in parts]

    def count_targets(self, windows: Sequence[Window]) -> int:
        """The number of targets in the loss of these windows: one for each example."""
        return len({window.example for window in windows})

    def loss(
        self, logits: Tensor, batch: Batch, windows: Sequence[Window], weights: LossSettings
    ) -> tuple[Tensor, Tensor]:
        """(sum of losses, number of targets); the division is over all batches of a step."""
        total = self.loss_sum(logits, batch, windows, weights)
        return total, torch.tensor(self.count_targets(windows), device=logits.device)

    @abstractmethod
    def loss_sum(self, logits: Tensor, batch: Batch, windows: Sequence[Window], weights: LossSettings) -> Tensor:
        """The sum of the losses of all targets."""

    @abstractmethod
    def fixed_targets(self, windows: Sequence[Window], size: FixedSize, weights: LossSettings) -> tuple[Tensor, ...]:
        """The tensors that `fixed_loss` reads; their shapes depend on `size` alone, for CUDA graphs."""

    def fixed_logits(self, model: "BertModel", batch: Batch, targets: Sequence[Tensor]) -> Tensor:
        """The head's outputs for a fixed batch; `targets` are those of `fixed_targets`."""
        return model.logits(batch, self.head)

    @abstractmethod
    def fixed_loss(self, logits: Tensor, batch: Batch, targets: Sequence[Tensor], smoothing: float) -> Tensor:
        """The same sum as `loss_sum`, from tensors alone."""

    def has_fixed_loss(self, weights: LossSettings) -> bool:
        """Whether `fixed_loss` equals `loss_sum` with these settings."""
        return True

    @abstractmethod
    def distillation_loss(
        self,
        teacher: "Task",
        logits: Tensor,
        target: Tensor,
        batch: Batch,
        windows: Sequence[Window],
        temperature: float,
    ) -> Tensor:
        """Sum over examples or words of the distance between logits and `target`, the logits of the teacher."""

    def decode(
        self, examples: Sequence[Example], windows: Sequence[Window], outputs: HeadOutputs, decision: Decision
    ) -> list[Prediction]:
        """A prediction for each example; outputs[i] are the head's outputs for windows[i]."""
        return [self.decode_one(*group, decision) for group in by_example(examples, windows, outputs)]

    @abstractmethod
    def decode_one(
        self, example: Example, windows: Sequence[Window], outputs: HeadOutputs, decision: Decision
    ) -> Prediction:
        """The prediction for one example from the outputs of its windows."""

    @abstractmethod
    def score(self, examples: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, float]:
        """All metrics by name."""

    def scorer(
        self, examples: Sequence[Example], predictions: Sequence[Prediction]
    ) -> Callable[[Sequence[int]], Mapping[str, float]]:
        """A function that scores the examples with some indices: for intervals, which score many selections."""
        return lambda chosen: self.score([examples[n] for n in chosen], [predictions[n] for n in chosen])

    def calibration_table(self, dev: Dataset, outputs: HeadOutputs) -> tuple[np.ndarray, np.ndarray] | None:
        """(logits, gold) as in `calibration`; None if the task has no probabilities to calibrate."""
        return None

    def fit_decision(self, dev: Dataset, outputs: HeadOutputs, abstain: float | None = None) -> FittedDecision:
        """The decision layer fitted on dev data: a temperature, if there are probabilities."""
        return calibrated_decision(self.calibration_table(dev, outputs))

    def class_weights(self, counts: Mapping[str, int], examples: int) -> tuple[float, ...]:
        """Weights by which rare labels count as much as frequent ones."""
        raise RequestError(f"class_weights=balanced goes with labels; '{self.name}' has none")

    def prior_bias(self, train: Dataset, weights: LossSettings) -> tuple[float, ...] | None:
        """The bias of a new head with the lowest loss for constant predictions; None: zero."""
        return None

    def constant_outputs(self, train: Dataset) -> tuple[float, ...] | None:
        """The head's outputs, the same for each window or token, of the best answer that ignores the text, or None."""
        return self.prior_bias(train, LossSettings())

    def answer_pairs(self, example: Example, prediction: Prediction, decision: Decision) -> list[tuple[str, str]]:
        """(gold, predicted) names, one pair for each label or word; empty if answers are not names."""
        return []

    def collapse_message(
        self, dev: Dataset, outputs: HeadOutputs, loss: float | None, predictions: Sequence[Prediction], min_gain: float
    ) -> str | None:
        """A message if the model improves on the loss of guessing by less than `min_gain` (relative), else None."""
        return label_collapse(self.calibration_table(dev, outputs), min_gain)

    @abstractmethod
    def mistake(self, example: Example, prediction: Prediction) -> Mistake | None:
        """The mistake of a prediction; None if it is correct."""

    def label_scores(self, dev: Dataset, predictions: Sequence[Prediction]) -> "dict[str, LabelScore]":
        """Precision and recall of each label, or of each span label; empty for tasks without labels."""
        return {}

    def explain(self, model: "BertModel", request: "Request", predict: Predict) -> "Target":
        """The output that an attribution explains: the requested one, or the predicted one."""
        raise RequestError(f"predictions of '{self.name}' are not explained; classify, tag and answer models are")


def task_class(row: TaskRow) -> type[Task]:
    """The implementation of a row."""
    module, name = row.implementation.split(":")
    implementation: type[Task] = getattr(import_module(module), name)
    return implementation


def by_example(
    examples: Sequence[Example], windows: Sequence[Window], outputs: HeadOutputs
) -> Iterator[tuple[Example, list[Window], list[np.ndarray]]]:
    """(example, its windows, their outputs) of each example; windows are in the order of the examples."""
    groups = groupby(zip(windows, outputs, strict=True), key=lambda pair: pair[0].example)
    for example, (_, group) in zip(examples, groups, strict=True):
        example_windows, example_outputs = zip(*group, strict=True)
        yield example, list(example_windows), list(example_outputs)
