"""`config.json`, read and written: the rows of families/ have the names of its fields."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from bertkit.config import BertConfig, Parts, family_config
from bertkit.errors import RequestError
from bertkit.families.family import Family, json_object, whole_number
from bertkit.families.table import FAMILIES
from bertkit.settings import flat, pick

FLOATS = ("dropout", "attention_dropout", "norm_epsilon", "init_std")

# The first of ours is what we write.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}

# Fields of every family whose other values are arithmetic that bertkit lacks: they are refused.
REQUIRED_FIELDS: dict[str, Any] = {"position_embedding_type": "absolute", "add_cross_attention": False}

NATIVE_TYPE = "bertkit"  # model_type of a mixture of parts that Hugging Face has no class for


def read_hugging_face(data: Mapping[str, Any], where: str) -> BertConfig:
    """The shape that a config.json describes; `where` is named in what goes wrong."""
    try:
        kind = _model_type(data)
        return _read_native(data) if kind == NATIVE_TYPE else _read_family(kind, data)
    except RequestError as error:
        raise RequestError(f"{where}: {error}") from error


def write_hugging_face(config: BertConfig, *, native: bool = False) -> dict[str, Any]:
    """The config.json of a shape: the family's if that can express it, else one that only bertkit reads (`native`)."""
    if native:
        return _write_native(config)
    data = _write_family(config)
    try:
        complete = read_hugging_face(data, "") == config
    except RequestError:
        complete = False
    return data if complete else _write_native(config)


def _model_type(data: Mapping[str, Any]) -> str:
    """As the file says; files of 2019 do not: then their class decides, or that they have segments as BERT does."""
    kind = data.get("model_type")
    if kind is not None:
        return str(kind)
    by_class = {name: family for family, row in FAMILIES.items() for name in row.heads_of_class}
    if name := architecture(data):
        return by_class.get(name, str(name))
    if "type_vocab_size" in data:
        return "bert"
    raise RequestError(f"it has no model_type; add one of: {', '.join(sorted(FAMILIES))}")


def architecture(data: Mapping[str, Any]) -> str | None:
    """The class that a config.json names first, if it names one."""
    names = data.get("architectures")
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else None


def _read_family(name: str, data: Mapping[str, Any]) -> BertConfig:
    family = pick(FAMILIES, name, "model_type")
    for key, value in {**REQUIRED_FIELDS, **family.required_fields}.items():
        if data.get(key, value) not in (value, None):
            raise RequestError(f"{key}={data[key]!r} is not supported, only {value!r}")
    # What a file leaves out has the default of transformers' config class.
    complete = {**family.config_defaults, **{key: value for key, value in data.items() if value is not None}}
    numbers = {
        ours: _number(complete, key, ours not in FLOATS)
        for ours, key in family.config_fields.items()
        if key in complete
    }
    settings = {**family.settings, **numbers, **_read_activation(family, data), **_read_causal(family, data)}
    if "pad_id" not in numbers:
        settings["pad_id"] = 0 if data.get("pad_token_id", 0) is None else family.settings.get("pad_id", 0)
    return family_config(name, "base", **family.read_config(settings, data))


def _read_activation(family: Family, data: Mapping[str, Any]) -> dict[str, str]:
    activation = data.get(family.activation_field)
    return {} if activation is None else {"activation": pick(ACTIVATIONS, str(activation), family.activation_field)}


def _read_causal(family: Family, data: Mapping[str, Any]) -> dict[str, bool]:
    """`is_decoder`; transformers ignores it in families whose attention has no causal mask."""
    value = data.get("is_decoder")
    if not value:
        return {}
    if value is not True or family.causal_class is None:
        raise RequestError(f"is_decoder={value!r} is not supported for {family.name}, only False")
    return {"causal": True}


def _write_family(config: BertConfig) -> dict[str, Any]:
    family, settings = FAMILIES[config.family], flat(config)
    data: dict[str, Any] = {"model_type": family.name}
    data |= {key: settings[ours] for ours, key in family.config_fields.items()}
    data[family.activation_field] = next(name for name, ours in ACTIVATIONS.items() if ours == config.parts.activation)
    if config.parts.causal and family.causal_class is not None:
        data["is_decoder"] = True
    return data | family.write_config(settings)


def _write_native(config: BertConfig) -> dict[str, Any]:
    shape = asdict(config)
    parts = shape.pop("parts")
    return {"model_type": NATIVE_TYPE, "shape": shape, "parts": parts}


def _read_native(data: Mapping[str, Any]) -> BertConfig:
    try:
        return BertConfig(**json_object(data, "shape"), parts=Parts(**json_object(data, "parts")))
    except TypeError as error:
        raise RequestError(f"not a shape that bertkit knows: {error}") from error


def _number(data: Mapping[str, Any], key: str, whole: bool) -> Any:
    value = whole_number(data[key]) if whole else data[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise RequestError(f"{key}={value!r} must be a number")
    return value
