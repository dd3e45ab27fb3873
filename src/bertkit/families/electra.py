"""ELECTRA (Clark 2020): BERT's encoder, trained to find replaced tokens; embeddings may be narrow."""

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


def _read_width(settings: Settings, config_json: Mapping[str, Any]) -> Settings:
    """Embeddings as wide as the encoder have no projection."""
    narrow = settings["embedding_width"] != settings["width"]
    return settings if narrow else {**settings, "embedding_width": None}


def _write_width(settings: Settings) -> dict[str, Any]:
    return {"embedding_size": settings["embedding_width"] or settings["width"]}


ELECTRA = Family(
    name="electra",
    class_stem="Electra",
    tokenizer="WordPiece",
    settings={"word_head": "gelu", "pooler": "gelu"},
    config_fields={**CONFIG_FIELDS, "embedding_width": "embedding_size"},
    config_defaults={
        **CONFIG_DEFAULTS,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
        "embedding_size": 128,
    },
    required_fields={"summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"},
    read_config=_read_width,
    write_config=_write_width,
    prefix="electra.",
    encoder={**EMBEDDINGS, "embeddings.widen": "embeddings_project", **LAYER},
    heads={
        **head_names(
            "generator_predictions.dense",
            "generator_predictions.LayerNorm",
            "generator_lm_head",
            classify=TWO_LAYERS,
            choose={"pooler.dense": "sequence_summary.summary"},
        ),
        "replaced_token": {
            "heads.replaced_token.dense": "discriminator_predictions.dense",
            "heads.replaced_token.out": "discriminator_predictions.dense_prediction",
        },
        # ELECTRA itself has no pairs: these names are bertkit's.
        "next_sentence": {"pooler.dense": "sentence_pair.dense", "heads.next_sentence.out": "sentence_pair.out_proj"},
    },
    tied={"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"},
    more_classes={  # transformers ignores the other heads in the file
        ("replaced_token",): "ElectraForPreTraining",
        ("next_sentence", "replaced_token"): "ElectraForPreTraining",
        ("masked_word", "replaced_token"): "ElectraForMaskedLM",
        ("masked_word", "next_sentence", "replaced_token"): "ElectraForMaskedLM",
    },
    causal_class="ElectraForCausalLM",
)
