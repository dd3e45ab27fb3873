"""Models that read from left to right equal transformers' with `is_decoder`, in both directions, offline."""

import json

import pytest
import torch
import transformers
from family_rows import CAUSAL_ROWS, LENGTHS, inputs, random_model, their_outputs

from bertkit.checkpoint.save_load import load_checkpoint, save_checkpoint
from bertkit.model.batch import Batch

DECODER = {"is_decoder": True}
ROWS = [
    *CAUSAL_ROWS,
    ("bert", transformers.BertModel, ()),
    ("bert", transformers.BertForSequenceClassification, ("classify",)),
    ("roberta", transformers.RobertaForTokenClassification, ("tag",)),
    ("electra", transformers.ElectraForQuestionAnswering, ("answer",)),
]
IDS = [kind.__name__ for _, kind, _ in ROWS]


def assert_equal(model, theirs, heads, batch):
    packed = Batch.from_padded(batch["input_ids"], batch["attention_mask"], batch.get("token_type_ids"))
    for name, tensor in their_outputs(theirs, heads, batch).items():
        with torch.no_grad():
            got = model.logits(packed, name) if name else model(packed)
        torch.testing.assert_close(got, tensor if name == "classify" else packed.unpad(tensor), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("family", "kind", "heads"), ROWS, ids=IDS)
def test_theirs_saved_ours_loaded(family, kind, heads, tmp_path):
    theirs = random_model(family, kind, heads, settings=DECODER)
    theirs.save_pretrained(tmp_path)
    loaded = load_checkpoint(tmp_path)
    assert loaded.model.config.parts.causal
    assert tuple(loaded.model.heads) == heads
    for length in LENGTHS:
        assert_equal(loaded.model, theirs, heads, inputs(family, length))


@pytest.mark.parametrize(("family", "kind", "heads"), ROWS, ids=IDS)
def test_ours_saved_theirs_loaded(family, kind, heads, tmp_path):
    random_model(family, kind, heads, seed=1, settings=DECODER).save_pretrained(tmp_path / "theirs")
    ours = load_checkpoint(tmp_path / "theirs")
    save_checkpoint(ours, tmp_path / "ours")
    settings = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert settings["is_decoder"] is True
    assert settings["architectures"] == [kind.__name__]
    theirs, info = kind.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    for length in LENGTHS:
        assert_equal(ours.model, theirs.eval(), heads, inputs(family, length, seed=2))


def test_hidden_states_of_every_layer_equal(tmp_path):
    theirs = random_model("bert", transformers.BertLMHeadModel, ("masked_word",), settings=DECODER)
    theirs.save_pretrained(tmp_path)
    batch = inputs("bert", 7)
    packed = Batch.from_padded(batch["input_ids"], batch["attention_mask"], batch["token_type_ids"])
    with torch.no_grad():
        expected = theirs(**batch, output_hidden_states=True).hidden_states
        got = load_checkpoint(tmp_path).model.encoder.hidden_states(packed)
    for ours, wanted in zip(got, expected, strict=True):
        torch.testing.assert_close(ours, packed.unpad(wanted), atol=1e-5, rtol=1e-5)


def test_without_the_key_a_model_reads_both_ways(tmp_path):
    """transformers reads `BertLMHeadModel` without `is_decoder` in both directions, and so do we."""
    theirs = random_model("bert", transformers.BertLMHeadModel, ("masked_word",))
    theirs.save_pretrained(tmp_path)
    loaded = load_checkpoint(tmp_path)
    assert not loaded.model.config.parts.causal
    assert_equal(loaded.model, theirs, ("masked_word",), inputs("bert", 7))
