"""CPU engine: the layers' operations in float32 over oneDNN's packed weights, with bias, GELU and residual fused.

The slow twin is torch's own set; `tests/engine/test_cpu_engine.py` holds them together. Packed weights are a second
copy, beside the model and not in it: a model takes twice its memory from its first vector on.
"""

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from bertkit.engine.maps import Watched, pack
from bertkit.errors import RequestError
from bertkit.model.batch import Batch
from bertkit.model.encoder import Encoder
from bertkit.model.operations import Activation, Operations, Output

if TYPE_CHECKING:
    from bertkit.engine.onnx import OnnxEncoder

# One MiniLM text on 2 cores, milliseconds, ONNX Runtime and this: 8 tokens 2.7 and 4.3, 32 tokens 5.0 and 6.7, 96
# tokens 13.3 and 14.6; from 128 on they are equal. And no more than go through torch's part with one thread: a second
# one of torch's, waiting for work, takes ONNX Runtime's core (8 ms for 8 tokens).
SHORT = 64
# Batches of up to so many tokens come in multiples of so many.
STEPS = ((64, 8), (256, 16), (1024, 32), (1 << 62, 128))


class CpuOperations(Operations):
    """An encoder's operations over maps that were packed from its weights."""

    short: "OnnxEncoder | None" = None  # what computes one text of few tokens in place of the layers

    def __init__(self, encoder: Encoder) -> None:
        # By module, in a table of this engine's: state_dict, hooks and training never see packed weights. And not by
        # the encoder itself, which what is kept for it must not keep alive.
        self.maps = {module: pack(module) for module in encoder.modules() if isinstance(module, nn.Linear)}
        self.longest = encoder.config.max_length
        self.made_of = Watched(encoder, held=False)

    def prepare(self, batch: Batch) -> Batch:
        """Filled up, so that batches come in few sizes."""
        return filled_up(batch, self.longest)

    def finish(self, x_TD: Tensor, batch: Batch) -> Tensor:
        """Without the rows that filled it up."""
        return x_TD[: len(batch.ids)]

    def embed(self, x_TE: Tensor, norm: nn.Module, dropout: nn.Module, dtype: torch.dtype) -> Tensor:
        """T E; no dropout, for there are no gradients, and all is float32."""
        return self.norm(norm, x_TE)

    def project(self, linear: nn.Linear, x_TI: Tensor) -> Tensor:
        """T O."""
        return self.maps[linear](x_TI)

    def activate(self, linear: nn.Linear, activation: Activation, x_TI: Tensor) -> Tensor:
        """T O."""
        return self.maps[linear](x_TI, activation)

    def output(self, linear: nn.Linear, x_TI: Tensor) -> Output:
        """The map and what it reads: it is computed with the residual, which is added while it is in the cache."""
        return self.maps[linear], x_TI

    def add(self, x_TD: Tensor, output: Output, dropout: nn.Module) -> Tensor:
        """T D."""
        made, x_TI = output
        added_TD: Tensor = made.onto(x_TI, x_TD)
        return added_TD

    def add_norm(self, x_TD: Tensor, output: Output, dropout: nn.Module, norm: nn.Module) -> Tensor:
        """T D."""
        made, x_TI = output
        return self.norm(norm, made.onto(x_TI, x_TD))

    def norm(self, norm: nn.Module, x_TD: Tensor) -> Tensor:
        """T D; without the module's call, which takes as long as the norm of a short text."""
        if type(norm) is nn.LayerNorm:
            return torch.layer_norm(x_TD, norm.normalized_shape, norm.weight, norm.bias, norm.eps)
        return super().norm(norm, x_TD)

    def whole(self, batch: Batch) -> Tensor | None:
        """T D: one short text through ONNX Runtime, where that was asked for."""
        if self.short is None or len(batch.lengths) != 1 or batch.longest > SHORT:
            return None
        ids, segments = batch.ids.tolist(), batch.segments.tolist()
        return torch.from_numpy(self.short(ids)) if self.short.takes(ids, segments) else None


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


def cpu_operations(encoder: Encoder) -> CpuOperations | None:
    """The packed operations where they compute the same, packed anew when weights have changed; else None."""
    if encoder.training or torch.is_grad_enabled():
        return None
    found = _PACKED.get(encoder)
    if found is not None and found.made_of.same() and not found.made_of.hooked():
        return found
    if not on_cpu(encoder):
        _PACKED.pop(encoder, None)
        return None
    if hooked(encoder):
        return None
    made = CpuOperations(encoder)
    if found is not None and found.short is not None:
        from bertkit.engine.onnx import OnnxEncoder

        made.short = OnnxEncoder(encoder, SHORT, found.short.threads)
    _PACKED[encoder] = made
    return made


def repack(encoder: Encoder) -> None:
    """Pack the encoder's weights anew when they are next needed, whether they have changed or not."""
    if (found := _PACKED.get(encoder)) is not None:
        found.made_of.forget()


def onnx_of(encoder: Encoder) -> "OnnxEncoder | None":
    """What computes one short text in the encoder's place, where that was asked for and nothing has changed since."""
    found = _PACKED.get(encoder)
    if found is None or found.short is None or encoder.training:
        return None
    return found.short if found.made_of.same() and not found.made_of.hooked() else None


def use_onnx(encoder: Encoder) -> None:
    """From now on ONNX Runtime computes one text of up to SHORT tokens."""
    from bertkit.engine.onnx import OnnxEncoder, refuse_unable

    refuse_unable(encoder)
    if not on_cpu(encoder):
        raise RequestError("backend='onnx' is for float32 models on the CPU; load this one without")
    if hooked(encoder):
        raise RequestError("this model's modules have forward hooks, which ONNX Runtime would not call; remove them")
    with torch.inference_mode():
        packed = cpu_operations(encoder.eval())
    assert packed is not None  # nothing stands against it
    packed.short = packed.short or OnnxEncoder(encoder, SHORT, torch.get_num_threads())


def on_cpu(encoder: Encoder) -> bool:
    """Whether all is float32 on the CPU."""
    weight = encoder.embeddings.word.weight
    return weight.device.type == "cpu" and weight.dtype == encoder.dtype == torch.float32


def hooked(root: nn.Module) -> bool:
    """Whether some module has a forward hook, and so must be called itself."""
    return any(module._forward_hooks or module._forward_pre_hooks for module in root.modules())


_PACKED: WeakKeyDictionary[Encoder, CpuOperations] = WeakKeyDictionary()
