"""DistilBERT (Sanh 2019): BERT without segments, under other names."""

from bertkit.families.family import Family, Names, head_names

_LAYER = "transformer.layer.{i}"
_POOLER: Names = {"pooler.dense": "pre_classifier"}

DISTILBERT = Family(
    name="distilbert",
    class_stem="DistilBert",
    tokenizer="WordPiece",
    settings={"pooler": "relu", "segments": 0},
    config_fields={
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
    config_defaults={
        "vocab_size": 30522,
        "dim": 768,
        "n_layers": 6,
        "n_heads": 12,
        "hidden_dim": 3072,
        "max_position_embeddings": 512,
    },
    activation_field="activation",
    prefix="distilbert.",
    encoder={
        "embeddings.word": "embeddings.word_embeddings",
        "embeddings.position": "embeddings.position_embeddings",
        "embeddings.norm": "embeddings.LayerNorm",
        "layers.{i}.attention.qkv": (
            f"{_LAYER}.attention.q_lin",
            f"{_LAYER}.attention.k_lin",
            f"{_LAYER}.attention.v_lin",
        ),
        "layers.{i}.attention.out": f"{_LAYER}.attention.out_lin",
        "layers.{i}.attention_norm": f"{_LAYER}.sa_layer_norm",
        "layers.{i}.feed_forward.up": f"{_LAYER}.ffn.lin1",
        "layers.{i}.feed_forward.down": f"{_LAYER}.ffn.lin2",
        "layers.{i}.feed_forward_norm": f"{_LAYER}.output_layer_norm",
    },
    heads=head_names("vocab_transform", "vocab_layer_norm", "vocab_projector", classify=_POOLER, choose=_POOLER),
    tied={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
)
