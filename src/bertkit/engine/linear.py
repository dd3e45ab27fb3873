"""Linear layers for CPUs: weights packed for oneDNN, with bias, activation and residual in the same pass.

Weights are laid out in blocks once instead of at every call. `PlainLinear` is the slow twin of the others. Packed
weights are copies, so `WeightSnapshot` detects whether the originals have changed.
"""

from dataclasses import dataclass
from functools import cache
from itertools import chain, compress
from operator import attrgetter
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.model.layer import ACTIVATIONS
from bertkit.model.operations import Activation

# Activations that oneDNN fuses: its name and its algorithm.
FUSED_ACTIVATIONS: dict[Activation | None, tuple[str, str]] = {
    None: ("none", ""),
    ACTIVATIONS["gelu"]: ("gelu", "none"),
    ACTIVATIONS["gelu_tanh"]: ("gelu", "tanh"),
    ACTIVATIONS["relu"]: ("relu", ""),
}
# oneDNN chooses the same layout for any number of rows from 8 on: 104 GFLOP/s a core at 8 x 768 x 3072, MKL 57.
PACKED_FOR_ROWS = 512
# Without AVX-512, MKL computes more rows than this: oneDNN was 9 % slower at throughput, a third faster at 8 rows.
MAX_AVX2_ROWS = 256
# Elements of a matrix that are compared at every call: a head of BERT-large is a 48th of its queries, keys and values.
# That takes 0.03 ms for 12 layers of 256; to compare all elements would take as long as to compute a short text.
SAMPLED_ELEMENTS = 64


class LinearOp(Protocol):
    """A linear layer as the CPU's operations call it."""

    def __call__(self, x_TI: Tensor, activation: Activation | None = None) -> Tensor:
        """T O: x @ weight + bias, then the activation if there is one."""

    def add_to(self, base_TO: Tensor, x_TI: Tensor) -> Tensor:
        """T O: base + (x @ weight + bias)."""


@dataclass(frozen=True)
class PlainLinear:
    """By torch's own kernel."""

    weight: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, linear: nn.Linear) -> "PlainLinear":
        """From a torch module; the weights are shared with it."""
        return cls(linear.weight.detach(), None if linear.bias is None else linear.bias.detach())

    def __call__(self, x_TI: Tensor, activation: Activation | None = None) -> Tensor:
        """T O."""
        y_TO = F.linear(x_TI, self.weight, self.bias)
        return y_TO if activation is None else activation(y_TO)

    def add_to(self, base_TO: Tensor, x_TI: Tensor) -> Tensor:
        """T O."""
        return base_TO + self(x_TI)


@dataclass(frozen=True)
class PackedLinear:
    """By oneDNN: weights packed in blocks, with bias, activation or residual fused."""

    packed: Tensor
    plain: PlainLinear

    @classmethod
    def of(cls, linear: nn.Linear) -> "PackedLinear":
        """From a torch module; its own weights are copied, not changed."""
        plain = PlainLinear.of(linear)
        return cls(_onednn()._reorder_linear_weight(plain.weight, PACKED_FOR_ROWS), plain)

    @classmethod
    def unpacked(cls, linear: nn.Linear) -> "PackedLinear":
        """From torch's own layout, without a copy: for a large table."""
        plain = PlainLinear.of(linear)
        return cls(plain.weight, plain)

    def __call__(self, x_TI: Tensor, activation: Activation | None = None) -> Tensor:
        """T O."""
        if not _has_avx512() and len(x_TI) > MAX_AVX2_ROWS:
            return self.plain(x_TI, activation)
        fused = FUSED_ACTIVATIONS.get(activation)
        if fused is None:
            assert activation is not None  # None is in the table
            return activation(self(x_TI))
        name, algorithm = fused
        y_TO: Tensor = _linear()(x_TI, self.packed, self.plain.bias, name, [], algorithm)
        return y_TO

    def add_to(self, base_TO: Tensor, x_TI: Tensor) -> Tensor:
        """T O."""
        if not _has_avx512() and len(x_TI) > MAX_AVX2_ROWS:
            return self.plain.add_to(base_TO, x_TI)
        y_TO: Tensor = _linear_add()(x_TI, base_TO, self.packed, self.plain.bias, "add")
        return y_TO


