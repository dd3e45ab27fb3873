"""Replaced token detection: the generator and the discriminator as one module."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from bertkit.model.batch import Batch
from bertkit.model.model import BertModel
from bertkit.model.word_loss import IGNORE, sampled_words, word_losses
from bertkit.pretraining.objectives.fill import DETECTION_LOSS, FILL_EVERY, FILL_LOSS
from bertkit.pretraining.objectives.mlm import MLM_LOSS
from bertkit.pretraining.objectives.objective import Objective
from bertkit.pretraining.objectives.targets import LossInputs, PretrainingModule, Sums, Targets, word_sums


class ReplacedTokens(PretrainingModule):
    """ELECTRA: a small generator fills the masked positions, and the discriminator classifies every token.

    With a weight for `fill`, every fourth masked position stays [MASK], and the discriminator predicts its word: one
    encoder learns to detect replaced tokens and to fill masks. Objectives on pairs are the discriminator's, too, which
    sees them with their replaced tokens.
    """

    def __init__(
        self, generator: BertModel, discriminator: BertModel, fill: float = 0.0, pairs: Sequence[Objective] = ()
    ) -> None:
        super().__init__()
        self.pairs = tuple(pairs)
        self.generator = generator
        self.discriminator = discriminator
        self.fills = bool(fill)
        self.weights = {MLM_LOSS.name: MLM_LOSS.weight, DETECTION_LOSS.name: DETECTION_LOSS.weight}
        self.weights |= {FILL_LOSS.name: fill} if fill else {}
        self.weights |= {loss.name: loss.weight for row in pairs for loss in row.losses}
        self.models = {"model": discriminator, "generator": generator}
        self.evaluation = {"detection": True}
        self.share_embeddings()

    def share_embeddings(self) -> None:
        """Share the word, segment and position tables and their norm; each model has its own widening projection."""
        source = self.discriminator.encoder.embeddings
        for name in ("word", "segment", "position", "norm"):
            setattr(self.generator.encoder.embeddings, name, getattr(source, name))
        self.generator.heads["masked_word"].decoder.weight = source.word.weight  # type: ignore[union-attr]

    def forward(self, batch: Batch, targets: Targets, *, detection: bool = False) -> Sums:
        """The sums of `mlm` (generator), `rtd` (discriminator, all tokens), `fill` and pairs, where they are trained.

        With `detection`, also the numbers of replaced tokens that were detected, of tokens predicted as replaced, and
        of replaced tokens.
        """
        size, head = self.generator.config.vocab_size, self.generator.heads["masked_word"]
        logits_MV = head.aligned(self.generator(batch)[targets.chosen])  # type: ignore[operator]
        losses_M, correct_M, logs_M = word_losses(logits_MV, targets.words, size)
        samples_M = sampled_words(logits_MV.detach(), logs_M, size)
        replaced_T, labels_T = self.replace(batch, targets, samples_M)
        hidden_TD = self.discriminator(batch, replaced_T)
        scores_T = self.discriminator.read("replaced_token", hidden_TD, batch).float()
        real_T = batch.ids != self.discriminator.config.pad_id  # without the padding of a fixed shape
        loss = F.binary_cross_entropy_with_logits(scores_T, labels_T.float(), reduction="none")
        predicted_T = (scores_T > 0) & real_T
        correct_T = ((scores_T > 0) == labels_T) & real_T
        sums = {
            MLM_LOSS.name: (losses_M.sum(), (targets.words != IGNORE).sum(), correct_M.sum()),
            DETECTION_LOSS.name: ((loss * real_T).sum(), real_T.sum(), correct_T.sum()),
        }
        if self.fills:
            sums[FILL_LOSS.name] = word_sums(self.discriminator, hidden_TD, fill_targets(targets))
        for row in self.pairs:
            sums[row.losses[0].name] = row.loss(LossInputs(self.discriminator, None, hidden_TD, batch, targets))
        if detection:
            sums["detection"] = ((predicted_T & labels_T).sum(), predicted_T.sum(), labels_T.sum())
        return sums

    def replace(self, batch: Batch, targets: Targets, samples_M: Tensor) -> tuple[Tensor, Tensor]:
        """T ids with the samples at the masked positions, and T labels: True where an id is not the original one.

        No gradient flows from the discriminator to the generator.
        """
        real = targets.words != IGNORE
        if self.fills:
            real = real & (torch.arange(len(real), device=real.device) % FILL_EVERY != 0)
        before = batch.ids[targets.chosen]
        ids = batch.ids.index_put((targets.chosen,), torch.where(real, samples_M, before))
        original = batch.ids.index_put((targets.chosen,), torch.where(real, targets.words, before))
        return ids, ids != original


def fill_targets(targets: Targets) -> Targets:
    """The targets that the discriminator predicts; masked positions are random, so every fourth one is too."""
    return Targets(targets.chosen[::FILL_EVERY], targets.words[::FILL_EVERY], targets.pairs)
