"""DeBERTa (He 2021, 2023: v2 and v3): BERT with disentangled attention, by content and by distance."""

from collections.abc import Mapping
from typing import Any

from bertkit.errors import RequestError
from bertkit.families.family import (
    CONFIG_DEFAULTS,
    CONFIG_FIELDS,
    EMBEDDINGS,
    LAYER,
    Family,
    Settings,
    head_names,
    json_flag,
    whole_number,
)

_SELF = "encoder.layer.{i}.attention.self"
_TERMS = {frozenset(("c2p", "p2c")): "both", frozenset(("c2p",)): "c2p", frozenset(("p2c",)): "p2c"}


def _read_config(settings: Settings, config_json: Mapping[str, Any]) -> Settings:
    """Missing fields are as in transformers, where relative positions are off unless config.json turns them on."""
    if (config_json.get("conv_kernel_size") or 0) != 0:
        raise RequestError(
            "conv_kernel_size is not supported, only 0: bertkit has no convolution after the first layer"
        )
    for key in ("embedding_size", "attention_head_size", "pooler_hidden_size"):
        usual = settings["width"] // settings["heads"] if key == "attention_head_size" else settings["width"]
        if config_json.get(key) not in (None, usual):
            raise RequestError(f"{key}={config_json[key]!r} is not supported, only {usual}")
    position = "learned" if json_flag(config_json, "position_biased_input", True) else "none"
    pooler = config_json.get("pooler_hidden_act", "gelu")
    settings = {**settings, "position": position, "pooler": pooler}
    names = config_json.get("pos_att_type") or ()
    terms = frozenset(each.strip() for each in (names.lower().split("|") if isinstance(names, str) else names))
    if not json_flag(config_json, "relative_attention", False):
        if terms:
            raise RequestError("pos_att_type without relative_attention=true is not supported; remove it")
        return {**settings, "relative": "none"}
    if terms not in _TERMS:
        raise RequestError(f"pos_att_type={names!r} is not supported; it must name c2p, p2c or both")
    return {
        **settings,
        "relative_terms": _TERMS[terms],
        "relative_buckets": max(0, _count(config_json, "position_buckets")),
        "relative_span": max(0, _count(config_json, "max_relative_positions")),
        "relative_shared": json_flag(config_json, "share_att_key", False),
        "relative_norm": "layer_norm" in str(config_json.get("norm_rel_ebd", "none")),
    }


def _write_config(settings: Settings) -> dict[str, Any]:
    fields = {"position_biased_input": settings["position"] == "learned", "pooler_hidden_act": settings["pooler"]}
    if settings["relative"] == "none":
        return fields
    return {
        **fields,
        "relative_attention": True,
        "pos_att_type": [term for term in ("p2c", "c2p") if settings["relative_terms"] in (term, "both")],
        "position_buckets": settings["relative_buckets"] or -1,
        "max_relative_positions": settings["relative_span"] or -1,
        "share_att_key": settings["relative_shared"],
        "norm_rel_ebd": "layer_norm" if settings["relative_norm"] else "none",
    }


def _count(config_json: Mapping[str, Any], key: str) -> int:
    value = whole_number(config_json.get(key, -1))
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"{key}={value!r} must be a whole number")
    return value


_POOLER = {"pooler.dense": "pooler.dense"}
_HEAD = "cls.predictions"
_PUBLISHED_HEAD = "lm_predictions.lm_head"  # in the files of v3; transformers calls it so with legacy=false

DEBERTA_V2 = Family(
    name="deberta-v2",
    class_stem="DebertaV2",
    tokenizer="Unigram",
    settings={
        "position": "none",
        "relative": "disentangled",
        "relative_buckets": 256,
        "relative_span": 0,
        "relative_norm": True,
        "vocab_size": 128100,
        "segments": 0,
        "pooler": "gelu",
        "norm_epsilon": 1e-7,
    },
    config_fields=CONFIG_FIELDS,
    config_defaults={
        **CONFIG_DEFAULTS,
        "vocab_size": 128100,
        "hidden_size": 1536,
        "num_hidden_layers": 24,
        "num_attention_heads": 24,
        "intermediate_size": 6144,
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-7,
    },
    read_config=_read_config,
    write_config=_write_config,
    prefix="deberta.",
    encoder={
        **EMBEDDINGS,
        "embeddings.distance": "encoder.rel_embeddings",
        "embeddings.distance.norm": "encoder.LayerNorm",
        **LAYER,
        "layers.{i}.attention.qkv": (f"{_SELF}.query_proj", f"{_SELF}.key_proj", f"{_SELF}.value_proj"),
        "layers.{i}.attention.relative.key": f"{_SELF}.pos_key_proj",
        "layers.{i}.attention.relative.query": f"{_SELF}.pos_query_proj",
    },
    heads=head_names(
        f"{_HEAD}.transform.dense", f"{_HEAD}.transform.LayerNorm", _HEAD, classify=_POOLER, choose=_POOLER
    ),
    tied={
        f"{_HEAD}.decoder.bias": f"{_HEAD}.bias",
        f"{_HEAD}.decoder.weight": "deberta.embeddings.word_embeddings.weight",
        f"{_PUBLISHED_HEAD}.bias": f"{_HEAD}.bias",
        **{
            f"{_PUBLISHED_HEAD}.{name}.{kind}": f"{_HEAD}.transform.{name}.{kind}"
            for name in ("dense", "LayerNorm")
            for kind in ("weight", "bias")
        },
    },
    unused=("embeddings.position_embeddings.weight",),  # v3's files have them, though position_biased_input is false
)
