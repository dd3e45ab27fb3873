"""modules.json of sentence-transformers folders: the modules in their order, and the Dense ones among them."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bertkit.checkpoint.tensors import read_json, read_object, read_tensors, write_tensors
from bertkit.errors import RequestError
from bertkit.settings import pick

# Activations of Dense modules, by the name of their class in torch.nn.
ACTIVATIONS = {kind.__name__: kind for kind in (nn.Tanh, nn.Identity, nn.ReLU, nn.GELU, nn.SiLU, nn.Sigmoid)}
PROMPT_FILE, LENGTH_FILE = "config_sentence_transformers.json", "sentence_bert_config.json"
TRANSFORMERS = ("Transformer", "MLMTransformer")  # the second in sparse models of older versions
SENTENCE, TOKENS = "sentence_embedding", "token_embeddings"  # what a Dense or Normalize module reads


def read_modules(folder: Path) -> list[tuple[str, Path]]:
    """The kind and the folder of each module, in order."""
    modules = read_json(folder / "modules.json")
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise RequestError(f"{folder / 'modules.json'} must hold a list of modules")
    return [(str(module.get("type", "")).rpartition(".")[2], _inside(folder, module)) for module in modules]


def ordered_modules(folder: Path, order: Sequence[str]) -> list[tuple[str, Path]]:
    """The same; a module that is not in `order`, or not in this order, is refused."""
    modules = read_modules(folder)
    kinds = ["Transformer" if kind in TRANSFORMERS else kind for kind, _ in modules]
    for kind in kinds:
        if kind not in order:
            raise RequestError(f"{folder / 'modules.json'}: the module '{kind}' is not supported")
    if kinds != sorted(kinds, key=order.index):
        raise RequestError(f"{folder / 'modules.json'}: modules must be in this order: {', '.join(order)}")
    return list(zip(kinds, (path for _, path in modules), strict=True))


def transformer_folder(folder: Path) -> Path:
    """The folder of the encoder: the sentence-transformers folder itself, or one inside."""
    for kind, path in read_modules(folder):
        if kind in TRANSFORMERS:
            return path
    raise RequestError(f"{folder / 'modules.json'} names no Transformer module")


def transformer_settings(folder: Path) -> dict[str, Any]:
    """The settings of the Transformer module; lowercasing beside the tokenizer is refused."""
    path = transformer_folder(folder) / LENGTH_FILE
    settings = read_object(path) if path.is_file() else {}
    if settings.get("do_lower_case"):
        raise RequestError(f"{path}: do_lower_case=true is not supported; set it in tokenizer_config.json instead")
    return settings


def read_dense(paths: Iterable[Path], width: int, feature: str) -> nn.Sequential | None:
    """The Dense modules in these folders, for vectors of this width: linear layers, each with an activation."""
    layers: list[nn.Module] = []
    for path in paths:
        linear, activation = _read_dense(path, width, feature)
        layers, width = [*layers, linear, activation], linear.out_features
    return nn.Sequential(*layers).eval() if layers else None


def write_modules(folder: Path, modules: Sequence[tuple[str, dict[str, Any] | None]]) -> list[Path]:
    """Write modules.json after these classes, each with its config.json if it has one; the modules' folders."""
    kinds = [name.rpartition(".")[2] for name, _ in modules]
    paths = ["", *(f"{index}_{kind}" for index, kind in enumerate(kinds) if index)]
    rows = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.{name}"}
        for index, (path, (name, _)) in enumerate(zip(paths, modules, strict=True))
    ]
    write_json(folder / "modules.json", rows)
    for path, (_, config) in zip(paths, modules, strict=True):
        if config is not None:
            write_json(folder / path / "config.json", config)
    return [folder / path for path in paths]


def dense_pairs(dense: nn.Sequential | None) -> list[tuple[nn.Linear, nn.Module]]:
    """The linear layers of Dense modules, each with its activation."""
    layers = [] if dense is None else list(dense)
    linears = [layer for layer in layers[::2] if isinstance(layer, nn.Linear)]
    return list(zip(linears, layers[1::2], strict=True))


def write_dense(folder: Path, linear: nn.Linear, activation: nn.Module, **features: str) -> None:
    """Write a Dense module; `features` name what it reads and writes, if that is not the vector of a text."""
    shape = {"in_features": linear.in_features, "out_features": linear.out_features, "bias": linear.bias is not None}
    kind = type(activation)
    named = {**shape, "activation_function": f"{kind.__module__}.{kind.__name__}", **features}
    write_json(folder / "config.json", named)
    tensors = {f"linear.{name}": tensor.cpu().contiguous() for name, tensor in linear.state_dict().items()}
    write_tensors(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def write_json(path: Path, data: Any) -> None:
    """Write JSON, in a new folder if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def _inside(folder: Path, module: dict[str, Any]) -> Path:
    try:
        path = (folder / str(module.get("path", ""))).resolve()
        inside = path.is_relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError):  # NUL bytes, lone surrogates, links in a circle
        inside = False
    if not inside:
        raise RequestError(f"{folder / 'modules.json'} points outside its folder: {module.get('path')!r}")
    return path


def _read_dense(folder: Path, width: int, feature: str) -> tuple[nn.Linear, nn.Module]:
    """A Dense module's linear layer, for vectors of this width, and its activation."""
    path = folder / "config.json"
    data, tensors = read_object(path), read_tensors(folder)
    for key, value in {"module_input_name": feature, "module_output_name": feature, "use_residual": False}.items():
        if data.get(key, value) not in (value, None):
            raise RequestError(f"{path}: {key}={data[key]!r} is not supported, only {value!r}")
    name = str(data.get("activation_function", "Tanh")).rpartition(".")[2]
    activation = pick(ACTIVATIONS, name, f"activation_function of {path}")
    weight, bias = tensors.pop("linear.weight", torch.empty(0)).float(), tensors.pop("linear.bias", None)
    fits = weight.ndim == 2 and weight.shape[1] == width and (bias is None or bias.shape == weight.shape[:1])
    if tensors or not fits or not all(bool(part.isfinite().all()) for part in (weight, bias) if part is not None):
        raise RequestError(
            f"{folder} holds a linear layer of shape {tuple(weight.shape)}, or other tensors, or numbers that are not "
            f"finite; a Dense module here has linear.weight with {width} columns, and linear.bias"
        )
    with torch.device("meta"):
        linear = nn.Linear(width, len(weight), bias=bias is not None)
    linear.load_state_dict({"weight": weight} | ({} if bias is None else {"bias": bias.float()}), assign=True)
    return linear.requires_grad_(False), activation()
