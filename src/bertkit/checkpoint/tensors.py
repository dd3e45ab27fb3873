"""Tensors on disk: one or several safetensors files, small weights, or a pickled state dict read without code."""

import hashlib
import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from bertkit.checkpoint.bundled import SMALL_FILE
from bertkit.checkpoint.small import read_small
from bertkit.errors import RequestError

# In order of preference, if a folder holds several.
WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    SMALL_FILE,
)


def write_tensors(tensors: Mapping[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """One safetensors file."""
    try:
        save_file(dict(tensors), path, metadata=metadata)
    except SafetensorError as error:  # a full disk raises this
        raise OSError(str(error)) from error


def weights_file(folder: Path) -> Path:
    """The file of a folder's weights, or the index of several."""
    for name in WEIGHT_FILES:
        if (folder / name).is_file():
            return folder / name
    raise RequestError(f"{folder} holds no weights; bertkit looks for {', '.join(WEIGHT_FILES)}")


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Every tensor of a model folder by its name in the file."""
    path = weights_file(folder)
    if path.name == SMALL_FILE:
        return read_small(path)
    if not path.name.endswith(".index.json"):
        return _read_file(path)
    tensors: dict[str, Tensor] = {}
    for shard in _shards(path):
        tensors |= _read_file(shard)
    missing = sorted(set(read_json(path)["weight_map"]) - set(tensors))
    if missing:
        raise RequestError(f"{path} promises {missing[0]} ({len(missing)} such) but no shard holds it")
    return tensors


def read_json(path: Path) -> Any:
    """The content of a JSON file."""
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError as error:
        raise RequestError(f"{path} does not exist") from error
    except (OSError, ValueError, RecursionError) as error:
        raise RequestError(f"{path} is not readable JSON: {error}") from error


def read_object(path: Path) -> dict[str, Any]:
    """A JSON file that holds one object."""
    data = read_json(path)
    if not isinstance(data, dict):
        raise RequestError(f"{path} must hold one JSON object")
    return data


def _shards(index: Path) -> list[Path]:
    weight_map = read_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise RequestError(f"{index} has no weight_map")
    names = sorted({str(name) for name in weight_map.values()})
    for name in names:
        if Path(name).name != name:
            raise RequestError(f"{index} points outside its folder: {name!r}")
        if not (index.parent / name).is_file():
            raise RequestError(f"{index.parent / name} is missing, though {index.name} needs it; copy all the shards")
    return [index.parent / name for name in names]


def _read_file(path: Path) -> dict[str, Tensor]:
    return read_safetensors(path) if path.suffix == ".safetensors" else _read_pickle(path)


def _refuse_pointer(path: Path) -> None:
    with path.open("rb") as file:
        if file.read(24) == b"version https://git-lfs.":
            raise RequestError(f"{path} is a Git LFS pointer, not the file itself; fetch it with: git lfs pull")


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of one file."""
    _refuse_pointer(path)
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise RequestError(f"{path} is truncated or corrupt ({error}); copy or download it again") from error


def _read_pickle(path: Path) -> dict[str, Tensor]:
    """A state dict saved by torch; a pickle that would run code is refused."""
    _refuse_pointer(path)
    try:
        data = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise RequestError(
            f"{path} is no state dict, or holds more than tensors and would run code when loaded, so it was not; "
            "ask its author for a model.safetensors"
        ) from error
    except (OSError, EOFError, RuntimeError, ValueError, KeyError, IndexError, AttributeError, TypeError) as error:
        raise RequestError(
            f"{path} is truncated or corrupt ({_first_line(error)}); copy or download it again"
        ) from error
    return _state_dict(data, path)


def _state_dict(data: Any, path: Path) -> dict[str, Tensor]:
    """The tensors of a state dict, which some training scripts save inside another dictionary."""
    for key in ("state_dict", "model"):
        if isinstance(data, dict) and isinstance(data.get(key), dict):
            data = data[key]
    tensors = (
        {name: value for name, value in data.items() if isinstance(name, str) and isinstance(value, Tensor)}
        if isinstance(data, dict)
        else {}
    )
    if not tensors:
        raise RequestError(f"{path} holds no state dict of tensors")
    return tensors


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """sha256 over names, dtypes, shapes and values."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\0".encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
