"""The protocol of a pre-training objective: one row of the table owns everything that is particular to it.

A recipe names several: exactly one that predicts tokens, at most one about pairs of texts, and any extra losses. Rows
are read without torch; what needs torch imports it inside its method.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from bertkit.config import BertConfig
from bertkit.pretraining.examples.arrays import Examples, Ids
from bertkit.pretraining.examples.random import Floats, Ints
from bertkit.pretraining.examples.spans import Ranges, Rolls, Spans
from bertkit.pretraining.train_settings import TrainSettings
from bertkit.train.loss import Loss

if TYPE_CHECKING:
    from torch import nn

    from bertkit.model.model import BertModel
    from bertkit.pretraining.objectives.targets import LossInputs, PretrainingModule, Sum


@dataclass(frozen=True)
class Companion:
    """Another encoder that runs in each training step, and the share of tokens that its vocabulary head predicts."""

    config: BertConfig
    word_share: float


class Objective:
    """A row; every method has the default of an objective that predicts masked words."""

    name: str
    kind: Literal["tokens", "pair", "extra"] = "extra"
    losses: tuple[Loss, ...] = ()
    heads: tuple[str, ...] = ()  # of the trained model
    needs: str | None = None  # an extra loss stands beside this objective only ...
    needs_reason: str = ""  # ... and this is said where it is missing
    no_pair_reason: str | None = None  # why no pair objective may stand beside it; None: one may
    causal: bool = False  # the model's attention is left to right
    hides: bool = True  # tokens are masked or replaced
    shares: tuple[float, float] | None = None  # default of mask_share and random_share; None: as other rows say
    pair_labels: tuple[str, str] = ("", "")  # of a pair: what label 0 and label 1 mean

    def check(self, masking: str, shares: tuple[float, float]) -> None:
        """Refuse a masking mode, or shares of [MASK] and random tokens, that this objective cannot use."""

    def check_model(self, config: BertConfig) -> None:
        """Refuse a model that this objective cannot train."""

    # Examples, in numpy.

    def check_spans(self, spans: Spans) -> None:
        """Pair: refuse a corpus without what pairs are made of."""

    def ranges(self, spans: Spans, numbers: Ints, rolls: Rolls[Floats], short_share: float) -> Ranges:
        """Pair: where the two texts of each example lie in the corpus."""
        raise NotImplementedError(self.name)

    def targets(self, examples: Examples) -> tuple[Ints, Ids]:
        """M positions in the packed batch, and the M ids to predict there."""
        return examples.chosen, examples.targets

    def target_share(self, rate: float) -> float:
        """The share of tokens that `targets` names."""
        return rate

    def counts(self, examples: Examples) -> dict[str, int]:
        """How many targets each loss has."""
        return {loss.name: len(examples.chosen) for loss in self.losses}

    def remark(self, examples: Examples) -> str | None:
        """One more line for `bertkit check --masks`."""
        return None

    # Costs, per token.

    def word_share(self, rate: float) -> float:
        """Share of tokens at which the trained model's vocabulary head runs."""
        return 0.0

    def companions(self, config: BertConfig, rate: float, train: TrainSettings) -> Sequence[Companion]:
        """Encoders that run beside the trained one."""
        return ()

    def head_flops(self, config: BertConfig, rate: float) -> float:
        """Training operations per token of heads other than the vocabulary's, where `rate` of the tokens is masked."""
        return 0.0

    # Losses, in torch.

    def own_parameters(self, model: "BertModel", seed: int) -> "nn.Module | None":
        """Parameters that only the loss needs: they are trained and resumed, and no part of the saved model."""
        return None

    def loss(self, given: "LossInputs") -> "Sum":
        """Sum, count and number correct of the row's one loss, from the last layer's vectors."""
        raise NotImplementedError(self.name)

    def module(
        self, model: "BertModel", rows: "Sequence[Objective]", train: TrainSettings
    ) -> "PretrainingModule | None":
        """Tokens: a module of its own for this and the other `rows`; None: one pass and each row's `loss`."""
        return None

    def summarize(self, totals: Mapping[str, Sequence[float]]) -> dict[str, float]:
        """Held-out numbers besides the mean loss and accuracy, from the sums over all held-out blocks."""
        return {}
