"""The config of a model, as frozen dataclasses that check themselves.

`Parts` says which modules the encoder is built from, `BertConfig` how large it is. The rows of families/ are the
published models; any other combination of parts works too, but only bertkit can load it.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from bertkit.errors import RequestError
from bertkit.families.family import FAMILIES
from bertkit.poolings import POOLINGS, HeadPooling
from bertkit.settings import (
    Count,
    Natural,
    Positive,
    Range,
    as_text,
    change,
    check_fields,
    pick,
    read_pairs,
    read_toml,
    rules,
)

Probability = Annotated[float, Range(0, under=1)]


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The modules that the encoder is built from. The defaults are BERT's."""

    # What connects the tokens. Recurrent layers read from left to right if `causal`, else in both directions apart.
    layer: Literal["attention", "lstm", "gru"] = "attention"
    skip: bool = False  # recurrent: from the second layer on, a layer's input is added to its output (ELMo)
    weight_dropout: Probability = 0.0  # recurrent: of the weights between two states (AWD-LSTM)
    word_dropout: Probability = 0.0  # of words, in all their places (AWD-LSTM)
    position: Literal["learned", "offset", "sinusoidal", "sinusoidal_halves", "rotary", "none"] = "learned"
    embedding_norm: bool = True  # after the sum of the embeddings; GPT and the Transformer have none
    embedding_scale: bool = False  # the Transformer: word embeddings are multiplied by sqrt(width)
    norm: Literal["post", "pre"] = "post"
    feed_forward: Literal["plain", "gated"] = "plain"
    activation: Literal["gelu", "gelu_tanh", "relu", "silu"] = "gelu"
    # Scores by the distance between two tokens: MPNet's table, DeBERTa's disentangled attention, Transformer-XL's.
    relative: Literal["none", "table", "disentangled", "transformer_xl"] = "none"
    relative_buckets: Natural = 32  # rows of the table (DeBERTa: of each half); 0: one for each distance
    relative_span: Natural = 128  # from this distance on, all have the same row; 0: max_length
    relative_terms: Literal["both", "c2p", "p2c"] = "both"  # DeBERTa: queries with positions, positions with keys
    relative_shared: bool = True  # DeBERTa: positions are projected by the matrices of the tokens
    relative_norm: bool = False  # DeBERTa: a norm of the distance embeddings
    bias: bool = True  # in the encoder's linear layers and norms
    attention_bias: bool = True  # in attention's linear layers; XLNet has none
    causal: bool = False  # a token sees itself and earlier ones, as in GPT; Hugging Face: is_decoder
    shared_layers: bool = False  # ALBERT: one layer, used `depth` times
    window: Annotated[int, Range(2)] | None = None  # ModernBERT: tokens seen on both sides together in local layers
    global_every: Count = 3  # with a window: every third layer sees all tokens
    theta: Positive = 160_000.0  # rotary base of layers that see all tokens
    local_theta: Positive = 10_000.0  # rotary base of local layers
    # Activation of the masked-word head; None: the layers'; linear: the projection to the vocabulary alone.
    word_head: Literal["gelu", "gelu_tanh", "relu", "silu", "linear"] | None = None
    word_bias: bool = True  # in the projection to the vocabulary
    pooler: Literal["tanh", "gelu", "relu", "none"] = "tanh"  # activation of the pooler's dense layer; none: no layer
    pooler_norm: bool = False  # ModernBERT: a norm after it
    pooling: HeadPooling = "first"  # what the pooler reads: [CLS], or all tokens
    token_pooler: bool = False  # ModernBERT: token heads read through the pooler's dense layer
    class_bias: bool = True  # in the last layer of class heads
    shared_vocabulary: bool = True  # with a decoder: it has the encoder's word embeddings

    @property
    def two_streams(self) -> bool:
        """XLNet: a second stream predicts tokens that it does not see, and [CLS] is read as the last token."""
        return self.relative == "transformer_xl"

    def __post_init__(self) -> None:
        check_fields(self)
        if self.shared_layers and (self.window is not None or self.norm == "pre"):
            raise RequestError("shared_layers=true means one layer for all: it has no window and norm='post'")
        if self.token_pooler and POOLINGS[self.pooling].width > 1:
            raise RequestError(
                f"pooling={self.pooling} is wider than a token, so the pooler cannot have token_pooler=true"
            )
        if self.layer != "attention" and (self.window is not None or self.relative != "none"):
            raise RequestError(f"layer={self.layer} has no attention: leave out window and relative")
        if self.layer != "attention" and self.position == "rotary":
            raise RequestError(f"layer={self.layer} has no queries to rotate: set position=none")
        if self.relative == "table" and not 4 <= self.relative_buckets < 2 * self.relative_span:
            raise RequestError(
                f"relative_buckets={self.relative_buckets} must be from 4 to twice relative_span={self.relative_span}"
            )
        if self.relative == "disentangled" and self.relative_buckets in (1, 2, 3):
            raise RequestError(f"relative_buckets={self.relative_buckets} must be 4 or more, or 0")


