"""ModernBERT (Warner 2024): rotary positions, norm before each block, gated feed-forward, local attention windows."""

from collections.abc import Mapping
from typing import Any

from bertkit.errors import RequestError
from bertkit.families.family import SIZE_FIELDS, Family, Settings, head_names, json_object, whole_number


def _read_config(settings: Settings, config_json: Mapping[str, Any]) -> Settings:
    """Windows and rotary bases, from the fields of transformers 4 or 5."""
    rope = json_object(config_json, "rope_parameters")
    full, local = json_object(rope, "full_attention"), json_object(rope, "sliding_attention")
    for table in (full, local):
        if table.get("rope_type", "default") != "default":
            raise RequestError(f"rope_type={table['rope_type']!r} is not supported, only 'default'")
    return {
        **settings,
        "window": whole_number(config_json.get("local_attention", settings["window"])),
        "global_every": _read_global_every(config_json, settings["global_every"]),
        "theta": full.get("rope_theta", config_json.get("global_rope_theta", settings["theta"])),
        "local_theta": local.get("rope_theta", config_json.get("local_rope_theta", settings["local_theta"])),
        "pooling": _read_pooling(config_json),
    }


def _read_global_every(config_json: Mapping[str, Any], default: int) -> Any:
    """N if every n-th layer sees all tokens: from the field itself, or from the list of layer types."""
    every = whole_number(config_json.get("global_attn_every_n_layers", default))
    kinds, depth = config_json.get("layer_types"), config_json.get("num_hidden_layers")
    if kinds is None:
        return every
    if not isinstance(kinds, list):
        raise RequestError(f"layer_types={kinds!r} must be a list")
    if isinstance(every, int) and every > 0 and kinds != _layer_types(len(kinds), every):
        every = next((i for i, kind in enumerate(kinds) if i and kind == "full_attention"), len(kinds))
        if kinds != _layer_types(len(kinds), every):
            raise RequestError("layer_types is not 'full_attention' at every n-th layer from the first")
    if len(kinds) != (depth or len(kinds)):
        raise RequestError(f"layer_types has {len(kinds)} entries for {depth} layers")
    return every


def _read_pooling(config_json: Mapping[str, Any]) -> Any:
    pooling = config_json.get("classifier_pooling", "cls")
    if pooling in ("max", "attention"):  # bertkit's own; transformers does not have them
        raise RequestError(f"classifier_pooling={pooling!r} is unknown; choose from: cls, mean")
    return "first" if pooling == "cls" else pooling


def _write_config(settings: Settings) -> dict[str, Any]:
    return {
        "embedding_dropout": settings["dropout"],
        "local_attention": settings["window"],
        "global_attn_every_n_layers": settings["global_every"],
        "layer_types": _layer_types(settings["depth"], settings["global_every"]),
        "global_rope_theta": settings["theta"],
        "local_rope_theta": settings["local_theta"],
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": settings["theta"]},
            "sliding_attention": {"rope_type": "default", "rope_theta": settings["local_theta"]},
        },
        "classifier_pooling": "cls" if settings["pooling"] == "first" else settings["pooling"],
        # None, because transformers' default ids are out of the range of a small vocabulary.
        "bos_token_id": None,
        "eos_token_id": None,
        "cls_token_id": None,
        "sep_token_id": None,
    }


def _layer_types(depth: int, every: int) -> list[str]:
    return ["sliding_attention" if index % every else "full_attention" for index in range(depth)]


MODERNBERT = Family(
    name="modernbert",
    class_stem="ModernBert",
    tokenizer="BPE",
    settings={
        "position": "rotary",
        "norm": "pre",
        "feed_forward": "gated",
        "bias": False,
        "window": 128,
        "global_every": 3,
        "theta": 160_000.0,
        "local_theta": 10_000.0,
        "word_head": "gelu",
        "pooler": "gelu",
        "pooler_norm": True,
        "token_pooler": True,
        "vocab_size": 50368,
        "max_length": 8192,
        "segments": 0,
        "pad_id": 50283,
        "norm_epsilon": 1e-5,
        "dropout": 0.0,
        "attention_dropout": 0.0,
    },
    config_fields={
        **SIZE_FIELDS,
        "dropout": "mlp_dropout",
        "attention_dropout": "attention_dropout",
        "norm_epsilon": "norm_eps",
    },
    config_defaults={
        "vocab_size": 50368,
        "hidden_size": 768,
        "num_hidden_layers": 22,
        "num_attention_heads": 12,
        "intermediate_size": 1152,
        "max_position_embeddings": 8192,
        "norm_eps": 1e-5,
    },
    activation_field="hidden_activation",
    required_fields={
        "attention_bias": False,
        "norm_bias": False,
        "mlp_bias": False,
        "classifier_bias": False,
        "decoder_bias": True,
        "classifier_activation": "gelu",
    },
    read_config=_read_config,
    write_config=_write_config,
    prefix="model.",
    encoder={
        "embeddings.word": "embeddings.tok_embeddings",
        "embeddings.norm": "embeddings.norm",
        "layers.{i}.attention_norm": "layers.{i}.attn_norm",
        "layers.{i}.attention.qkv": "layers.{i}.attn.Wqkv",
        "layers.{i}.attention.out": "layers.{i}.attn.Wo",
        "layers.{i}.feed_forward_norm": "layers.{i}.mlp_norm",
        "layers.{i}.feed_forward.up": "layers.{i}.mlp.Wi",
        "layers.{i}.feed_forward.down": "layers.{i}.mlp.Wo",
        "norm": "final_norm",
    },
    heads={
        **head_names("head.dense", "head.norm", "decoder"),
        **{
            task: {"pooler.dense": "head.dense", "pooler.norm": "head.norm", f"heads.{task}.out": "classifier"}
            for task in ("classify", "choose", "tag", "answer")
        },
    },
    tied={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
)
