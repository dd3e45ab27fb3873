"""The operations that layers are written in, and torch's own, with gradients: the default.

A layer does no arithmetic; it calls these. An engine (`engine/cpu.py`, `cuda.py`, `onnx.py`) is another set of them for
the same layers: packed or quantized weights, fused kernels, nodes of an ONNX graph. The slow twin of every engine is
`TORCH`; `tests/engine/test_engines.py` compares them for every family.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.model.attention import AttentionPattern, attend, attend_source, bias_gelu, triton_supports
from bertkit.model.batch import Batch

Activation = Callable[[Tensor], Tensor]
# What `output` returns for `add` and `add_norm`: T D, or whatever the engine needs to compute it together with the
# residual. Nothing else reads it.
Output = Any


class Source(NamedTuple):
    """What a decoder attends to: the encoder's output for a batch that has as many sequences as the decoder's."""

    hidden_SD: Tensor
    batch: Batch


class Operations:
    """Torch's own: calls of the modules, with gradients, dropout and hooks, on any device.

    Engines are subclasses. Operations get modules and not tensors, so that an engine can look up what it has packed.
    """

    def prepare(self, batch: Batch) -> Batch:
        """The batch that is computed instead of this one, such as one with padding at its end."""
        return batch

    def finish(self, x_TD: Tensor, batch: Batch) -> Tensor:
        """T D: the rows of `batch`, as it was before `prepare`."""
        return x_TD

    def embed(self, x_TE: Tensor, norm: nn.Module, dropout: nn.Module, dtype: torch.dtype) -> Tensor:
        """T E: the sum of the embeddings, normalized in the dtype of the tables, converted to that of the layers."""
        embedded: Tensor = dropout(norm(x_TE)).to(dtype)
        return embedded

    def project(self, linear: nn.Linear, x_TI: Tensor) -> Tensor:
        """T O."""
        projected: Tensor = linear(x_TI)
        return projected

    def activate(self, linear: nn.Linear, activation: Activation, x_TI: Tensor) -> Tensor:
        """T O: a linear layer and its activation; on CUDA in half precision, one kernel for bias and GELU."""
        if activation is F.gelu and linear.bias is not None and triton_supports(x_TI):
            return bias_gelu(F.linear(x_TI, linear.weight), linear.bias)
        return activation(linear(x_TI))

    def gate(self, linear: nn.Linear, activation: Activation, x_TI: Tensor) -> Tensor:
        """T O/2: a linear layer; the activation of the first half of its output, times the second half."""
        activated, gate = self.project(linear, x_TI).chunk(2, dim=-1)
        return activation(activated) * gate

    def attend(self, qkv_TX: Tensor, batch: Batch, pattern: AttentionPattern, dropout: float) -> Tensor:
        """T 3D -> T D: every head's weighted mean of values, side by side, by the fastest kernel for these tensors."""
        return attend(pattern.split(qkv_TX, batch), batch, pattern.window, dropout, pattern.bias).flatten(1)

    def project_source(self, linear: nn.Linear, source: Source) -> Tensor:
        """S 2D: the keys and values of the encoder's output for one layer's cross-attention."""
        return self.project(linear, source.hidden_SD)

    def attend_source(
        self, query_TD: Tensor, key_value_SX: Tensor, batch: Batch, source: Batch, heads: int, dropout: float
    ) -> Tensor:
        """T D: the tokens of sequence n attend to those of sequence n of the source."""
        query_THK = query_TD.view(len(query_TD), heads, -1)
        key_value_S2HK = key_value_SX.view(len(key_value_SX), 2, heads, -1)
        return attend_source(query_THK, key_value_S2HK, batch, source, dropout).flatten(1)

    def recur(self, cell: nn.Module, x_TI: Tensor, batch: Batch, source: Source | None = None) -> Tensor:
        """T D: one direction of a recurrent layer (`recurrent/cell.py`), which attends to a decoder's source."""
        read_TD: Tensor = cell(x_TI, batch, source)
        return read_TD

    def output(self, linear: nn.Linear, x_TI: Tensor) -> Output:
        """T D: the last linear layer of attention or feed-forward."""
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

    def whole_encoder(self, batch: Batch) -> Tensor | None:
        """T D: the encoder's output, if the engine computes the whole encoder in one call; else None."""
        return None


TORCH = Operations()
