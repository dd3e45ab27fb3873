"""How far two rows of numbers go together; 0.0 where that is not defined, so that it can always be compared."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit.errors import RequestError

Numbers = Sequence[float] | NDArray[Any]


def pearson(gold: Numbers, predicted: Numbers) -> float:
    """How far the numbers lie on a line, from -1 to 1; 0.0 if one side is constant, which predicts nothing."""
    check_lengths(gold, predicted)
    first, second = _unit(finite(gold)), _unit(finite(predicted))
    return float(np.clip(first @ second, -1.0, 1.0))


def spearman(gold: Numbers, predicted: Numbers) -> float:
    """How far the numbers agree in order, from -1 to 1: Pearson's correlation of the ranks."""
    return pearson(ranks(gold), ranks(predicted))


def ranks(numbers: Numbers) -> NDArray[np.float64]:
    """The place of each number in order, from 1; equal numbers share their mean place."""
    _, where, counts = np.unique(finite(numbers), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    places: NDArray[np.float64] = (last - (counts - 1) / 2)[where]
    return places


def check_lengths(gold: Sequence[Any] | NDArray[Any], predicted: Sequence[Any] | NDArray[Any]) -> None:
    """One prediction for each example, and one example at least."""
    if len(gold) != len(predicted) or not len(gold):
        raise RequestError(f"cannot score {len(predicted)} predictions for {len(gold)} examples; give one for each")


def finite(numbers: Numbers) -> NDArray[np.float64]:
    """The numbers as an array; one that is not finite is refused."""
    values = np.asarray(numbers, dtype=np.float64)
    if not np.isfinite(values).all():
        raise RequestError("a number to be scored is not finite; look at the training loss")
    return values


def _unit(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Centered and of length 1; all zero if the values are all the same."""
    if values.size == 0 or (values == values[0]).all():
        return np.zeros_like(values)
    centered = values - values.mean()
    centered /= np.abs(centered).max() or 1.0  # squares of the largest and smallest numbers stay numbers
    unit: NDArray[np.float64] = centered / (np.linalg.norm(centered) or 1.0)
    return unit
