"""Stages: a run may start with other batch sizes, sequence lengths and mask rates before it uses those of the recipe.

The stage of a step follows from the first steps of the stages, which are saved with the progress: so a resumed run
makes the same examples as an uninterrupted one, even with a budget of minutes.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bertkit.errors import RequestError
from bertkit.pretraining.examples.batches import DataSettings, ExampleSource
from bertkit.pretraining.examples.spans import Corpus

STAGE_FORMAT = re.compile(r"\s*(\d*\.?\d+)\s*:\s*(\d+)\s*x\s*(\d+)(?:\s+rate\s+(\d*\.?\d+))?\s*")
START_DELAY = 8  # steps between reaching a stage's share and its start: earlier ones may be prefetched already
SEED_STEP = 1_000_003  # between the seeds of stages, so that each has its own order


@dataclass(frozen=True)
class Stage:
    """Until the share `until` of the budget is spent, a step has `batch` sequences with the settings `data`."""

    until: float
    batch: int
    data: DataSettings


def read_stages(texts: Sequence[str], batch: int, data: DataSettings) -> tuple[Stage, ...]:
    """The stages of texts such as `("0.3: 512 x 64 rate 0.3", "0.6: 256 x 128")`; the last is the recipe's own."""
    stages: list[Stage] = []
    for number, text in enumerate(texts, start=1):
        parsed = STAGE_FORMAT.fullmatch(text)
        if not parsed:
            raise RequestError(
                f"stages: '{text}' is not of the form 'share: batch x length', with or without 'rate' and a mask rate, "
                "such as '0.3: 512 x 64' or '0.3: 512 x 64 rate 0.3'"
            )
        until, size, length = float(parsed[1]), int(parsed[2]), int(parsed[3])
        rate = data.rate if parsed[4] is None else float(parsed[4])
        if not (stages[-1].until if stages else 0) < until < 1:
            raise RequestError(f"stages: the share of '{text}' must be under 1 and over that of the stage before")
        if size < 1 or size % data.block:
            raise RequestError(f"stages: the batch of '{text}' must be a multiple of block={data.block}")
        block = _block(size, length, data)
        seed = (data.seed + number * SEED_STEP) % 2**64
        stages.append(Stage(until, size, replace(data, length=length, block=block, seed=seed, rate=rate)))
    return (*stages, Stage(1.0, batch, data))


def largest(stages: Sequence[Stage]) -> Stage:
    """The stage with the most tokens per block; of several, the one with the longest texts."""
    return max(stages, key=lambda stage: (stage.data.block * stage.data.length, stage.data.length))


class Stages:
    """The examples of a run over all its stages."""

    def __init__(self, shards: Corpus, stages: Sequence[Stage], begun: Sequence[int] = ()) -> None:
        self.shards = shards
        self.stages = stages
        self.sources = [ExampleSource(shards, stage.data) for stage in stages]
        self.begun = [0, *begun]  # the first step of each stage that has started

    def move_on(self, step: int, spent: float) -> None:
        """Schedule the next stage if its share of the budget is reached, after `step` steps."""
        while spent >= self.stages[len(self.begun) - 1].until and len(self.begun) < len(self.stages):
            self.begun.append(max(step + START_DELAY, self.begun[-1]))

    def blocks(self, step: int) -> tuple[ExampleSource, range]:
        """The source of the examples of a step, and the numbers of its blocks."""
        number = max(index for index, first in enumerate(self.begun) if first <= step)
        stage = self.stages[number]
        per_step = stage.batch // stage.data.block
        first = (step - self.begun[number]) * per_step
        return self.sources[number], range(first, first + per_step)

    def with_block(self, stage: Stage, block: int) -> ExampleSource:
        """The examples of a stage in blocks of another size."""
        if block == stage.data.block:
            return self.sources[list(self.stages).index(stage)]
        return ExampleSource(self.shards, replace(stage.data, block=block))


def _block(batch: int, length: int, data: DataSettings) -> int:
    """Sequences per forward pass: more for shorter sequences, if that divides the batch."""
    most = max(1, data.length // max(length, 1))
    return next(data.block * times for times in range(most, 0, -1) if batch % (data.block * times) == 0)
