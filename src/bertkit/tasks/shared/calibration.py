"""Calibration of probabilities: reliability, its error, and the temperature that corrects it.

Logits come as [examples, labels]. Gold is one label's number for each example (softmax), or a matrix of yes and
no of the logits' shape where labels do not exclude each other (sigmoid: every pair is a prediction of its own).
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
BINS = 15  # equal widths, as Guo et al. 2017 report it
LEAST_GAIN = 0.01  # share of the loss of guessing that a model must save to have learned anything
LEAST_SPREAD = 0.05  # of predicted numbers, in standard deviations of the true ones
SCALES = 2.0 ** np.arange(-6, 7)  # of logits: a model that is too sure, or not sure enough, has learned something
NO_GAIN = "its loss on dev is no better than that of guessing"
_SMALLEST, _LARGEST = 0.05, 20.0  # temperatures beyond these are a broken model, not a miscalibrated one


@dataclass(frozen=True)
class ReliabilityBin:
    """Predictions whose confidence is over `low` and up to `high`: their count, mean confidence and accuracy."""

    low: float
    high: float
    count: int
    confidence: float
    accuracy: float


@dataclass(frozen=True)
class Calibration:
    """A temperature, and what it changes on the data it was fitted on: its gain elsewhere is for others to judge."""

    temperature: float
    error_before: float  # expected calibration error
    error_after: float
    loss_before: float  # mean negative log-likelihood
    loss_after: float
    note: str


def class_probabilities(logits: Array, temperature: float = 1.0) -> NDArray[np.float64]:
    """Softmax over the last axis, in float64."""
    probabilities: NDArray[np.float64] = softmax(np.asarray(logits, dtype=np.float64) / temperature, axis=-1)
    return probabilities


def label_probabilities(logits: Array, temperature: float = 1.0) -> NDArray[np.float64]:
    """A sigmoid for each label, in float64."""
    probabilities: NDArray[np.float64] = expit(np.asarray(logits, dtype=np.float64) / temperature)
    return probabilities


def confidences(probabilities: Array, gold: Array) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """(confidence, whether correct) of each prediction: the top label's, or with a matrix every label's yes."""
    probabilities, gold = np.asarray(probabilities, dtype=np.float64), np.asarray(gold)
    if gold.ndim == 2:
        return probabilities.ravel(), gold.astype(bool).ravel()
    return probabilities.max(axis=1), probabilities.argmax(axis=1) == gold


def reliability(confidence: Array, correct: Array, bins: int = BINS) -> list[ReliabilityBin]:
    """The bins that hold a prediction, from unsure to sure."""
    sure, hits = np.asarray(confidence, dtype=np.float64), np.asarray(correct, dtype=np.float64)
    if sure.shape != hits.shape or not sure.size or not ((sure >= 0) & (sure <= 1 + 1e-9)).all():
        raise RequestError(f"{sure.size} confidences for {hits.size} answers; give one from 0 to 1 for each")
    edges = np.linspace(0.0, 1.0, bins + 1)
    number = np.clip(np.searchsorted(edges, sure, side="left") - 1, 0, bins - 1)  # 0.0 belongs to the first
    counts = np.bincount(number, minlength=bins)
    sums = (np.bincount(number, weights=values, minlength=bins) for values in (sure, hits))
    mean_sure, mean_hits = (total / np.maximum(counts, 1) for total in sums)
    return [
        ReliabilityBin(float(edges[n]), float(edges[n + 1]), int(counts[n]), float(mean_sure[n]), float(mean_hits[n]))
        for n in np.flatnonzero(counts)
    ]


def expected_calibration_error(confidence: Array, correct: Array, bins: int = BINS) -> float:
    """The mean distance between confidence and accuracy, bin by bin: 0.0 is a perfectly calibrated model."""
    table = reliability(confidence, correct, bins)
    return sum(row.count * abs(row.confidence - row.accuracy) for row in table) / sum(row.count for row in table)


def brier(probabilities: Array, gold: Array) -> float:
    """Brier's score: squared distance from the truth, summed over exclusive labels, else averaged; mean over all."""
    probabilities, gold = np.asarray(probabilities, dtype=np.float64), np.asarray(gold)
    if gold.ndim == 2:
        return float(np.mean((probabilities - gold) ** 2))
    truth = np.eye(probabilities.shape[1])[gold]
    return float(((probabilities - truth) ** 2).sum(axis=1).mean())


