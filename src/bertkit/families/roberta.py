"""RoBERTa (Liu 2019): BERT with positions counted from pad_id + 1, one segment, a byte-level vocabulary."""

from collections.abc import Mapping
from typing import Any

from bertkit.families.family import (
    CONFIG_DEFAULTS,
    CONFIG_FIELDS,
    EMBEDDINGS,
    LAYER,
    TWO_LAYERS,
    Family,
    Settings,
    head_names,
)


def read_positions(settings: Settings, config_json: Mapping[str, Any]) -> Settings:
    """Rows of the position table up to pad_id are not used, so they do not count as length."""
    return {**settings, "max_length": settings["max_length"] - settings["pad_id"] - 1}


def write_positions(settings: Settings) -> dict[str, Any]:
    """All rows of the position table, used or not."""
    return {"max_position_embeddings": settings["max_length"] + settings["pad_id"] + 1}


ROBERTA = Family(
    name="roberta",
    class_stem="Roberta",
    tokenizer="BPE",
    settings={
        "position": "offset",
        "word_head": "gelu",
        "vocab_size": 50265,
        "segments": 1,
        "pad_id": 1,
        "norm_epsilon": 1e-5,
    },
    config_fields=CONFIG_FIELDS,
    config_defaults={**CONFIG_DEFAULTS, "vocab_size": 50265},
    read_config=read_positions,
    write_config=write_positions,
    prefix="roberta.",
    encoder={**EMBEDDINGS, **LAYER},
    heads=head_names(
        "lm_head.dense",
        "lm_head.layer_norm",
        "lm_head",
        pooler="roberta.pooler.dense",
        classify=TWO_LAYERS,
    ),
    tied={
        "lm_head.decoder.bias": "lm_head.bias",
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
    },
    causal_class="RobertaForCausalLM",
)
