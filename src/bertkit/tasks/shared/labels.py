"""Names of labels: how often each occurs, in which order they stand, how they are weighted."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from bertkit.data.examples import Example
from bertkit.errors import RequestError

NUMBER = re.compile(r"[-+]?\d+(\.\d+)?", re.ASCII)


def labels_of(examples: Iterable[Example]) -> dict[str, int]:
    """How often each label, or each tag, was given."""
    return dict(Counter(name for example in examples for name in example.names))


def sorted_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """By name; numbers by their value."""
    return tuple(sorted(labels, key=lambda label: (float(label) if NUMBER.fullmatch(label) else math.inf, label)))


def learned_labels(examples: Iterable[Example], file: Path, least: int) -> tuple[str, ...]:
    """The labels of training data, in order; refused where there are too few to learn from."""
    labels = sorted_labels(labels_of(examples))
    if not labels:
        raise RequestError(f"{file}: no example has a label; there is nothing to learn")
    if len(labels) < least:
        raise RequestError(f"{file}: every example has the label '{labels[0]}'; at least two labels are needed")
    return labels


def balanced_weights(counts: Mapping[str, int], labels: Sequence[str]) -> tuple[float, ...]:
    """A weight for each label so that all together weigh the same; 1 on average over the data.

    >>> balanced_weights({"no": 3, "yes": 1}, ["no", "yes"])
    (0.6666666666666666, 2.0)
    """
    total = sum(counts.values())
    return tuple(total / (len(labels) * max(counts.get(label, 0), 1)) for label in labels)
