"""Which examples go together: the order of an epoch is a pure function of seed and epoch.

Examples of about equal length share a step, so that attention runs over rectangles without padding; steps of all
lengths follow each other at random.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

STEPS_PER_CHUNK = 50  # so many steps' worth of shuffled examples are sorted by length together


@dataclass(frozen=True)
class EpochPlan:
    """Steps of `batch` examples over examples of given lengths; the last step of an epoch may be smaller."""

    lengths: tuple[int, ...]  # tokens of each example, all its windows together
    batch: int
    seed: int
    _made: dict[int, list[list[int]]] = field(default_factory=dict, compare=False, repr=False)  # the epoch in hand

    @property
    def steps(self) -> int:
        """Steps in an epoch."""
        return -(-len(self.lengths) // self.batch)

    def step(self, number: int) -> list[int]:
        """The examples of step `number`, counted over all epochs; longest first."""
        epoch, index = divmod(number, self.steps)
        if epoch not in self._made:
            self._made.clear()
            self._made[epoch] = epoch_steps(self.lengths, self.batch, self.seed, epoch)
        return self._made[epoch][index]


def epoch_steps(lengths: Sequence[int], batch: int, seed: int, epoch: int) -> list[list[int]]:
    """Every example once: shuffled, sorted by length within chunks, cut into steps, and the steps shuffled."""
    draw = np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, 0, epoch]))
    order = draw.permutation(len(lengths))
    known = np.array(lengths)
    chunk = STEPS_PER_CHUNK * batch
    steps = []
    for start in range(0, len(order), chunk):
        part = order[start : start + chunk]
        part = part[np.argsort(-known[part], kind="stable")]
        steps += [part[at : at + batch].tolist() for at in range(0, len(part), batch)]
    return [steps[index] for index in draw.permutation(len(steps))]


def within_budget(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Neighbors in parts of at most `budget` tokens together; a single one may be over it."""
    part: list[int] = []
    tokens = 0
    for index, length in enumerate(lengths):
        if part and tokens + length > budget:
            yield part
            part, tokens = [], 0
        part.append(index)
        tokens += length
    if part:
        yield part
