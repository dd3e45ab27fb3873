"""Small weights, a quarter of the size: matrices as int8 rows with a scale each, vectors as 16-bit floats.

A model folder has `model.small.safetensors` instead of `model.safetensors`. Beside it, `model.small.sha256` is what
`sha256sum` prints, and is checked at every load. If that names `../model.small.safetensors` too, the file holds only
the tensors that differ from those of this base model in the parent folder, or what is added to them: `NAME.change` is
added to a vector, and the rows of `NAME.factors` are a left and a right vector whose outer products are added to a
matrix (`low_rank` chooses them).
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from bertkit.checkpoint.bundled import BASE_FILE, CHECKSUM_FILE, SMALL_FILE, read_checksums
from bertkit.errors import RequestError

SCALE = ".scale"  # after the name of a matrix: the name of its scales
FACTORS, CHANGE = ".factors", ".change"  # after the name of a tensor of the base: how it changes
MAX_INT8 = 127  # the range is symmetric: -127 to 127

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Rows:
    """A matrix as int8 values, each row to be multiplied by its scale."""

    values: Tensor  # int8, of the matrix's shape
    scales: Tensor  # float32, one for each row

    def matrix(self) -> Tensor:
        """The matrix in float32, off by at most half a scale."""
        return self.values.float().mul_(self.scales.unsqueeze(1))


def pack_row_plain(row: list[float]) -> tuple[list[int], float]:
    """int8 values and the scale of one row. The readable twin of `pack_rows`.

    Two scales are tried: the one at which the largest value becomes 127, and the least-squares fit to the values
    rounded by it, if no value exceeds 127 by more than half a step. The one with the smaller squared error is taken.
    """
    largest = max(map(abs, row))
    first = _float32(largest / MAX_INT8)
    if not first:
        return [0] * len(row), 1.0
    rounded = [round(x / first) for x in row]
    second = _float32(sum(x * n for x, n in zip(row, rounded, strict=True)) / sum(n * n for n in rounded))
    candidates = [(rounded, first)]
    if largest <= (MAX_INT8 + 0.5) * second:
        candidates.append(([max(-MAX_INT8, min(MAX_INT8, round(x / second))) for x in row], second))

    def error(candidate: tuple[list[int], float]) -> float:
        values, scale = candidate
        return sum((x - n * scale) ** 2 for x, n in zip(row, values, strict=True))

    return min(candidates, key=error)


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


def pack(tensors: Tensors) -> dict[str, Tensor]:
    """Tensors as they are stored: a matrix as int8 rows and scales, all others in 16 bits."""
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


def unpack(stored: Tensors) -> dict[str, Tensor]:
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
    tensors: Tensors,
    folder: Path,
    base: Path | None = None,
    changes: Callable[[Tensors, Tensors], dict[str, Tensor]] | None = None,
) -> None:
    """Write both files into a folder; with `base`, the parent folder of the same kind, only what differs from it.

    `changes` gives what is stored of the difference between the base's tensors and these; by default, in full.
    """
    checksums = {}
    if base is not None:
        if BASE_FILE in read_checksums(base / CHECKSUM_FILE):
            raise RequestError(f"{base} holds only differences itself; store the model beside it, not in it")
        tensors = (changes or _changed)(read_small(base / SMALL_FILE), tensors)
        checksums[BASE_FILE] = _sha256((base / SMALL_FILE).read_bytes())
    content = save({name: tensor.cpu().contiguous() for name, tensor in pack(tensors).items()})
    (folder / SMALL_FILE).write_bytes(content)
    lines = [f"{digest}  {name}\n" for name, digest in ({SMALL_FILE: _sha256(content)} | checksums).items()]
    (folder / CHECKSUM_FILE).write_text("".join(lines), encoding="ascii")


def read_small(path: Path) -> dict[str, Tensor]:
    """Every tensor of a small file, and those of its base that it leaves out, in float32."""
    tensors: dict[str, Tensor] = {}
    for name, digest in reversed(read_checksums(path.with_name(CHECKSUM_FILE)).items()):  # the base comes first
        content = _read_verified(path.parent / name, digest, path)
        try:
            tensors = add_changes(tensors, content)
        except RequestError as error:
            raise RequestError(
                f"{path.parent / name} is not a file of small weights: {error}; save it again"
            ) from error
    return tensors


def add_changes(known: Tensors, changes: Tensors) -> dict[str, Tensor]:
    """`known` with the changes added; a tensor under its own name replaces the known one."""
    tensors = dict(known)
    for name, change in changes.items():
        stem = name.removesuffix(FACTORS).removesuffix(CHANGE)
        if stem == name:
            tensors[name] = change
        elif stem not in known or stem in changes or {stem + FACTORS, stem + CHANGE} <= changes.keys():
            raise RequestError(f"{name} changes a tensor that is not there, or is there twice")
        else:
            tensors[stem] = known[stem].float() + _full_change(name, change.float(), known[stem])
    return tensors


def _full_change(name: str, change: Tensor, known: Tensor) -> Tensor:
    """The change as a tensor of the same shape as `known`."""
    if name.endswith(CHANGE) and change.shape == known.shape:
        return change.to(known.device)
    if name.endswith(FACTORS) and change.dim() == known.dim() == 2 and change.shape[1] == sum(known.shape):
        rows = change.to(known.device)
        return torch.matmul(rows[:, : len(known)].T, rows[:, len(known) :])
    raise RequestError(f"{name} has shape {tuple(change.shape)} and cannot change a tensor of {tuple(known.shape)}")


def _read_verified(path: Path, digest: str, requested: Path) -> dict[str, Tensor]:
    try:
        content = path.read_bytes()
    except OSError as error:
        reason = "" if path == requested else f", and {requested} holds only what differs from it"
        raise RequestError(f"{path} cannot be read ({error.strerror}){reason}; copy both folders together") from error
    actual = _sha256(content)
    if actual != digest:
        raise RequestError(
            f"{path} is truncated or changed: its sha256 begins with {actual[:12]} ({len(content):,} bytes), "
            f"but {requested.with_name(CHECKSUM_FILE)} says {digest[:12]}; copy the folder or install bertkit again"
        )
    try:
        return unpack(load(content))
    except (SafetensorError, ValueError, KeyError) as error:  # RequestError is a ValueError
        raise RequestError(f"{path} is not a file of small weights: {error}; save the model again") from error


def _scales_of(name: str, stored: Tensors) -> Tensor:
    scales = stored.get(name + SCALE)
    rows = stored[name].shape
    if scales is None or len(rows) != 2 or scales.dtype != torch.float32 or scales.shape != rows[:1]:
        raise RequestError(f"{name} has whole numbers but not a scale for each of its rows")
    return scales


def _require_matrix(scale: str, stored: Tensors) -> None:
    matrix = stored.get(scale.removesuffix(SCALE))
    if matrix is None or matrix.dtype != torch.int8:
        raise RequestError(f"{scale} belongs to no matrix of whole numbers")


def _in_16_bits(tensor: Tensor) -> Tensor:
    """In float16, which has more precision, or bfloat16, which has more range: whichever is closer."""
    exact = tensor.double()

    def error(kind: torch.dtype) -> float:
        return float((exact.to(kind).double() - exact).square().sum())

    return exact.to(min((torch.float16, torch.bfloat16), key=error))


def _changed(known: Tensors, tensors: Tensors) -> dict[str, Tensor]:
    """The tensors that are not equal to the known ones."""
    equal = {
        name
        for name, tensor in tensors.items()
        if name in known and torch.equal(tensor.detach().float().cpu(), known[name])
    }
    return {name: tensor for name, tensor in tensors.items() if name not in equal}


def _float32(number: float) -> float:
    return float(torch.tensor(number, dtype=torch.float32))


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
