"""Heads over the encoder's vectors: words, next sentences, replaced tokens, classes, tags, spans, choices."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.config import BertConfig
from bertkit.model.batch import Batch
from bertkit.model.layer import ACTIVATIONS
from bertkit.model.pooling import pool
from bertkit.poolings import POOLINGS
from bertkit.settings import pick

COLUMN_MULTIPLE = 64  # CUDA multiplies matrices at full speed whose columns are a multiple of this


class Pooler(nn.Module):
    """Pooling and a dense layer between the encoder and a class head: BERT's tanh pooler and its variants."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        parts = config.parts
        self.pooling = parts.pooling
        self.query = nn.Linear(config.width, 1, bias=False) if POOLINGS[parts.pooling].scored else None
        plain = parts.pooler == "none"  # the head reads the pooled vector itself
        pooled = config.width * POOLINGS[parts.pooling].width
        self.dense = nn.Identity() if plain else nn.Linear(pooled, config.width, bias=parts.bias)
        self.activation = nn.Identity() if plain else pick(ACTIVATIONS, parts.pooler, "pooler")
        norm = nn.LayerNorm(config.width, eps=config.norm_epsilon, bias=parts.bias)
        self.norm = norm if parts.pooler_norm else nn.Identity()

    def transform(self, x_D: Tensor) -> Tensor:
        """The dense layer, activation and norm on any pooled vectors, ... D (or 3D) -> ... D."""
        out: Tensor = self.norm(self.activation(self.dense(x_D)))
        return out

    def reduce(self, x_TD: Tensor, batch: Batch) -> Tensor:
        """N D: the dense layer's input, one pooled vector for each sequence."""
        return pool(x_TD, batch, self.pooling, None if self.query is None else self.query(x_TD).squeeze(-1))

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        """N D: one vector for each sequence."""
        return self.transform(self.reduce(x_TD, batch))


class MaskedWordHead(nn.Module):
    """Logits over the vocabulary for each vector; callers pass only the masked positions."""

    reads = "tokens"

    def __init__(self, config: BertConfig, word: nn.Embedding) -> None:
        super().__init__()
        width, parts = config.table_width, config.parts
        plain = parts.word_head == "linear"
        self.dense = nn.Identity() if plain else nn.Linear(config.width, width, bias=parts.bias)
        activation = parts.word_head or parts.activation
        self.activation = nn.Identity() if plain else pick(ACTIVATIONS, activation, "activation")
        self.norm = nn.Identity() if plain else nn.LayerNorm(width, eps=config.norm_epsilon, bias=parts.bias)
        self.decoder = nn.Linear(width, config.vocab_size, bias=parts.word_bias)
        self.decoder.weight = word.weight  # tied: the same tensor, not a copy

    def forward(self, x_TD: Tensor) -> Tensor:
        """T D -> T V."""
        return self.aligned(x_TD)[..., : self.decoder.out_features]

    def transformed(self, x_TD: Tensor) -> Tensor:
        """T D -> T E: what is compared with the table of words."""
        x_TE: Tensor = self.norm(self.activation(self.dense(x_TD)))
        return x_TE

    def aligned(self, x_TD: Tensor) -> Tensor:
        """T D -> T V; on CUDA V is rounded up to COLUMN_MULTIPLE, and the columns after the vocabulary mean nothing."""
        x_TE = self.transformed(x_TD)
        # The tied table may have more precision than the layers.
        table = self.decoder.weight.to(x_TE.dtype)
        bias = None if self.decoder.bias is None else self.decoder.bias.to(x_TE.dtype)
        if not x_TE.is_cuda:
            return F.linear(x_TE, table, bias)
        # CUDA's matmul is three times slower on 30,522 columns than on a multiple of eight.
        spare = -len(table) % COLUMN_MULTIPLE
        return F.linear(x_TE, F.pad(table, (0, 0, 0, spare)), None if bias is None else F.pad(bias, (0, spare)))


class TwoWayWordHead(MaskedWordHead):
    """ELMo's: one half of a vector predicts the next token, the other half the previous one, by the same table."""

    def aligned(self, x_TD: Tensor) -> Tensor:
        """T D -> T 2 V."""
        return self.one_way(torch.stack(x_TD.chunk(2, dim=-1), dim=-2))

    def one_way(self, x_TE: Tensor) -> Tensor:
        """T D/2 -> T V: what one half predicts, as `MaskedWordHead.aligned` returns it."""
        return super().aligned(x_TE)


