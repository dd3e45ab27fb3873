"""The encoder once more, for CPUs: the same arithmetic in float32, with its linear maps as oneDNN reads them best.

Weights are laid out in blocks once instead of at every call, and biases, GELU and residuals are added while a map's
result is still in the cache. The slow twin is `Encoder` itself; `tests/engine/test_cpu_forward.py` holds them together.
Packed weights are a second copy: a model takes twice its memory from its first vector on.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.engine.onnx_encoder import OnnxEncoder, refuse_unable
from bertkit.engine.watched import Watched
from bertkit.errors import RequestError
from bertkit.model.batch import Batch
from bertkit.model.encoder import Encoder
from bertkit.model.feed_forward import ACTIVATIONS, GatedFeedForward
from bertkit.model.kernels import attend
from bertkit.model.layer import PostNormLayer, PreNormLayer
from bertkit.settings import pick

Bend = Callable[[Tensor], Tensor]

# Bends that oneDNN applies by itself: its name and its algorithm.
FUSED_BENDS: dict[Bend, tuple[str, str]] = {
    ACTIVATIONS["gelu"]: ("gelu", "none"),
    ACTIVATIONS["gelu_tanh"]: ("gelu", "tanh"),
    ACTIVATIONS["relu"]: ("relu", ""),
}
# oneDNN lays weights out alike for any number of rows from 8 on: 104 GFLOP/s a core at 8 x 768 x 3072, MKL 57.
PACKED_FOR_ROWS = 512
# With AVX2 alone MKL takes over where rows are many: oneDNN was 9 % slower at throughput, a third quicker at 8 rows.
FEW_ROWS = 256
# One MiniLM text on 2 cores, milliseconds, ONNX Runtime and this: 8 tokens 2.7 and 4.3, 32 tokens 5.0 and 6.7, 96
# tokens 13.3 and 14.6; from 128 on they are equal. And no more than go through torch's part with one thread: a second
# one of torch's, waiting for work, takes ONNX Runtime's core (8 ms for 8 tokens).
SHORT = 64
# Batches of up to so many tokens come in multiples of so many.
STEPS = ((64, 8), (256, 16), (1024, 32), (1 << 62, 128))


class Map(Protocol):
    """A linear map as the layers below use it."""

    def __call__(self, x_TI: Tensor, bend: Bend | None = None) -> Tensor:
        """T O: mapped, and bent if a bend is given."""

    def onto(self, x_TI: Tensor, base_TO: Tensor) -> Tensor:
        """T O: mapped, and added to `base_TO`."""


@dataclass(frozen=True)
class PlainMap:
    """torch's own: the twin of the others."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x_TI: Tensor, bend: Bend | None = None) -> Tensor:
        """T O."""
        y_TO = F.linear(x_TI, self.weight, self.bias)
        return y_TO if bend is None else bend(y_TO)

    def onto(self, x_TI: Tensor, base_TO: Tensor) -> Tensor:
        """T O."""
        return base_TO + self(x_TI)


@dataclass(frozen=True)
class PackedMap:
    """oneDNN's: weights packed in blocks, what follows fused."""

    packed: Tensor
    plain: PlainMap

    @classmethod
    def of(cls, linear: nn.Linear) -> "PackedMap":
        """From a torch module, whose own weights stay as they are."""
        weight, bias = linear.weight.detach(), None if linear.bias is None else linear.bias.detach()
        return cls(_onednn()._reorder_linear_weight(weight, PACKED_FOR_ROWS), PlainMap(weight, bias))

    def __call__(self, x_TI: Tensor, bend: Bend | None = None) -> Tensor:
        """T O."""
        if len(x_TI) > FEW_ROWS and not _wide_vectors():
            return self.plain(x_TI, bend)
        if bend is None or bend in FUSED_BENDS:
            name, algorithm = ("none", "") if bend is None else FUSED_BENDS[bend]
            y_TO: Tensor = _onednn()._linear_pointwise(x_TI, self.packed, self.plain.bias, name, [], algorithm)
            return y_TO
        return bend(self(x_TI))

    def onto(self, x_TI: Tensor, base_TO: Tensor) -> Tensor:
        """T O."""
        if len(x_TI) > FEW_ROWS and not _wide_vectors():
            return self.plain.onto(x_TI, base_TO)
        y_TO: Tensor = _onednn()._linear_pointwise.binary(x_TI, base_TO, self.packed, self.plain.bias, "add")
        return y_TO


