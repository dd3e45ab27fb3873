"""The encoder with its heads, which all read one forward pass; and the initialization of the weights."""

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from bertkit.config import BertConfig
from bertkit.errors import RequestError
from bertkit.model.batch import Batch
from bertkit.model.encoder import Encoder
from bertkit.model.heads import Pooler, build_head
from bertkit.settings import pick

if TYPE_CHECKING:
    from bertkit.model.decoder import Decoder

NO_HEADS: Mapping[str, int | None] = MappingProxyType({})


class BertModel(nn.Module):
    """An encoder, heads (name -> number of labels), and a pooler if a head needs one."""

    def __init__(self, config: BertConfig, heads: Mapping[str, int | None] = NO_HEADS, *, pooler: bool = False) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        word = self.encoder.embeddings.word
        self.heads = nn.ModuleDict({name: _head(name, config, labels, word) for name, labels in heads.items()})
        needed = any(head.reads in ("pooled", "pooler's tokens") for head in self.heads.values())
        self.pooler = Pooler(config) if pooler or needed else None

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.encoder.embeddings.word.weight.device

    def forward(self, batch: Batch, ids: Tensor | None = None) -> Tensor:
        """T D: the last layer's vectors; `ids` replace the batch's."""
        hidden: Tensor = self.encoder(batch, ids)
        return hidden

    @property
    def fills(self) -> bool:
        """Whether it can fill masked words: it has the masked-word head, which reads both sides of a word at once."""
        one_sided = self.config.parts.causal or self.config.two_way_words
        return "masked_word" in self.heads and not one_sided

    @property
    def writes(self) -> bool:
        """Whether it can generate text: it has a decoder, or is causal and has the word head."""
        return self.decoder is not None or ("masked_word" in self.heads and self.config.parts.causal)

    @property
    def decoder(self) -> "Decoder | None":
        """The decoder of an encoder-decoder model."""
        decoder: Decoder | None = dict(self.heads.items()).get("decoder")  # type: ignore[assignment]
        return decoder

    @property
    def tied(self) -> dict[str, str]:
        """Tensors that the model has under two names: second name -> first name."""
        word, tied = "encoder.embeddings.word.weight", {}
        if "masked_word" in self.heads:
            tied["heads.masked_word.decoder.weight"] = word
        if self.decoder is not None:
            own = "heads.decoder.stack.embeddings.word.weight"
            tied["heads.decoder.words.decoder.weight"] = own
            if self.config.parts.shared_vocabulary:
                tied = {name: word for name in (*tied, own)}
        return tied

    def logits(self, batch: Batch, head: str) -> Tensor:
        """One head's logits for a batch: T ... from token heads, N ... from heads on the pooled vector."""
        return self.read(head, self(batch), batch)

    def read(self, head: str, hidden_TD: Tensor, batch: Batch) -> Tensor:
        """One head's logits from the encoder's output, T D."""
        reader = pick(dict(self.heads.items()), head, "head of this model")
        logits: Tensor = reader(self._source(reader, hidden_TD, batch))
        return logits

    def pooled(self, hidden_TD: Tensor, batch: Batch) -> Tensor:
        """N D: [CLS] through the pooler."""
        if self.pooler is None:
            raise RequestError("this model has no pooler; use pooling='cls' for the plain [CLS] vector")
        pooled: Tensor = self.pooler(hidden_TD, batch)
        return pooled

    def _source(self, reader: nn.Module, hidden_TD: Tensor, batch: Batch) -> Tensor:
        """A head's input: every token, every token through the pooler's dense layer, or one pooled vector."""
        if reader.reads == "tokens":
            return hidden_TD
        if reader.reads == "pooled":
            return self.pooled(hidden_TD, batch)
        assert self.pooler is not None  # __init__ made it for this head
        return self.pooler.transform(hidden_TD)


def _head(name: str, config: BertConfig, labels: int | None, word: nn.Embedding) -> nn.Module:
    if name != "decoder":
        return build_head(name, config, labels, word)
    from bertkit.model.decoder import Decoder

    return Decoder(config, word)


