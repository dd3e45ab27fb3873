"""The settings of a fine-tuning run, given as flat keys and validated on construction."""

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
    check_fields,
    flat,
    pick,
    read_pairs,
)
from bertkit.tasks.row import TaskRow
from bertkit.tasks.rows.rank import RANK_OBJECTIVES
from bertkit.tasks.shared.length import ReadingSettings
from bertkit.train.optimizer_rows import OPTIMIZERS
from bertkit.train.schedule import Decay

LARGEST_SEED = 2**62  # below 2**63, as the seeds of several runs are seed + 1, seed + 2, ...
MIN_STEPS, MIN_EPOCHS, MAX_EPOCHS = 500, 3, 20  # of a run if `epochs` is not set
NO_LIMIT_EPOCHS = 100_000  # of a run that ends after its minutes
# Defaults of few=true, chosen on other rows than those that docs/few-labels.md reports.
FEW_SETTINGS = ("learning_rate=1.5e-4", "warmup=0.1", "layer_decay=1")


@dataclass(frozen=True, kw_only=True)
class LearningSettings:
    """Optimization: duration, learning rate, regularization, loss."""

    epochs: Count | None = None  # None: 3, or enough for 500 steps, at most 20; with minutes: no limit
    minutes: Positive | None = None  # of training at most
    batch: Count = 32  # examples in a step
    learning_rate: Positive = 2e-4  # peak, of the head; lower layers have less, see layer_decay
    warmup: Share = 0.2  # fraction of all steps; with 0.1 deep models can collapse in the first steps (docs/LOG.md)
    warmup_steps: Count | None = None  # instead of a fraction
    decay: Decay = "linear"
    optimizer: str = "adamw"  # a row of train.optimizer_rows.OPTIMIZERS
    beta1: Annotated[float, Range(0, under=1)] = 0.9  # of AdamW
    beta2: Annotated[float, Range(0, under=1)] = 0.999  # small batches need a long average
    weight_decay: NotNegative = 0.01
    layer_decay: Annotated[float, Range(0.01, 1)] = 0.8  # a layer's learning rate relative to the layer above it
    clip: Positive = 1.0
    dropout: Annotated[float, Range(0, 0.9)] | None = None  # None: the model's own
    attention_dropout: Annotated[float, Range(0, 0.9)] | None = None  # of attention weights; None: as dropout
    class_weights: Literal["none", "balanced"] = "none"  # balanced: rare labels count more
    label_smoothing: Annotated[float, Range(0, 0.9)] = 0.0
    frozen: Natural = 0  # number of lowest layers that are not trained; then the embeddings are not, either
    unfreeze: Share = 0.0  # fraction of the run over which layers are unfrozen one by one, from the top down
    few: bool | None = None  # classify: contrastive tuning, then a logistic regression; None: by the rows a label
    seed: Annotated[int, Range(0, LARGEST_SEED)] = 0

    def __post_init__(self) -> None:
        check_fields(self)
        pick(OPTIMIZERS, self.optimizer, "optimizer")

    def total_steps(self, steps_per_epoch: int) -> int:
        """The number of steps of the run."""
        if self.minutes is not None and self.epochs is None:
            return steps_per_epoch * NO_LIMIT_EPOCHS
        epochs_for_min_steps = -(-MIN_STEPS // steps_per_epoch)
        return steps_per_epoch * (self.epochs or min(max(MIN_EPOCHS, epochs_for_min_steps), MAX_EPOCHS))


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Evaluation, checkpoints and memory."""

    metric: str | None = None  # that chooses the best model; None: the main metric of the task
    evaluations: Positive = 1  # in each epoch; 0.2: one in five epochs
    average: Annotated[float, Range(0, under=1)] = 0.0  # last fraction of the run whose weights are averaged
    test_share: Annotated[float, Range(0, under=1)] = 0.0  # of the training rows, held out for a score at the end
    keep: Literal["best", "last"] = "best"  # which weights are saved; last: no choice is made on dev
    patience: Count | None = None  # stop after this number of evaluations without improvement
    tokens: Annotated[int, Range(64)] = 16_384  # at most in one forward pass; a larger step is split
    checkpointing: bool = False  # gradient checkpointing: slower, with less memory
    replay: bool = True  # on CUDA: steps of a shape that occurred before are replayed as one CUDA graph
    save_minutes: NotNegative = 10.0  # between checkpoints
    log_every: Count = 10
    abstain: Share | None = None  # classify: give no label below the probability that has this accuracy on dev

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class AdapterSettings:
    """Low-rank updates of a frozen model (LoRA), instead of training all of its weights."""

    rank: Natural = 0  # of each linear map's update; 0: all weights are trained
    alpha: Positive | None = None  # updates are multiplied by alpha / rank; None: by 1
    matrices: Literal["attention", "feed-forward", "all"] = "attention"  # of the layers; `frozen` leaves out low layers

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def scaling(self) -> tuple[int, float]:
        """(rank, alpha)."""
        return self.rank, self.alpha or float(self.rank)


@dataclass(frozen=True, kw_only=True)
class ShapeSettings:
    """A new model, for tasks that need no pre-trained one."""

    family: str = "marian"  # the Transformer; rnn: recurrent, with additive attention
    vocab: str | None = None  # a model or vocabulary with the tokenizer; None: one is made of the training texts
    vocab_size: Annotated[int, Range(300, 10**6)] = 8000  # at most
    width: Count = 256
    depth: Count = 3  # layers of the encoder
    decoder_depth: Count | None = None  # None: as many as the encoder has
    heads: Count = 4
    inner: Count = 1024  # width between the feed-forward's two layers
    positions: Annotated[int, Range(8)] = 256  # tokens of a source or target at most, without max_length

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class GenerationSettings:
    """How texts are generated in evaluations, and by the saved model."""

    beams: Annotated[int, Range(1, 1000)] = 1
    length_penalty: Annotated[float, Range(-50, 50)] = 1.0  # beam search divides scores by length ** length_penalty
    new_tokens: Count | None = None  # at most; None: as many as there are positions

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class RankSettings:
    """What a ranking is trained by."""

    objective: str | None = None  # a row of RANK_OBJECTIVES; None: listwise, or pointwise without texts to compare
    list_size: Annotated[int, Range(2)] = 16  # texts of a query that are compared in a step; longer lists go in parts

    def __post_init__(self) -> None:
        check_fields(self)
        if self.objective is not None:
            pick(RANK_OBJECTIVES, self.objective, "objective")


@dataclass(frozen=True, kw_only=True)
class FineTuneSettings:
    """All settings of a run; each key belongs to exactly one part."""

    reading: ReadingSettings = field(default_factory=ReadingSettings)
    learning: LearningSettings = field(default_factory=LearningSettings)
    run: RunSettings = field(default_factory=RunSettings)
    adapter: AdapterSettings = field(default_factory=AdapterSettings)
    shape: ShapeSettings = field(default_factory=ShapeSettings)
    generation: GenerationSettings = field(default_factory=GenerationSettings)
    ranking: RankSettings = field(default_factory=RankSettings)

    def flat(self) -> dict[str, Any]:
        """Every key with its value."""
        return flat(self)


def read_settings(*pairs: str) -> FineTuneSettings:
    """The defaults with changes such as "epochs=2", "pooling=mean"; unknown keys are refused."""
    return read_pairs(pairs, FineTuneSettings())[0]


def read_request(*pairs: str) -> tuple[FineTuneSettings, Columns]:
    """Settings and columns (`text=review`, `label=stars`) from one list of pairs; unknown keys are refused."""
    return read_pairs(pairs, FineTuneSettings(), Columns())


def read_task_request(row: TaskRow, start: str, *pairs: str) -> tuple[FineTuneSettings, Columns]:
    """The same, with the task's own defaults for a model to start from, and those of `few=true`."""
    request = read_request(*row.default_settings(start), *pairs)
    return read_request(*FEW_SETTINGS, *pairs) if request[0].learning.few else request


def few_settings() -> FineTuneSettings:
    """The defaults of `few=true`."""
    return read_settings(*FEW_SETTINGS, "few=true")


def is_untouched(row: TaskRow, start: str, settings: FineTuneSettings) -> bool:
    """Whether every setting is as the task has it for this model."""
    return settings == read_task_request(row, start)[0]