class MappedLinear(nn.Linear):
    """A linear module that computes on the CPU through a map of another make; its weights stay for all else."""

    made: Map
    made_of: Watched

    @classmethod
    def of(cls, linear: nn.Linear, made: Map) -> "MappedLinear":
        """With the same weights as `linear`."""
        with torch.device("meta"):
            module = cls(linear.in_features, linear.out_features, bias=linear.bias is not None)
        module.weight, module.bias, module.made = linear.weight, linear.bias, made
        module.made_of = Watched(module)
        return module.train(linear.training)

    def plain(self) -> nn.Linear:
        """Torch's own module with the same weights."""
        with torch.device("meta"):
            module = nn.Linear(self.in_features, self.out_features, bias=self.bias is not None)
        module.weight, module.bias = self.weight, self.bias
        return module.train(self.training)

    @property
    def map(self) -> Map | None:
        """The map, as long as the weights are those it was made from."""
        return self.made if self.made_of.same() else None

    def forward(self, input: Tensor) -> Tensor:
        """... O: through the map, unless gradients are asked for or the numbers are others than it was made for."""
        usable = input.device.type == "cpu" and input.dtype == torch.float32 and not torch.is_grad_enabled()
        found = self.map if usable else None
        if found is None:
            return super().forward(input)
        return found(input.reshape(-1, input.shape[-1])).view(*input.shape[:-1], -1)


def pack(linear: nn.Linear) -> Map:
    """The quickest map for a linear module that gives what the module gives."""
    if isinstance(linear, MappedLinear) and linear.map is not None:
        return linear.map
    if not _has_onednn():
        return PlainMap(linear.weight.detach(), None if linear.bias is None else linear.bias.detach())
    return PackedMap.of(linear)


class QuickLayer:
    """A layer's attention and feed-forward over packed maps; the norms are the layer's own."""

    def __init__(self, layer: PostNormLayer | PreNormLayer) -> None:
        self.layer = layer
        attention, feed_forward = layer.attention, layer.feed_forward
        self.qkv, self.out = pack(attention.qkv), pack(attention.out)
        self.up, self.down = pack(feed_forward.up), pack(feed_forward.down)
        self.bent = self._gated if isinstance(feed_forward, GatedFeedForward) else self._plain

    def mixed(self, x_TD: Tensor, batch: Batch) -> Tensor:
        """T D: every head's weighted mean of values, side by side."""
        attention = self.layer.attention
        qkv_T3HK = attention.rotate(self.qkv(x_TD).view(len(x_TD), 3, attention.heads, -1), batch.positions)
        return attend(qkv_T3HK, batch, attention.sight).flatten(1)

    def _plain(self, x_TD: Tensor) -> Tensor:
        return self.up(x_TD, self.layer.feed_forward.bend)

    def _gated(self, x_TD: Tensor) -> Tensor:
        bent, gate = self.up(x_TD).chunk(2, dim=-1)
        return self.layer.feed_forward.bend(bent) * gate


class QuickPostNorm(QuickLayer):
    """norm(x + sublayer(x))."""

    def __call__(self, x_TD: Tensor, batch: Batch) -> Tensor:
        """T D -> T D."""
        x_TD = self.layer.attention_norm(self.out.onto(self.mixed(x_TD, batch), x_TD))
        out: Tensor = self.layer.feed_forward_norm(self.down.onto(self.bent(x_TD), x_TD))
        return out


class QuickPreNorm(QuickLayer):
    """x + sublayer(norm(x))."""

    def __call__(self, x_TD: Tensor, batch: Batch) -> Tensor:
        """T D -> T D."""
        x_TD = self.out.onto(self.mixed(self.layer.attention_norm(x_TD), batch), x_TD)
        return self.down.onto(self.bent(self.layer.feed_forward_norm(x_TD)), x_TD)


LAYERS: dict[str, type[QuickPostNorm] | type[QuickPreNorm]] = {"post": QuickPostNorm, "pre": QuickPreNorm}


