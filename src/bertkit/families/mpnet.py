"""MPNet (Song 2020): RoBERTa's positions and heads, and a bias of attention by the distance between two tokens."""

from bertkit.families.family import CONFIG_DEFAULTS, CONFIG_FIELDS, TWO_LAYERS, Family, head_names
from bertkit.families.roberta import read_positions, write_positions

_LAYER = "encoder.layer.{i}"
_FIELDS = {ours: theirs for ours, theirs in CONFIG_FIELDS.items() if ours != "segments"}

MPNET = Family(
    name="mpnet",
    class_stem="MPNet",
    tokenizer="WordPiece",
    settings={
        "position": "offset",
        "relative": "table",
        "word_head": "gelu",
        "vocab_size": 30527,
        "max_length": 512,
        "segments": 0,
        "pad_id": 1,
        "norm_epsilon": 1e-12,
    },
    config_fields=_FIELDS,
    config_defaults={**CONFIG_DEFAULTS, "vocab_size": 30527},
    required_fields={"relative_attention_num_buckets": 32, "pad_token_id": 1},  # constants in transformers' code
    read_config=read_positions,
    write_config=write_positions,
    prefix="mpnet.",
    encoder={
        "embeddings.word": "embeddings.word_embeddings",
        "embeddings.position": "embeddings.position_embeddings",
        "embeddings.norm": "embeddings.LayerNorm",
        "embeddings.distance": "encoder.relative_attention_bias",
        "layers.{i}.attention.qkv": (
            f"{_LAYER}.attention.attn.q",
            f"{_LAYER}.attention.attn.k",
            f"{_LAYER}.attention.attn.v",
        ),
        "layers.{i}.attention.out": f"{_LAYER}.attention.attn.o",
        "layers.{i}.attention_norm": f"{_LAYER}.attention.LayerNorm",
        "layers.{i}.feed_forward.up": f"{_LAYER}.intermediate.dense",
        "layers.{i}.feed_forward.down": f"{_LAYER}.output.dense",
        "layers.{i}.feed_forward_norm": f"{_LAYER}.output.LayerNorm",
    },
    heads=head_names(
        "lm_head.dense", "lm_head.layer_norm", "lm_head", pooler="mpnet.pooler.dense", classify=TWO_LAYERS
    ),
    tied={
        "lm_head.decoder.bias": "lm_head.bias",
        "lm_head.decoder.weight": "mpnet.embeddings.word_embeddings.weight",
    },
)
