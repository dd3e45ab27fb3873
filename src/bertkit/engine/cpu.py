"""CPU engine: the layers' operations in float32 over oneDNN's packed weights, with bias, GELU and residual fused.

The slow twin is torch's own set; `tests/engine/test_cpu_engine.py` compares them. Packed weights are a second copy
outside the model: from its first vector on, a model takes twice its memory.
"""

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from bertkit.engine.linear import WeightSnapshot, pack
from bertkit.errors import RequestError
from bertkit.model.batch import Batch
from bertkit.model.encoder import Encoder
from bertkit.model.operations import Activation, Operations, Output

if TYPE_CHECKING:
    from bertkit.engine.onnx import OnnxEncoder

# The longest text that ONNX Runtime computes. One MiniLM text on 2 cores in ms, ONNX Runtime and this engine: 8 tokens
# 2.7 and 4.3, 32 tokens 5.0 and 6.7, 96 tokens 13.3 and 14.6; from 128 on they are equal. It is also the most that
# torch computes with one thread: a second one, waiting for work, would take ONNX Runtime's core (8 ms for 8 tokens).
MAX_ONNX_TOKENS = 64
# (tokens, multiple): batches of up to so many tokens are padded to such a multiple.
PADDING_STEPS = ((64, 8), (256, 16), (1024, 32), (1 << 62, 128))


class CpuOperations(Operations):
    """An encoder's operations over weights that were packed from its own."""

    onnx: "OnnxEncoder | None" = None  # computes one short text instead of the layers

    def __init__(self, encoder: Encoder) -> None:
        # By module, and not in the modules: state_dict, hooks and training never see packed weights. The encoder itself
        # is not kept: _PACKED, which refers to it weakly, would keep it alive.
        self.linears = {module: pack(module) for module in encoder.modules() if isinstance(module, nn.Linear)}
        self.max_length = encoder.config.max_length
        self.snapshot = WeightSnapshot(encoder, keep_root=False)

    def prepare(self, batch: Batch) -> Batch:
        """The batch padded to one of a few sizes."""
        return padded_to_step(batch, self.max_length)

    def finish(self, x_TD: Tensor, batch: Batch) -> Tensor:
        """T D without the rows of padding."""
        return x_TD[: len(batch.ids)]

    def embed(self, x_TE: Tensor, norm: nn.Module, dropout: nn.Module, dtype: torch.dtype) -> Tensor:
        """T E, float32; without dropout, because there are no gradients."""
        return self.norm(norm, x_TE)

    def project(self, linear: nn.Linear, x_TI: Tensor) -> Tensor:
        """T O."""
        return self.linears[linear](x_TI)

    def activate(self, linear: nn.Linear, activation: Activation, x_TI: Tensor) -> Tensor:
        """T O."""
        return self.linears[linear](x_TI, activation)

    def output(self, linear: nn.Linear, x_TI: Tensor) -> Output:
        """The operation and its input: it is computed together with the residual, which is then added in the cache."""
        return self.linears[linear], x_TI

    def add(self, x_TD: Tensor, output: Output, dropout: nn.Module) -> Tensor:
        """T D."""
        linear, x_TI = output
        added_TD: Tensor = linear.add_to(x_TD, x_TI)
        return added_TD

    def add_norm(self, x_TD: Tensor, output: Output, dropout: nn.Module, norm: nn.Module) -> Tensor:
        """T D."""
        linear, x_TI = output
        return self.norm(norm, linear.add_to(x_TD, x_TI))

    def norm(self, norm: nn.Module, x_TD: Tensor) -> Tensor:
        """T D; without the module's call, which takes as long as the norm of a short text."""
        if type(norm) is nn.LayerNorm:
            return torch.layer_norm(x_TD, norm.normalized_shape, norm.weight, norm.bias, norm.eps)
        return super().norm(norm, x_TD)

    def whole_encoder(self, batch: Batch) -> Tensor | None:
        """T D: one short text through ONNX Runtime, if `use_onnx` was called."""
        if self.onnx is None or len(batch.lengths) != 1 or batch.longest > MAX_ONNX_TOKENS:
            return None
        ids, segments = batch.ids.tolist(), batch.segments.tolist()
        return torch.from_numpy(self.onnx(ids)) if self.onnx.takes(ids, segments) else None


