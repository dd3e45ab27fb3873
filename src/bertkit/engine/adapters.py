"""Many adapters on one trunk: an engine's operations, plus each adapter's low-rank updates on its own rows of a batch.

The trunk's weights, packed or not, are in memory once and are multiplied once for the whole batch, whichever adapters
its sequences ask for. The slow twin is the trunk with one adapter merged (`model/low_rank.merge`);
`tests/engine/test_adapter_operations.py` compares them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bertkit.engine.batches import Forward, fastest
from bertkit.errors import RequestError
from bertkit.model.attention import AttentionPattern
from bertkit.model.batch import Batch
from bertkit.model.encoder import Encoder
from bertkit.model.low_rank import LowRankUpdate, Updates
from bertkit.model.operations import Activation, Operations, Output


@dataclass(frozen=True, eq=False)
class EncoderAdapter:
    """The updates of an encoder's linear modules."""

    updates: dict[nn.Module, LowRankUpdate]

    @classmethod
    def of(cls, encoder: Encoder, updates: Updates) -> "EncoderAdapter":
        """From updates by the names of a model's matrices, moved to where the encoder computes.

        Attention whose scores are made from the weights themselves has no place for updates, and is refused.
        """
        parts = encoder.config.parts
        if parts.relative not in ("none", "table"):
            raise RequestError(
                f"relative={parts.relative}: attention of this family reads weights directly, so adapters cannot share "
                "a trunk; save the merged model (bertkit.load(adapter).save(folder)), and serve that"
            )
        by_module = {}
        for name, update in updates.items():
            module = encoder.get_submodule(name.removeprefix("encoder.").removesuffix(".weight"))
            device = encoder.embeddings.word.weight.device
            up, down = (tensor.to(device, encoder.dtype) for tensor in (update.up, update.down))
            by_module[module] = LowRankUpdate(up, down)
        return cls(by_module)


class AdaptedRows(NamedTuple):
    """Rows [start, stop) of a batch, and the adapter that computes them."""

    start: int
    stop: int
    adapter: EncoderAdapter


class _Apart(NamedTuple):
    """The last linear layer's output by the engine, and what the updates add to it."""

    output: Output
    linear: nn.Module
    x_TI: Tensor


class AdapterOperations(Operations):
    """Another engine's operations without gradients, with updates on some of the rows."""

    def __init__(self, engine: Operations, rows: Sequence[AdaptedRows]) -> None:
        self._engine, self._rows = engine, rows

    def prepare(self, batch: Batch) -> Batch:
        """The engine's; padding comes after the rows."""
        return self._engine.prepare(batch)

    def finish(self, x_TD: Tensor, batch: Batch) -> Tensor:
        """T D."""
        return self._engine.finish(x_TD, batch)

    def embed(self, x_TE: Tensor, norm: nn.Module, dropout: nn.Module, dtype: torch.dtype) -> Tensor:
        """T E."""
        return self._engine.embed(x_TE, norm, dropout, dtype)

    def project(self, linear: nn.Linear, x_TI: Tensor) -> Tensor:
        """T O."""
        return self._add_updates(self._engine.project(linear, x_TI), linear, x_TI)

    def activate(self, linear: nn.Linear, activation: Activation, x_TI: Tensor) -> Tensor:
        """T O; fused with its activation where no row has an update."""
        if not self._updates(linear):
            return self._engine.activate(linear, activation, x_TI)
        return activation(self.project(linear, x_TI))

    def attend(self, qkv_TX: Tensor, batch: Batch, pattern: AttentionPattern, dropout: float) -> Tensor:
        """T 3D -> T D."""
        return self._engine.attend(qkv_TX, batch, pattern, dropout)

    def output(self, linear: nn.Linear, x_TI: Tensor) -> Output:
        """The engine's, and what the updates need."""
        return _Apart(self._engine.output(linear, x_TI), linear, x_TI)

    def add(self, x_TD: Tensor, output: Output, dropout: nn.Module) -> Tensor:
        """T D: the updates are added to the residual, because the engine fuses its own sum."""
        return self._engine.add(self._residual(x_TD, output), output.output, dropout)

    def add_norm(self, x_TD: Tensor, output: Output, dropout: nn.Module, norm: nn.Module) -> Tensor:
        """T D."""
        return self._engine.add_norm(self._residual(x_TD, output), output.output, dropout, norm)

    def norm(self, norm: nn.Module, x_TD: Tensor) -> Tensor:
        """T D."""
        return self._engine.norm(norm, x_TD)

    def _residual(self, x_TD: Tensor, output: _Apart) -> Tensor:
        return self._add_updates(x_TD.clone(), output.linear, output.x_TI) if self._updates(output.linear) else x_TD

    def _updates(self, linear: nn.Module) -> list[tuple[slice, LowRankUpdate]]:
        """The updates of this linear map, with the rows of each."""
        found = [(slice(start, stop), adapter.updates.get(linear)) for start, stop, adapter in self._rows]
        return [(rows, update) for rows, update in found if update is not None]

    def _add_updates(self, y_TO: Tensor, linear: nn.Module, x_TI: Tensor) -> Tensor:
        """T O: in place."""
        for rows, update in self._updates(linear):
            y_TO[rows] += update(x_TI[rows])
        return y_TO


def adapted(encoder: Encoder, rows: Sequence[AdaptedRows]) -> Forward:
    """The encoder with the fastest operations, and the adapters of these rows."""
    forward = fastest(encoder)
    return Forward(encoder, AdapterOperations(forward.ops, rows)) if rows else forward
