"""Beside replaced token detection: some masked positions are left to the discriminator, which predicts their words."""

from bertkit.errors import RequestError
from bertkit.pretraining.examples.arrays import Examples
from bertkit.pretraining.objectives.objective import Objective
from bertkit.train.loss import PERPLEXITY, Loss

JUDGED = Loss("rtd", "replaced tokens", weight=50.0, shown=("f1", "{:.3f}"))  # Google's weight
LEFT_EVERY = 4  # every so many of ELECTRA's masked positions is left to the discriminator
LEFT_WORDS = Loss("fill", "blanks left", shown=PERPLEXITY)


class Fill(Objective):
    """One encoder that learns to judge tokens and to fill blanks; its loss is a part of `ReplacedTokens`."""

    name = "fill"
    losses = (LEFT_WORDS,)
    heads = ("masked_word",)
    needs = "rtd"
    needs_reason = "has fill without rtd; mlm fills by itself"
    shares = (1.0, 0.0)  # what is left to fill must be [MASK]

    def check(self, masking: str, shares: tuple[float, float]) -> None:
        """A random token is nothing to fill."""
        masked, _ = shares
        if masked != 1:
            raise RequestError(f"mask_share={masked} must be 1 with fill, which predicts the words of [MASK] alone")

    def counts(self, examples: Examples) -> dict[str, int]:
        """The masked positions that are left."""
        return {LEFT_WORDS.name: len(examples.chosen[::LEFT_EVERY])}

    def word_share(self, rate: float) -> float:
        """At the masked positions that are left."""
        return rate / LEFT_EVERY