def padded_to_step(batch: Batch, max_length: int) -> Batch:
    """With sequences of padding at the end, each up to `max_length` tokens, so that batches come in few sizes.

    oneDNN caches a primitive for each of a thousand sizes. With any size a MiniLM grew from 530 to 620 MB in 600
    batches of one to four short texts, and kept growing; with these it stays at 490. The time per token is the same.
    """
    tokens = len(batch.ids)
    padding = -tokens % next(multiple for most, multiple in PADDING_STEPS if tokens <= most)
    if not padding:
        return batch
    zeros = batch.ids.new_zeros(padding)
    lengths = [min(max_length, padding - start) for start in range(0, padding, max_length)]
    ids, segments = torch.cat((batch.ids, zeros)), torch.cat((batch.segments, zeros))
    return Batch(ids, segments, (*batch.lengths, *lengths))


def cpu_operations(encoder: Encoder) -> CpuOperations | None:
    """The packed operations, packed again if weights have changed; None where they would not compute the same."""
    if encoder.training or torch.is_grad_enabled():
        return None
    earlier = _PACKED.get(encoder)
    if earlier is not None and _is_valid(earlier):
        return earlier
    if not on_cpu(encoder):
        _PACKED.pop(encoder, None)
        return None
    if has_hooks(encoder):
        return None
    packed = CpuOperations(encoder)
    if earlier is not None and earlier.onnx is not None:
        from bertkit.engine.onnx import OnnxEncoder

        packed.onnx = OnnxEncoder(encoder, MAX_ONNX_TOKENS, earlier.onnx.threads)
    _PACKED[encoder] = packed
    return packed


def _is_valid(packed: CpuOperations) -> bool:
    """Whether the weights are those that were packed, and no hook has to be called."""
    return packed.snapshot.unchanged() and not packed.snapshot.has_hooks()


def repack(encoder: Encoder) -> None:
    """Pack the encoder's weights again at its next call, whether they have changed or not."""
    if (packed := _PACKED.get(encoder)) is not None:
        packed.snapshot.invalidate()


def onnx_of(encoder: Encoder) -> "OnnxEncoder | None":
    """The ONNX form of the encoder, if `use_onnx` was called and nothing has changed since."""
    packed = _PACKED.get(encoder)
    if packed is None or packed.onnx is None or encoder.training:
        return None
    return packed.onnx if _is_valid(packed) else None


def use_onnx(encoder: Encoder) -> None:
    """Compute one text of up to MAX_ONNX_TOKENS tokens by ONNX Runtime from now on."""
    from bertkit.engine.onnx import OnnxEncoder, refuse_unsupported

    refuse_unsupported(encoder)
    if not on_cpu(encoder):
        raise RequestError("backend='onnx' is for float32 models on the CPU; load this one without")
    if has_hooks(encoder):
        raise RequestError("this model's modules have forward hooks, which ONNX Runtime would not call; remove them")
    with torch.inference_mode():
        packed = cpu_operations(encoder.eval())
    assert packed is not None  # all its conditions were checked above
    packed.onnx = packed.onnx or OnnxEncoder(encoder, MAX_ONNX_TOKENS, torch.get_num_threads())


def on_cpu(encoder: Encoder) -> bool:
    """Whether embeddings and layers are float32 on the CPU."""
    weight = encoder.embeddings.word.weight
    return weight.device.type == "cpu" and weight.dtype == encoder.dtype == torch.float32


def has_hooks(root: nn.Module) -> bool:
    """Whether some module has a forward hook, so that the module itself must be called."""
    return any(module._forward_hooks or module._forward_pre_hooks for module in root.modules())


_PACKED: WeakKeyDictionary[Encoder, CpuOperations] = WeakKeyDictionary()
