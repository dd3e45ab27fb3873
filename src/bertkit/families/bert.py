"""BERT (Devlin 2018)."""

from bertkit.families.family import Family, Names

SIZE_FIELDS = {
    "vocab_size": "vocab_size",
    "width": "hidden_size",
    "depth": "num_hidden_layers",
    "heads": "num_attention_heads",
    "inner": "intermediate_size",
    "max_length": "max_position_embeddings",
    "pad_id": "pad_token_id",
    "init_std": "initializer_range",
}
CONFIG_FIELDS = {
    **SIZE_FIELDS,
    "segments": "type_vocab_size",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "norm_epsilon": "layer_norm_eps",
}
CONFIG_DEFAULTS: dict[str, float] = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
}
EMBEDDINGS: Names = {
    "embeddings.word": "embeddings.word_embeddings",
    "embeddings.segment": "embeddings.token_type_embeddings",
    "embeddings.position": "embeddings.position_embeddings",
    "embeddings.norm": "embeddings.LayerNorm",
}
LAYER: Names = {
    "layers.{i}.attention.qkv": (
        "encoder.layer.{i}.attention.self.query",
        "encoder.layer.{i}.attention.self.key",
        "encoder.layer.{i}.attention.self.value",
    ),
    "layers.{i}.attention.out": "encoder.layer.{i}.attention.output.dense",
    "layers.{i}.attention_norm": "encoder.layer.{i}.attention.output.LayerNorm",
    "layers.{i}.feed_forward.up": "encoder.layer.{i}.intermediate.dense",
    "layers.{i}.feed_forward.down": "encoder.layer.{i}.output.dense",
    "layers.{i}.feed_forward_norm": "encoder.layer.{i}.output.LayerNorm",
}
# A dense layer and a last layer, both of the classifier: RoBERTa's and ELECTRA's classes.
TWO_LAYERS: Names = {"pooler.dense": "classifier.dense", "heads.classify.out": "classifier.out_proj"}


def head_names(
    dense: str,
    norm: str,
    decoder: str,
    *,
    pooler: str | None = None,
    next_sentence: str | None = None,
    classify: Names | None = None,
    choose: Names | None = None,
) -> dict[str, Names]:
    """The heads that most families have: the parts of the masked-word head, the base model's pooler if there is one.

    `classify` and `choose` are what these heads have besides a last layer called "classifier": by default, the pooler.
    """
    base: Names = {} if pooler is None else {"pooler.dense": pooler}
    names: dict[str, Names] = {
        "": base,
        "masked_word": {
            "heads.masked_word.dense": dense,
            "heads.masked_word.norm": norm,
            "heads.masked_word.decoder": decoder,
        },
        "classify": {"heads.classify.out": "classifier", **(base if classify is None else classify)},
        "choose": {"heads.choose.out": "classifier", **(base if choose is None else choose)},
        "tag": {"heads.tag.out": "classifier"},
        "answer": {"heads.answer.out": "qa_outputs"},
    }
    return (
        names
        if next_sentence is None
        else {**names, "next_sentence": {**base, "heads.next_sentence.out": next_sentence}}
    )


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
