"""An extra loss for replaced token detection: the discriminator predicts the words of some masked positions."""

from bertkit.errors import RequestError
from bertkit.pretraining.examples.arrays import Examples
from bertkit.pretraining.objectives.objective import Objective
from bertkit.train.loss import PERPLEXITY, Loss

DETECTION_LOSS = Loss("rtd", "replaced tokens", weight=50.0, shown=("f1", "{:.3f}"))  # Google's weight
FILL_EVERY = 4  # one in four of ELECTRA's masked positions is predicted by the discriminator
FILL_LOSS = Loss("fill", "blanks left", shown=PERPLEXITY)


class Fill(Objective):
    """Trains the discriminator as a masked language model too; the loss is computed in `ReplacedTokens`."""

    name = "fill"
    losses = (FILL_LOSS,)
    heads = ("masked_word",)
    needs = "rtd"
    needs_reason = "has fill without rtd; mlm fills by itself"
    shares = (1.0, 0.0)  # positions to predict must be [MASK]

    def check(self, masking: str, shares: tuple[float, float]) -> None:
        """Refuse random or kept tokens: only [MASK] is predicted."""
        masked, _ = shares
        if masked != 1:
            raise RequestError(f"mask_share={masked} must be 1 with fill, which predicts the words of [MASK] only")

    def counts(self, examples: Examples) -> dict[str, int]:
        """The masked positions that the discriminator predicts."""
        return {FILL_LOSS.name: len(examples.chosen[::FILL_EVERY])}

    def word_share(self, rate: float) -> float:
        """The masked positions that the discriminator predicts."""
        return rate / FILL_EVERY
