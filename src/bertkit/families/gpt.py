"""GPT (Radford 2018: norms after each block) and GPT-2 (2019: norms before): decoders that predict the next token.

Their linear layers are stored as inputs x outputs, and queries, keys and values are one matrix.
"""

from collections.abc import Mapping
from typing import Any

from bertkit.errors import RequestError
from bertkit.families.family import Family, HeadSet, Names, Settings, transposed

SETTINGS = {
    "causal": True,
    "activation": "gelu_tanh",
    "embedding_norm": False,
    "word_head": "linear",
    "word_bias": False,
    "pooler": "none",
    "pooling": "last",
    "class_bias": False,
    "segments": 0,
    "norm_epsilon": 1e-5,
}
CONFIG_FIELDS = {
    "vocab_size": "vocab_size",
    "width": "n_embd",
    "depth": "n_layer",
    "heads": "n_head",
    "max_length": "n_positions",
    "init_std": "initializer_range",
    "dropout": "resid_pdrop",
    "attention_dropout": "attn_pdrop",
    "norm_epsilon": "layer_norm_epsilon",
    "pad_id": "pad_token_id",
}
LINEARS = {
    "attention.qkv": "attn.c_attn",
    "attention.out": "attn.c_proj",
    "feed_forward.up": "mlp.c_fc",
    "feed_forward.down": "mlp.c_proj",
}
LAYER: Names = {
    **{f"layers.{{i}}.{ours}": f"h.{{i}}.{theirs}" for ours, theirs in LINEARS.items()},  # their biases
    "layers.{i}.attention_norm": "h.{i}.ln_1",
    "layers.{i}.feed_forward_norm": "h.{i}.ln_2",
}
STORED = transposed(
    {f"encoder.layers.{{i}}.{ours}": f"transformer.h.{{i}}.{theirs}" for ours, theirs in LINEARS.items()}
)
HEADS: dict[str, Names] = {
    "": {},
    "masked_word": {"heads.masked_word.decoder": "lm_head"},
    "classify": {"heads.classify.out": "score"},
}
CLASS_ENDINGS: dict[HeadSet, str] = {(): "Model", ("classify",): "ForSequenceClassification"}
TOKEN_CLASSES: dict[HeadSet, str] = {("tag",): "ForTokenClassification", ("answer",): "ForQuestionAnswering"}


def _read_gpt2(settings: Settings, config_json: Mapping[str, Any]) -> Settings:
    inner = config_json.get("n_inner")
    return {**settings, "inner": 4 * settings.get("width", 768) if inner is None else inner}


def _write_gpt2(settings: Settings) -> dict[str, Any]:
    return {"n_inner": settings["inner"], "embd_pdrop": settings["dropout"], **NO_SPECIAL_IDS}


def _read_gpt(settings: Settings, config_json: Mapping[str, Any]) -> Settings:
    name = str(config_json.get("afn", "gelu"))
    if name not in GPT_ACTIVATIONS:
        raise RequestError(f"unknown afn '{name}'; choose from: {', '.join(GPT_ACTIVATIONS)}")
    return {**settings, "inner": 4 * settings.get("width", 768), "activation": GPT_ACTIVATIONS[name]}


def _write_gpt(settings: Settings) -> dict[str, Any]:
    name = next((name for name, ours in GPT_ACTIVATIONS.items() if ours == settings["activation"]), "gelu")
    return {"afn": name, "embd_pdrop": settings["dropout"], **NO_SPECIAL_IDS}


GPT_ACTIVATIONS = {"gelu": "gelu_tanh", "relu": "relu", "silu": "silu", "swish": "silu"}


NO_SPECIAL_IDS = {"bos_token_id": None, "eos_token_id": None}  # of GPT-2's own vocabulary; a folder may say others
DEFAULTS: dict[str, float] = {"n_embd": 768, "n_layer": 12, "n_head": 12, "layer_norm_epsilon": 1e-5}

GPT2 = Family(
    name="gpt2",
    class_stem="GPT2",
    kind="decoder",
    tokenizer="BPE",
    settings={**SETTINGS, "norm": "pre", "vocab_size": 50257, "max_length": 1024},
    config_fields=CONFIG_FIELDS,
    config_defaults={**DEFAULTS, "vocab_size": 50257, "n_positions": 1024},
    activation_field="activation_function",
    required_fields={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False},
    read_config=_read_gpt2,
    write_config=_write_gpt2,
    prefix="transformer.",
    encoder={"embeddings.word": "wte", "embeddings.position": "wpe", **LAYER, "norm": "ln_f"},
    heads={**HEADS, "tag": {"heads.tag.out": "classifier"}, "answer": {"heads.answer.out": "qa_outputs"}},
    tied={"lm_head.weight": "transformer.wte.weight"},
    stored=STORED,
    constants=(".attn.bias", ".attn.masked_bias"),  # the causal mask, in old files
    class_endings={**CLASS_ENDINGS, **TOKEN_CLASSES},
    causal_class="GPT2LMHeadModel",
)
GPT = Family(
    name="openai-gpt",
    class_stem="OpenAIGPT",
    kind="decoder",
    tokenizer="BPE",
    settings={**SETTINGS, "norm": "post", "vocab_size": 40478, "max_length": 512},
    config_fields=CONFIG_FIELDS,
    config_defaults={**DEFAULTS, "vocab_size": 40478, "n_positions": 512},
    activation_field="afn",
    read_config=_read_gpt,
    write_config=_write_gpt,
    prefix="transformer.",
    encoder={"embeddings.word": "tokens_embed", "embeddings.position": "positions_embed", **LAYER},
    heads=HEADS,
    tied={"lm_head.weight": "transformer.tokens_embed.weight"},
    stored=STORED,
    constants=(".attn.bias",),
    class_endings=CLASS_ENDINGS,
    causal_class="OpenAIGPTLMHeadModel",
)
