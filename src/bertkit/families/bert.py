"""BERT (Devlin 2018)."""

from bertkit.families.family import Family, Names

CONFIG_FIELDS = {
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
TAG: Names = {"heads.tag.out": "classifier"}
ANSWER: Names = {"heads.answer.out": "qa_outputs"}
_POOLER: Names = {"pooler.dense": "bert.pooler.dense"}

BERT = Family(
    name="bert",
    class_stem="Bert",
    tokenizer="WordPiece",
    config_fields=CONFIG_FIELDS,
    config_defaults=CONFIG_DEFAULTS,
    prefix="bert.",
    # "widen" is no part of Hugging Face's BERT; checkpoints in Google's format have it under this name.
    encoder={**EMBEDDINGS, "embeddings.widen": "encoder.embedding_hidden_mapping_in", **LAYER},
    heads={
        "": _POOLER,
        "masked_word": {
            "heads.masked_word.dense": "cls.predictions.transform.dense",
            "heads.masked_word.norm": "cls.predictions.transform.LayerNorm",
            "heads.masked_word.decoder": "cls.predictions",
        },
        "next_sentence": {**_POOLER, "heads.next_sentence.out": "cls.seq_relationship"},
        "classify": {**_POOLER, "heads.classify.out": "classifier"},
        "choose": {**_POOLER, "heads.choose.out": "classifier"},
        "tag": TAG,
        "answer": ANSWER,
    },
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
