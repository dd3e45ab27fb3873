"""Permutation language modeling: the model and its second stream as one module."""

import torch

from bertkit.model.batch import Batch
from bertkit.model.heads import MaskedWordHead
from bertkit.model.model import BertModel
from bertkit.model.two_streams import query_vectors
from bertkit.model.word_loss import IGNORE
from bertkit.pretraining.objectives.targets import PretrainingModule, Sums, Targets, logit_sums
from bertkit.train.loss import Loss


class PermutedWords(PretrainingModule):
    """XLNet: targets are predicted in the order in which they are listed."""

    def __init__(self, model: BertModel, loss: Loss) -> None:
        super().__init__()
        self.model = model
        self.models = {"model": model}
        self.weights = {loss.name: loss.weight}
        self.name = loss.name
        query = model.encoder.embeddings.query
        assert query is not None  # `check_model`
        query.requires_grad_(True)

    def forward(self, batch: Batch, targets: Targets) -> Sums:
        """The sums of the loss."""
        numbers_M = torch.arange(1, len(targets.chosen) + 1, device=targets.chosen.device)
        order_M = torch.where(targets.words == IGNORE, 0, numbers_M)
        hidden_MD = query_vectors(self.model.encoder, batch, targets.chosen, order_M)
        head: MaskedWordHead = self.model.heads["masked_word"]  # type: ignore[assignment]
        return {self.name: logit_sums(head.aligned(hidden_MD), targets.words, self.model.config.vocab_size)}
