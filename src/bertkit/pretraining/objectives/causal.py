"""Causal language modeling (GPT): attention is causal, and each token's vector predicts the next token."""

import numpy as np

from bertkit.config import BertConfig
from bertkit.errors import RequestError
from bertkit.pretraining.examples.arrays import Examples, Ids
from bertkit.pretraining.examples.random import Ints
from bertkit.pretraining.objectives.objective import Objective
from bertkit.train.loss import PERPLEXITY, Loss


def next_words(ids: Ids, lengths: Ints) -> tuple[Ints, Ids]:
    """Every position but the last of each sequence, and the id that follows it."""
    has_next = np.ones(len(ids), dtype=np.bool_)
    has_next[np.cumsum(lengths) - 1] = False
    positions = np.flatnonzero(has_next)
    return positions, ids[positions + 1]


class CausalLanguageModel(Objective):
    """Nothing is masked: attention sees no later token."""

    name = "causal"
    kind = "tokens"
    losses = (Loss("causal", "next words", shown=PERPLEXITY),)
    heads = ("masked_word",)
    no_pair_reason = "reads one text; leave out the pair"
    causal = True
    masks_tokens = False

    def check_model(self, config: BertConfig) -> None:
        """Refuse bidirectional attention, which would see the word to predict."""
        if not config.parts.causal:
            raise RequestError("objective=causal needs a model with causal=true: others see the word that they predict")

    def targets(self, examples: Examples) -> tuple[Ints, Ids]:
        """The next word, at every position that has one."""
        return next_words(examples.ids, examples.lengths)

    def target_share(self, rate: float) -> float:
        """All positions but the last of each text, so about 1."""
        return 1.0

    def counts(self, examples: Examples) -> dict[str, int]:
        """One target for each position that has a next word."""
        return {loss.name: len(examples.ids) - len(examples.lengths) for loss in self.losses}

    def word_share(self, rate: float) -> float:
        """The vocabulary head runs at every token."""
        return 1.0
