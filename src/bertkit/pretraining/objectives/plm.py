"""Permutation language modeling (XLNet): predict the last tokens of a random order, each from those before it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from bertkit.config import BertConfig
from bertkit.errors import RequestError
from bertkit.pretraining.examples.arrays import Examples, Ids
from bertkit.pretraining.examples.random import Ints, draw
from bertkit.pretraining.objectives.objective import Objective
from bertkit.pretraining.train_settings import TrainSettings
from bertkit.train.loss import PERPLEXITY, Loss

if TYPE_CHECKING:
    from bertkit.model.model import BertModel
    from bertkit.pretraining.objectives.targets import PretrainingModule

PLM_LOSS = Loss("plm", "permuted words", shown=PERPLEXITY)


class PermutationLanguageModel(Objective):
    """A share `rate` of the tokens (the paper's 1/K) is the end of the order and is predicted; no token is replaced."""

    name = "plm"
    family = "xlnet"
    kind = "tokens"
    losses = (PLM_LOSS,)
    heads = ("masked_word",)
    no_pair_reason = "reads one text; leave out the pair"
    shares = (0.0, 0.0)

    def check(self, masking: str, shares: tuple[float, float]) -> None:
        """Refuse to replace tokens: later targets see the earlier ones."""
        if any(shares):
            raise RequestError("mask_share and random_share must be 0 with plm, which replaces no token")

    def check_model(self, config: BertConfig) -> None:
        """Refuse a model without a second stream."""
        if not config.parts.two_streams:
            raise RequestError(f"objective={self.name} needs a model with two streams; set family={self.family}")

    def targets(self, examples: Examples) -> tuple[Ints, Ids]:
        """The chosen tokens, in a random order within each sequence: that in which they are predicted."""
        order = prediction_order(examples)
        return examples.chosen[order], examples.targets[order]

    def word_share(self, rate: float) -> float:
        """The tokens that are predicted."""
        return rate

    def head_flops(self, config: BertConfig, rate: float) -> float:
        """The layers' matrices once more for each query."""
        from bertkit.train.speed import encoder_flops

        return rate * encoder_flops(config, 0)

    def module(self, model: "BertModel", rows: Sequence[Objective], train: TrainSettings) -> "PretrainingModule":
        """The model with both streams."""
        from bertkit.pretraining.objectives.plm_module import PermutedWords

        self.check_model(model.config)
        return PermutedWords(model, PLM_LOSS)


def prediction_order(examples: Examples) -> Ints:
    """M: an index of `chosen`, by sequence, and random within each.

    The random numbers depend on the sequence's tokens and on which of them are chosen, and on nothing else in a block.
    """
    ends = np.cumsum(examples.lengths)
    sequence = np.searchsorted(ends, examples.chosen, side="right")
    within = examples.chosen - (ends - examples.lengths)[sequence]
    tokens = np.add.reduceat(examples.ids.astype(np.int64), ends - examples.lengths)
    chosen = np.bincount(sequence, within * within, len(ends)).astype(np.int64)
    return np.lexsort((draw(tokens[sequence], chosen[sequence], within), sequence))