@dataclass(frozen=True, kw_only=True)
class BertConfig:
    """The sizes and parts of one model. Hugging Face's names for these fields are in the rows of families/."""

    family: str = "bert"
    vocab_size: Annotated[int, Range(1), Range(most=10**8)] = 30522
    width: Annotated[int, Range(1), Range(most=10**6)] = 768
    depth: Annotated[int, Range(1), Range(most=10**4)] = 12
    decoder_depth: Annotated[int, Range(0, 10**4)] = 0  # layers of the decoder, which has the encoder's other sizes
    heads: Annotated[int, Range(1), Range(most=10**5)] = 12
    # Width between the feed-forward's two layers; of an LSTM's cell; of a recurrent decoder's additive attention.
    inner: Annotated[int, Range(1), Range(most=10**7)] = 3072
    embedding_width: Count | None = None  # ALBERT, ELECTRA: narrower tables and a projection to `width`
    max_length: Annotated[int, Range(1), Range(most=10**8)] = 512
    segments: Annotated[int, Range(0, 10**4)] = 2  # 0: no segment table
    dropout: Probability = 0.1
    attention_dropout: Probability = 0.1
    norm_epsilon: Annotated[float, Range(over=0, under=1)] = 1e-12
    pad_id: Natural = 0
    init_std: Annotated[float, Range(over=0, under=100)] = 0.02
    parts: Parts = field(default_factory=Parts)

    def __post_init__(self) -> None:
        check_fields(self)
        pick(FAMILIES, self.family, "family")
        if self.width % self.heads:
            raise RequestError(f"width={self.width} must divide evenly by heads={self.heads}")
        if self.pad_id >= self.vocab_size:
            raise RequestError(f"pad_id={self.pad_id} must be under vocab_size={self.vocab_size}")
        if self.parts.position == "rotary" and self.head_width % 2:
            raise RequestError(f"width / heads={self.head_width} must be even for rotary positions")
        if self.directions == 2 and (self.width % 2 or self.embedding_width is not None):
            raise RequestError(
                f"a layer={self.parts.layer} in two directions needs an even width={self.width}, of which each "
                "direction has half, and no embedding_width"
            )
        if self.decoder_depth and self.two_way_words:
            raise RequestError(f"this model ({self.family}) predicts words from each side alone; it takes no decoder")
        if self.parts.layer == "lstm" and self.inner < self.width // self.directions:
            raise RequestError(
                f"inner={self.inner}, the width of an LSTM's cell, must be {self.width // self.directions} or more, "
                "the width of its output"
            )

    @property
    def recurrent(self) -> bool:
        """Whether the layers are recurrent: they have no attention, and are neither compiled nor exported."""
        return self.parts.layer != "attention"

    @property
    def attention_heads(self) -> int:
        """Heads of each layer's attention: `heads`, or none in recurrent layers."""
        return 0 if self.recurrent else self.heads

    @property
    def directions(self) -> int:
        """2 for recurrent layers that read forward and backward: each direction has half of `width`."""
        return 2 if self.recurrent and not self.parts.causal else 1

    @property
    def two_way_words(self) -> bool:
        """Whether the vocabulary head predicts the next token from one half of a vector, the previous from the rest."""
        return self.directions == 2 and self.parts.word_head == "linear"

    @property
    def head_width(self) -> int:
        """Width of one head's query, key or value."""
        return self.width // self.heads

    @property
    def table_width(self) -> int:
        """Width of the embedding tables: `embedding_width`, or the width of one direction."""
        return self.width // self.directions if self.embedding_width is None else self.embedding_width


# Turc 2019's miniatures, and the two sizes of the BERT paper.
SIZES: dict[str, dict[str, int]] = {
    "tiny": {"depth": 2, "width": 128, "heads": 2, "inner": 512},
    "mini": {"depth": 4, "width": 256, "heads": 4, "inner": 1024},
    "small": {"depth": 4, "width": 512, "heads": 8, "inner": 2048},
    "medium": {"depth": 8, "width": 512, "heads": 8, "inner": 2048},
    "base": {"depth": 12, "width": 768, "heads": 12, "inner": 3072},
    "large": {"depth": 24, "width": 1024, "heads": 16, "inner": 4096},
}


def family_config(family: str = "bert", size: str = "base", **settings: Any) -> BertConfig:
    """The config of a family and size with some settings changed: `family_config("roberta", "small", pad_id=0)`."""
    row = pick(FAMILIES, family, "family")
    merged = {**row.settings, **pick(SIZES, size, "size"), **row.every_size, **settings}
    if "vocab_size" in settings and "pad_id" not in settings and merged.get("pad_id", 0) >= settings["vocab_size"]:
        merged["pad_id"] = 0
    parts = {name: merged.pop(name) for name in rules(Parts()) if name in merged}
    return BertConfig(family=family, parts=Parts(**parts), **merged)


def override(config: BertConfig, *pairs: str) -> BertConfig:
    """A config with settings changed: `override(config, "depth=6")`; unknown names and invalid values are refused."""
    return read_pairs(pairs, config)[0]


def read_config(path: Path) -> BertConfig:
    """A config from a TOML file: `family`, `size`, and any setting of `override`."""
    table = read_toml(path)
    start = family_config(str(table.pop("family", "bert")), str(table.pop("size", "base")))
    try:
        return change(start, {name: as_text(value) for name, value in table.items()})
    except RequestError as error:
        raise RequestError(f"{path}: {error}") from error
