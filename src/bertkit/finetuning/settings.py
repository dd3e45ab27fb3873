"""What decides a fine-tuning run besides its data: flat keys, checked at the door."""

import math
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

from bertkit.config import cast_setting, check_at_least, check_choice, check_within, pick
from bertkit.data.tables import Columns
from bertkit.errors import RequestError
from bertkit.tasks.reading import ReadingSettings
from bertkit.train.schedule import DECAYS, Decay

DEFAULT_OPTIMIZER = "adamw"
LARGEST_SEED = 2**62  # some are added to it
MIN_STEPS, MIN_EPOCHS, MAX_EPOCHS = 500, 3, 20  # of a run whose epochs are not given


@dataclass(frozen=True, kw_only=True)
class LearningSettings:
    """How long, how fast, what counts, when to stop."""

    epochs: int | None = None  # None: 3, or as many as make 500 steps, up to 20: little data needs more passes
    batch: int = 32  # examples in a step
    learning_rate: float = 2e-4  # of the head; see layer_decay
    warmup: float = 0.2  # share of all steps; with 0.1 deep models can collapse in the first steps (docs/LOG.md)
    decay: Decay = "linear"
    optimizer: str = DEFAULT_OPTIMIZER  # a row of train.optimizer.OPTIMIZERS
    weight_decay: float = 0.01
    layer_decay: float = 0.8  # each layer's learning rate is this many times that of the layer above it
    clip: float = 1.0
    dropout: float | None = None  # None: the model's own
    class_weights: Literal["none", "balanced"] = "none"  # balanced: rare labels count more
    label_smoothing: float = 0.0
    frozen: int = 0  # layers from the bottom that stay as they are, embeddings with them
    unfreeze: float = 0.0  # share of the run over which layers are set free, from the top down
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice(self, "class_weights")
        pick(dict.fromkeys(DECAYS), self.decay, "decay")
        if self.optimizer != DEFAULT_OPTIMIZER:
            from bertkit.train.optimizer import OPTIMIZERS  # torch is slow to import

            pick(OPTIMIZERS, self.optimizer, "optimizer")
        for name in ("epochs", "batch"):
            check_at_least(self, name, 1)
        check_at_least(self, "frozen", 0)
        check_at_least(self, "weight_decay", 0)
        for name in ("warmup", "unfreeze"):
            check_within(self, name, 0.0, 1.0)
        check_within(self, "layer_decay", 0.01, 1.0)
        check_within(self, "label_smoothing", 0.0, 0.9)
        check_within(self, "dropout", 0.0, 0.9)
        if not 0 < self.learning_rate < math.inf or not self.clip > 0:
            raise RequestError(f"learning_rate={self.learning_rate} and clip={self.clip} must be over 0")
        if not 0 <= self.seed <= LARGEST_SEED:
            raise RequestError(f"seed={self.seed} must be from 0 to {LARGEST_SEED}")

    def total_steps(self, steps_per_epoch: int) -> int:
        """Steps of the whole run."""
        enough = -(-MIN_STEPS // steps_per_epoch)
        return steps_per_epoch * (self.epochs or min(max(MIN_EPOCHS, enough), MAX_EPOCHS))


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """When to look, when to save, how to fit the machine."""

    metric: str | None = None  # the best model by this one is kept; None: the task's main one
    evaluations: int = 1  # in each epoch
    keep: Literal["best", "last"] = "best"  # last: the end of the run, so that nothing is chosen on dev
    patience: int | None = None  # stop after so many evaluations without a better one
    tokens: int = 16_384  # at most so many go through the model at once; a larger step goes in parts
    checkpointing: bool = False  # compute layers twice and keep less: slower, for little memory
    replay: bool = True  # on CUDA: steps of a form that was seen before are one launch instead of hundreds
    save_minutes: float = 10.0  # between checkpoints
    log_every: int = 10
    abstain: float | None = None  # classify: answer only when sure enough to be right this often; None: always

    def __post_init__(self) -> None:
        check_choice(self, "keep")
        for name in ("evaluations", "patience", "log_every"):
            check_at_least(self, name, 1)
        check_at_least(self, "tokens", 64)
        check_at_least(self, "save_minutes", 0)
        check_within(self, "abstain", 0.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class FineTuneSettings:
    """Everything together; each key belongs to exactly one part."""

    reading: ReadingSettings = field(default_factory=ReadingSettings)
    learning: LearningSettings = field(default_factory=LearningSettings)
    run: RunSettings = field(default_factory=RunSettings)

    def flat(self) -> dict[str, Any]:
        """Every key with its value."""
        return {name: value for part in asdict(self).values() for name, value in part.items()}


PARTS = {"reading": ReadingSettings, "learning": LearningSettings, "run": RunSettings}
HOMES = {f.name: part for part, kind in PARTS.items() for f in fields(kind)}


def read_settings(*pairs: str) -> FineTuneSettings:
    """`read_settings("epochs=2", "pooling=mean")`: the defaults with these changes; unknown keys stop here."""
    return change_settings(FineTuneSettings(), dict(map(_split, pairs)))


def read_request(*pairs: str) -> tuple[FineTuneSettings, Columns]:
    """Settings and columns (`text=review`, `label=stars`) from one list of pairs; unknown keys stop here."""
    changes = dict(map(_split, pairs))
    columns = [f.name for f in fields(Columns)]
    for name in changes:
        pick(dict.fromkeys([*HOMES, *columns]), name, "setting")
    named = {name: changes.pop(name) for name in columns if name in changes}
    return change_settings(FineTuneSettings(), changes), _changed(Columns(), named)


def change_settings(settings: FineTuneSettings, changes: Mapping[str, str]) -> FineTuneSettings:
    """The settings with some keys, given as text, changed."""
    for name in changes:
        pick(HOMES, name, "setting")
    made = {}
    for part in PARTS:
        own = {name: text for name, text in changes.items() if HOMES[name] == part}
        made[part] = _changed(getattr(settings, part), own)
    return replace(settings, **made)


def _changed(settings: Any, changes: Mapping[str, str]) -> Any:
    kinds = typing.get_type_hints(type(settings))
    return replace(settings, **{name: cast_setting(name, text, kinds[name]) for name, text in changes.items()})


def _split(pair: str) -> tuple[str, str]:
    name, equals, text = pair.partition("=")
    if not equals:
        raise RequestError(f"'{pair}' is not of the form key=value")
    return name, text
