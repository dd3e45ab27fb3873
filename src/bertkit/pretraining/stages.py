"""Warm-up of batch and length: a run that passes through other batches and lengths before it reaches its own.

Which stage a step belongs to follows from the steps that stages began with, and these are saved with the progress: so a
run that is resumed makes the examples of one that was not, also where the clock decides.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bertkit.errors import RequestError
from bertkit.pretraining.examples.batches import DataSettings, ExampleSource
from bertkit.pretraining.examples.spans import Corpus

FORM = re.compile(r"\s*([0-9.]+)\s*:\s*(\d+)\s*x\s*(\d+)\s*")
AHEAD = 8  # a stage begins so many steps after its share is reached: those before may be in the making already
APART = 1_000_003  # stages have seeds of their own: the same text in another order


@dataclass(frozen=True)
class Stage:
    """Until `until` of the budget is spent, `batch` sequences of `length` tokens make a step."""

    until: float
    batch: int
    data: DataSettings


def read_stages(texts: Sequence[str], batch: int, data: DataSettings) -> tuple[Stage, ...]:
    """`("0.3: 512 x 64", "0.6: 256 x 128")` and the recipe's own batch and length for the rest."""
    stages: list[Stage] = []
    for number, text in enumerate(texts, start=1):
        found = FORM.fullmatch(text)
        if not found or found[1].count(".") > 1:
            raise RequestError(f"stages: '{text}' is not of the form 'share: batch x length', such as '0.3: 512 x 64'")
        until, size, length = float(found[1]), int(found[2]), int(found[3])
        if not (stages[-1].until if stages else 0) < until < 1:
            raise RequestError(f"stages: the share of '{text}' must be under 1 and over that of the stage before")
        if size < 1 or size % data.block:
            raise RequestError(f"stages: the batch of '{text}' must be a multiple of block={data.block}")
        block = _block(size, length, data)
        seed = (data.seed + number * APART) % 2**64
        stages.append(Stage(until, size, replace(data, length=length, block=block, seed=seed)))
    return (*stages, Stage(1.0, batch, data))


def largest(stages: Sequence[Stage]) -> Stage:
    """The stage that computes most tokens at once, of equals the one with the longest texts."""
    return max(stages, key=lambda stage: (stage.data.block * stage.data.length, stage.data.length))


class Stages:
    """The examples of a whole run, step by step, over all its stages."""

    def __init__(self, shards: Corpus, stages: Sequence[Stage], begun: Sequence[int] = ()) -> None:
        self.shards = shards
        self.stages = stages
        self.sources = [ExampleSource(shards, stage.data) for stage in stages]
        self.begun = [0, *begun]  # the first step of each stage so far

    def move_on(self, step: int, spent: float) -> None:
        """Note that `step` steps are done and `spent` of the budget with them; a stage may begin soon."""
        while spent >= self.stages[len(self.begun) - 1].until and len(self.begun) < len(self.stages):
            self.begun.append(max(step + AHEAD, self.begun[-1]))

    def blocks(self, step: int) -> tuple[ExampleSource, range]:
        """Where the examples of a step come from, and which blocks of there."""
        number = max(index for index, first in enumerate(self.begun) if first <= step)
        stage = self.stages[number]
        each = stage.batch // stage.data.block
        first = (step - self.begun[number]) * each
        return self.sources[number], range(first, first + each)

    def with_block(self, stage: Stage, block: int) -> ExampleSource:
        """A stage's examples in blocks of another size."""
        if block == stage.data.block:
            return self.sources[list(self.stages).index(stage)]
        return ExampleSource(self.shards, replace(stage.data, block=block))


def _block(batch: int, length: int, data: DataSettings) -> int:
    """Sequences that go through the model at once: as many more as they are shorter, where that divides the batch."""
    most = max(1, data.length // max(length, 1))
    return next(data.block * times for times in range(most, 0, -1) if batch % (data.block * times) == 0)
