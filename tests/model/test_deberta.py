"""DeBERTa's variants: which terms, shared or own projections, buckets, norms; and the published files' names."""

import pytest
import torch
import transformers
from family_rows import inputs, random_model
from safetensors.torch import load_file, save_file
from test_family_contract import assert_equal
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

from bertkit.checkpoint.hugging_face import config_from_json
from bertkit.checkpoint.save_load import load_checkpoint, save_checkpoint
from bertkit.config import family_config
from bertkit.errors import RequestError
from bertkit.model.embeddings import EmbeddingTable

FULL = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False}
VARIANTS = {
    "v2": {**FULL, "position_buckets": 8, "share_att_key": True, "norm_rel_ebd": "layer_norm", "type_vocab_size": 2},
    "own projections": {**FULL, "position_buckets": 8, "share_att_key": False, "norm_rel_ebd": "none"},
    "c2p": {**FULL, "pos_att_type": ["c2p"], "share_att_key": False},
    "p2c": {**FULL, "pos_att_type": "p2c", "share_att_key": False, "position_buckets": 16},
    "c2p shared": {**FULL, "pos_att_type": "c2p", "share_att_key": True, "norm_rel_ebd": "layer_norm"},
    "a row for each distance": {**FULL, "max_relative_positions": 20, "position_buckets": -1, "share_att_key": True},
    "short span": {**FULL, "max_relative_positions": 20, "position_buckets": 8, "share_att_key": True},
    "positions too": {**FULL, "position_biased_input": True, "pooler_hidden_act": "tanh"},
    "no relative positions": {"relative_attention": False, "pos_att_type": None, "position_biased_input": True},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_equal_transformers(variant, tmp_path):
    heads, kind = ("classify",), transformers.DebertaV2ForSequenceClassification
    usual = random_model("deberta-v2", kind, heads).config.to_dict()
    config = transformers.DebertaV2Config(**{**usual, "norm_rel_ebd": "none", **VARIANTS[variant]})
    torch.manual_seed(1)
    theirs = kind(config).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    ours = load_checkpoint(tmp_path / "theirs")
    assert not ours.report.new
    assert not ours.report.dropped
    save_checkpoint(ours, tmp_path / "ours")
    again = kind.from_pretrained(tmp_path / "ours").eval()
    for length in (1, 7, 64):
        batch = inputs("deberta-v2", length)
        if config.type_vocab_size:
            batch["token_type_ids"] = (torch.arange(length) >= length // 2).long().expand(3, -1)
        assert_equal(ours.model, heads, theirs, batch)
        assert_equal(ours.model, heads, again, batch)


@pytest.mark.parametrize(("buckets", "span"), [(256, 512), (256, 600), (8, 64), (16, 24), (6, 512), (32, 2048)])
def test_rows_of_distances_are_theirs(buckets, span):
    with torch.device("meta"):
        table = EmbeddingTable(family_config("deberta-v2", "tiny", relative_buckets=buckets, relative_span=span))
    distance = torch.arange(1 - span, span)
    expected = make_log_bucket_position(distance, buckets, span).long() + buckets
    assert torch.equal(table.row(distance), expected.clamp(0, 2 * buckets - 1))


def test_published_names_of_the_masked_word_head(tmp_path):
    """v3's files call it lm_predictions, have unused position embeddings, and config.json names no class."""
    theirs = random_model("deberta-v2", transformers.DebertaV2ForMaskedLM, ("masked_word",))
    theirs.save_pretrained(tmp_path)
    renamed = {
        name.replace("cls.predictions.transform", "lm_predictions.lm_head").replace(
            "cls.predictions", "lm_predictions.lm_head"
        ): tensor
        for name, tensor in load_file(tmp_path / "model.safetensors").items()
        if ".decoder." not in name
    }
    assert sum(name.startswith("lm_predictions") for name in renamed) == 5
    renamed["deberta.embeddings.position_embeddings.weight"] = torch.zeros(64, 48)
    save_file(renamed, tmp_path / "model.safetensors")
    theirs.config.architectures = None
    theirs.config.save_pretrained(tmp_path)
    loaded = load_checkpoint(tmp_path)
    assert not loaded.report.new
    assert loaded.report.dropped["deberta.embeddings.position_embeddings.weight"] == "not used by this model"
    assert_equal(loaded.model, ("masked_word",), theirs, inputs("deberta-v2", 7))


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"conv_kernel_size": 3}, "conv_kernel_size is not supported, only 0"),
        ({"embedding_size": 128}, "embedding_size=128 is not supported, only 1536"),
        ({"relative_attention": True}, "pos_att_type=.* it must name c2p, p2c or both"),
        ({"relative_attention": True, "pos_att_type": "p2p"}, "pos_att_type='p2p' is not supported"),
        ({"pos_att_type": ["c2p"]}, "pos_att_type without relative_attention=true"),
        ({"relative_attention": "yes"}, "relative_attention='yes' must be true or false"),
        ({**FULL, "position_buckets": 2.5}, "position_buckets=2.5 must be a whole number"),
        ({**FULL, "position_buckets": 3}, "relative_buckets=3 must be 4 or more, or 0"),
        ({"pooler_hidden_act": "softplus"}, "softplus"),
    ],
)
def test_configs_that_are_refused(fields, sentence):
    with pytest.raises(RequestError, match=sentence):
        config_from_json({"model_type": "deberta-v2", **fields}, "")
