"""The interface of a pre-training objective: one row of the table defines everything about it.

A recipe names several: exactly one that predicts tokens, at most one on pairs of texts, and any extra losses. Rows can
be imported without torch; methods that need torch import it themselves.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from bertkit.config import BertConfig
from bertkit.errors import RequestError
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
    """Another encoder that runs in each training step, and the share of tokens at which its vocabulary head runs."""

    config: BertConfig
    word_share: float


class Objective:
    """A row; the defaults are those of an objective that predicts masked words."""

    name: str
    kind: Literal["tokens", "pair", "extra"] = "extra"
    losses: tuple[Loss, ...] = ()
    heads: tuple[str, ...] = ()  # of the trained model
    family: str | None = None  # whose models it trains; None: any
    needs: str | None = None  # the objective that an extra loss requires ...
    needs_reason: str = ""  # ... and the message if it is missing
    no_pair_reason: str | None = None  # why it cannot be combined with a pair objective; None: it can
    causal: bool = False  # the model's attention is left to right
    masks_tokens: bool = True  # tokens are masked or replaced
    shares: tuple[float, float] | None = None  # default of (mask_share, random_share); None: those of the other rows
    pair_labels: tuple[str, str] = ("", "")  # pair: the meaning of label 0 and label 1

    def check(self, masking: str, shares: tuple[float, float]) -> None:
        """Refuse a masking mode, or shares of [MASK] and random tokens, that this objective cannot use."""

    def check_model(self, config: BertConfig) -> None:
        """Refuse a model that this objective cannot train: by default, one that predicts a word from one side alone."""
        if self.heads and config.two_way_words:
            raise RequestError(
                f"objective={self.name} does not go with this model, which predicts a word from one side alone; "
                "set objective=bilm, or word_head=gelu to predict from both sides"
            )

    # Examples, in numpy.

    def check_spans(self, spans: Spans) -> None:
        """Pair: refuse a corpus from which no pairs can be made."""

    def ranges(self, spans: Spans, numbers: Ints, rolls: Rolls[Floats], short_share: float) -> Ranges:
        """Pair: the ranges of the two texts of each example in the corpus."""
        raise NotImplementedError(self.name)

    def targets(self, examples: Examples) -> tuple[Ints, Ids]:
        """M positions in the packed batch, and the M ids to predict there."""
        return examples.chosen, examples.targets

    def target_share(self, rate: float) -> float:
        """The share of tokens that `targets` names."""
        return rate

    def counts(self, examples: Examples) -> dict[str, int]:
        """The number of targets of each loss."""
        return {loss.name: len(examples.chosen) for loss in self.losses}

    def remark(self, examples: Examples) -> str | None:
        """A further line for `bertkit check --masks`."""
        return None

    # Costs, per token.

    def word_share(self, rate: float) -> float:
        """Share of tokens at which the trained model's vocabulary head runs."""
        return 0.0

    def companions(self, config: BertConfig, rate: float, train: TrainSettings) -> Sequence[Companion]:
        """Other encoders that run in each step."""
        return ()

    def head_flops(self, config: BertConfig, rate: float) -> float:
        """Training operations per token of heads other than the vocabulary head, if `rate` of the tokens is masked."""
        return 0.0

    # Losses, in torch.

    def own_parameters(self, model: "BertModel", seed: int) -> "nn.Module | None":
        """Parameters that only the loss has: they are trained and resumed, but not part of the saved model."""
        return None

    def loss(self, inputs: "LossInputs") -> "Sum":
        """Sum, count and number correct of the row's loss: by default, cross-entropy of the target words."""
        from bertkit.pretraining.objectives.targets import word_sums

        return word_sums(inputs.model, inputs.hidden_TD, inputs.targets)

    def module(
        self, model: "BertModel", rows: "Sequence[Objective]", train: TrainSettings
    ) -> "PretrainingModule | None":
        """Tokens: a special module for this and the other `rows`; None: one forward pass and each row's `loss`."""
        return None

    def summarize(self, totals: Mapping[str, Sequence[float]]) -> dict[str, float]:
        """Held-out metrics besides loss and accuracy, from the sums over all held-out blocks."""
        return {}
