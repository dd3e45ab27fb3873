"""Label names: their counts, order and weights."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from bertkit.data.examples import Example
from bertkit.errors import RequestError

NUMERIC_LABEL = re.compile(r"[-+]?\d+(\.\d+)?", re.ASCII)


def count_labels(examples: Iterable[Example]) -> dict[str, int]:
    """The number of occurrences of each label or tag."""
    return dict(Counter(name for example in examples for name in example.names))


def sorted_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """Labels sorted by name, numeric ones first and by value."""

    def sort_key(label: str) -> tuple[float, str]:
        return (float(label) if NUMERIC_LABEL.fullmatch(label) else math.inf), label

    return tuple(sorted(labels, key=sort_key))


def training_labels(examples: Iterable[Example], file: Path, min_labels: int) -> tuple[str, ...]:
    """The sorted labels of training data; fewer than `min_labels` are refused."""
    labels = sorted_labels(count_labels(examples))
    if not labels:
        raise RequestError(f"{file}: no example has a label; there is nothing to learn")
    if len(labels) < min_labels:
        raise RequestError(f"{file}: every example has the label '{labels[0]}'; at least two labels are needed")
    return labels


def balanced_weights(counts: Mapping[str, int], labels: Sequence[str]) -> tuple[float, ...]:
    """A weight for each label, inverse to its count; 1 on average over the data.

    >>> balanced_weights({"no": 3, "yes": 1}, ["no", "yes"])
    (0.6666666666666666, 2.0)
    """
    total = sum(counts.values())
    return tuple(total / (len(labels) * max(counts.get(label, 0), 1)) for label in labels)
