"""CUDA engine: what stands between the matrix products is done in one pass each.

A product takes its bias along, in bfloat16 GELU too, or leaves them to the kernel that reads its result anyway. GELU
within a product is its tanh form: at most 0.0005 off, where bfloat16 rounds 0.002 off a 1. The slow twin is torch's own
set of operations; `tests/engine/test_cuda_engine.py` holds them together. Weights are the encoder's own, so that
nothing is kept beside them and changes are seen at once.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.engine.cpu import hooked
from bertkit.model.attention import bias_gelu, triton_can_answer
from bertkit.model.encoder import Encoder
from bertkit.model.layer import is_plain
from bertkit.model.operations import Activation, Operations, Output


class CudaOperations(Operations):
    """For post-norm layers with GELU, as BERT's."""

    def __init__(self) -> None:
        from bertkit.model.triton_kernels.norm import add_norm

        self._kernel = add_norm

    def activate(self, linear: nn.Linear, activation: Activation, x_TI: Tensor) -> Tensor:
        """T O."""
        if x_TI.dtype == torch.bfloat16:  # GELU's own pass was a tenth of the kernels' time
            return torch._addmm_activation(linear.bias, x_TI, linear.weight.t(), use_gelu=True)
        return bias_gelu(F.linear(x_TI, linear.weight), linear.bias)

    def output(self, linear: nn.Linear, x_TI: Tensor) -> Output:
        """The module and what it reads: its bias is added in the pass that normalizes."""
        return linear, x_TI

    def add_norm(self, x_TD: Tensor, output: Output, dropout: nn.Module, norm: nn.Module) -> Tensor:
        """T D; no dropout, for there are no gradients."""
        linear, x_TI = output
        product_TD = F.linear(x_TI, linear.weight)
        return self._kernel(product_TD, linear.bias, x_TD, norm.weight, norm.bias, norm.eps)  # type: ignore[arg-type]


def cuda_operations(encoder: Encoder) -> CudaOperations | None:
    """The fused operations where they compute this encoder, else None."""
    return CudaOperations() if can_fuse(encoder) else None


def can_fuse(encoder: Encoder) -> bool:
    """Whether these kernels compute this encoder: BERT's layers on CUDA, without gradients and without hooks."""
    if encoder.training or not triton_can_answer(encoder.embeddings.word.weight):
        return False
    if hooked(encoder) or torch.is_autocast_enabled("cuda"):
        return False
    return all(is_plain(layer) and layer.feed_forward.activation is F.gelu for layer in encoder.stack)
