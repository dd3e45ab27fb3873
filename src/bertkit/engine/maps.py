"""Linear maps for CPUs: weights as oneDNN reads them best, with bias, activation and residual in the same pass.

Weights are laid out in blocks once instead of at every call. `PlainMap` is the slow twin of the others.
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

# Activations that oneDNN computes by itself: its name and its algorithm.
FUSED_ACTIVATIONS: dict[Activation | None, tuple[str, str]] = {
    None: ("none", ""),
    ACTIVATIONS["gelu"]: ("gelu", "none"),
    ACTIVATIONS["gelu_tanh"]: ("gelu", "tanh"),
    ACTIVATIONS["relu"]: ("relu", ""),
}
# oneDNN lays weights out alike for any number of rows from 8 on: 104 GFLOP/s a core at 8 x 768 x 3072, MKL 57.
PACKED_FOR_ROWS = 512
# With AVX2 alone MKL takes over where rows are many: oneDNN was 9 % slower at throughput, a third quicker at 8 rows.
FEW_ROWS = 256
# Elements of a matrix that are compared at every call: a head of BERT-large is a 48th of its queries, keys and values.
# That takes 0.03 ms for 12 layers of 256; to compare all elements would take as long as to compute a short text.
SAMPLES = 64


class Map(Protocol):
    """A linear map as the CPU's operations use it."""

    def __call__(self, x_TI: Tensor, activation: Activation | None = None) -> Tensor:
        """T O: mapped, then the activation if there is one."""

    def onto(self, x_TI: Tensor, base_TO: Tensor) -> Tensor:
        """T O: mapped, and added to `base_TO`."""


@dataclass(frozen=True)
class PlainMap:
    """Torch's own."""

    weight: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, linear: nn.Linear) -> "PlainMap":
        """From a torch module; the weights are shared with it."""
        return cls(linear.weight.detach(), None if linear.bias is None else linear.bias.detach())

    def __call__(self, x_TI: Tensor, activation: Activation | None = None) -> Tensor:
        """T O."""
        y_TO = F.linear(x_TI, self.weight, self.bias)
        return y_TO if activation is None else activation(y_TO)

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
        plain = PlainMap.of(linear)
        return cls(_onednn()._reorder_linear_weight(plain.weight, PACKED_FOR_ROWS), plain)

    def __call__(self, x_TI: Tensor, activation: Activation | None = None) -> Tensor:
        """T O."""
        if not _wide_vectors() and len(x_TI) > FEW_ROWS:
            return self.plain(x_TI, activation)
        fused = FUSED_ACTIVATIONS.get(activation)
        if fused is None:
            assert activation is not None  # no activation is fused
            return activation(self(x_TI))
        name, algorithm = fused
        y_TO: Tensor = _linear()(x_TI, self.packed, self.plain.bias, name, [], algorithm)
        return y_TO

    def onto(self, x_TI: Tensor, base_TO: Tensor) -> Tensor:
        """T O."""
        if not _wide_vectors() and len(x_TI) > FEW_ROWS:
            return self.plain.onto(x_TI, base_TO)
        y_TO: Tensor = _linear_add()(x_TI, base_TO, self.packed, self.plain.bias, "add")
        return y_TO


class Watched:
    """A snapshot of modules on a CPU: `same` says whether any module or tensor was replaced or changed since.

    It is asked for each query, so it reads the modules' own dictionaries and not their attributes.
    """

    def __init__(self, root: nn.Module, *, held: bool = True) -> None:
        modules = list(root.modules())
        self.tables: list[dict[str, Any]] = [
            table for each in modules for table in (each._modules, each._parameters) if table
        ]
        self.hooks = [hooks for each in modules for hooks in (each._forward_hooks, each._forward_pre_hooks)]
        # Kept alive, so that no other module or tensor gets the id of one of them.
        self.modules = modules if held else modules[1:]
        self.tensors = [tensor for each in modules for tensor in each._parameters.values() if tensor is not None]
        self.counted = [not tensor.is_inference() for tensor in self.tensors]  # whether torch counts changes of it
        # But it counts none by a fused optimizer, nor any through `weight.data`. So some elements are compared.
        # Of biases and norms one is enough: only ONNX Runtime has copies of them, all others read them where they are.
        self.matrices = [sampled(each.detach()) for each in self.tensors if each.dim() == 2]
        others = [each.detach().as_strided((1,), (1,)) for each in self.tensors if each.dim() != 2]
        self.others = [each.view(torch.int32).numpy() for each in others]
        self.seen = self._now()

    def same(self) -> bool:
        """Whether nothing has changed."""
        return self._now() == self.seen

    def hooked(self) -> bool:
        """Whether some module has a forward hook, and so must be called itself."""
        return any(self.hooks)

    def forget(self) -> None:
        """From now on `same` says no."""
        self.seen = []

    def _now(self) -> list[object]:
        """Ids of modules and tensors; of each tensor its address, torch's count of changes, and some elements."""
        return [
            *map(id, chain.from_iterable(map(dict.values, self.tables))),
            *map(Tensor.data_ptr, self.tensors),
            *map(attrgetter("_version"), compress(self.tensors, self.counted)),
            *map(np.ndarray.tobytes, self.matrices),
            *map(np.ndarray.item, self.others),
        ]


def sampled(matrix: Tensor) -> np.ndarray:
    """A view of about SAMPLES elements, spread over rows and columns.

    So the change of a whole head, or of any block of rows or columns that is not smaller, is always among them.
    """
    matrix = matrix if matrix.is_contiguous() else matrix.t()
    if not matrix.is_contiguous():  # a part of a larger one
        return matrix.diagonal().view(torch.int32).numpy()
    rows, columns = matrix.shape
    step = rows // SAMPLES * columns + -(-columns // SAMPLES)
    return matrix.view(-1).view(torch.int32).numpy()[::step]


class MappedLinear(nn.Linear):
    """A linear module that computes on the CPU through another map, such as int8; its weights stay for all else."""

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
        """... O: through the map, unless gradients are asked for, or device or dtype are not the map's."""
        usable = input.device.type == "cpu" and input.dtype == torch.float32 and not torch.is_grad_enabled()
        found = self.map if usable else None
        if found is None:
            return super().forward(input)
        return found(input.reshape(-1, input.shape[-1])).view(*input.shape[:-1], -1)


def pack(linear: nn.Linear) -> Map:
    """The quickest map for a linear module that gives what the module gives."""
    if isinstance(linear, MappedLinear) and linear.map is not None:
        return linear.map
    return PackedMap.of(linear) if _has_onednn() else PlainMap.of(linear)


@cache
def _wide_vectors() -> bool:
    return torch.backends.cpu.get_cpu_capability() == "AVX512"


@cache
def _has_onednn() -> bool:
    return bool(torch._C._has_mkldnn) and hasattr(_onednn(), "_linear_pointwise")


@cache
def _linear() -> Any:
    return _onednn()._linear_pointwise.default  # torch looks for the overload at each call that does not name it: 2 us


@cache
def _linear_add() -> Any:
    return _onednn()._linear_pointwise.binary


@cache
def _onednn() -> Any:
    return torch.ops.mkldnn
