"""The encoder with the heads that read it: one pass, any number of answers."""

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn

from bertkit.config import BertConfig
from bertkit.errors import RequestError
from bertkit.model.batch import Batch
from bertkit.model.encoder import Encoder
from bertkit.model.heads import Pooler, build_head
from bertkit.settings import pick

NO_HEADS: Mapping[str, int | None] = MappingProxyType({})


class BertModel(nn.Module):
    """An encoder, a pooler if anything needs one, and heads by name (a name -> number of labels mapping)."""

    def __init__(self, config: BertConfig, heads: Mapping[str, int | None] = NO_HEADS, *, pooler: bool = False) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        word = self.encoder.embeddings.word
        self.heads = nn.ModuleDict({name: build_head(name, config, n, word) for name, n in heads.items()})
        needed = any(head.reads != "tokens" for head in self.heads.values())
        self.pooler = Pooler(config) if pooler or needed else None

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.encoder.embeddings.word.weight.device

    def forward(self, batch: Batch, ids: Tensor | None = None) -> Tensor:
        """T D: the last layer's vectors; `ids` are read in place of the batch's."""
        hidden: Tensor = self.encoder(batch, ids)
        return hidden

    @property
    def fills(self) -> bool:
        """Whether it can fill blanks: it has the head for words, and sees what follows a blank."""
        return "masked_word" in self.heads and not self.config.parts.causal

    def logits(self, batch: Batch, head: str) -> Tensor:
        """One head's scores for a batch: T ... from token heads, N ... from heads on the pooled vector."""
        return self.read(head, self(batch), batch)

    def read(self, head: str, hidden_TD: Tensor, batch: Batch) -> Tensor:
        """One head's scores from vectors that are there already."""
        reader = pick(dict(self.heads.items()), head, "head of this model")
        logits: Tensor = reader(self._source(reader, hidden_TD, batch))
        return logits

    def pooled(self, hidden_TD: Tensor, batch: Batch) -> Tensor:
        """N D: [CLS] through the pooler."""
        if self.pooler is None:
            raise RequestError("this model has no pooler; use pooling='cls' for the plain [CLS] vector")
        pooled: Tensor = self.pooler(hidden_TD, batch)
        return pooled

    def generate(self, *_: object, **__: object) -> None:
        """An encoder sees both sides of every word at once, so it has no next word to give."""
        raise RequestError("an encoder cannot generate text: it fills blanks; put [MASK] in the text and use fill()")

    def _source(self, reader: nn.Module, hidden_TD: Tensor, batch: Batch) -> Tensor:
        """What a head reads: every token, every token through the pooler's map, or one pooled vector."""
        if reader.reads == "tokens":
            return hidden_TD
        if reader.reads == "pooled":
            return self.pooled(hidden_TD, batch)
        assert self.pooler is not None  # made with the head
        return self.pooler.transform(hidden_TD)


def parameter_count(module: nn.Module) -> int:
    """Learned parameters; a tied tensor counts once."""
    return sum(parameter.numel() for parameter in module.parameters())
