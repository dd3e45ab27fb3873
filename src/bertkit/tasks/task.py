"""What a task is: examples to windows, logits to a loss, outputs to predictions, predictions to a score.

Training, evaluation and prediction call the same `windows` and `decode`, so what is measured is what is served.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from torch import Tensor

from bertkit.model.batch import Batch

if TYPE_CHECKING:
    from bertkit.data.examples import Example
    from bertkit.tasks.decision import Decision


@dataclass(frozen=True)
class Window:
    """One sequence that goes through the model, [CLS] and [SEP] in place."""

    ids: tuple[int, ...]
    segments: tuple[int, ...]
    example: int  # number of the example it belongs to
    target: Any  # what the loss asks of it, in the task's own form; None when unlabelled
    detail: Any = None  # what decoding needs: word starts, character offsets, how much was cut


@dataclass(frozen=True, kw_only=True)
class LossSettings:
    """How wrong answers are weighed."""

    label_smoothing: float = 0.0  # this share of a label's weight is spread over all labels
    class_weights: tuple[float, ...] | None = None  # for each label, 1 on average over the training data


# A frozen dataclass of the task's own: Classified, Labelled, Rated, Tagged, Answered, Chosen.
Prediction = Any


class Task(Protocol):
    """One kind of question to the model. All windows of an example always travel in one batch."""

    @property
    def name(self) -> str:
        """One of examples.TASKS."""

    @property
    def head(self) -> str:
        """A key of model.heads.HEAD_OUTPUTS."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Names in the order of the head's outputs; empty where there are none."""

    @property
    def outputs(self) -> int | None:
        """How many numbers the head gives."""

    @property
    def main(self) -> str:
        """The metric of `score` that is watched."""

    def windows(self, example: "Example", number: int) -> list[Window]:
        """The sequences of an example, at least one; the length policy is applied here."""

    def targets(self, windows: Sequence[Window]) -> int:
        """How many answers the loss asks of these windows: the count that `loss` gives, known before the forward."""

    def loss(
        self, logits: Tensor, batch: Batch, windows: Sequence[Window], weights: LossSettings
    ) -> tuple[Tensor, Tensor]:
        """(sum of losses, how many): divided once, over everything in a step."""

    def decode(
        self,
        examples: Sequence["Example"],
        windows: Sequence[Window],
        outputs: Sequence[np.ndarray],
        decision: "Decision",
    ) -> list[Prediction]:
        """A prediction for each example; outputs[i] are the head's numbers for windows[i]."""

    def score(self, examples: Sequence["Example"], predictions: Sequence[Prediction]) -> dict[str, float]:
        """All metrics by name."""


def by_example(
    examples: Sequence["Example"], windows: Sequence[Window], outputs: Sequence[np.ndarray]
) -> Iterator[tuple["Example", list[Window], list[np.ndarray]]]:
    """Each example with its windows and what the head gave for them; windows stand in the order of the examples."""
    runs = groupby(zip(windows, outputs, strict=True), key=lambda pair: pair[0].example)
    for example, (_, run) in zip(examples, runs, strict=True):
        own, rows = zip(*run, strict=True)
        yield example, list(own), list(rows)
