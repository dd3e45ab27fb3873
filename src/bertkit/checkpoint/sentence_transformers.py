"""sentence-transformers folders: how their vectors are pooled, projected, normalized and limited in length."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bertkit.checkpoint.tensors import read_json, read_object, read_tensors, write_tensors
from bertkit.errors import RequestError
from bertkit.model.pooling import EmbedSettings
from bertkit.poolings import DEFAULT_POOLING, TEXT_POOLINGS
from bertkit.settings import pick

# Activations of Dense modules, by the name of their class in torch.nn.
ACTIVATIONS = {kind.__name__: kind for kind in (nn.Tanh, nn.Identity, nn.ReLU, nn.GELU, nn.SiLU, nn.Sigmoid)}
ORDER = ("Transformer", "Pooling", "Dense", "Normalize")
# Settings of a Dense module with the only value that is supported; files of older versions lack them.
DENSE_FIELDS = {
    "module_input_name": "sentence_embedding",
    "module_output_name": "sentence_embedding",
    "use_residual": False,
}
# Fields of config.json with a cross-encoder's activation; version 3 and earlier had the second one.
CROSS_ENCODER_FIELDS = ("sentence_transformers", "sbert_ce_default_activation_function")
PROMPT_FILE, LENGTH_FILE = "config_sentence_transformers.json", "sentence_bert_config.json"


def transformer_folder(folder: Path) -> Path:
    """The folder of the encoder: the sentence-transformers folder itself, or one inside."""
    for module in _modules(folder):
        if _kind(module) == "Transformer":
            return _inside(folder, module)
    raise RequestError(f"{folder / 'modules.json'} names no Transformer module")


def read_settings(folder: Path, hidden: int) -> EmbedSettings:
    """Pooling, dense layers, normalization and prompt of the folder; a module that bertkit does not have is refused.

    `hidden` is the width of the encoder's vectors.
    """
    _refuse_lowercasing(folder)
    modules = [(_kind(module), _inside(folder, module)) for module in _modules(folder)]
    kinds = [kind for kind, _ in modules]
    for kind in kinds:
        if kind not in ORDER:
            raise RequestError(f"{folder / 'modules.json'}: the module '{kind}' is not supported")
    if kinds != sorted(kinds, key=ORDER.index):
        raise RequestError(f"{folder / 'modules.json'}: modules must be in this order: {', '.join(ORDER)}")
    pooling = DEFAULT_POOLING
    for kind, path in modules:
        pooling = _pooling(path / "config.json") if kind == "Pooling" else pooling
    settings = EmbedSettings(pooling=pooling, normalize="Normalize" in kinds, prefix=_prompt(folder))
    layers: list[nn.Module] = []
    width = settings.width(hidden)
    for path in (path for kind, path in modules if kind == "Dense"):
        linear, activation = _dense(path, width)
        layers, width = [*layers, linear, activation], linear.out_features
    return replace(settings, dense=nn.Sequential(*layers).eval() if layers else None)


def cross_encoder_fields(folder: Path) -> dict[str, Any]:
    """What the folder of a CrossEncoder (version 5 and later) says in a file of its own, as fields of config.json."""
    path = folder / PROMPT_FILE
    settings = read_object(path) if path.is_file() else {}
    if settings.get("model_type") != "CrossEncoder":
        return {}
    if settings.get("default_prompt_name") is not None:
        raise RequestError(f"{path}: default_prompt_name of a cross-encoder is not supported; remove it")
    modules = [_kind(module) for module in _modules(folder)] if (folder / "modules.json").is_file() else []
    if extra := [kind for kind in modules if kind != "Transformer"]:
        raise RequestError(f"{folder / 'modules.json'}: the module '{extra[0]}' of a cross-encoder is not supported")
    return {"sentence_transformers": {"activation_fn": settings.get("activation_fn")}}


def read_length(folder: Path) -> int | None:
    """The maximum length of a text, if the folder sets one."""
    path = transformer_folder(folder) / LENGTH_FILE
    length = read_object(path).get("max_seq_length") if path.is_file() else None
    return length if isinstance(length, int) else None


def write_settings(folder: Path, settings: EmbedSettings, width: int, max_length: int) -> None:
    """Write the same settings as modules, unless sentence-transformers has no name for them."""
    pooling = None if settings.per_token else TEXT_POOLINGS[settings.pooling].sentence_transformers
    if pooling is None or settings.layers != (-1,):
        return
    dense = [] if settings.dense is None else list(settings.dense)
    kinds = ["Transformer", "Pooling", *["Dense"] * (len(dense) // 2), *["Normalize"] * settings.normalize]
    paths = ["", *(f"{index}_{kind}" for index, kind in enumerate(kinds) if index)]
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (path, kind) in enumerate(zip(paths, kinds, strict=True))
    ]
    for path, linear, activation in zip(paths[2:], dense[::2], dense[1::2], strict=False):
        assert isinstance(linear, nn.Linear)
        _write_dense(folder / path, linear, activation)
    flags = {flag: (mode, flag) == pooling for mode, flag in _names()}
    _write_json(folder / "modules.json", modules)
    _write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": width, **flags})
    _write_json(folder / LENGTH_FILE, {"max_seq_length": max_length, "do_lower_case": False})
    if settings.prefix:
        _write_json(folder / PROMPT_FILE, {"prompts": {"default": settings.prefix}, "default_prompt_name": "default"})


def _prompt(folder: Path) -> str:
    """The default prompt, which is put before every text; empty if there is none."""
    settings = read_object(folder / PROMPT_FILE) if (folder / PROMPT_FILE).is_file() else {}
    name, prompts = settings.get("default_prompt_name"), settings.get("prompts") or {}
    if name is None:
        return ""
    if not isinstance(prompts, dict) or not isinstance(prompts.get(name), str):
        raise RequestError(f"{folder / PROMPT_FILE}: default_prompt_name is {name!r}, but prompts has no such text")
    return str(prompts[name])


def _refuse_lowercasing(folder: Path) -> None:
    path = transformer_folder(folder) / LENGTH_FILE
    if path.is_file() and read_object(path).get("do_lower_case"):
        raise RequestError(f"{path}: do_lower_case=true is not supported; set it in tokenizer_config.json instead")


def _modules(folder: Path) -> list[dict[str, Any]]:
    modules = read_json(folder / "modules.json")
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise RequestError(f"{folder / 'modules.json'} must hold a list of modules")
    return modules


def _kind(module: dict[str, Any]) -> str:
    return str(module.get("type", "")).rpartition(".")[2]


def _inside(folder: Path, module: dict[str, Any]) -> Path:
    try:
        path = (folder / str(module.get("path", ""))).resolve()
        inside = path.is_relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError):  # NUL bytes, lone surrogates, links in a circle
        inside = False
    if not inside:
        raise RequestError(f"{folder / 'modules.json'} points outside its folder: {module.get('path')!r}")
    return path


def _pooling(path: Path) -> str:
    data = read_object(path)
    if data.get("include_prompt") is False:
        raise RequestError(f"{path}: include_prompt=false is not supported")
    mode, flags = data.get("pooling_mode"), [key for key, on in data.items() if _is_flag(key) and on]
    known = [name for names, name in _names().items() if (mode == names[0] if mode else names[1] in flags)]
    if len(known) != 1 or (not mode and len(flags) != 1):
        supported = ", ".join(name for name, _ in _names())
        raise RequestError(f"{path}: pooling {mode or flags} is not supported; bertkit has {supported}")
    return known[0]


def _dense(folder: Path, width: int) -> tuple[nn.Linear, nn.Module]:
    """A Dense module's linear layer, for vectors of this width, and its activation."""
    path = folder / "config.json"
    data, tensors = read_object(path), read_tensors(folder)
    for key, value in DENSE_FIELDS.items():
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


def _write_dense(folder: Path, linear: nn.Linear, activation: nn.Module) -> None:
    shape = {"in_features": linear.in_features, "out_features": linear.out_features, "bias": linear.bias is not None}
    kind = type(activation)
    _write_json(folder / "config.json", {**shape, "activation_function": f"{kind.__module__}.{kind.__name__}"})
    tensors = {f"linear.{name}": tensor.cpu().contiguous() for name, tensor in linear.state_dict().items()}
    write_tensors(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _is_flag(key: str) -> bool:
    return key.startswith("pooling_mode_")


def _names() -> dict[tuple[str, str], str]:
    """(pooling_mode, flag) of sentence-transformers -> bertkit's name of the pooling."""
    rows = reversed(TEXT_POOLINGS.items())  # if two rows have one name there, the first is used
    return {row.sentence_transformers: name for name, row in rows if row.sentence_transformers}


def _write_json(path: Path, data: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
