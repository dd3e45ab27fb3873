"""sentence-transformers folders: how their vectors are pooled, normalized and limited in length."""

import json
from pathlib import Path
from typing import Any

from bertkit.checkpoint.tensors import read_json, read_object
from bertkit.errors import RequestError
from bertkit.model.pooling import EmbedSettings
from bertkit.poolings import DEFAULT_POOLING, TEXT_POOLINGS

PROMPT_FILE, LENGTH_FILE = "config_sentence_transformers.json", "sentence_bert_config.json"


def transformer_folder(folder: Path) -> Path:
    """The folder of the encoder: the sentence-transformers folder itself, or one inside."""
    for module in _modules(folder):
        if _kind(module) == "Transformer":
            return _inside(folder, module)
    raise RequestError(f"{folder / 'modules.json'} names no Transformer module")


def read_settings(folder: Path) -> EmbedSettings:
    """Pooling, normalization and prompt of the folder; a module that bertkit does not have is refused."""
    pooling, normalize = DEFAULT_POOLING, False
    _refuse_lowercasing(folder)
    for module in _modules(folder):
        kind = _kind(module)
        if kind == "Pooling":
            pooling = _pooling(_inside(folder, module) / "config.json")
        elif kind == "Normalize":
            normalize = True
        elif kind != "Transformer":
            raise RequestError(f"{folder / 'modules.json'}: the module '{kind}' is not supported")
    return EmbedSettings(pooling=pooling, normalize=normalize, prefix=_prompt(folder))


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
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling")]
    kinds += [("2_Normalize", "Normalize")] if settings.normalize else []
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (path, kind) in enumerate(kinds)
    ]
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


def _is_flag(key: str) -> bool:
    return key.startswith("pooling_mode_")


def _names() -> dict[tuple[str, str], str]:
    """(pooling_mode, flag) of sentence-transformers -> bertkit's name of the pooling."""
    rows = reversed(TEXT_POOLINGS.items())  # if two rows have one name there, the first is used
    return {row.sentence_transformers: name for name, row in rows if row.sentence_transformers}


def _write_json(path: Path, data: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
