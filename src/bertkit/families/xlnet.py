"""XLNet (Yang 2019): Transformer-XL's relative positions and segments, two streams, [CLS] as the last token.

Memory is left out: a text is one sequence. Attention's matrices are stored as inputs x heads x width of a head.
"""

from collections.abc import Mapping
from typing import Any

from bertkit.families.family import CLASS_ENDINGS, Family, Settings, Stored, head_names

_LAYER, _OURS = "transformer.layer.{i}.rel_attn", "encoder.layers.{i}.attention"


def _read_matrix(tensor: Any) -> Any:
    return tensor.flatten(1).t()


def _write_matrix(tensor: Any, heads: int) -> Any:
    return tensor.t().unflatten(1, (heads, -1))


def _read_bias(tensor: Any) -> Any:
    return tensor.flatten()


def _write_bias(tensor: Any, heads: int) -> Any:
    return tensor.unflatten(0, (heads, -1))


def _read_config(settings: Settings, config_json: Mapping[str, Any]) -> Settings:
    """One dropout for everything."""
    return {**settings, "attention_dropout": settings.get("dropout", 0.1)}


def _write_config(settings: Settings) -> dict[str, Any]:
    return {"mem_len": None, "d_head": settings["width"] // settings["heads"]}


_SUMMARY = {"pooler.dense": "sequence_summary.summary"}

XLNET = Family(
    name="xlnet",
    class_stem="XLNet",
    tokenizer="Unigram",
    settings={
        "position": "none",
        "relative": "transformer_xl",
        "embedding_norm": False,
        "attention_bias": False,
        "word_head": "linear",
        "vocab_size": 32000,
        "pad_id": 5,
    },
    config_fields={
        "vocab_size": "vocab_size",
        "width": "d_model",
        "depth": "n_layer",
        "heads": "n_head",
        "inner": "d_inner",
        "max_length": "max_sequence_length",  # bertkit's own field: transformers' XLNet has no limit
        "pad_id": "pad_token_id",
        "init_std": "initializer_range",
        "dropout": "dropout",
        "norm_epsilon": "layer_norm_eps",
    },
    config_defaults={
        "vocab_size": 32000,
        "d_model": 1024,
        "n_layer": 24,
        "n_head": 16,
        "d_inner": 4096,
        "layer_norm_eps": 1e-12,
    },
    activation_field="ff_activation",
    required_fields={
        "attn_type": "bi",
        "bi_data": False,
        "clamp_len": -1,
        "same_length": False,
        "untie_r": True,
        "summary_type": "last",
        "summary_use_proj": True,
        "summary_activation": "tanh",
    },
    read_config=_read_config,
    write_config=_write_config,
    prefix="transformer.",
    encoder={
        "embeddings.word": "word_embedding",
        "layers.{i}.attention_norm": "layer.{i}.rel_attn.layer_norm",
        "layers.{i}.feed_forward.up": "layer.{i}.ff.layer_1",
        "layers.{i}.feed_forward.down": "layer.{i}.ff.layer_2",
        "layers.{i}.feed_forward_norm": "layer.{i}.ff.layer_norm",
    },
    heads={
        **head_names("", "", "lm_loss"),
        "classify": {"heads.classify.out": "logits_proj", **_SUMMARY},
        "choose": {"heads.choose.out": "logits_proj", **_SUMMARY},
    },
    tied={"lm_loss.weight": "transformer.word_embedding.weight"},
    stored={
        "encoder.embeddings.query": Stored(
            ("transformer.mask_emb",), lambda query: query.flatten(), lambda query, _: query[None, None]
        ),
        f"{_OURS}.qkv.weight": Stored(tuple(f"{_LAYER}.{name}" for name in "qkv"), _read_matrix, _write_matrix),
        f"{_OURS}.relative.key.weight": Stored((f"{_LAYER}.r",), _read_matrix, _write_matrix),
        f"{_OURS}.out.weight": Stored(
            (f"{_LAYER}.o",), lambda out: out.flatten(1), lambda out, heads: out.unflatten(1, (heads, -1))
        ),
        f"{_OURS}.relative.content": Stored((f"{_LAYER}.r_w_bias",), _read_bias, _write_bias),
        f"{_OURS}.relative.position": Stored((f"{_LAYER}.r_r_bias",), _read_bias, _write_bias),
        f"{_OURS}.relative.segment": Stored((f"{_LAYER}.r_s_bias",), _read_bias, _write_bias),
        f"{_OURS}.relative.segments": Stored((f"{_LAYER}.seg_embed",), lambda x: x, lambda x, _: x),
    },
    class_endings={
        **CLASS_ENDINGS,
        ("masked_word",): "LMHeadModel",
        ("answer",): "ForQuestionAnsweringSimple",
    },
)
