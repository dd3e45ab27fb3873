"""`config.json`: each setting under our name and Hugging Face's, for each family, in two columns."""

import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from bertkit.checkpoint.names import CAUSAL_CLASSES, HEADS_OF_CLASS
from bertkit.config import FAMILIES, BertConfig, Family, Parts, family_config
from bertkit.errors import RequestError
from bertkit.settings import pick

_BERT = {
    "vocab_size": "vocab_size",
    "width": "hidden_size",
    "depth": "num_hidden_layers",
    "heads": "num_attention_heads",
    "inner": "intermediate_size",
    "max_length": "max_position_embeddings",
    "segments": "type_vocab_size",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "norm_epsilon": "layer_norm_eps",
    "pad_id": "pad_token_id",
    "init_std": "initializer_range",
}

NUMBERS: dict[str, dict[str, str]] = {
    "bert": _BERT,
    "roberta": _BERT,
    "electra": {**_BERT, "embedding_width": "embedding_size"},
    "albert": {**_BERT, "embedding_width": "embedding_size"},
    "distilbert": {
        "vocab_size": "vocab_size",
        "width": "dim",
        "depth": "n_layers",
        "heads": "n_heads",
        "inner": "hidden_dim",
        "max_length": "max_position_embeddings",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "pad_id": "pad_token_id",
        "init_std": "initializer_range",
    },
    "modernbert": {
        "vocab_size": "vocab_size",
        "width": "hidden_size",
        "depth": "num_hidden_layers",
        "heads": "num_attention_heads",
        "inner": "intermediate_size",
        "max_length": "max_position_embeddings",
        "dropout": "mlp_dropout",
        "attention_dropout": "attention_dropout",
        "norm_epsilon": "norm_eps",
        "pad_id": "pad_token_id",
        "init_std": "initializer_range",
    },
}

