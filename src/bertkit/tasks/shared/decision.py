"""The decision layer, from logits to predictions: temperature and thresholds, fitted on dev data, in bertkit.json."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit.errors import RequestError
from bertkit.tasks.metrics.correlation import finite
from bertkit.tasks.metrics.squad import best_squad_threshold
from bertkit.tasks.shared.calibration import (
    Array,
    Calibration,
    class_probabilities,
    fit_temperature,
    label_probabilities,
)

DEFAULT_THRESHOLD = 0.5  # of a label that no dev example has


@dataclass(frozen=True)
class Decision:
    """How logits become predictions. The defaults are those of a model without dev data: no scaling, no thresholds."""

    temperature: float = 1.0  # logits are divided by it
    thresholds: Mapping[str, float] = field(default_factory=dict)  # multilabel: lowest probability of a label
    no_answer: float | None = None  # a question whose no-answer score is over this is left unanswered
    abstain: float | None = None  # classify: no label is predicted below this probability

    def __post_init__(self) -> None:
        _require(_is_number(self.temperature) and self.temperature > 0, "temperature", self.temperature, "over 0")
        _require(isinstance(self.thresholds, Mapping), "thresholds", self.thresholds, "as a table by label")
        for label, value in self.thresholds.items():
            _require(_is_probability(value), f"thresholds of '{label}'", value, "from 0 to 1")
        _require(self.no_answer is None or _is_number(self.no_answer), "no_answer", self.no_answer, "or nothing")
        _require(
            self.abstain is None or _is_probability(self.abstain), "abstain", self.abstain, "from 0 to 1, or nothing"
        )

    def class_probabilities(self, logits: Array) -> NDArray[np.float64]:
        """Softmax over the last axis at this temperature, for mutually exclusive labels."""
        return class_probabilities(logits, self.temperature)

    def label_probabilities(self, logits: Array) -> NDArray[np.float64]:
        """Sigmoid of each logit at this temperature, for independent labels."""
        return label_probabilities(logits, self.temperature)

    def accepted(self, probabilities: Array, labels: Sequence[str]) -> NDArray[np.bool_]:
        """Which labels are predicted: probabilities [..., labels] against each label's threshold, 0.5 by default."""
        accepted: NDArray[np.bool_] = probabilities >= np.array(
            [self.thresholds.get(name, DEFAULT_THRESHOLD) for name in labels]
        )
        return accepted

    def is_confident(self, probability: float) -> bool:
        """Whether a class with this probability is predicted; otherwise the model abstains."""
        return self.abstain is None or probability >= self.abstain

    def is_unanswerable(self, no_answer_score: float) -> bool:
        """Whether a question with this no-answer score is left unanswered."""
        return self.no_answer is not None and no_answer_score > self.no_answer

    def to_json(self) -> dict[str, Any]:
        """The fields as plain numbers for bertkit.json."""
        return {
            "temperature": float(self.temperature),
            "thresholds": {label: float(value) for label, value in self.thresholds.items()},
            "no_answer": None if self.no_answer is None else float(self.no_answer),
            "abstain": None if self.abstain is None else float(self.abstain),
        }

    @classmethod
    def from_json(cls, data: object, file: object = "bertkit.json") -> "Decision":
        """The inverse of `to_json`; anything else is refused with the file's name."""
        names = [field.name for field in fields(cls)]
        if not isinstance(data, Mapping):
            raise RequestError(f"{file}: 'decision' is not a table; remove it, or restore the file")
        unknown = [str(name) for name in data if name not in names]
        if unknown:
            raise RequestError(f"{file}: unknown '{unknown[0]}' in 'decision'; it may hold: {', '.join(names)}")
        try:
            return cls(**data)
        except RequestError as error:
            raise RequestError(f"{file}: 'decision': {error}") from error


@dataclass(frozen=True)
class FittedDecision:
    """A decision, the fit of its temperature (None without probabilities), and notes for the user."""

    decision: Decision
    calibration: Calibration | None = None
    notes: tuple[str, ...] = ()