class ReplacedTokenHead(nn.Module):
    """ELECTRA's discriminator: one logit for each token, positive when it was replaced."""

    reads = "tokens"

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.width, config.width)
        self.activation = pick(ACTIVATIONS, config.parts.activation, "activation")
        self.out = nn.Linear(config.width, 1)

    def forward(self, x_TD: Tensor) -> Tensor:
        """T D -> T."""
        logits: Tensor = self.out(self.activation(self.dense(x_TD)))
        return logits.squeeze(-1)


class TokenHead(nn.Module):
    """A linear layer on every token: tags, or the start and end of an answer."""

    def __init__(self, config: BertConfig, labels: int) -> None:
        super().__init__()
        self.reads = "pooler's tokens" if config.parts.token_pooler else "tokens"
        self.dropout = nn.Dropout(config.dropout)
        self.out = nn.Linear(config.width, labels)

    def forward(self, x_TD: Tensor) -> Tensor:
        """T D -> T labels."""
        logits: Tensor = self.out(self.dropout(x_TD))
        return logits


class PooledHead(TokenHead):
    """A linear layer on one pooled vector for each sequence: classes, pairs, choices, a number."""

    def __init__(self, config: BertConfig, labels: int) -> None:
        super().__init__(config, labels)
        self.reads = "pooled"
        parts = config.parts
        width = config.width * (POOLINGS[parts.pooling].width if parts.pooler == "none" else 1)
        self.out = nn.Linear(width, labels, bias=parts.class_bias)


class ScalarMix(nn.Module):
    """A learned mixture of all layers: gamma * sum of softmax(weights)_i * layer_i (ELMo's, and the probes')."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(layers))
        self.gamma = nn.Parameter(torch.ones(()))

    def forward(self, states: list[Tensor]) -> Tensor:
        """A list of T D -> T D."""
        return self.gamma * torch.einsum("l,ltd->td", self.weights.softmax(0), torch.stack(states))


@dataclass(frozen=True)
class Head:
    """A row of HEADS: what a head reads, how many outputs it has, its names in ONNX files."""

    pooled: bool  # it reads one vector for each sequence; else, every token
    outputs: int | None = None  # None: as many as there are labels
    labels: bool = False  # config.json names its outputs
    onnx: tuple[str, ...] = ("logits",)  # output names in an ONNX file; several: one for each output
    onnx_beside: str = ""  # output name in a file with several heads; "": the head's name with _logits
    grouped: bool = False  # ONNX inputs are N choices L


HEADS: Mapping[str, Head] = MappingProxyType(
    {
        "masked_word": Head(False, onnx_beside="prediction_logits"),
        "next_sentence": Head(True, 2, onnx_beside="seq_relationship_logits"),  # 1: B does not follow A, or is swapped
        "replaced_token": Head(False, 1),
        "decoder": Head(False, 1),  # writes a text from the encoder's output: model/decoder.py
        "classify": Head(True, labels=True),
        "tag": Head(False, labels=True),
        "answer": Head(False, 2, onnx=("start_logits", "end_logits")),
        "choose": Head(True, 1, grouped=True),  # a score for each choice; a softmax over the choices follows
    }
)


def build_head(name: str, config: BertConfig, labels: int | None, word: nn.Embedding) -> nn.Module:
    """The head called `name`; `labels` is the number of outputs where the row does not fix it."""
    row = pick(HEADS, name, "head")
    outputs = row.outputs or labels or 2
    if name == "masked_word":
        return TwoWayWordHead(config, word) if config.two_way_words else MaskedWordHead(config, word)
    if name == "replaced_token":
        return ReplacedTokenHead(config)
    return PooledHead(config, outputs) if row.pooled else TokenHead(config, outputs)


def outputs_of(head: nn.Module) -> int | None:
    """The number of a head's outputs; None where its kind fixes it."""
    out = getattr(head, "out", None)
    return out.out_features if isinstance(out, nn.Linear) else None
