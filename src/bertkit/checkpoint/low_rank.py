"""The difference between a tuned model and its base, at a few percent of the size, by singular value decomposition.

Tuning changes a matrix mainly in few directions. The strongest ones are stored, a row for each: the left singular
vector before the right one (`NAME.factors`). The change of a vector is stored in full (`NAME.change`).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bertkit.checkpoint.small import CHANGE, FACTORS, Tensors
from bertkit.errors import RequestError

SCALE_BYTES = 4  # of a row's scale
ENTRY_BYTES = 128  # of a tensor in the file's header at most, besides its name
NOISE = 1e-5  # directions weaker than this share of the strongest one are rounding errors


@dataclass(frozen=True)
class Directions:
    """The change of a matrix of M rows and N columns by its singular directions, strongest first."""

    rows: Tensor  # R (M+N): left vector before right one; the direction adds their outer product
    strengths: Tensor  # R: singular values


def low_rank_changes(known: Tensors, tensors: Tensors, budget: int) -> dict[str, Tensor]:
    """Changes to add to `known` that approximate `tensors`, within `budget` bytes when stored as int8 rows.

    Vectors are stored in full. Of the directions of all matrices, those with the most squared change per byte are kept.
    """
    changed = differences(known, tensors)
    changes = {name + CHANGE: change for name, change in changed.items() if change.dim() != 2}
    matrices = {name: directions(change) for name, change in changed.items() if change.dim() == 2}
    room = budget - sum(_stored_bytes(name, 2 * change.numel()) for name, change in changes.items())
    room -= sum(2 * _stored_bytes(name + FACTORS, 0) for name in matrices)
    if room < 0:
        raise RequestError(f"the vectors alone take {budget - room:,} bytes, over the budget of {budget:,}; allow more")
    for name, count in choose_ranks(matrices, room).items():
        if count:
            changes[name + FACTORS] = matrices[name].rows[:count]
    return changes


def differences(known: Tensors, tensors: Tensors) -> dict[str, Tensor]:
    """`tensors` less `known`, where they differ; both must have the same names and shapes."""
    changed = {}
    for name, tensor in tensors.items():
        if name not in known or known[name].shape != tensor.shape:
            base = tuple(known[name].shape) if name in known else "no such tensor"
            raise RequestError(f"{name} has shape {tuple(tensor.shape)}, but the model it is to be a change of: {base}")
        change = tensor.detach().float() - known[name].detach().to(tensor.device).float()
        if not torch.isfinite(change).all():
            raise RequestError(f"{name} holds NaN or infinity; the change of a model that diverged cannot be stored")
        if change.any():
            changed[name] = change
    return changed


def directions(change: Tensor) -> Directions:
    """The singular directions of a matrix. Both halves of a row have the same maximum, because they share a scale."""
    left_MR, strength_R, right_RN = torch.linalg.svd(change, full_matrices=False)
    count = int((strength_R > NOISE * strength_R[0]).sum())
    left_RM, right_RN, strength_R = left_MR.T[:count], right_RN[:count], strength_R[:count]
    max_left, max_right = (side.abs().amax(dim=1) for side in (left_RM, right_RN))
    left_scale = (strength_R * max_right / max_left).sqrt()
    rows = torch.cat((left_RM * left_scale[:, None], right_RN * (strength_R / left_scale)[:, None]), dim=1)
    return Directions(rows, strength_R)


def choose_ranks(matrices: Mapping[str, Directions], room: int) -> dict[str, int]:
    """The number of directions of each matrix: those with the most squared change per byte that fit `room` bytes."""
    candidates = []
    for name, matrix in matrices.items():
        cost = matrix.rows.shape[1] + SCALE_BYTES
        candidates += [(squared / cost, cost, name) for squared in matrix.strengths.square().tolist()]
    ranks = dict.fromkeys(matrices, 0)
    for _, cost, name in sorted(candidates, key=lambda candidate: -candidate[0]):
        if cost > room:  # later ones have less change per byte
            break
        room -= cost
        ranks[name] += 1
    return ranks


def _stored_bytes(name: str, content: int) -> int:
    return len(name) + ENTRY_BYTES + content
