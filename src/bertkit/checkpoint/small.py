"""Weights at a quarter of their size: matrices as int8 rows with a scale each, vectors as 16-bit floats.

A model folder has `model.small.safetensors` in place of `model.safetensors`. Beside it,
`model.small.sha256` is what `sha256sum` prints, and is checked at every load. If that names
`../model.small.safetensors` too, the file holds only the tensors that differ from those of the folder above, or what
is to be added to them (`low_rank`).
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from bertkit.checkpoint.low_rank import add_changes, low_rank_changes
from bertkit.checkpoint.small_files import ABOVE, SMALL, SUMS, read_sums
from bertkit.errors import RequestError

SCALE = ".scale"  # after the name of a matrix: the name of its scales
MAX_INT8 = 127  # the range is symmetric: -127 to 127


@dataclass(frozen=True)
class Rows:
    """A matrix as int8 values, each row to be multiplied by its scale."""

    values: Tensor  # int8, of the matrix's shape
    scales: Tensor  # float32, one for each row

    def matrix(self) -> Tensor:
        """The matrix again, in float32, off by at most half a scale."""
        return self.values.float().mul_(self.scales.unsqueeze(1))


def pack_row_plain(row: list[float]) -> tuple[list[int], float]:
    """int8 values and the scale of one row. The readable twin of `pack_rows`.

    The scale under which the largest value becomes 127 is tried first, then the one that fits the rounded row best by
    least squares, if it puts no value more than half a step beyond 127. The one with less squared error is taken.
    """
    largest = max(map(abs, row))
    first = _float32(largest / MAX_INT8)
    if not first:
        return [0] * len(row), 1.0
    rounded = [round(x / first) for x in row]
    second = _float32(sum(x * n for x, n in zip(row, rounded, strict=True)) / sum(n * n for n in rounded))
    tries = [(rounded, first)]
    if largest <= (MAX_INT8 + 0.5) * second:
        tries.append(([max(-MAX_INT8, min(MAX_INT8, round(x / second))) for x in row], second))

    def error(candidate: tuple[list[int], float]) -> float:
        values, scale = candidate
        return sum((x - n * scale) ** 2 for x, n in zip(row, values, strict=True))

    return min(tries, key=error)


def pack_rows(matrix: Tensor) -> Rows:
    """Every row of a matrix as `pack_row_plain` packs one."""
    exact = matrix.double()
    largest = exact.abs().amax(dim=1, keepdim=True)
    first = (largest / MAX_INT8).float().double()
    first = torch.where(first > 0, first, 1.0)
    rounded = (exact / first).round()
    squares = rounded.square().sum(dim=1, keepdim=True).clamp_min(1.0)
    second = ((exact * rounded).sum(dim=1, keepdim=True) / squares).float().double()
    second = torch.where(largest <= (MAX_INT8 + 0.5) * second, second, first)
    refined = (exact / torch.where(second > 0, second, 1.0)).round().clamp_(-MAX_INT8, MAX_INT8)
    errors = [(exact - values * scale).square().sum(1, True) for values, scale in ((rounded, first), (refined, second))]
    better = errors[1] < errors[0]
    values, scales = torch.where(better, refined, rounded), torch.where(better, second, first)
    return Rows(values.to(torch.int8), scales.squeeze(1).float())


def pack(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors as they are stored: a matrix as two of them, anything else in 16 bits."""
    stored: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise RequestError(f"{name} holds NaN or infinity; a model that diverged cannot be stored small")
        if name.endswith(SCALE):
            raise RequestError(f"{name} cannot be stored small: names that end so are those of scales")
        if tensor.dim() == 2 and tensor.numel():
            rows = pack_rows(tensor)
            stored |= {name: rows.values, name + SCALE: rows.scales}
        else:
            stored[name] = _in_16_bits(tensor)
    return stored


