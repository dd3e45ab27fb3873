"""The [train] table of a recipe."""

from dataclasses import dataclass
from typing import Literal

from bertkit.train.optimizer_rows import OptimizerSettings
from bertkit.train.schedule import Decay


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """Budget, optimizer, schedule, logging, checkpoints and averaging."""

    steps: int | None = None
    minutes: float | None = None
    batch: int = 256  # sequences in a step, over all ranks
    # Other batches, lengths and mask rates first: "0.3: 512 x 64 rate 0.3" until 30 % of the budget.
    stages: tuple[str, ...] = ()
    learning_rate: float = 1e-3
    warmup: int = 500
    decay: Decay = "linear"
    optimizer: str = "adamw"
    muon_scale: float = 10.0  # "muon": factor on its learning rate; AdamW trains tables and vectors
    weight_decay: float = 0.01
    clip: float = 1.0
    most_skipped: int = 5  # steps in a row that may be skipped because of a NaN
    log_every: int = 10
    evaluate_every: int = 500
    save_every: int = 500
    keep: int = 2
    seed: int = 0
    compile: bool = True  # on CUDA
    replay: bool = True  # on CUDA with one rank and one block per step: replay steps as CUDA graphs
    sharding: Literal["ddp", "fsdp"] = "ddp"  # over ranks: "ddp" copies the model to each, "fsdp" shards its tensors
    average: Literal["none", "ema", "tail"] = "none"  # weights of the saved model: the last ones, or an average
    average_every: int = 10  # steps between two samples of the weights
    average_decay: float = 0.99  # "ema": weight of the old average at each sample
    average_tail: float = 0.2  # "tail": the last share of the budget, which is averaged
    generator: float = 0.25  # ELECTRA: the generator's width as a share of the discriminator's
    fill_weight: float = 1.0  # objective "fill": weight of the discriminator's word loss, beside 50 for detection

    def optimizer_settings(self) -> OptimizerSettings:
        """The settings of the optimizer."""
        return OptimizerSettings(name=self.optimizer, weight_decay=self.weight_decay, muon_scale=self.muon_scale)
