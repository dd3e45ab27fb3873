"""BERT (Devlin 2018)."""

from bertkit.families.family import CONFIG_DEFAULTS, CONFIG_FIELDS, EMBEDDINGS, LAYER, Family, head_names

BERT = Family(
    name="bert",
    class_stem="Bert",
    tokenizer="WordPiece",
    config_fields=CONFIG_FIELDS,
    config_defaults=CONFIG_DEFAULTS,
    prefix="bert.",
    # "widen" is no part of Hugging Face's BERT; checkpoints in Google's format have it under this name.
    encoder={**EMBEDDINGS, "embeddings.widen": "encoder.embedding_hidden_mapping_in", **LAYER},
    heads=head_names(
        "cls.predictions.transform.dense",
        "cls.predictions.transform.LayerNorm",
        "cls.predictions",
        pooler="bert.pooler.dense",
        next_sentence="cls.seq_relationship",
    ),
    tied={
        "cls.predictions.decoder.bias": "cls.predictions.bias",
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    },
    more_classes={
        ("masked_word", "next_sentence"): "BertForPreTraining",
        ("next_sentence",): "BertForNextSentencePrediction",
    },
    causal_class="BertLMHeadModel",
)