def negative_log_likelihood(logits: Array, gold: Array, temperature: float = 1.0) -> float:
    """The mean over examples, or over all pairs of a matrix."""
    scaled, gold = np.asarray(logits, dtype=np.float64) / temperature, np.asarray(gold)
    if gold.ndim == 2:
        return -float(log_expit(np.where(gold, scaled, -scaled)).mean())
    return -float(log_softmax(scaled, axis=1)[np.arange(len(gold)), gold].mean())


def calibration_error(logits: Array, gold: Array, temperature: float = 1.0) -> float:
    """The expected calibration error of logits at a temperature."""
    probabilities = label_probabilities if np.ndim(gold) == 2 else class_probabilities
    return expected_calibration_error(*confidences(probabilities(logits, temperature), gold))


def fit_temperature(logits: Array, gold: Array) -> Calibration:
    """The temperature that makes the gold labels likeliest; 1.0 if that would make the calibration error worse.

    Its logarithm starts from a normal prior around 0 that weighs as much as one example or so: hundreds of
    examples overrule it, three that happen to be correct do not make the model certain of everything.
    """
    logits, gold = _checked(logits, gold)
    predictions = gold.size

    def regret(log_temperature: float) -> float:
        loss = negative_log_likelihood(logits, gold, float(np.exp(log_temperature)))
        return loss * predictions + log_temperature**2 / 2

    bounds = (np.log(_SMALLEST), np.log(_LARGEST))
    found = minimize_scalar(regret, bounds=bounds, method="bounded", options={"xatol": 1e-6})
    return _kept_if_better(logits, gold, float(np.exp(found.x)))


def likelihood_gain(logits: Array, gold: Array) -> float:
    """Which share of a constant guess's loss the logits save, at the best scale: 0 where they do not vary usefully.

    The guess is each label's share of gold; what the logits add to it is how they differ between examples.
    """
    shares = gold.mean(axis=0) if gold.ndim == 2 else np.bincount(gold, minlength=logits.shape[1]) / len(gold)
    shares = np.clip(shares, 1e-6, 1 - 1e-6)
    guess = np.log(shares / (1 - shares)) if gold.ndim == 2 else np.log(shares)
    varying = logits - logits.mean(axis=0)
    constant = negative_log_likelihood(np.broadcast_to(guess, logits.shape), gold)
    if constant < 1e-3:  # one answer for all is correct
        return 1.0
    return 1 - min(negative_log_likelihood(guess + scale * varying, gold) for scale in SCALES) / constant


def guesses_labels(table: tuple[Array, Array] | None, least: float) -> str | None:
    """A message if (logits, gold) save less than the share `least` of the loss of guessing."""
    return NO_GAIN if table is not None and likelihood_gain(*table) < least else None


def guesses_numbers(gold: Sequence[float], predicted: Sequence[float]) -> str | None:
    """A message if the predicted numbers hardly vary, or are unrelated to the true ones."""
    true, guessed = np.asarray(gold, dtype=np.float64), np.asarray(predicted, dtype=np.float64)
    if not true.std():
        return None
    explained = np.corrcoef(true, guessed)[0, 1] ** 2 if guessed.std() else 0.0
    if guessed.std() < LEAST_SPREAD * true.std() and explained < 10 * LEAST_GAIN:
        return f"its numbers on dev are all about {guessed.mean():.4g}"
    return "its numbers on dev are unrelated to the true ones" if explained < LEAST_GAIN else None


def _kept_if_better(logits: Array, gold: Array, temperature: float) -> Calibration:
    before, after = calibration_error(logits, gold), calibration_error(logits, gold, temperature)
    note = f"temperature {temperature:.3f}"
    if after > before:
        note = f"temperature stays 1.0: {temperature:.3f} would raise the calibration error {before:.4f} to {after:.4f}"
        temperature, after = 1.0, before
    unlikely, less = negative_log_likelihood(logits, gold), negative_log_likelihood(logits, gold, temperature)
    return Calibration(temperature, before, after, unlikely, less, note)


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
