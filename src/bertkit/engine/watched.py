"""Whether weights are still those that something was made of: asked at every call, so it may cost next to nothing."""

from itertools import chain, compress
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

# Numbers of a matrix that are compared at every call: a head of BERT-large is a 48th of its queries, keys and values.
# That takes 0.03 ms for 12 layers of 256; to compare every number would take as long as to compute a short text.
SAMPLES = 64


class Watched:
    """Modules on a CPU as they are now, to see at every call whether any of them or of their tensors is another.

    That is asked for each query, so that it goes through the modules' own tables and not through their attributes.
    """

    def __init__(self, root: nn.Module, *, held: bool = True) -> None:
        modules = list(root.modules())
        self.tables: list[dict[str, Any]] = [
            table for each in modules for table in (each._modules, each._parameters) if table
        ]
        self.hooks = [hooks for each in modules for hooks in (each._forward_hooks, each._forward_pre_hooks)]
        # Kept, so that no other module or tensor gets the number of one of them.
        self.modules = modules if held else modules[1:]
        self.tensors = [tensor for each in modules for tensor in each._parameters.values() if tensor is not None]
        self.counted = [not tensor.is_inference() for tensor in self.tensors]  # whether torch counts changes of it
        # But it counts none by a fused optimizer, nor any through `weight.data`. So some of the numbers are compared.
        # Of biases and norms one is enough: only ONNX Runtime has copies of them, all others read them where they are.
        self.matrices = [sampled(each.detach()) for each in self.tensors if each.dim() == 2]
        others = [each.detach().as_strided((1,), (1,)) for each in self.tensors if each.dim() != 2]
        self.others = [each.view(torch.int32).numpy() for each in others]
        self.seen = self._now()

    def same(self) -> bool:
        """Whether they are what they were."""
        return self._now() == self.seen

    def hooked(self) -> bool:
        """Whether someone listens to one of them, and so wants it to be called."""
        return any(self.hooks)

    def forget(self) -> None:
        """From now on they are not what they were."""
        self.seen = []

    def _now(self) -> list[object]:
        """Which modules and tensors there are; of each tensor its place, torch's count of changes, and some numbers."""
        return [
            *map(id, chain.from_iterable(map(dict.values, self.tables))),
            *map(Tensor.data_ptr, self.tensors),
            *map(attrgetter("_version"), compress(self.tensors, self.counted)),
            *map(np.ndarray.tobytes, self.matrices),
            *map(np.ndarray.item, self.others),
        ]


def sampled(matrix: Tensor) -> np.ndarray:
    """A view of about SAMPLES numbers, spread over rows and columns alike.

    So the change of a whole head, or of any block of rows or columns that is not smaller, is always among them.
    """
    matrix = matrix if matrix.is_contiguous() else matrix.t()
    if not matrix.is_contiguous():  # a part of a larger one
        return matrix.diagonal().view(torch.int32).numpy()
    rows, columns = matrix.shape
    step = rows // SAMPLES * columns + -(-columns // SAMPLES)
    return matrix.view(-1).view(torch.int32).numpy()[::step]
