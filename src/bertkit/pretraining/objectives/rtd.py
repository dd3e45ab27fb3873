"""Replaced token detection (ELECTRA): a generator fills the masked positions, and every token is judged."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from bertkit.config import BertConfig
from bertkit.pretraining.examples.arrays import Examples
from bertkit.pretraining.objectives.fill import JUDGED, Fill
from bertkit.pretraining.objectives.mlm import MASKED_WORDS
from bertkit.pretraining.objectives.objective import Companion, Objective
from bertkit.pretraining.train_settings import TrainSettings

if TYPE_CHECKING:
    from bertkit.model.model import BertModel
    from bertkit.pretraining.objectives.targets import PretrainingModule


class ReplacedTokenDetection(Objective):
    """The discriminator is the model that is kept; the generator is trained with it."""

    name = "rtd"
    kind = "tokens"
    losses = (MASKED_WORDS, JUDGED)  # the generator's, the discriminator's
    heads = ("replaced_token",)
    no_pair_reason = "judges tokens and never a pair; leave out the pair"
    shares = (0.85, 0.0)

    def counts(self, examples: Examples) -> dict[str, int]:
        """Masked positions for the generator, all tokens for the discriminator."""
        return {MASKED_WORDS.name: len(examples.chosen), JUDGED.name: len(examples.ids)}

    def companions(self, config: BertConfig, rate: float, train: TrainSettings) -> Sequence[Companion]:
        """The generator, which predicts the masked words."""
        return (Companion(generator_config(config, train.generator), rate),)

    def head_flops(self, config: BertConfig, rate: float) -> float:
        """The discriminator's head at every token."""
        from bertkit.train.speed import TRAINING_FLOPS

        return TRAINING_FLOPS * (config.width**2 + config.width)

    def module(self, model: "BertModel", rows: Sequence[Objective], train: TrainSettings) -> "PretrainingModule":
        """The generator and the discriminator, with shared embeddings."""
        from bertkit.model.model import new_model
        from bertkit.pretraining.objectives.rtd_module import ReplacedTokens

        config = generator_config(model.config, train.generator)
        generator = new_model(config, dict.fromkeys(("masked_word",)), seed=train.seed + 1)
        fills = any(isinstance(row, Fill) for row in rows)
        return ReplacedTokens(generator, model, train.fill_weight if fills else 0.0)

    def summarize(self, totals: Mapping[str, Sequence[float]]) -> dict[str, float]:
        """Precision, recall and F1 of the replaced tokens."""
        return detection(*totals["found"]) if "found" in totals else {}


def generator_config(config: BertConfig, share: float) -> BertConfig:
    """ELECTRA's generator: narrower by `share` in all but depth, and on the same embedding tables."""
    heads = max(1, round(config.heads * share))
    width = heads * config.head_width
    inner = max(1, round(config.inner * share))
    return replace(config, width=width, heads=heads, inner=inner, embedding_width=config.table_width)


def detection(found: float, called: float, replaced: float) -> dict[str, float]:
    """Precision, recall and F1: replaced tokens are rare, so accuracy says little."""
    return {
        "rtd_precision": found / max(called, 1),
        "rtd_recall": found / max(replaced, 1),
        "rtd_f1": 2 * found / max(called + replaced, 1),
    }
