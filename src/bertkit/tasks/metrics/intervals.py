"""95 % intervals of scores over a sample of examples: by bootstrap, and Wilson's where all resamples are equal.

Two models that were scored on the same examples are compared on the same resamples (paired bootstrap).
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bertkit.tasks.metrics.ranking import RANKING_METRICS

Z = 1.96  # standard deviations of a normal distribution that 95 % lie within
MAX_SCORED = 50_000  # examples in all resamples together: about half a second
MIN_RESAMPLES, MAX_RESAMPLES = 30, 200
MAX_PAIRED = 500_000  # the same for a comparison, whose tails count: they need more resamples
MIN_PAIRED, MAX_PAIRED_RESAMPLES = 200, 1_000

SHARES = ("accuracy", "exact_match", "first", "first_5")  # metrics that are a share of the examples

NEVER_NEGATIVE = (*SHARES, *RANKING_METRICS, "v_measure")

Interval = tuple[float, float]
Score = Callable[[Sequence[int]], Mapping[str, float]]  # the metrics of the examples with these indices


def wilson(share: float, count: int) -> Interval:
    """The interval of a share of `count` independent trials (Wilson 1927); it is right near 0 and 1, too."""
    center = (share + Z**2 / (2 * count)) / (1 + Z**2 / count)
    half = Z * math.sqrt(share * (1 - share) / count + Z**2 / (4 * count**2)) / (1 + Z**2 / count)
    return max(0.0, center - half), min(1.0, center + half)


def score_intervals(score: Score, count: int, scores: Mapping[str, float]) -> dict[str, Interval]:
    """Metric -> interval around `scores`, whose metrics `score` computes for the examples with these indices.

    The standard error is that of resamples of all `count` examples. Shares whose resamples are all equal, such as an
    accuracy of 1.0, get Wilson's interval; other metrics none.
    """
    draws = np.random.Generator(np.random.Philox(key=0))
    number = min(max(MAX_SCORED // count, MIN_RESAMPLES), MAX_RESAMPLES)
    with warnings.catch_warnings():  # of resamples that have one label only
        warnings.simplefilter("ignore")
        rows = [score(draws.integers(count, size=count).tolist()) for _ in range(number)]
    intervals = {}
    for name, value in scores.items():
        values = [row[name] for row in rows if math.isfinite(row.get(name, math.nan))]
        with np.errstate(over="ignore"):
            half = Z * float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
        if half > 1e-9:  # equal values differ by rounding
            highest = 1.0 if value <= 1.0 else math.inf
            if math.isfinite(half - value) and math.isfinite(half + value):
                lowest = 0.0 if name in NEVER_NEGATIVE else -math.inf
                intervals[name] = (max(lowest, value - half), min(highest, value + half))
        elif values and value in (0.0, 1.0) and name in SHARES:
            intervals[name] = wilson(value, count)
    return intervals


@dataclass(frozen=True)
class PairedTest:
    """The difference of a metric between two models, from resamples of the examples that both were scored on."""

    interval: Interval  # 95 %: between the percentiles 2.5 and 97.5 of the differences
    p_value: float  # two-sided: twice the share of resamples in which the difference has the other sign, or is 0
    resamples: int


def paired_test(one: Score, other: Score, metric: str, count: int) -> PairedTest:
    """Compare two models by paired bootstrap (Koehn 2004): in each resample both are scored on the same examples.

    The p-value is never below 2 / (resamples + 1). Resamples in which the metric is not defined are left out.
    """
    draws = np.random.Generator(np.random.Philox(key=1))
    number = min(max(MAX_PAIRED // count, MIN_PAIRED), MAX_PAIRED_RESAMPLES)
    with warnings.catch_warnings():  # of resamples that have one label only
        warnings.simplefilter("ignore")
        drawn = [draws.integers(count, size=count).tolist() for _ in range(number)]
        differences = np.array([one(picked)[metric] - other(picked)[metric] for picked in drawn])
    differences = differences[np.isfinite(differences)]
    if not len(differences):
        return PairedTest((math.nan, math.nan), math.nan, 0)
    low, high = np.quantile(differences, (0.025, 0.975)).tolist()
    tail = min(int((differences <= 0).sum()), int((differences >= 0).sum()))
    return PairedTest((low, high), min(1.0, 2 * (tail + 1) / (len(differences) + 1)), len(differences))


def format_interval(interval: Interval | None) -> str:
    """An interval as text, such as 0.874–0.911."""
    if interval is None:
        return "–"
    bounds = "–".join(f"{bound:.3f}" if abs(bound) < 10 else f"{bound:.4g}" for bound in interval)
    return bounds.replace("-", "−")
