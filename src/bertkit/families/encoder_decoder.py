"""Two BERTs as encoder and decoder (Rothe 2020): Hugging Face's EncoderDecoderModel, each with a config of its own."""

from collections.abc import Mapping
from typing import Any

from bertkit.errors import RequestError
from bertkit.families.family import CONFIG_DEFAULTS, CONFIG_FIELDS, EMBEDDINGS, LAYER, Family, Names, json_object

DECODER_DEPTH = "decoder_layers"  # a field of the flat config only
CROSS_ATTENTION: Names = {
    "layers.{i}.cross_attention.query": "encoder.layer.{i}.crossattention.self.query",
    "layers.{i}.cross_attention.key_value": (
        "encoder.layer.{i}.crossattention.self.key",
        "encoder.layer.{i}.crossattention.self.value",
    ),
    "layers.{i}.cross_attention.out": "encoder.layer.{i}.crossattention.output.dense",
    "layers.{i}.cross_attention_norm": "encoder.layer.{i}.crossattention.output.LayerNorm",
}


def _with_prefix(names: str | tuple[str, ...], prefix: str) -> str | tuple[str, ...]:
    return prefix + names if isinstance(names, str) else tuple(prefix + name for name in names)


DECODER: Names = {
    **{
        f"heads.decoder.stack.{ours}": _with_prefix(theirs, "decoder.bert.")
        for ours, theirs in {**EMBEDDINGS, **LAYER, **CROSS_ATTENTION}.items()
    },
    "heads.decoder.words.dense": "decoder.cls.predictions.transform.dense",
    "heads.decoder.words.norm": "decoder.cls.predictions.transform.LayerNorm",
    "heads.decoder.words.decoder": "decoder.cls.predictions",
}


def _flatten(config_json: Mapping[str, Any]) -> Mapping[str, Any]:
    """The encoder's config with the decoder's depth; the decoder must have the encoder's other sizes."""
    encoder, decoder = json_object(config_json, "encoder"), json_object(config_json, "decoder")
    for name, part in (("encoder", encoder), ("decoder", decoder)):
        if part.get("model_type", "bert") != "bert":
            raise RequestError(f"the {name}'s model_type={part['model_type']!r} is not supported, only 'bert'")
    for field in (*CONFIG_FIELDS.values(), "hidden_act"):
        if field != "num_hidden_layers" and decoder.get(field) != encoder.get(field):
            raise RequestError(
                f"the decoder's {field}={decoder.get(field)!r} must be the encoder's, {encoder.get(field)!r}"
            )
    depth = decoder.get("num_hidden_layers", CONFIG_DEFAULTS["num_hidden_layers"])
    return {**encoder, DECODER_DEPTH: depth}


def _nest(flat: Mapping[str, Any]) -> Mapping[str, Any]:
    encoder = {key: value for key, value in flat.items() if key not in (DECODER_DEPTH, "model_type")}
    decoder = {"is_decoder": True, "add_cross_attention": True, "num_hidden_layers": flat[DECODER_DEPTH]}
    return {
        "model_type": flat["model_type"],
        "is_encoder_decoder": True,
        "pad_token_id": flat["pad_token_id"],
        "encoder": {**encoder, "model_type": "bert"},
        "decoder": {**encoder, "model_type": "bert", **decoder},
    }


ENCODER_DECODER = Family(
    name="encoder-decoder",
    class_stem="EncoderDecoder",
    kind="encoder-decoder",
    tokenizer="WordPiece",
    settings={"decoder_depth": 12, "shared_vocabulary": False},
    config_fields={**CONFIG_FIELDS, "decoder_depth": DECODER_DEPTH},
    config_defaults={**CONFIG_DEFAULTS, DECODER_DEPTH: 12},
    flatten=_flatten,
    nest=_nest,
    prefix="encoder.",
    encoder={**EMBEDDINGS, **LAYER},
    heads={"": {"pooler.dense": "encoder.pooler.dense"}, "decoder": DECODER},
    tied={
        "decoder.cls.predictions.decoder.bias": "decoder.cls.predictions.bias",
        "decoder.cls.predictions.decoder.weight": "decoder.bert.embeddings.word_embeddings.weight",
    },
    class_endings={("decoder",): "Model"},
)
