"""Which examples go together: the order of an epoch is a pure function of seed and epoch.

A step is a few runs of examples of about equal length, so that attention runs over rectangles without padding. Runs of
all lengths meet in a step: where one length made a whole step, its words counted for more or less than others, and
texts of one kind (headlines, results of matches) came together. That cost F1 in CoNLL-2003 (docs/LOG.md).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

STEPS_PER_CHUNK = 50  # so many steps' worth of shuffled examples are sorted by length together
RUN = 4  # so many of about equal length stay together


@dataclass(frozen=True)
class EpochPlan:
    """Steps of `batch` examples over examples of given lengths; the last step of an epoch may be smaller."""

    lengths: tuple[int, ...]  # tokens of each example, all its windows together
    batch: int
    seed: int
    tokens: int = 16_384  # in one forward pass, at most; a larger step is split
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

    def parts(self, number: int) -> list[list[int]]:
        """The examples of step `number` in parts, each for one forward pass."""
        chosen = self.step(number)
        parts = within_budget([self.lengths[example] for example in chosen], self.tokens)
        return [[chosen[i] for i in part] for part in parts]


def epoch_steps(lengths: Sequence[int], batch: int, seed: int, epoch: int) -> list[list[int]]:
    """Every example once: shuffled, sorted by length within chunks, cut into runs, and the runs shuffled into steps."""
    draw = np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, 0, epoch]))
    order = draw.permutation(len(lengths))
    known = np.array(lengths)
    chunk, run = STEPS_PER_CHUNK * batch, min(RUN, max(1, batch // 2))
    steps = []
    for start in range(0, len(order), chunk):
        part = order[start : start + chunk]
        part = part[np.argsort(-known[part], kind="stable")]
        runs = [part[at : at + run] for at in range(0, len(part), run)]
        mixed = np.concatenate([runs[index] for index in draw.permutation(len(runs))])
        steps += [mixed[at : at + batch] for at in range(0, len(mixed), batch)]
    return [step[np.argsort(-known[step], kind="stable")].tolist() for step in steps]


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
