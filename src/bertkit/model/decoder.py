"""The decoder: causal layers that also attend to the encoder's output, and the vocabulary's projection.

Its layers are of the encoder's kind, the Transformer's or recurrent ones. It is a head of the model: the encoder reads
the source, this head writes the target. Generation with a key-value cache is in engine/cache.py, the search for the
best tokens in engine/writing/.
"""

from dataclasses import replace

from torch import Tensor, nn

from bertkit.config import BertConfig
from bertkit.model.batch import Batch
from bertkit.model.encoder import Encoder
from bertkit.model.heads import MaskedWordHead
from bertkit.model.operations import TORCH, Operations, Source


class Decoder(nn.Module):
    """Target tokens and the encoder's output in, logits over the vocabulary out."""

    reads = "source"

    def __init__(self, config: BertConfig, word: nn.Embedding) -> None:
        super().__init__()
        self.stack = Encoder(decoder_config(config), cross=True)
        if config.parts.shared_vocabulary:
            self.stack.embeddings.word = word
        self.words = MaskedWordHead(config, self.stack.embeddings.word)

    def forward(self, batch: Batch, source: Source, ops: Operations = TORCH) -> Tensor:
        """T D: the vectors from which `words` predicts the next token."""
        hidden_TD: Tensor = self.stack(batch, None, ops, source)
        return hidden_TD


def decoder_config(config: BertConfig) -> BertConfig:
    """The decoder's stack: the encoder's sizes, its own depth, causal."""
    narrow = config.embedding_width if config.directions == 1 else config.table_width  # so that the tables can be one
    parts = replace(config.parts, causal=True)
    return replace(config, depth=config.decoder_depth, embedding_width=narrow, parts=parts)
