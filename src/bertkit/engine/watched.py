"""Detects changed weights: checked at every call, so it must cost very little."""

from itertools import chain, compress
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

# Elements of a matrix that are compared at every call: a head of BERT-large is a 48th of its queries, keys and values.
# That takes 0.03 ms for 12 layers of 256; to compare all elements would take as long as to compute a short text.
SAMPLES = 64


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
