"""RoBERTa (Liu 2019): BERT with positions counted from pad_id + 1, one segment, a byte-level vocabulary."""

from collections.abc import Mapping
from typing import Any

from bertkit.families.bert import ANSWER, CONFIG_DEFAULTS, CONFIG_FIELDS, EMBEDDINGS, LAYER, TAG
from bertkit.families.family import Family, Settings


def read_positions(settings: Settings, config_json: Mapping[str, Any]) -> Settings:
    """Rows of the position table up to pad_id are never used: they do not count as length."""
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
    heads={
        "": {"pooler.dense": "roberta.pooler.dense"},
        "masked_word": {
            "heads.masked_word.dense": "lm_head.dense",
            "heads.masked_word.norm": "lm_head.layer_norm",
            "heads.masked_word.decoder": "lm_head",
        },
        "classify": {"pooler.dense": "classifier.dense", "heads.classify.out": "classifier.out_proj"},
        "choose": {"pooler.dense": "roberta.pooler.dense", "heads.choose.out": "classifier"},
        "tag": TAG,
        "answer": ANSWER,
    },
    tied={
        "lm_head.decoder.bias": "lm_head.bias",
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
    },
    causal_class="RobertaForCausalLM",
)
