"""What is learned from an example: each objective gives sums and counts, divided once, over everything in a step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.errors import RequestError
from bertkit.model.batch import Batch
from bertkit.model.heads import MaskedWordHead
from bertkit.model.model import BertModel
from bertkit.model.word_loss import IGNORE, plain_losses, sampled_words, word_losses

LEFT = 4  # with `fill`, every so many of ELECTRA's blanks is left to the discriminator


@dataclass(frozen=True)
class Targets:
    """What a batch of examples asks for; tensors of fixed shape may hold slots to ignore."""

    chosen: Tensor  # M: positions in the packed batch
    words: Tensor  # M: the original ids there, or IGNORE
    pairs: Tensor  # N: next-sentence or sentence-order labels, or IGNORE; empty without pairs

    @property
    def form(self) -> tuple[object, ...]:
        """What two batches' targets must share to be asked by one recorded step."""
        return tuple(tensor.shape for tensor in self.tensors)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All there is."""
        return (self.chosen, self.words, self.pairs)

    @property
    def left(self) -> "Targets":
        """Those of the blanks that a discriminator has to fill; which words are chosen is random, so these are too."""
        return Targets(self.chosen[::LEFT], self.words[::LEFT], self.pairs)

    def refilled(self, tensors: Sequence[Tensor]) -> "Targets":
        """The same form around other tensors."""
        return Targets(*tensors)


# name -> (sum of losses, how many, how many were right), each a scalar tensor
Sums = dict[str, tuple[Tensor, Tensor, Tensor]]


class Objective(Protocol):
    """A module whose forward gives the sums of one batch."""

    weights: Mapping[str, float]

    def __call__(self, batch: Batch, targets: Targets) -> Sums:
        """The sums."""


def classified(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cross-entropy as sum and count, and how many were right; IGNORE counts nowhere."""
    losses, right = plain_losses(logits, targets)
    return losses.sum(), (targets != IGNORE).sum(), right.sum()


def words(model: BertModel, hidden_TD: Tensor, targets: Targets) -> tuple[Tensor, Tensor, Tensor]:
    """The same for the words at the chosen positions; the head runs there only."""
    head: MaskedWordHead = model.heads["masked_word"]  # type: ignore[assignment]
    losses, right, _ = word_losses(head.aligned(hidden_TD[targets.chosen]), targets.words, model.config.vocab_size)
    return losses.sum(), (targets.words != IGNORE).sum(), right.sum()


class MaskedWords(nn.Module):
    """BERT's: the chosen words, and for pairs whether B follows A. The head runs on chosen positions only."""

    def __init__(self, model: BertModel) -> None:
        super().__init__()
        self.model = model
        self.weights = {"mlm": 1.0} | ({"pair": 1.0} if "next_sentence" in model.heads else {})

    def forward(self, batch: Batch, targets: Targets) -> Sums:
        """The sums for `mlm` and, with a pair head, `pair`."""
        hidden_TD = self.model(batch)
        sums = {"mlm": words(self.model, hidden_TD, targets)}
        if "pair" in self.weights:
            sums["pair"] = classified(self.model.read("next_sentence", hidden_TD, batch), targets.pairs)
        return sums


class NextWords(nn.Module):
    """GPT's: the model reads from left to right, and each token's vector predicts the next token."""

    def __init__(self, model: BertModel) -> None:
        super().__init__()
        if not model.config.parts.causal:
            raise RequestError("objective=causal needs a model with causal=true: others see the word that they predict")
        self.model = model
        self.weights = {"causal": 1.0}

    def forward(self, batch: Batch, targets: Targets) -> Sums:
        """The sums for `causal`; `chosen` holds every position but the last of each text."""
        return {"causal": words(self.model, self.model(batch), targets)}


class ReplacedTokens(nn.Module):
    """ELECTRA's: a small generator fills the blanks, and the discriminator judges every token.

    With a weight for `fill`, every fourth blank is left as it is, and the discriminator names its word: one encoder
    that has learned to judge and to fill.
    """

    def __init__(self, generator: BertModel, discriminator: BertModel, fill: float = 0.0) -> None:
        super().__init__()
        self.generator = generator
        self.discriminator = discriminator
        self.weights = {"mlm": 1.0, "rtd": 50.0} | ({"fill": fill} if fill else {})  # Google's, and ours
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
            "mlm": (losses_M.sum(), (targets.words != IGNORE).sum(), guessed_M.sum()),
            "rtd": ((loss * real_T).sum(), real_T.sum(), right.sum()),
        }
        if "fill" in self.weights:
            sums["fill"] = words(self.discriminator, hidden_TD, targets.left)
        called_T = (scores_T > 0) & real_T
        return {**sums, "found": ((called_T & labels_T).sum(), called_T.sum(), labels_T.sum())} if found else sums

    def replace(self, batch: Batch, targets: Targets, samples_M: Tensor) -> tuple[Tensor, Tensor]:
        """T ids with the sampled words in the blanks, and T labels: True where a word is not the original one.

        No gradient flows from the discriminator to the generator.
        """
        real = targets.words != IGNORE
        if "fill" in self.weights:
            real = real & (torch.arange(len(real), device=real.device) % LEFT != 0)
        before = batch.ids[targets.chosen]
        ids = batch.ids.index_put((targets.chosen,), torch.where(real, samples_M, before))
        original = batch.ids.index_put((targets.chosen,), torch.where(real, targets.words, before))
        return ids, ids != original