def calibrated_decision(table: tuple[Array, Array] | None) -> FittedDecision:
    """A decision with the temperature fitted to (logits, gold); the default decision if the table is None."""
    if table is None:
        return FittedDecision(Decision())
    calibration = fit_temperature(*table)
    return FittedDecision(Decision(temperature=calibration.temperature), calibration, (calibration.note,))


@dataclass(frozen=True)
class Coverage:
    """If only predictions from `probability` on are given: the fraction of predictions given, and their accuracy."""

    probability: float
    coverage: float
    accuracy: float


def fit_thresholds(probabilities: Array, gold: Array, labels: Sequence[str]) -> dict[str, float]:
    """Each label's threshold with the best F1, from [examples, labels]; 0.5 for a label that no example has."""
    values, truth = finite(probabilities), np.asarray(gold, dtype=bool)
    if values.ndim != 2 or values.shape != truth.shape or values.shape[1] != len(labels) or not len(values):
        raise RequestError(f"cannot fit {len(labels)} thresholds to {values.shape} numbers and {truth.shape} answers")
    return {label: _best_threshold(values[:, n], truth[:, n]) for n, label in enumerate(labels)}


def fit_no_answer(
    gold: Sequence[Sequence[str]], predicted: Sequence[str], no_answer_scores: Sequence[float]
) -> float | None:
    """The no-answer threshold with the best mean F1; None (always answer) if every question has an answer."""
    if all(gold):
        return None
    return best_squad_threshold(gold, predicted, no_answer_scores).threshold


def coverage_table(confidence: Array, correct: Array) -> list[Coverage]:
    """A row for every distinct probability, from the most confident prediction alone to all of them."""
    probabilities, hits = finite(confidence), np.asarray(correct, dtype=bool)
    if probabilities.shape != hits.shape or not hits.size:
        raise RequestError(
            f"{probabilities.size} confidences for {hits.size} answers; give one for each, and one at least"
        )
    order = np.argsort(-probabilities, kind="stable")
    ranked = probabilities[order]
    last = np.flatnonzero(np.append(np.diff(ranked) != 0, True))  # the last of equal probabilities
    answered, hits_so_far = last + 1, np.cumsum(hits[order])[last]
    rows = zip(ranked[last], answered / len(hits), hits_so_far / answered, strict=True)
    return [Coverage(*map(float, row)) for row in rows]


def fit_abstain(confidence: Array, correct: Array, accuracy: float) -> float | None:
    """The lowest probability from which on predictions reach this accuracy; None if there is none."""
    enough = [row.probability for row in coverage_table(confidence, correct) if row.accuracy >= accuracy]
    return enough[-1] if enough else None


def _best_threshold(values: NDArray[np.float64], truth: NDArray[np.bool_]) -> float:
    """The threshold with the best F1, halfway between two scores; of several, the one nearest to 0.5."""
    if not truth.any():
        return DEFAULT_THRESHOLD
    order = np.argsort(-values, kind="stable")
    ranked = values[order]
    last = np.flatnonzero(np.append(np.diff(ranked) != 0, True))
    f1 = 2 * np.cumsum(truth[order])[last] / (last + 1 + truth.sum())
    accepted, rejected = ranked[last], np.append(ranked[last][1:], 0.0)
    halfway = (accepted + rejected) / 2
    # Between neighboring floats there is no number halfway.
    thresholds = np.where((halfway > rejected) & (halfway <= accepted), halfway, accepted)
    best = thresholds[f1 == f1.max()]
    return float(best[np.argmin(np.abs(best - DEFAULT_THRESHOLD))])


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.floating) and not isinstance(value, bool) and math.isfinite(value)


def _is_probability(value: Any) -> bool:
    return _is_number(value) and 0 <= value <= 1


def _require(condition: bool, name: str, value: object, rule: str) -> None:
    if not condition:
        raise RequestError(f"{name}={value!r} must be a number {rule}")
