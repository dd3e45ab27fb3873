"""What decides a fine-tuning run besides its data: flat keys, checked at the door."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from bertkit.data.tables import Columns
from bertkit.settings import (
    Count,
    Natural,
    NotNegative,
    Positive,
    Range,
    Share,
    change,
    check_fields,
    flat,
    pick,
    read_pairs,
)
from bertkit.tasks.shared.length import ReadingSettings
from bertkit.train.optimizer_rows import OPTIMIZERS
from bertkit.train.schedule import Decay

LARGEST_SEED = 2**62  # some are added to it
MIN_STEPS, MIN_EPOCHS, MAX_EPOCHS = 500, 3, 20  # of a run whose epochs are not given


@dataclass(frozen=True, kw_only=True)
class LearningSettings:
    """How long, how fast, what counts, when to stop."""

    epochs: Count | None = None  # None: 3, or as many as make 500 steps, up to 20: little data needs more passes
    batch: Count = 32  # examples in a step
    learning_rate: Positive = 2e-4  # of the head; see layer_decay
    warmup: Share = 0.2  # share of all steps; with 0.1 deep models can collapse in the first steps (docs/LOG.md)
    decay: Decay = "linear"
    optimizer: str = "adamw"  # a row of train.optimizer_rows.OPTIMIZERS
    weight_decay: NotNegative = 0.01
    layer_decay: Annotated[float, Range(0.01, 1)] = 0.8  # a layer's learning rate relative to the layer above it
    clip: Positive = 1.0
    dropout: Annotated[float, Range(0, 0.9)] | None = None  # None: the model's own
    class_weights: Literal["none", "balanced"] = "none"  # balanced: rare labels count more
    label_smoothing: Annotated[float, Range(0, 0.9)] = 0.0
    frozen: Natural = 0  # layers from the bottom that stay as they are, embeddings with them
    unfreeze: Share = 0.0  # share of the run over which layers are set free, from the top down
    seed: Annotated[int, Range(0, LARGEST_SEED)] = 0

    def __post_init__(self) -> None:
        check_fields(self)
        pick(OPTIMIZERS, self.optimizer, "optimizer")

    def total_steps(self, steps_per_epoch: int) -> int:
        """Steps of the whole run."""
        enough = -(-MIN_STEPS // steps_per_epoch)
        return steps_per_epoch * (self.epochs or min(max(MIN_EPOCHS, enough), MAX_EPOCHS))


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """When to look, when to save, how to fit the machine."""

    metric: str | None = None  # the best model by this one is kept; None: the task's main one
    evaluations: Count = 1  # in each epoch
    keep: Literal["best", "last"] = "best"  # last: the end of the run, so that nothing is chosen on dev
    patience: Count | None = None  # stop after so many evaluations without a better one
    tokens: Annotated[int, Range(64)] = 16_384  # at most, in one forward pass; a larger step is split
    checkpointing: bool = False  # compute layers twice and keep less: slower, for little memory
    replay: bool = True  # on CUDA: steps of a form that was seen before are one launch instead of hundreds
    save_minutes: NotNegative = 10.0  # between checkpoints
    log_every: Count = 10
    abstain: Share | None = None  # classify: answer only when sure enough to be right this often; None: always

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class FineTuneSettings:
    """Everything together; each key belongs to exactly one part."""

    reading: ReadingSettings = field(default_factory=ReadingSettings)
    learning: LearningSettings = field(default_factory=LearningSettings)
    run: RunSettings = field(default_factory=RunSettings)

    def flat(self) -> dict[str, Any]:
        """Every key with its value."""
        return flat(self)


def read_settings(*pairs: str) -> FineTuneSettings:
    """`read_settings("epochs=2", "pooling=mean")`: the defaults with these changes; unknown keys stop here."""
    return read_pairs(pairs, FineTuneSettings())[0]


def read_request(*pairs: str) -> tuple[FineTuneSettings, Columns]:
    """Settings and columns (`text=review`, `label=stars`) from one list of pairs; unknown keys stop here."""
    return read_pairs(pairs, FineTuneSettings(), Columns())


def change_settings(settings: FineTuneSettings, changes: Mapping[str, str]) -> FineTuneSettings:
    """The settings with some keys, given as text, changed."""
    return change(settings, changes)
