"""Which examples are in a step: the order of an epoch is a pure function of seed and epoch.

A step consists of short runs of examples of about equal length, so that attention computes rectangles without padding.
It has runs of all lengths: in steps of one length, words counted more or less than in others, and texts of one kind
(headlines, results of matches) came together, which cost F1 on CoNLL-2003 (docs/LOG.md).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

STEPS_PER_CHUNK = 50  # shuffled examples are sorted by length in chunks of this many steps
RUN_LENGTH = 4  # examples of about equal length that stay together


@dataclass(frozen=True)
class EpochPlan:
    """Steps of `batch` examples; the last step of an epoch may be smaller."""

    lengths: tuple[int, ...]  # tokens in all windows of each example
    batch: int
    seed: int
    tokens: int = 16_384  # at most in one forward pass; a larger step is split
    _cache: dict[int, list[list[int]]] = field(default_factory=dict, compare=False, repr=False)  # the current epoch

    @property
    def steps(self) -> int:
        """The number of steps in an epoch."""
        return -(-len(self.lengths) // self.batch)

    def step(self, number: int) -> list[int]:
        """The indices of the examples of step `number`, counted over all epochs; longest first."""
        epoch, index = divmod(number, self.steps)
        if epoch not in self._cache:
            self._cache.clear()
            self._cache[epoch] = self.epoch(epoch)
        return self._cache[epoch][index]

    def epoch(self, number: int) -> list[list[int]]:
        """The steps of an epoch."""
        return epoch_steps(self.lengths, self.batch, self.seed, number)

    def parts(self, number: int) -> list[list[int]]:
        """The examples of step `number`, split into forward passes."""
        examples = self.step(number)
        parts = within_budget([self.lengths[example] for example in examples], self.tokens)
        return [[examples[i] for i in part] for part in parts]


def epoch_steps(lengths: Sequence[int], batch: int, seed: int, epoch: int) -> list[list[int]]:
    """Every example once: shuffled, sorted by length within chunks, split into runs; the shuffled runs make steps."""
    generator = np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, 0, epoch]))
    order = generator.permutation(len(lengths))
    length = np.array(lengths)
    chunk, run = STEPS_PER_CHUNK * batch, min(RUN_LENGTH, max(1, batch // 2))
    steps = []
    for start in range(0, len(order), chunk):
        examples = order[start : start + chunk]
        examples = examples[np.argsort(-length[examples], kind="stable")]
        runs = [examples[i : i + run] for i in range(0, len(examples), run)]
        mixed = np.concatenate([runs[index] for index in generator.permutation(len(runs))])
        steps += [mixed[i : i + batch] for i in range(0, len(mixed), batch)]
    return [step[np.argsort(-length[step], kind="stable")].tolist() for step in steps]


def within_budget(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Indices of consecutive items in groups of at most `budget` tokens; a single item may exceed it."""
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