class QuickEncoder:
    """An encoder's embeddings, norms and attention over maps of another make."""

    short: OnnxEncoder | None = None  # what computes one text of few tokens in its place

    def __init__(self, encoder: Encoder) -> None:
        kind = pick(LAYERS, encoder.config.parts.norm, "norm")
        made: dict[nn.Module, QuickPostNorm | QuickPreNorm] = {}
        for layer in encoder.stack:  # shared layers are packed once
            made[layer] = made.get(layer) or kind(layer)
        # Not the encoder itself: what is kept for it below must not keep it alive.
        self.embeddings, self.norm = encoder.embeddings, encoder.norm
        self.longest = encoder.config.max_length
        self.stack = [made[layer] for layer in encoder.stack]
        self.made_of = Watched(encoder, held=False)

    def __call__(self, batch: Batch) -> Tensor:
        """T D: the last layer's vectors."""
        if self.short is not None and len(batch.lengths) == 1 and batch.longest <= SHORT:
            ids, segments = batch.ids.tolist(), batch.segments.tolist()
            if self.short.takes(ids, segments):
                return torch.from_numpy(self.short(ids))
        filled = filled_up(batch, self.longest)
        x_TD = self.embeddings(filled)
        for layer in self.stack:
            x_TD = layer(x_TD, filled)
        out: Tensor = self.norm(x_TD)
        return out[: len(batch.ids)]

    def hidden_states(self, batch: Batch, depth: int) -> list[Tensor]:
        """The embeddings and each layer's output up to `depth`, T D each; the last of all is as in a call."""
        filled = filled_up(batch, self.longest)
        states = [self.embeddings(filled)]
        for layer in self.stack[:depth]:
            states.append(layer(states[-1], filled))
        if depth == len(self.stack):
            states[-1] = self.norm(states[-1])
        return [state[: len(batch.ids)] for state in states]


def filled_up(batch: Batch, longest: int) -> Batch:
    """With sequences of padding at the end, so that batches come in few sizes.

    oneDNN keeps what it has prepared for each of a thousand sizes. With any size a MiniLM grew from 530 to 620 MB in
    600 batches of one to four short texts, and went on; with these it stays at 490. The time for a token is the same.
    """
    tokens = len(batch.ids)
    spare = -tokens % next(step for most, step in STEPS if tokens <= most)
    if not spare:
        return batch
    zeros, lengths = batch.ids.new_zeros(spare), [min(longest, spare - at) for at in range(0, spare, longest)]
    ids, segments = torch.cat((batch.ids, zeros)), torch.cat((batch.segments, zeros))
    return Batch(ids, segments, (*batch.lengths, *lengths))


def quick(encoder: Encoder) -> "Encoder | QuickEncoder":
    """The packed twin where it computes the same, packed anew when weights have changed; else the encoder itself."""
    if encoder.training or torch.is_grad_enabled():
        return encoder
    found = _PACKED.get(encoder)
    if found is not None and found.made_of.same() and not found.made_of.hooked():
        return found
    if not on_cpu(encoder):
        _PACKED.pop(encoder, None)
        return encoder
    if hooked(encoder):
        return encoder
    made = QuickEncoder(encoder)
    if found is not None and found.short is not None:
        made.short = OnnxEncoder(encoder, SHORT, found.short.threads)
    _PACKED[encoder] = made
    return made


def repack(encoder: Encoder) -> None:
    """Make what was made of the encoder's weights anew when it is next needed, whether they have changed or not."""
    if (found := _PACKED.get(encoder)) is not None:
        found.made_of.forget()


def onnx_of(encoder: Encoder) -> OnnxEncoder | None:
    """What computes one short text in the encoder's place, where that was asked for and nothing has changed since."""
    found = _PACKED.get(encoder)
    if found is None or found.short is None or encoder.training:
        return None
    return found.short if found.made_of.same() and not found.made_of.hooked() else None


def use_onnx(encoder: Encoder) -> None:
    """From now on ONNX Runtime computes one text of up to SHORT tokens."""
    refuse_unable(encoder)
    if not on_cpu(encoder):
        raise RequestError("backend='onnx' is for float32 models on the CPU; load this one without")
    if hooked(encoder):
        raise RequestError("someone listens to this model's modules (forward hooks), whom ONNX Runtime would not call")
    with torch.inference_mode():
        packed = quick(encoder.eval())
    assert isinstance(packed, QuickEncoder)  # nothing stands against it
    packed.short = packed.short or OnnxEncoder(encoder, SHORT, torch.get_num_threads())


def on_cpu(encoder: Encoder) -> bool:
    """Whether all is float32 on the CPU."""
    weight = encoder.embeddings.word.weight
    return weight.device.type == "cpu" and weight.dtype == encoder.dtype == torch.float32


def hooked(root: nn.Module) -> bool:
    """Whether someone listens to one of the modules, and so wants it to be called."""
    return any(module._forward_hooks or module._forward_pre_hooks for module in root.modules())


_PACKED: WeakKeyDictionary[Encoder, QuickEncoder] = WeakKeyDictionary()


@cache
def _wide_vectors() -> bool:
    return torch.backends.cpu.get_cpu_capability() == "AVX512"


@cache
def _has_onednn() -> bool:
    return bool(torch._C._has_mkldnn) and hasattr(_onednn(), "_linear_pointwise")


@cache
def _onednn() -> Any:
    return torch.ops.mkldnn