def unpack(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors in float32."""
    tensors = {}
    for name, tensor in stored.items():
        if name.endswith(SCALE):
            _require_matrix(name, stored)
        elif tensor.dtype == torch.int8:
            tensors[name] = Rows(tensor, _scales_of(name, stored)).matrix()
        else:
            tensors[name] = tensor.float()
    return tensors


def write_small(
    tensors: Mapping[str, Tensor], folder: Path, above: Path | None = None, budget: int | None = None
) -> None:
    """Write both files into a folder; with `above`, a folder of the same kind, only what differs from it.

    With a `budget` of bytes too, only the strongest directions of what differs: it is rounded to fit.
    """
    sums = {}
    if above is not None:
        if ABOVE in read_sums(above / SUMS):
            raise RequestError(f"{above} holds only differences itself; store the model beside it, not in it")
        known = read_small(above / SMALL)
        if budget is None:
            tensors = {name: tensor for name, tensor in tensors.items() if not _same(tensor, known.get(name))}
        else:
            tensors = low_rank_changes(known, tensors, budget)
        sums[ABOVE] = _sha256((above / SMALL).read_bytes())
    content = save({name: tensor.cpu().contiguous() for name, tensor in pack(tensors).items()})
    (folder / SMALL).write_bytes(content)
    sums = {SMALL: _sha256(content)} | sums
    (folder / SUMS).write_text("".join(f"{digest}  {name}\n" for name, digest in sums.items()), encoding="ascii")


def read_small(path: Path) -> dict[str, Tensor]:
    """Every tensor of a small file, and those of the folder above that it leaves out, in float32."""
    tensors: dict[str, Tensor] = {}
    for name, digest in reversed(read_sums(path.with_name(SUMS)).items()):  # what is above comes first
        content = _read_verified(path.parent / name, digest, path)
        try:
            tensors = add_changes(tensors, content)
        except RequestError as error:
            raise RequestError(
                f"{path.parent / name} is not a file of small weights: {error}; save it again"
            ) from error
    return tensors


def _read_verified(path: Path, digest: str, requested: Path) -> dict[str, Tensor]:
    try:
        content = path.read_bytes()
    except OSError as error:
        needs = "" if path == requested else f", and {requested} holds only what differs from it"
        raise RequestError(f"{path} cannot be read ({error.strerror}){needs}; copy both folders together") from error
    actual = _sha256(content)
    if actual != digest:
        raise RequestError(
            f"{path} is truncated or changed: its sha256 begins with {actual[:12]} ({len(content):,} bytes), "
            f"but {requested.with_name(SUMS)} says {digest[:12]}; copy the folder or install bertkit again"
        )
    try:
        return unpack(load(content))
    except (SafetensorError, ValueError, KeyError) as error:  # RequestError is a ValueError
        raise RequestError(f"{path} is not a file of small weights: {error}; save the model again") from error


def _scales_of(name: str, stored: Mapping[str, Tensor]) -> Tensor:
    scales = stored.get(name + SCALE)
    rows = stored[name].shape
    if scales is None or len(rows) != 2 or scales.dtype != torch.float32 or scales.shape != rows[:1]:
        raise RequestError(f"{name} has whole numbers but not a scale for each of its rows")
    return scales


def _require_matrix(scale: str, stored: Mapping[str, Tensor]) -> None:
    matrix = stored.get(scale.removesuffix(SCALE))
    if matrix is None or matrix.dtype != torch.int8:
        raise RequestError(f"{scale} belongs to no matrix of whole numbers")


def _in_16_bits(tensor: Tensor) -> Tensor:
    """In float16, which has more digits, or in bfloat16, which has more range: whichever is closer."""
    exact = tensor.double()

    def error(kind: torch.dtype) -> float:
        return float((exact.to(kind).double() - exact).square().sum())

    return exact.to(min((torch.float16, torch.bfloat16), key=error))


def _same(tensor: Tensor, other: Tensor | None) -> bool:
    return other is not None and torch.equal(tensor.detach().float().cpu(), other)


def _float32(number: float) -> float:
    return float(torch.tensor(number, dtype=torch.float32))


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