# What transformers' config classes fill in where a config.json says nothing.
_BASE: dict[str, float] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
}
_BASE |= {"max_position_embeddings": 512, "type_vocab_size": 2, "layer_norm_eps": 1e-12, "vocab_size": 30522}
LEFT_OUT: dict[str, dict[str, float]] = {
    "bert": _BASE,
    "roberta": {**_BASE, "vocab_size": 50265},
    "electra": {
        **_BASE,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
        "embedding_size": 128,
    },
    "albert": {
        **_BASE,
        **{"vocab_size": 30000, "embedding_size": 128, "hidden_size": 4096, "num_attention_heads": 64},
        **{"intermediate_size": 16384, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    },
    "distilbert": {
        **{"vocab_size": 30522, "dim": 768, "n_layers": 6, "n_heads": 12, "hidden_dim": 3072},
        **{"max_position_embeddings": 512},
    },
    "modernbert": {
        **{"vocab_size": 50368, "hidden_size": 768, "num_hidden_layers": 22, "num_attention_heads": 12},
        **{"intermediate_size": 1152, "max_position_embeddings": 8192, "norm_eps": 1e-5},
    },
}

FLOATS = ("dropout", "attention_dropout", "norm_epsilon", "init_std")

ACTIVATION_KEYS = {family: "hidden_act" for family in NUMBERS}
ACTIVATION_KEYS |= {"distilbert": "activation", "modernbert": "hidden_activation"}
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

# Settings that change the arithmetic and that we have no part for: anything else is refused.
MUST_BE: dict[str, Any] = {
    "position_embedding_type": "absolute",
    "add_cross_attention": False,
    "num_hidden_groups": 1,
    "inner_group_num": 1,
    "attention_bias": False,
    "norm_bias": False,
    "mlp_bias": False,
    "classifier_bias": False,
    "decoder_bias": True,
    "classifier_activation": "gelu",
    "summary_type": "first",
    "summary_use_proj": True,
    "summary_activation": "gelu",
}

OWN_TYPE = "bertkit"  # model_type of a mixture of parts that Hugging Face has no class for


def read_hugging_face(data: Mapping[str, Any], where: str) -> BertConfig:
    """The shape that a config.json describes; `where` is named in what goes wrong."""
    try:
        kind = _model_type(data)
        return _read_own(data) if kind == OWN_TYPE else _read_family(kind, data)
    except RequestError as error:
        raise RequestError(f"{where}: {error}") from error


def write_hugging_face(config: BertConfig, *, own: bool = False) -> dict[str, Any]:
    """The config.json of a shape: the family's if it can say all of it, else one that only bertkit reads (`own`)."""
    if own:
        return _write_own(config)
    data = _write_family(config)
    try:
        complete = read_hugging_face(data, "") == config
    except RequestError:
        complete = False
    return data if complete else _write_own(config)


def _model_type(data: Mapping[str, Any]) -> str:
    """As the file says; files of 2019 do not, and are told by their class, or by having segments as BERT does."""
    kind = data.get("model_type")
    if kind is not None:
        return str(kind)
    by_class = {name: family for family, rows in HEADS_OF_CLASS.items() for name in rows}
    if name := architecture(data):
        return by_class.get(name, str(name))
    if "type_vocab_size" in data:
        return "bert"
    raise RequestError(f"it has no model_type; add one of: {', '.join(sorted(FAMILIES))}")


def architecture(data: Mapping[str, Any]) -> str | None:
    """The class that a config.json names first, if it names one."""
    names = data.get("architectures")
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else None


def _read_family(kind: str, data: Mapping[str, Any]) -> BertConfig:
    family = pick(FAMILIES, kind, "model_type")
    for key, value in MUST_BE.items():
        if data.get(key, value) not in (value, None):
            raise RequestError(f"{key}={data[key]!r} is not supported, only {value!r}")
    # What a file leaves out has the default of transformers' config class.
    said = {key: value for key, value in data.items() if value is not None}
    complete = {**LEFT_OUT[kind], **said}
    numbers = {
        ours: _number(complete, key, ours not in FLOATS) for ours, key in NUMBERS[kind].items() if key in complete
    }
    numbers["pad_id"] = numbers.get("pad_id", 0 if data.get("pad_token_id", 0) is None else family_pad(family))
    if kind == "roberta" and "max_length" in numbers:
        numbers["max_length"] -= numbers["pad_id"] + 1
    if kind == "electra" and numbers.get("embedding_width") == numbers.get("width"):
        numbers["embedding_width"] = None  # no map where nothing is to be widened
    config = family_config(kind, "base", **numbers)
    return replace(config, parts=_read_parts(kind, family.parts, data))


def family_pad(family: Family) -> int:
    """The family's [PAD] id."""
    return int(family.numbers.get("pad_id", 0))


def _read_parts(kind: str, parts: Parts, data: Mapping[str, Any]) -> Parts:
    activation = data.get(ACTIVATION_KEYS[kind])
    if activation is not None:
        ours: Any = pick(ACTIVATIONS, str(activation), ACTIVATION_KEYS[kind])
        parts = replace(parts, activation=ours)
    if data.get("is_decoder"):
        parts = replace(parts, causal=_read_causal(kind, data["is_decoder"]))
    return _read_modern(parts, data) if kind == "modernbert" else parts


def _read_causal(kind: str, value: Any) -> bool:
    """`is_decoder`; transformers passes over it in families whose attention has no causal mask."""
    if value is not True or kind not in CAUSAL_CLASSES:
        raise RequestError(f"is_decoder={value!r} is not supported for {kind}, only False")
    return True


def _read_modern(parts: Parts, data: Mapping[str, Any]) -> Parts:
    """Windows and rotary bases, in the spelling of transformers 4 or 5."""
    rope = _object(data, "rope_parameters")
    full, local = _object(rope, "full_attention"), _object(rope, "sliding_attention")
    if not isinstance(data.get("layer_types"), list | None):
        raise RequestError(f"layer_types={data['layer_types']!r} must be a list")
    for table in (full, local):
        if table.get("rope_type", "default") != "default":
            raise RequestError(f"rope_type={table['rope_type']!r} is not supported, only 'default'")
    every = _whole(data.get("global_attn_every_n_layers", parts.global_every))
    kinds, depth = data.get("layer_types"), data.get("num_hidden_layers")
    if isinstance(every, int) and every > 0 and kinds is not None and kinds != _layer_types(len(kinds), every):
        every = next((i for i, kind in enumerate(kinds) if i and kind == "full_attention"), len(kinds))
        if kinds != _layer_types(len(kinds), every):
            raise RequestError("layer_types is not 'full_attention' at every n-th layer from the first")
    if kinds is not None and len(kinds) != (depth or len(kinds)):
        raise RequestError(f"layer_types has {len(kinds)} entries for {depth} layers")
    pooling = data.get("classifier_pooling", "cls")
    if pooling in ("max", "attention"):  # ours; transformers has no such pooling
        raise RequestError(f"classifier_pooling={pooling!r} is unknown; choose from: cls, mean")
    return replace(
        parts,
        window=_whole(data.get("local_attention", parts.window)),
        global_every=every,
        theta=full.get("rope_theta", data.get("global_rope_theta", parts.theta)),
        local_theta=local.get("rope_theta", data.get("local_rope_theta", parts.local_theta)),
        pooling="first" if pooling == "cls" else pooling,
    )


def _write_family(config: BertConfig) -> dict[str, Any]:
    kind = config.family
    data: dict[str, Any] = {"model_type": kind}
    data |= {key: getattr(config, ours) for ours, key in NUMBERS[kind].items()}
    data[ACTIVATION_KEYS[kind]] = next(name for name, ours in ACTIVATIONS.items() if ours == config.parts.activation)
    if kind == "roberta":
        data["max_position_embeddings"] += config.pad_id + 1
    if kind == "electra":
        data["embedding_size"] = config.table_width
    if config.parts.causal and kind in CAUSAL_CLASSES:
        data["is_decoder"] = True
    if kind == "modernbert":
        data |= _write_modern(config)
    return data


def _write_modern(config: BertConfig) -> dict[str, Any]:
    parts = config.parts
    return {
        "embedding_dropout": config.dropout,
        "local_attention": parts.window,
        "global_attn_every_n_layers": parts.global_every,
        "layer_types": _layer_types(config.depth, parts.global_every),
        "global_rope_theta": parts.theta,
        "local_rope_theta": parts.local_theta,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": parts.theta},
            "sliding_attention": {"rope_type": "default", "rope_theta": parts.local_theta},
        },
        "classifier_pooling": "cls" if parts.pooling == "first" else parts.pooling,
        # Ids of tokens that a small vocabulary may not have: transformers checks them against vocab_size.
        "bos_token_id": None,
        "eos_token_id": None,
        "cls_token_id": None,
        "sep_token_id": None,
    }


def _layer_types(depth: int, every: int) -> list[str]:
    return ["sliding_attention" if index % every else "full_attention" for index in range(depth)]


def _write_own(config: BertConfig) -> dict[str, Any]:
    settings = {field.name: getattr(config, field.name) for field in fields(config) if field.name != "parts"}
    parts = {field.name: getattr(config.parts, field.name) for field in fields(config.parts)}
    return {"model_type": OWN_TYPE, "shape": settings, "parts": parts}


def _read_own(data: Mapping[str, Any]) -> BertConfig:
    try:
        return BertConfig(**_object(data, "shape"), parts=Parts(**_object(data, "parts")))
    except TypeError as error:
        raise RequestError(f"not a shape that bertkit knows: {error}") from error


def _number(data: Mapping[str, Any], key: str, whole: bool) -> Any:
    value = _whole(data[key]) if whole else data[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise RequestError(f"{key}={value!r} must be a number")
    return value


def _whole(value: Any) -> Any:
    """768.0 is 768: some tools write every number as a float."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _object(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = data.get(key)
    if value is not None and not isinstance(value, dict):
        raise RequestError(f"{key}={value!r} must be an object")
    return value or {}