def parameter_count(module: nn.Module) -> int:
    """The number of parameters; a tied tensor counts once."""
    return sum(parameter.numel() for parameter in module.parameters())


def new_model(
    config: BertConfig, heads: dict[str, int | None] | None = None, *, seed: int = 0, pooler: bool = False
) -> BertModel:
    """A newly initialized model, the same for the same seed, on the CPU in float32."""
    with torch.device("meta"):
        model = BertModel(config, heads if heads is not None else NO_HEADS, pooler=pooler)
    model.to_empty(device="cpu")
    tie(model)
    initialize(model, seed=seed)
    return model


def copied(model: BertModel, config: BertConfig, tensors: Mapping[str, Tensor]) -> BertModel:
    """A new model with the same heads, and with this config and these tensors."""
    copy = new_model(config, dict.fromkeys(model.heads), pooler=model.pooler is not None)
    copy.load_state_dict(tensors)
    copy.encoder.embeddings.mask_id = model.encoder.embeddings.mask_id
    return copy.train(model.training)


def hide_masks(model: BertModel, mask_id: int) -> None:
    """Tell XLNet which token is masked: it is then predicted by the second stream, and seen by none."""
    if model.config.parts.two_streams:
        model.encoder.embeddings.mask_id = mask_id


def tie(model: BertModel) -> None:
    """Tie projections to the vocabulary to their embedding tables again, after tensors were replaced."""
    for second, first in model.tied.items():
        module, _, name = second.rpartition(".")
        setattr(model.get_submodule(module), name, model.get_parameter(first))


def initialize(model: BertModel, *, seed: int = 0, only: Iterable[str] | None = None) -> None:
    """Initialize every tensor (or `only` those named), each with its own seed, so that the order does not matter.

    As in Google's BERT: matrices from a normal of `init_std` truncated at two deviations, biases 0, norms 1. With
    pre-norm, layers that write into the residual stream are scaled by 1/sqrt(2 depth), as in ModernBERT. Recurrent
    layers have a deviation of 1/sqrt(inputs).
    """
    chosen = None if only is None else set(only)
    norms = {name for name, module in model.named_modules() if isinstance(module, nn.LayerNorm)}
    for index, (name, tensor) in enumerate(sorted(model.named_parameters())):
        owner, _, kind = name.rpartition(".")
        if chosen is not None and name not in chosen:
            continue
        if owner in norms:
            nn.init.constant_(tensor, 1.0 if kind == "weight" else 0.0)
        elif kind.startswith("bias"):  # LSTM and GRU have several
            nn.init.zeros_(tensor)
            if kind == "bias_hh_l0" and isinstance(module := model.get_submodule(owner), nn.LSTM):
                nn.init.ones_(tensor[module.hidden_size : 2 * module.hidden_size])  # an LSTM starts by not forgetting
        else:
            generator = torch.Generator(tensor.device).manual_seed((seed * 1_000_003 + index) % 2**63)
            _truncated_normal(tensor, _std(name, tensor, model.config), generator)


@torch.no_grad()
def _truncated_normal(tensor: Tensor, std: float, generator: torch.Generator) -> None:
    """Normal values, drawn again if they are beyond two deviations (torch's own, by erfinv, is 10x slower)."""
    numbers = tensor.normal_(0.0, std, generator=generator).view(-1)
    beyond = (numbers.abs() > 2 * std).nonzero().squeeze(1)
    while len(beyond):
        again = torch.empty(len(beyond), device=tensor.device).normal_(0.0, std, generator=generator)
        numbers[beyond] = again
        beyond = beyond[again.abs() > 2 * std]


def _std(name: str, tensor: Tensor, config: BertConfig) -> float:
    if ".rnn." in name:  # no norm corrects the scale of a recurrent layer's input, so its width has to
        return float(tensor.shape[-1] ** -0.5)
    into_residual = name.endswith(("attention.out.weight", "feed_forward.down.weight"))
    scale = 1 / math.sqrt(2 * config.depth) if config.parts.norm == "pre" and into_residual else 1.0
    return config.init_std * scale
