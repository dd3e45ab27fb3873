"""What is learned from an example: each objective gives sums and counts, divided once, over everything in a step."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.model.batch import Batch
from bertkit.model.model import BertModel

IGNORE = -100  # target of a slot that only fills a fixed shape


@dataclass(frozen=True)
class Targets:
    """What a batch of examples asks for; tensors of fixed shape may hold slots to ignore."""

    chosen: Tensor  # M: positions in the packed batch
    words: Tensor  # M: the original ids there, or IGNORE
    pairs: Tensor  # N: next-sentence or sentence-order labels, or IGNORE; empty without pairs


# name -> (sum of losses, how many, how many were right), each a scalar tensor
Sums = dict[str, tuple[Tensor, Tensor, Tensor]]


class Objective(Protocol):
    """A module whose forward gives the sums of one batch."""

    weights: Mapping[str, float]

    def __call__(self, batch: Batch, targets: Targets) -> Sums:
        """The sums."""


def classified(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cross-entropy in float32 as sum and count, and how many were right; IGNORE counts nowhere."""
    real = targets != IGNORE
    loss = F.cross_entropy(logits.float(), targets, ignore_index=IGNORE, reduction="sum")
    right = (logits.argmax(dim=-1) == targets) & real
    return loss, real.sum(), right.sum()


class MaskedWords(nn.Module):
    """BERT's: the chosen words, and for pairs whether B follows A. The head runs on chosen positions only."""

    def __init__(self, model: BertModel) -> None:
        super().__init__()
        self.model = model
        self.weights = {"mlm": 1.0} | ({"pair": 1.0} if "next_sentence" in model.heads else {})

    def forward(self, batch: Batch, targets: Targets) -> Sums:
        """The sums for `mlm` and, with a pair head, `pair`."""
        hidden_TD = self.model(batch)
        logits_MV = self.model.heads["masked_word"](hidden_TD[targets.chosen])
        sums = {"mlm": classified(logits_MV, targets.words)}
        if "pair" in self.weights:
            sums["pair"] = classified(self.model.read("next_sentence", hidden_TD, batch), targets.pairs)
        return sums


class NextWords(nn.Module):
    """The contrast: left to right, each token's vector foretells the next token."""

    def __init__(self, model: BertModel) -> None:
        super().__init__()
        self.model = model
        self.weights = {"causal": 1.0}

    def forward(self, batch: Batch, targets: Targets) -> Sums:
        """The sums for `causal`; `batch.causal` is set and `chosen` holds every position but the last of each text."""
        hidden_TD = self.model(batch)
        logits_MV = self.model.heads["masked_word"](hidden_TD[targets.chosen])
        return {"causal": classified(logits_MV, targets.words)}


class ReplacedTokens(nn.Module):
    """ELECTRA's: a small generator fills the blanks, and the discriminator judges every token."""

    weights: Mapping[str, float] = {"mlm": 1.0, "rtd": 50.0}  # Google's weights

    def __init__(self, generator: BertModel, discriminator: BertModel) -> None:
        super().__init__()
        self.generator = generator
        self.discriminator = discriminator
        self.share_embeddings()

    def share_embeddings(self) -> None:
        """Word, segment and position tables and their norm are one set for both; each widens them for itself."""
        ours, theirs = self.generator.encoder.embeddings, self.discriminator.encoder.embeddings
        ours.word, ours.segment, ours.position, ours.norm = theirs.word, theirs.segment, theirs.position, theirs.norm
        self.generator.heads["masked_word"].decoder.weight = theirs.word.weight  # type: ignore[union-attr]

    def forward(self, batch: Batch, targets: Targets) -> Sums:
        """The sums for `mlm` (generator) and `rtd` (discriminator, over all tokens)."""
        logits_MV = self.generator.heads["masked_word"](self.generator(batch)[targets.chosen])
        replaced, labels_T = self.replace(batch, targets, logits_MV.detach())
        scores_T = self.discriminator.read("replaced_token", self.discriminator(replaced), replaced).float()
        real_T = batch.ids != self.discriminator.config.pad_id  # what only fills a fixed shape
        loss = F.binary_cross_entropy_with_logits(scores_T, labels_T.float(), reduction="none")
        right = ((scores_T > 0) == labels_T) & real_T
        return {
            "mlm": classified(logits_MV, targets.words),
            "rtd": ((loss * real_T).sum(), real_T.sum(), right.sum()),
        }

    def replace(self, batch: Batch, targets: Targets, logits_MV: Tensor) -> tuple[Batch, Tensor]:
        """The text with sampled words in its blanks, and T labels: True where a word is not the original one.

        Sampling adds Gumbel noise; no gradient flows from the discriminator to the generator.
        """
        noise = -torch.log(-torch.log(torch.rand_like(logits_MV, dtype=torch.float32).clamp_(1e-9, 1 - 1e-7)))
        sampled = (logits_MV.float() + noise).argmax(dim=-1)
        real = targets.words != IGNORE
        before = batch.ids[targets.chosen]
        ids = batch.ids.index_put((targets.chosen,), torch.where(real, sampled, before))
        original = batch.ids.index_put((targets.chosen,), torch.where(real, targets.words, before))
        return batch.with_ids(ids), ids != original
