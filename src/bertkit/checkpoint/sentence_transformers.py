"""sentence-transformers folders: how their vectors are pooled, projected, normalized and limited in length."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from bertkit.checkpoint.folders.modules import (
    LENGTH_FILE,
    PROMPT_FILE,
    SENTENCE,
    dense_pairs,
    ordered_modules,
    read_dense,
    read_modules,
    transformer_settings,
    write_dense,
    write_json,
    write_modules,
)
from bertkit.checkpoint.tensors import read_object
from bertkit.errors import RequestError
from bertkit.model.pooling import EmbedSettings
from bertkit.poolings import DEFAULT_POOLING, TEXT_POOLINGS

ORDER = ("Transformer", "Pooling", "Dense", "Normalize")
# Fields of config.json with a cross-encoder's activation; version 3 and earlier had the second one.
CROSS_ENCODER_FIELDS = ("sentence_transformers", "sbert_ce_default_activation_function")


def read_settings(folder: Path, hidden: int) -> EmbedSettings:
    """How vectors are made, by the folder's modules and prompts; a module that bertkit does not have is refused.

    `hidden` is the width of the encoder's vectors.
    """
    transformer_settings(folder)  # refuses what is not supported
    modules = ordered_modules(folder, ORDER)
    pooling = DEFAULT_POOLING
    for kind, path in modules:
        pooling = _pooling(path / "config.json") if kind == "Pooling" else pooling
    normalize = any(kind == "Normalize" for kind, _ in modules)
    settings = EmbedSettings(pooling=pooling, normalize=normalize, **_prompts(folder))
    paths = (path for kind, path in modules if kind == "Dense")
    settings = replace(settings, dense=read_dense(paths, settings.width(hidden), SENTENCE))
    dimensions = _dimensions(folder)
    return replace(settings, dimensions=None if dimensions is None else min(dimensions, settings.width(hidden)))


def cross_encoder_fields(folder: Path) -> dict[str, Any]:
    """What the folder of a CrossEncoder (version 5 and later) says in a file of its own, as fields of config.json."""
    path = folder / PROMPT_FILE
    settings = read_object(path)
    if settings.get("model_type") != "CrossEncoder":
        return {}
    if settings.get("default_prompt_name") is not None:
        raise RequestError(f"{path}: default_prompt_name of a cross-encoder is not supported; remove it")
    modules = [kind for kind, _ in read_modules(folder)] if (folder / "modules.json").is_file() else []
    if extra := [kind for kind in modules if kind != "Transformer"]:
        raise RequestError(f"{folder / 'modules.json'}: the module '{extra[0]}' of a cross-encoder is not supported")
    return {"sentence_transformers": {"activation_fn": settings.get("activation_fn")}}


def read_length(folder: Path) -> int | None:
    """The maximum length of a text, if the folder sets one."""
    length = transformer_settings(folder).get("max_seq_length")
    return length if isinstance(length, int) else None


def write_settings(folder: Path, settings: EmbedSettings, width: int, max_length: int) -> None:
    """Write the same settings as modules, unless sentence-transformers has no name for them."""
    pooling = None if settings.per_token else TEXT_POOLINGS[settings.pooling].sentence_transformers
    if pooling is None or settings.layers != (-1,):
        return
    dense = dense_pairs(settings.dense)
    flags = {flag: (mode, flag) == pooling for mode, flag in _names()}
    kinds = ["Transformer", "Pooling", *["Dense"] * len(dense), *["Normalize"] * settings.normalize]
    configs = {"Pooling": {"word_embedding_dimension": width, **flags}}
    paths = write_modules(folder, [(f"models.{kind}", configs.get(kind)) for kind in kinds])
    for path, (linear, activation) in zip(paths[2:], dense, strict=False):
        write_dense(path, linear, activation)
    write_json(folder / LENGTH_FILE, {"max_seq_length": max_length, "do_lower_case": False})
    described: dict[str, Any] = {} if settings.dimensions is None else {"truncate_dim": settings.dimensions}
    prompts = dict(settings.prompts)
    if settings.prefix:
        name = next((name for name, text in settings.prompts if text == settings.prefix), "default")
        prompts, described = prompts | {name: settings.prefix}, described | {"default_prompt_name": name}
    if described or prompts:
        described["prompts"] = prompts
        write_json(folder / PROMPT_FILE, described)


def _prompts(folder: Path) -> dict[str, Any]:
    """The prompts by name, and the default one, which is put before every text; empty if there is none."""
    path = folder / PROMPT_FILE
    settings = read_object(path) if path.is_file() else {}
    default, prompts = settings.get("default_prompt_name"), settings.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(text, str | None) for text in prompts.values()):
        raise RequestError(f"{path}: prompts must be texts by name")
    if default is not None and not isinstance(prompts.get(default), str):
        raise RequestError(f"{path}: default_prompt_name is {default!r}, but prompts has no such text")
    named = {name: text or "" for name, text in prompts.items()}
    return {"prefix": named.get(default, ""), "prompts": tuple(named.items())}


def _dimensions(folder: Path) -> int | None:
    """How many leading numbers of a vector the folder keeps; None: all."""
    settings = read_object(folder / PROMPT_FILE) if (folder / PROMPT_FILE).is_file() else {}
    count = settings.get("truncate_dim")
    if count is not None and (type(count) is not int or count < 1):
        raise RequestError(f"{folder / PROMPT_FILE}: truncate_dim={count!r} must be a whole number from 1")
    return count


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
