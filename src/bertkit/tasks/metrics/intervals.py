"""95 % intervals of scores over a sample of examples: by bootstrap, and Wilson's where all resamples are equal."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence

import numpy as np

Z = 1.96  # standard deviations of a normal distribution that 95 % lie within
MAX_SCORED = 50_000  # examples in all resamples together: about half a second
MIN_RESAMPLES, MAX_RESAMPLES = 30, 200

SHARES = ("accuracy", "exact_match", "first", "first_5")  # metrics that are a share of the examples

Interval = tuple[float, float]


def wilson(share: float, count: int) -> Interval:
    """The interval of a share of `count` independent trials (Wilson 1927); it is right near 0 and 1, too."""
    center = (share + Z**2 / (2 * count)) / (1 + Z**2 / count)
    half = Z * math.sqrt(share * (1 - share) / count + Z**2 / (4 * count**2)) / (1 + Z**2 / count)
    return max(0.0, center - half), min(1.0, center + half)


def score_intervals(
    score: Callable[[Sequence[int]], Mapping[str, float]], count: int, scores: Mapping[str, float]
) -> dict[str, Interval]:
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
                lowest = 0.0 if name in SHARES else -math.inf
                intervals[name] = (max(lowest, value - half), min(highest, value + half))
        elif values and value in (0.0, 1.0) and name in SHARES:
            intervals[name] = wilson(value, count)
    return intervals


def format_interval(interval: Interval | None) -> str:
    """An interval as text, such as 0.874–0.911."""
    if interval is None:
        return "–"
    bounds = "–".join(f"{bound:.3f}" if abs(bound) < 10 else f"{bound:.4g}" for bound in interval)
    return bounds.replace("-", "−")
