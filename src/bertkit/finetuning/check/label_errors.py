"""Labels that are likely wrong, by confident learning (Northcutt et al. 2021): where the model knows better."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit.errors import RequestError


@dataclass(frozen=True)
class LabelError:
    """An example whose given label is doubtful, the label it should perhaps have, and both probabilities."""

    example: int
    given: str
    suggested: str
    given_probability: float
    suggested_probability: float


def confident_labels(probabilities: NDArray[Any], given: NDArray[Any]) -> NDArray[np.int64]:
    """The label each example confidently belongs to, or -1.

    A label is confident where it is at least as probable as it is on average among the examples given that
    label; of several, the most probable. A label that no example carries is never confident.
    """
    counts = np.bincount(given, minlength=probabilities.shape[1])
    own = np.bincount(given, weights=probabilities[np.arange(len(given)), given], minlength=len(counts))
    least = np.where(counts > 0, own / np.maximum(counts, 1), np.inf)
    allowed = np.where(probabilities >= least, probabilities, -1.0)
    return np.where(allowed.max(axis=1) >= 0, allowed.argmax(axis=1), -1)


def confident_joint(probabilities: NDArray[Any], given: NDArray[Any]) -> NDArray[np.int64]:
    """Counts [given label, confident label]: off the diagonal, how often one label is taken for another."""
    probabilities, given = _checked(probabilities, given)
    found = confident_labels(probabilities, given)
    joint = np.zeros((probabilities.shape[1],) * 2, dtype=np.int64)
    np.add.at(joint, (given[found >= 0], found[found >= 0]), 1)
    return joint


def likely_label_errors(probabilities: NDArray[Any], given: NDArray[Any], labels: Sequence[str]) -> list[LabelError]:
    """Examples that confidently belong to another label than the given one, the surest first.

    Probabilities [examples, labels] must come from models that did not train on the example they judge
    (cross-validation): a model that has learned a wrong label by heart finds it right.
    """
    probabilities, given = _checked(probabilities, given)
    if len(labels) != probabilities.shape[1]:
        raise RequestError(f"{probabilities.shape[1]} probabilities an example for {len(labels)} labels")
    found = confident_labels(probabilities, given)
    doubtful = np.flatnonzero((found >= 0) & (found != given))
    margin = probabilities[doubtful, found[doubtful]] - probabilities[doubtful, given[doubtful]]
    return [
        _error(int(n), probabilities[n], int(given[n]), int(found[n]), labels)
        for n in doubtful[np.argsort(-margin, kind="stable")]
    ]


def _error(example: int, row: NDArray[Any], given: int, found: int, labels: Sequence[str]) -> LabelError:
    return LabelError(example, labels[given], labels[found], float(row[given]), float(row[found]))


def _checked(probabilities: NDArray[Any], given: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    values, numbers = np.asarray(probabilities, dtype=np.float64), np.asarray(given, dtype=np.int64)
    if values.ndim != 2 or numbers.shape != values.shape[:1]:
        raise RequestError(f"probabilities of shape {values.shape} do not go with labels of shape {numbers.shape}")
    if not np.isfinite(values).all():
        raise RequestError("a probability is not finite; look at the training loss")
    if not ((numbers >= 0) & (numbers < values.shape[1])).all():
        raise RequestError(f"a given label is not from 0 to {values.shape[1] - 1}; drop examples without a label")
    return values, numbers
