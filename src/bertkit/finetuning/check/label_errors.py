"""Labels that are probably wrong, by confident learning (Northcutt et al. 2021)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit.errors import RequestError


@dataclass(frozen=True)
class LabelError:
    """An example whose given label is probably wrong, a suggested label, and the probabilities of both."""

    example: int
    given: str
    suggested: str
    given_probability: float
    suggested_probability: float


def confident_labels(probabilities: NDArray[Any], given: NDArray[Any]) -> NDArray[np.int64]:
    """The confident label id of each example, or -1.

    A label is confident if its probability is at least its mean probability over the examples with this given label;
    of several, the most probable one. A label that no example has is never confident.
    """
    counts = np.bincount(given, minlength=probabilities.shape[1])
    sums = np.bincount(given, weights=probabilities[np.arange(len(given)), given], minlength=len(counts))
    thresholds = np.where(counts > 0, sums / np.maximum(counts, 1), np.inf)
    candidates = np.where(probabilities >= thresholds, probabilities, -1.0)
    return np.where(candidates.max(axis=1) >= 0, candidates.argmax(axis=1), -1)


def confident_joint(probabilities: NDArray[Any], given: NDArray[Any]) -> NDArray[np.int64]:
    """Counts [given label, confident label]; off the diagonal are probable label errors."""
    probabilities, given = _checked(probabilities, given)
    confident = confident_labels(probabilities, given)
    joint = np.zeros((probabilities.shape[1],) * 2, dtype=np.int64)
    np.add.at(joint, (given[confident >= 0], confident[confident >= 0]), 1)
    return joint


def likely_label_errors(probabilities: NDArray[Any], given: NDArray[Any], labels: Sequence[str]) -> list[LabelError]:
    """Examples whose confident label is not the given one, by decreasing difference of the probabilities.

    Probabilities [examples, labels] must be out of sample (cross-validation): a model that was trained on a wrong label
    may predict it.
    """
    probabilities, given = _checked(probabilities, given)
    if len(labels) != probabilities.shape[1]:
        raise RequestError(f"{probabilities.shape[1]} probabilities per example for {len(labels)} labels")
    confident = confident_labels(probabilities, given)
    doubtful = np.flatnonzero((confident >= 0) & (confident != given))
    margin = probabilities[doubtful, confident[doubtful]] - probabilities[doubtful, given[doubtful]]
    return [
        _error(int(n), probabilities[n], int(given[n]), int(confident[n]), labels)
        for n in doubtful[np.argsort(-margin, kind="stable")]
    ]


def _error(example: int, row: NDArray[Any], given: int, suggested: int, labels: Sequence[str]) -> LabelError:
    return LabelError(example, labels[given], labels[suggested], float(row[given]), float(row[suggested]))


def _checked(probabilities: NDArray[Any], given: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    values, labels = np.asarray(probabilities, dtype=np.float64), np.asarray(given, dtype=np.int64)
    if values.ndim != 2 or labels.shape != values.shape[:1]:
        raise RequestError(f"probabilities of shape {values.shape} do not go with labels of shape {labels.shape}")
    if not np.isfinite(values).all():
        raise RequestError("a probability is not finite; look at the training loss")
    if not ((labels >= 0) & (labels < values.shape[1])).all():
        raise RequestError(f"a given label is not from 0 to {values.shape[1] - 1}; drop examples without a label")
    return values, labels
