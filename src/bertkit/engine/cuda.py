"""CUDA engine: bias, GELU, residual and norm are fused into the matrix products or into one kernel after them.

In bfloat16 a matrix product also computes GELU, in its tanh form: at most 0.0005 off, where bfloat16 rounds 1 by up to
0.002. The slow twin is torch's own set of operations; `tests/engine/test_cuda_engine.py` compares them. The weights are
the encoder's own tensors, so changes of them are seen at once.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.engine.cpu import has_hooks
from bertkit.model.attention import bias_gelu, triton_supports_inference
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
        if x_TI.dtype == torch.bfloat16:  # a separate GELU kernel took a tenth of the time of all kernels
            return torch._addmm_activation(linear.bias, x_TI, linear.weight.t(), use_gelu=True)
        return bias_gelu(F.linear(x_TI, linear.weight), linear.bias)

    def output(self, linear: nn.Linear, x_TI: Tensor) -> Output:
        """The module and its input: the kernel that normalizes adds the bias."""
        return linear, x_TI

    def add_norm(self, x_TD: Tensor, output: Output, dropout: nn.Module, norm: nn.Module) -> Tensor:
        """T D; without dropout, because there are no gradients."""
        linear, x_TI = output
        product_TD = F.linear(x_TI, linear.weight)
        return self._kernel(product_TD, linear.bias, x_TD, norm.weight, norm.bias, norm.eps)  # type: ignore[arg-type]


def cuda_operations(encoder: Encoder) -> CudaOperations | None:
    """The fused operations if they compute this encoder, else None."""
    return CudaOperations() if can_fuse(encoder) else None


def can_fuse(encoder: Encoder) -> bool:
    """Whether these kernels compute this encoder: BERT's layers on CUDA, without gradients and without hooks."""
    if encoder.training or not triton_supports_inference(encoder.embeddings.word.weight):
        return False
    if has_hooks(encoder) or torch.is_autocast_enabled("cuda"):
        return False
    if encoder.config.recurrent:
        return False
    return all(is_plain(layer) and layer.feed_forward.activation is F.gelu for layer in encoder.stack)
