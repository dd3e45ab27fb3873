"""ALBERT (Lan 2019): narrow embeddings, one layer shared by all depths, sentence order instead of next sentence."""

from bertkit.families.family import CONFIG_DEFAULTS, CONFIG_FIELDS, EMBEDDINGS, Family, head_names

_LAYER = "encoder.albert_layer_groups.0.albert_layers.{i}"

ALBERT = Family(
    name="albert",
    class_stem="Albert",
    tokenizer="Unigram",
    settings={
        "activation": "gelu_tanh",
        "shared_layers": True,
        "vocab_size": 30000,
        "embedding_width": 128,
        "dropout": 0.0,
        "attention_dropout": 0.0,
    },
    config_fields={**CONFIG_FIELDS, "embedding_width": "embedding_size"},
    config_defaults={
        **CONFIG_DEFAULTS,
        "vocab_size": 30000,
        "embedding_size": 128,
        "hidden_size": 4096,
        "num_attention_heads": 64,
        "intermediate_size": 16384,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    },
    required_fields={"num_hidden_groups": 1, "inner_group_num": 1},
    prefix="albert.",
    encoder={
        **EMBEDDINGS,
        "embeddings.widen": "encoder.embedding_hidden_mapping_in",
        "layers.{i}.attention.qkv": (
            f"{_LAYER}.attention.query",
            f"{_LAYER}.attention.key",
            f"{_LAYER}.attention.value",
        ),
        "layers.{i}.attention.out": f"{_LAYER}.attention.dense",
        "layers.{i}.attention_norm": f"{_LAYER}.attention.LayerNorm",
        "layers.{i}.feed_forward.up": f"{_LAYER}.ffn",
        "layers.{i}.feed_forward.down": f"{_LAYER}.ffn_output",
        "layers.{i}.feed_forward_norm": f"{_LAYER}.full_layer_layer_norm",
    },
    heads=head_names(
        "predictions.dense",
        "predictions.LayerNorm",
        "predictions",
        pooler="albert.pooler",
        next_sentence="sop_classifier.classifier",
    ),
    tied={
        "predictions.decoder.bias": "predictions.bias",
        "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
    },
    more_classes={("masked_word", "next_sentence"): "AlbertForPreTraining"},
)
