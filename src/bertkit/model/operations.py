"""The operations that layers are written in, and torch's own, with gradients: the default.

A layer does no arithmetic; it calls these. An engine (`engine/cpu.py`, `cuda.py`, `onnx.py`) is another set of them for
the same layers: packed or quantized weights, fused kernels, nodes of an ONNX graph. The slow twin of every engine is
`TORCH`; `tests/engine/test_engines.py` compares them in every family.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.model.attention import AttentionPattern, attend, bias_gelu, triton_can
from bertkit.model.batch import Batch

Activation = Callable[[Tensor], Tensor]
# What `output` gives to `add` and `add_norm`: T D, or a value of the engine's own, such as a product that is computed
# together with the residual. Nothing else reads it.
Output = Any


class Operations:
    """Torch's own: the formulas by the modules themselves, with gradients, dropout and hooks, on any device.

    Engines are subclasses. Modules are passed whole, so that an engine can find what it has packed for them.
    """

    def prepare(self, batch: Batch) -> Batch:
        """The batch that is computed in place of this one, such as one filled up to a size that is known already."""
        return batch

    def finish(self, x_TD: Tensor, batch: Batch) -> Tensor:
        """T D: the rows of the batch that was given to `prepare`."""
        return x_TD

    def embed(self, x_TE: Tensor, norm: nn.Module, dropout: nn.Module, dtype: torch.dtype) -> Tensor:
        """T E: the sum of the embeddings, normalized in the dtype of the tables, then in the dtype of the layers."""
        embedded: Tensor = dropout(norm(x_TE)).to(dtype)
        return embedded

    def project(self, linear: nn.Linear, x_TI: Tensor) -> Tensor:
        """T O."""
        projected: Tensor = linear(x_TI)
        return projected

    def activate(self, linear: nn.Linear, activation: Activation, x_TI: Tensor) -> Tensor:
        """T O: projected, then the activation; where there is a kernel for it, GELU adds the bias in the same pass."""
        if activation is F.gelu and linear.bias is not None and triton_can(x_TI):
            return bias_gelu(F.linear(x_TI, linear.weight), linear.bias)
        return activation(linear(x_TI))

    def gate(self, linear: nn.Linear, activation: Activation, x_TI: Tensor) -> Tensor:
        """T O/2: projected; the first half through the activation, times the second half."""
        activated, gate = self.project(linear, x_TI).chunk(2, dim=-1)
        return activation(activated) * gate

    def attend(self, qkv_TX: Tensor, batch: Batch, pattern: AttentionPattern, dropout: float) -> Tensor:
        """T 3D -> T D: every head's weighted mean of values, side by side, by the quickest kernel for these tensors."""
        return attend(pattern.split(qkv_TX, batch), batch, pattern.window, dropout).flatten(1)

    def output(self, linear: nn.Linear, x_TI: Tensor) -> Output:
        """T D: the last projection of attention or feed-forward."""
        return linear(x_TI)

    def add(self, x_TD: Tensor, output: Output, dropout: nn.Module) -> Tensor:
        """T D: x + dropout(output), as pre-norm layers end."""
        added: Tensor = x_TD + dropout(output)
        return added

    def add_norm(self, x_TD: Tensor, output: Output, dropout: nn.Module, norm: nn.Module) -> Tensor:
        """T D: norm(x + dropout(output)), as post-norm layers end."""
        normed: Tensor = norm(x_TD + dropout(output))
        return normed

    def norm(self, norm: nn.Module, x_TD: Tensor) -> Tensor:
        """T D."""
        normed: Tensor = norm(x_TD)
        return normed

    def whole(self, batch: Batch) -> Tensor | None:
        """T D: the last layer's output, where a graph generated from the same walk computes it in one call."""
        return None


TORCH = Operations()
