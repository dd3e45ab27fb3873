"""Calibration of probabilities: reliability bins, calibration error, temperature scaling; and checks for collapse.

Logits are [examples, labels]. Gold is the label id of each example (softmax), or a boolean matrix of the logits' shape
if an example may have several labels (sigmoid; each entry counts as one prediction).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import expit, log_expit, log_softmax, softmax

from bertkit.errors import RequestError

Array = NDArray[Any]
CALIBRATION_BINS = 15  # of equal width, as in Guo et al. 2017
MIN_GAIN = 0.01  # relative improvement over the loss of guessing below which a model has learned nothing
MIN_SPREAD = 0.05  # standard deviation of predicted numbers, relative to that of the true ones
LOGIT_SCALES = 2.0 ** np.arange(-6, 7)  # tried on logits: an over- or underconfident model has learned something
NO_GAIN_MESSAGE = "its loss on dev is no better than that of guessing"
_MIN_TEMPERATURE, _MAX_TEMPERATURE = 0.05, 20.0  # beyond these a model is broken, not miscalibrated


@dataclass(frozen=True)
class ReliabilityBin:
    """Predictions with a confidence in (low, high]: their count, mean confidence and accuracy."""

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float


@dataclass(frozen=True)
class Calibration:
    """A fitted temperature, with calibration error and loss before and after it on the data of the fit."""

    temperature: float
    error_before: float  # expected calibration error
    error_after: float
    loss_before: float  # mean negative log-likelihood
    loss_after: float
    note: str


def class_probabilities(logits: Array, temperature: float = 1.0) -> NDArray[np.float64]:
    """Softmax over the last axis of logits / temperature, in float64."""
    probabilities: NDArray[np.float64] = softmax(np.asarray(logits, dtype=np.float64) / temperature, axis=-1)
    return probabilities


def label_probabilities(logits: Array, temperature: float = 1.0) -> NDArray[np.float64]:
    """Sigmoid of logits / temperature, in float64."""
    probabilities: NDArray[np.float64] = expit(np.asarray(logits, dtype=np.float64) / temperature)
    return probabilities


def confidences(probabilities: Array, gold: Array) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """(confidence, whether correct) of each prediction: of the top label, or of every entry if gold is a matrix."""
    probabilities, gold = np.asarray(probabilities, dtype=np.float64), np.asarray(gold)
    if gold.ndim == 2:
        return probabilities.ravel(), gold.astype(bool).ravel()
    return probabilities.max(axis=1), probabilities.argmax(axis=1) == gold


def reliability(confidence: Array, correct: Array, bins: int = CALIBRATION_BINS) -> list[ReliabilityBin]:
    """The bins that are not empty, by increasing confidence."""
    confidence, hits = np.asarray(confidence, dtype=np.float64), np.asarray(correct, dtype=np.float64)
    in_range = ((confidence >= 0) & (confidence <= 1 + 1e-9)).all()
    if confidence.shape != hits.shape or not confidence.size or not in_range:
        raise RequestError(f"{confidence.size} confidences for {hits.size} answers; give one from 0 to 1 for each")
    edges = np.linspace(0.0, 1.0, bins + 1)
    index = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, bins - 1)  # 0.0 is in the first bin
    counts = np.bincount(index, minlength=bins)
    sums = (np.bincount(index, weights=values, minlength=bins) for values in (confidence, hits))
    means, accuracies = (total / np.maximum(counts, 1) for total in sums)
    return [
        ReliabilityBin(float(edges[n]), float(edges[n + 1]), int(counts[n]), float(means[n]), float(accuracies[n]))
        for n in np.flatnonzero(counts)
    ]


def expected_calibration_error(confidence: Array, correct: Array, bins: int = CALIBRATION_BINS) -> float:
    """The mean of |confidence - accuracy| over bins, weighted by their counts; 0.0 for a perfectly calibrated model."""
    table = reliability(confidence, correct, bins)
    return sum(row.count * abs(row.confidence - row.accuracy) for row in table) / sum(row.count for row in table)


def negative_log_likelihood(logits: Array, gold: Array, temperature: float = 1.0) -> float:
    """The mean over examples, or over the entries if gold is a matrix."""
    scaled, gold = np.asarray(logits, dtype=np.float64) / temperature, np.asarray(gold)
    if gold.ndim == 2:
        return -float(log_expit(np.where(gold, scaled, -scaled)).mean())
    return -float(log_softmax(scaled, axis=1)[np.arange(len(gold)), gold].mean())


def calibration_error(logits: Array, gold: Array, temperature: float = 1.0) -> float:
    """The expected calibration error of the probabilities of logits at a temperature."""
    probabilities = label_probabilities if np.ndim(gold) == 2 else class_probabilities
    return expected_calibration_error(*confidences(probabilities(logits, temperature), gold))


def fit_temperature(logits: Array, gold: Array) -> Calibration:
    """The temperature with the lowest negative log-likelihood; 1.0 if it would increase the calibration error.

    log(temperature) has a standard normal prior, which weighs about as much as one example: it does not matter for
    hundreds of examples, and keeps three correct ones from making the model certain of everything.
    """
    logits, gold = _checked(logits, gold)
    predictions = gold.size

    def penalized_loss(log_temperature: float) -> float:
        loss = negative_log_likelihood(logits, gold, float(np.exp(log_temperature)))
        return loss * predictions + log_temperature**2 / 2

    bounds = (np.log(_MIN_TEMPERATURE), np.log(_MAX_TEMPERATURE))
    minimum = minimize_scalar(penalized_loss, bounds=bounds, method="bounded", options={"xatol": 1e-6})
    return _unless_worse(logits, gold, float(np.exp(minimum.x)))


def likelihood_gain(logits: Array, gold: Array) -> float:
    """The relative improvement of the logits' loss, at the best scale, over a constant guess; 0 if there is none.

    The guess is the frequency of each label; added to it is how the logits differ between examples.
    """
    frequency = gold.mean(axis=0) if gold.ndim == 2 else np.bincount(gold, minlength=logits.shape[1]) / len(gold)
    frequency = np.clip(frequency, 1e-6, 1 - 1e-6)
    guess = np.log(frequency / (1 - frequency)) if gold.ndim == 2 else np.log(frequency)
    varying = logits - logits.mean(axis=0)
    guess_loss = negative_log_likelihood(np.broadcast_to(guess, logits.shape), gold)
    if guess_loss < 1e-3:  # a constant answer is correct
        return 1.0
    return 1 - min(negative_log_likelihood(guess + scale * varying, gold) for scale in LOGIT_SCALES) / guess_loss


def label_collapse(table: tuple[Array, Array] | None, min_gain: float) -> str | None:
    """A message if (logits, gold) improve on the loss of guessing by less than `min_gain`, relative to it."""
    return NO_GAIN_MESSAGE if table is not None and likelihood_gain(*table) < min_gain else None


def number_collapse(gold: Sequence[float], predicted: Sequence[float]) -> str | None:
    """A message if the predicted numbers hardly vary, or do not correlate with the true ones."""
    true, guessed = np.asarray(gold, dtype=np.float64), np.asarray(predicted, dtype=np.float64)
    if not true.std():
        return None
    explained = np.corrcoef(true, guessed)[0, 1] ** 2 if guessed.std() else 0.0
    if guessed.std() < MIN_SPREAD * true.std() and explained < 10 * MIN_GAIN:
        return f"its numbers on dev are all about {guessed.mean():.4g}"
    return "its numbers on dev are unrelated to the true ones" if explained < MIN_GAIN else None


def _unless_worse(logits: Array, gold: Array, temperature: float) -> Calibration:
    before, after = calibration_error(logits, gold), calibration_error(logits, gold, temperature)
    note = f"probabilities calibrated on dev (temperature {temperature:.3f}, by which logits are divided)"
    if after > before:
        change = f"temperature {temperature:.3f} would raise the calibration error from {before:.4f} to {after:.4f}"
        note = f"probabilities left as they are (temperature 1.0): {change}"
        temperature, after = 1.0, before
    loss_before, loss_after = (negative_log_likelihood(logits, gold, value) for value in (1.0, temperature))
    return Calibration(temperature, before, after, loss_before, loss_after, note)


def _checked(logits: Array, gold: Array) -> tuple[Array, Array]:
    logits, gold = np.asarray(logits, dtype=np.float64), np.asarray(gold)
    if logits.ndim != 2 or not logits.size or gold.shape not in (logits.shape, logits.shape[:1]):
        raise RequestError(f"cannot calibrate logits of shape {logits.shape} on gold of shape {gold.shape}")
    if not np.isfinite(logits).all():
        raise RequestError("a logit of the dev data is not finite; look at the training loss")
    if gold.ndim == 2:
        return logits, gold.astype(bool)
    if not ((gold >= 0) & (gold < logits.shape[1])).all():
        raise RequestError(f"a gold label is not from 0 to {logits.shape[1] - 1}; drop examples without a label first")
    return logits, gold.astype(np.int64)
