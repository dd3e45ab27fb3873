"""The [train] table of a recipe."""

from dataclasses import dataclass
from typing import Literal

from bertkit.train.optimizer_rows import OptimizerSettings
from bertkit.train.schedule import Decay


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """How long, how fast, how often to look and to save."""

    steps: int | None = None
    minutes: float | None = None
    batch: int = 256  # sequences in a step, over all ranks
    stages: tuple[str, ...] = ()  # before batch and length are reached: "0.3: 512 x 64" until 30 % of the budget
    learning_rate: float = 1e-3
    warmup: int = 500
    decay: Decay = "linear"
    optimizer: str = "adamw"
    muon_scale: float = 10.0  # "muon": its learning rate is this many times AdamW's, which keeps tables and vectors
    weight_decay: float = 0.01
    clip: float = 1.0
    most_skipped: int = 5  # steps in a row that may be left out because of a NaN
    log_every: int = 10
    evaluate_every: int = 500
    save_every: int = 500
    keep: int = 2
    seed: int = 0
    compile: bool = True  # on CUDA
    replay: bool = True  # on CUDA, one rank, one block a step: the step is recorded, and one launch from then on
    sharding: Literal["ddp", "fsdp"] = "ddp"  # over ranks: "ddp" copies the model to each, "fsdp" spreads its tensors
    average: Literal["none", "ema", "tail"] = "none"  # weights of the saved model: the last, or a mean over steps
    average_every: int = 10  # steps between two looks at the weights
    average_decay: float = 0.99  # "ema": what a look leaves of the mean before it
    average_tail: float = 0.2  # "tail": the share of the budget, at its end, that is averaged
    generator: float = 0.25  # ELECTRA: the generator's width as a share of the discriminator's
    fill_weight: float = 1.0  # objective "fill": of the discriminator's own words, beside 50 of its judgements

    def optimizer_settings(self) -> OptimizerSettings:
        """Of the optimizer that the recipe asks for."""
        return OptimizerSettings(name=self.optimizer, weight_decay=self.weight_decay, muon_scale=self.muon_scale)
