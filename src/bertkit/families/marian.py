"""Marian: the Transformer of Vaswani 2017 as translation models are published today (Helsinki-NLP's opus-mt)."""

from collections.abc import Mapping
from typing import Any

from bertkit.errors import RequestError
from bertkit.families.family import Family, Names, Settings, Stored, whole_number

SAME = {"decoder_ffn_dim": "inner", "decoder_attention_heads": "heads"}  # the decoder has the encoder's


def _attention(name: str) -> dict[str, str | tuple[str, ...]]:
    """Self-attention and feed-forward of a layer, called `name` in the file."""
    return {
        "attention.qkv": (f"{name}.self_attn.q_proj", f"{name}.self_attn.k_proj", f"{name}.self_attn.v_proj"),
        "attention.out": f"{name}.self_attn.out_proj",
        "attention_norm": f"{name}.self_attn_layer_norm",
        "feed_forward.up": f"{name}.fc1",
        "feed_forward.down": f"{name}.fc2",
        "feed_forward_norm": f"{name}.final_layer_norm",
    }


def _cross_attention(name: str) -> dict[str, str | tuple[str, ...]]:
    return {
        "cross_attention.query": f"{name}.encoder_attn.q_proj",
        "cross_attention.key_value": (f"{name}.encoder_attn.k_proj", f"{name}.encoder_attn.v_proj"),
        "cross_attention.out": f"{name}.encoder_attn.out_proj",
        "cross_attention_norm": f"{name}.encoder_attn_layer_norm",
    }


ENCODER: Names = {
    "embeddings.word": "shared",
    **{f"layers.{{i}}.{ours}": theirs for ours, theirs in _attention("encoder.layers.{i}").items()},
}
DECODER_LAYER = {**_attention("model.decoder.layers.{i}"), **_cross_attention("model.decoder.layers.{i}")}
DECODER: Names = {f"heads.decoder.stack.layers.{{i}}.{ours}": theirs for ours, theirs in DECODER_LAYER.items()}


def _read_config(settings: Settings, config_json: Mapping[str, Any]) -> Settings:
    for key, ours in SAME.items():
        if whole_number(config_json.get(key, settings[ours])) != settings[ours]:
            raise RequestError(f"{key}={config_json[key]!r} must be the encoder's, {settings[ours]}")
    vocabulary = config_json.get("decoder_vocab_size")
    if vocabulary not in (None, settings["vocab_size"]):
        raise RequestError(f"decoder_vocab_size={vocabulary!r} must be vocab_size, {settings['vocab_size']}")
    activation = settings["activation"] if config_json.get("activation_function") else "gelu"  # transformers' default
    return {**settings, "activation": activation, "embedding_scale": bool(config_json.get("scale_embedding", False))}


def _write_config(settings: Settings) -> dict[str, Any]:
    return {
        **{key: settings[ours] for key, ours in SAME.items()},
        "scale_embedding": settings["embedding_scale"],
        "decoder_vocab_size": settings["vocab_size"],
        "decoder_start_token_id": settings["pad_id"],
        "forced_eos_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
        "activation_dropout": 0.0,
    }


MARIAN = Family(
    name="marian",
    class_stem="Marian",
    kind="encoder-decoder",
    tokenizer="Unigram",
    settings={
        "position": "sinusoidal_halves",
        "embedding_norm": False,
        "embedding_scale": True,
        "activation": "silu",
        "word_head": "linear",
        "segments": 0,
        "decoder_depth": 6,
        "norm_epsilon": 1e-5,
        "attention_dropout": 0.0,
    },
    config_fields={
        "vocab_size": "vocab_size",
        "width": "d_model",
        "depth": "encoder_layers",
        "decoder_depth": "decoder_layers",
        "heads": "encoder_attention_heads",
        "inner": "encoder_ffn_dim",
        "max_length": "max_position_embeddings",
        "pad_id": "pad_token_id",
        "init_std": "init_std",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
    },
    config_defaults={
        "vocab_size": 58101,
        "d_model": 1024,
        "encoder_layers": 12,
        "decoder_layers": 12,
        "encoder_attention_heads": 16,
        "encoder_ffn_dim": 4096,
        "max_position_embeddings": 1024,
        "pad_token_id": 58100,
        "attention_dropout": 0.0,
    },
    activation_field="activation_function",
    required_fields={"share_encoder_decoder_embeddings": True, "tie_word_embeddings": True},
    read_config=_read_config,
    write_config=_write_config,
    prefix="model.",
    encoder=ENCODER,
    heads={"": {}, "decoder": DECODER},
    tied={
        "lm_head.weight": "model.shared.weight",
        "model.encoder.embed_tokens.weight": "model.shared.weight",
        "model.decoder.embed_tokens.weight": "model.shared.weight",
    },
    stored={
        "heads.decoder.words.decoder.bias": Stored(
            ("final_logits_bias",), lambda bias: bias.squeeze(0), lambda bias, _: bias[None]
        )
    },
    constants=(".embed_positions.weight",),
    class_endings={("decoder",): "MTModel"},
)
