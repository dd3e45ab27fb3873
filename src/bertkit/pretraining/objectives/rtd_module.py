"""Replaced token detection: the generator and the discriminator as one module."""

import torch
import torch.nn.functional as F
from torch import Tensor

from bertkit.model.batch import Batch
from bertkit.model.model import BertModel
from bertkit.model.word_loss import IGNORE, sampled_words, word_losses
from bertkit.pretraining.objectives.fill import JUDGED, LEFT_EVERY, LEFT_WORDS
from bertkit.pretraining.objectives.mlm import MASKED_WORDS
from bertkit.pretraining.objectives.targets import PretrainingModule, Sums, Targets, word_sums


class ReplacedTokens(PretrainingModule):
    """ELECTRA's: a small generator fills the masked positions, and the discriminator judges every token.

    With a weight for `fill`, every fourth masked position is left as it is, and the discriminator predicts its word:
    one encoder that learns to judge and to fill.
    """

    def __init__(self, generator: BertModel, discriminator: BertModel, fill: float = 0.0) -> None:
        super().__init__()
        self.generator = generator
        self.discriminator = discriminator
        self.fills = bool(fill)
        self.weights = {MASKED_WORDS.name: MASKED_WORDS.weight, JUDGED.name: JUDGED.weight}
        self.weights |= {LEFT_WORDS.name: fill} if fill else {}
        self.models = {"model": discriminator, "generator": generator}
        self.evaluation = {"found": True}
        self.share_embeddings()

    def share_embeddings(self) -> None:
        """Word, segment and position tables and their norm are one set for both; each widens them for itself."""
        ours, theirs = self.generator.encoder.embeddings, self.discriminator.encoder.embeddings
        ours.word, ours.segment, ours.position, ours.norm = theirs.word, theirs.segment, theirs.position, theirs.norm
        self.generator.heads["masked_word"].decoder.weight = theirs.word.weight  # type: ignore[union-attr]

    def forward(self, batch: Batch, targets: Targets, *, found: bool = False) -> Sums:
        """The sums for `mlm` (generator), `rtd` (discriminator, over all tokens) and `fill` (its words), if asked for.

        Asked for `found` too: how many replaced tokens were noticed, how many were called replaced, how many were.
        """
        size, head = self.generator.config.vocab_size, self.generator.heads["masked_word"]
        logits_MV = head.aligned(self.generator(batch)[targets.chosen])  # type: ignore[operator]
        losses_M, guessed_M, logs_M = word_losses(logits_MV, targets.words, size)
        samples_M = sampled_words(logits_MV.detach(), logs_M, size)
        replaced_T, labels_T = self.replace(batch, targets, samples_M)
        hidden_TD = self.discriminator(batch, replaced_T)
        scores_T = self.discriminator.read("replaced_token", hidden_TD, batch).float()
        real_T = batch.ids != self.discriminator.config.pad_id  # what only fills a fixed shape
        loss = F.binary_cross_entropy_with_logits(scores_T, labels_T.float(), reduction="none")
        right = ((scores_T > 0) == labels_T) & real_T
        sums = {
            MASKED_WORDS.name: (losses_M.sum(), (targets.words != IGNORE).sum(), guessed_M.sum()),
            JUDGED.name: ((loss * real_T).sum(), real_T.sum(), right.sum()),
        }
        if self.fills:
            sums[LEFT_WORDS.name] = word_sums(self.discriminator, hidden_TD, left(targets))
        called_T = (scores_T > 0) & real_T
        return {**sums, "found": ((called_T & labels_T).sum(), called_T.sum(), labels_T.sum())} if found else sums

    def replace(self, batch: Batch, targets: Targets, samples_M: Tensor) -> tuple[Tensor, Tensor]:
        """T ids with the samples at the masked positions, and T labels: True where a word is not the original.

        No gradient flows from the discriminator to the generator.
        """
        real = targets.words != IGNORE
        if self.fills:
            real = real & (torch.arange(len(real), device=real.device) % LEFT_EVERY != 0)
        before = batch.ids[targets.chosen]
        ids = batch.ids.index_put((targets.chosen,), torch.where(real, samples_M, before))
        original = batch.ids.index_put((targets.chosen,), torch.where(real, targets.words, before))
        return ids, ids != original


def left(targets: Targets) -> Targets:
    """Those that the discriminator has to fill; which words are masked is random, so these are too."""
    return Targets(targets.chosen[::LEFT_EVERY], targets.words[::LEFT_EVERY], targets.pairs)