class WeightSnapshot:
    """The state of modules on a CPU: `unchanged` says whether any module or tensor was replaced or changed since.

    It is read at every call of the encoder, so it goes through the modules' dictionaries and not their attributes.
    """

    def __init__(self, root: nn.Module, *, keep_root: bool = True) -> None:
        modules = list(root.modules())
        self.tables: list[dict[str, Any]] = [
            table for module in modules for table in (module._modules, module._parameters) if table
        ]
        self.hooks = [hooks for module in modules for hooks in (module._forward_hooks, module._forward_pre_hooks)]
        # Kept alive, so that no other module or tensor gets the id of one of them.
        self.modules = modules if keep_root else modules[1:]
        self.tensors = [tensor for module in modules for tensor in module._parameters.values() if tensor is not None]
        self.versioned = [not tensor.is_inference() for tensor in self.tensors]  # torch counts their in-place changes
        # Torch's count misses changes by a fused optimizer and through `weight.data`, so some elements are compared.
        # One is enough of a bias or a norm: only ONNX Runtime has copies of them, everything else reads the originals.
        self.matrices = [sampled(tensor.detach()) for tensor in self.tensors if tensor.dim() == 2]
        vectors = [tensor.detach().as_strided((1,), (1,)) for tensor in self.tensors if tensor.dim() != 2]
        self.vectors = [vector.view(torch.int32).numpy() for vector in vectors]
        self.state = self._current()

    def unchanged(self) -> bool:
        """Whether nothing has changed since the snapshot."""
        return self._current() == self.state

    def has_hooks(self) -> bool:
        """Whether some module has a forward hook, so that the module itself must be called."""
        return any(self.hooks)

    def invalidate(self) -> None:
        """Make `unchanged` false from now on."""
        self.state = []

    def _current(self) -> list[object]:
        """Ids of modules and tensors; of each tensor its address, torch's count of changes, and sampled elements."""
        return [
            *map(id, chain.from_iterable(map(dict.values, self.tables))),
            *map(Tensor.data_ptr, self.tensors),
            *map(attrgetter("_version"), compress(self.tensors, self.versioned)),
            *map(np.ndarray.tobytes, self.matrices),
            *map(np.ndarray.item, self.vectors),
        ]


def sampled(matrix: Tensor) -> np.ndarray:
    """A view of about SAMPLED_ELEMENTS elements, spread over rows and columns.

    So the change of a whole head, or of any block of as many rows or columns, always changes one of them.
    """
    matrix = matrix if matrix.is_contiguous() else matrix.t()
    if not matrix.is_contiguous():  # a part of a larger one
        return matrix.diagonal().view(torch.int32).numpy()
    rows, columns = matrix.shape
    step = rows // SAMPLED_ELEMENTS * columns + -(-columns // SAMPLED_ELEMENTS)
    return matrix.view(-1).view(torch.int32).numpy()[::step]


class ReplacedLinear(nn.Linear):
    """A linear module that a CPU computes by another operation, such as int8; its float32 weights stay."""

    op: LinearOp
    snapshot: WeightSnapshot

    @classmethod
    def of(cls, linear: nn.Linear, op: LinearOp) -> "ReplacedLinear":
        """With the same weights as `linear`, from which `op` was made."""
        with torch.device("meta"):
            module = cls(linear.in_features, linear.out_features, bias=linear.bias is not None)
        module.weight, module.bias, module.op = linear.weight, linear.bias, op
        module.snapshot = WeightSnapshot(module)
        return module.train(linear.training)

    def plain(self) -> nn.Linear:
        """Torch's own module with the same weights."""
        with torch.device("meta"):
            module = nn.Linear(self.in_features, self.out_features, bias=self.bias is not None)
        module.weight, module.bias = self.weight, self.bias
        return module.train(self.training)

    @property
    def valid_op(self) -> LinearOp | None:
        """The operation, as long as the weights are those it was made from."""
        return self.op if self.snapshot.unchanged() else None

    def forward(self, input: Tensor) -> Tensor:
        """... O: by the operation, unless gradients are enabled, or the input is not float32 on a CPU."""
        usable = input.device.type == "cpu" and input.dtype == torch.float32 and not torch.is_grad_enabled()
        op = self.valid_op if usable else None
        if op is None:
            return super().forward(input)
        return op(input.reshape(-1, input.shape[-1])).view(*input.shape[:-1], -1)


def pack(linear: nn.Linear) -> LinearOp:
    """The fastest operation that computes what a linear module does."""
    if isinstance(linear, ReplacedLinear) and (op := linear.valid_op) is not None:
        return op
    return PackedLinear.of(linear) if _has_onednn() else PlainLinear.of(linear)


def pack_words(linear: nn.Linear) -> LinearOp:
    """The same for a table of words, which is not copied: one row at 17.6 GB/s, by MKL at 12.3 (AVX2)."""
    return PackedLinear.unpacked(linear) if _has_onednn() else PlainLinear.of(linear)


@cache
def _has_avx512() -> bool:
    return torch.backends.cpu.get_cpu_capability() == "AVX512"


@cache
def _has_onednn() -> bool:
    return bool(torch._C._has_mkldnn) and hasattr(_onednn(), "_linear_pointwise")


@cache
def _linear() -> Any:
    return _onednn()._linear_pointwise.default  # a call without the overload's name takes 2 us longer


@cache
def _linear_add() -> Any:
    return _onednn()._linear_pointwise.binary


@cache
def _onednn() -> Any:
    return torch.ops.mkldnn
