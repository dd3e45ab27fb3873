"""Correlations of two lists of numbers; 0.0 if undefined, so that a metric can always be compared."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit.errors import RequestError

Numbers = Sequence[float] | NDArray[Any]


def pearson(gold: Numbers, predicted: Numbers) -> float:
    """Linear correlation, from -1 to 1; 0.0 if one side is constant."""
    from scipy.stats import pearsonr

    return _correlation(pearsonr, gold, predicted)


def spearman(gold: Numbers, predicted: Numbers) -> float:
    """Rank correlation, from -1 to 1; 0.0 if one side is constant."""
    from scipy.stats import spearmanr

    return _correlation(spearmanr, gold, predicted)


def check_lengths(gold: Sequence[Any] | NDArray[Any], predicted: Sequence[Any] | NDArray[Any]) -> None:
    """Refuse different numbers of predictions and examples, and empty lists."""
    if len(gold) != len(predicted) or not len(gold):
        raise RequestError(f"cannot score {len(predicted)} predictions for {len(gold)} examples; give one for each")


def finite(numbers: Numbers) -> NDArray[np.float64]:
    """The numbers as an array; NaN and infinity are refused."""
    values = np.asarray(numbers, dtype=np.float64)
    if not np.isfinite(values).all():
        raise RequestError("a number to be scored is not finite; look at the training loss")
    return values


def _correlation(measure: Callable[..., Any], gold: Numbers, predicted: Numbers) -> float:
    check_lengths(gold, predicted)
    sides = finite(gold), finite(predicted)
    if any((side == side[0]).all() for side in sides):
        return 0.0
    with warnings.catch_warnings():  # nearly constant predictions early in training
        warnings.simplefilter("ignore")
        return float(measure(*sides).statistic)
