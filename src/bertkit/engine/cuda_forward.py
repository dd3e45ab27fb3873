"""The encoder once more, for GPUs: what stands between the matrix products done in one pass each.

A product takes its bias along, in bfloat16 GELU too, or leaves them to the kernel that reads its result anyway. GELU
within a product is its tanh form: at most 0.0005 off, where bfloat16 rounds 0.002 off a 1. The slow twin is `Encoder`
itself; `tests/engine/test_cuda_forward.py` holds them together. Weights are the encoder's own, so that nothing is kept
beside them and changes are seen at once.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from bertkit.engine.cpu_forward import hooked
from bertkit.model.batch import Batch
from bertkit.model.encoder import Encoder
from bertkit.model.kernels import attend, bias_gelu, triton_can_answer
from bertkit.model.layer import PostNormLayer, is_plain


class CudaEncoder:
    """An encoder of post-norm layers, as BERT's."""

    def __init__(self, encoder: Encoder) -> None:
        from bertkit.model.triton_norm import add_norm

        self.encoder, self.add_norm = encoder, add_norm

    @property
    def stack(self) -> Sequence[PostNormLayer]:
        """The layers in the order of use."""
        return self.encoder.stack  # type: ignore[return-value]  # others were not taken

    def __call__(self, batch: Batch) -> Tensor:
        """T D: the last layer's vectors."""
        x_TD = self._embedded(batch)
        for layer in self.stack:
            x_TD = self._layer(layer, x_TD, batch)
        return x_TD

    def hidden_states(self, batch: Batch, depth: int) -> list[Tensor]:
        """The embeddings and each layer's output up to `depth`, T D each."""
        states = [self._embedded(batch)]
        for layer in self.stack[:depth]:
            states.append(self._layer(layer, states[-1], batch))
        return states

    def _embedded(self, batch: Batch) -> Tensor:
        embedded: Tensor = self.encoder.embeddings(batch).to(self.encoder.dtype)
        return embedded

    def _layer(self, layer: PostNormLayer, x_TD: Tensor, batch: Batch) -> Tensor:
        attention, feed_forward = layer.attention, layer.feed_forward
        mixed_TD = attend(attention.projected(x_TD, batch), batch, attention.sight).flatten(1)
        x_TD = self._normed(attention.out, mixed_TD, x_TD, layer.attention_norm)
        bent_TF = self._bent(feed_forward.up, x_TD)
        return self._normed(feed_forward.down, bent_TF, x_TD, layer.feed_forward_norm)

    def _bent(self, up: torch.nn.Linear, x_TD: Tensor) -> Tensor:
        if x_TD.dtype == torch.bfloat16:  # GELU's own pass was a tenth of the kernels' time
            return torch._addmm_activation(up.bias, x_TD, up.weight.t(), use_gelu=True)
        return bias_gelu(F.linear(x_TD, up.weight), up.bias)

    def _normed(self, linear: torch.nn.Linear, x_TI: Tensor, base_TD: Tensor, norm: torch.nn.LayerNorm) -> Tensor:
        product_TD = F.linear(x_TI, linear.weight)
        return self.add_norm(product_TD, linear.bias, base_TD, norm.weight, norm.bias, norm.eps)


def can_fuse(encoder: Encoder) -> bool:
    """Whether these kernels compute this encoder: BERT's layers on CUDA, without gradients, and nobody listens."""
    if encoder.training or not triton_can_answer(encoder.stack[0].attention.out.weight):
        return False
    if hooked(encoder) or torch.is_autocast_enabled("cuda"):
        return False
    return all(is_plain(layer) and layer.feed_forward.bend is F.gelu for layer in encoder.stack)
