"""Replaced token detection (ELECTRA): a generator fills masked positions; a discriminator classifies every token."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from bertkit.config import BertConfig
from bertkit.pretraining.examples.arrays import Examples
from bertkit.pretraining.objectives.fill import DETECTION_LOSS, Fill
from bertkit.pretraining.objectives.mlm import MLM_LOSS
from bertkit.pretraining.objectives.objective import Companion, Objective
from bertkit.pretraining.train_settings import TrainSettings

if TYPE_CHECKING:
    from bertkit.model.model import BertModel
    from bertkit.pretraining.objectives.targets import PretrainingModule


class ReplacedTokenDetection(Objective):
    """The discriminator is the model that is saved; the generator is trained with it."""

    name = "rtd"
    kind = "tokens"
    losses = (MLM_LOSS, DETECTION_LOSS)  # the generator's, the discriminator's
    heads = ("replaced_token",)
    shares = (0.85, 0.0)

    def counts(self, examples: Examples) -> dict[str, int]:
        """The masked positions for the generator, all tokens for the discriminator."""
        return {MLM_LOSS.name: len(examples.chosen), DETECTION_LOSS.name: len(examples.ids)}

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
        pairs = [row for row in rows if row.kind == "pair"]
        return ReplacedTokens(generator, model, train.fill_weight if fills else 0.0, pairs)

    def summarize(self, totals: Mapping[str, Sequence[float]]) -> dict[str, float]:
        """Precision, recall and F1 of the replaced tokens."""
        return detection_metrics(*totals["detection"]) if "detection" in totals else {}


def generator_config(config: BertConfig, share: float) -> BertConfig:
    """ELECTRA's generator: heads and widths scaled by `share`, with the same depth and embedding tables."""
    heads = max(1, round(config.heads * share))
    width = heads * config.head_width
    inner = max(1, round(config.inner * share))
    return replace(config, width=width, heads=heads, inner=inner, embedding_width=config.table_width)


def detection_metrics(detected: float, predicted: float, replaced: float) -> dict[str, float]:
    """Precision, recall and F1; replaced tokens are rare, so accuracy is not informative."""
    return {
        "rtd_precision": detected / max(predicted, 1),
        "rtd_recall": detected / max(replaced, 1),
        "rtd_f1": 2 * detected / max(predicted + replaced, 1),
    }
