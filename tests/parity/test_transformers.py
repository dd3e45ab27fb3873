"""Every family row and every head equals transformers within 1e-5, in both directions, offline."""

import pytest
import torch
from rows import LABELS, LENGTHS, ROWS, inputs, random_model, their_outputs

from bertkit.checkpoint.hugging_face import state_names
from bertkit.checkpoint.save_load import Checkpoint, load_checkpoint, save_checkpoint
from bertkit.model.batch import Batch

ACTIVATED = [row for row in ROWS if row[2] in (("masked_word",), ("classify",), ("replaced_token",))]
IDS = [f"{kind.__name__}" for _, kind, _ in ROWS]


def our_outputs(model, heads, batch):
    packed = Batch.from_padded(batch["input_ids"], batch["attention_mask"], batch.get("token_type_ids"))
    with torch.no_grad():
        hidden = model(packed)
        return packed, {name: model.read(name, hidden, packed) if name else hidden for name in heads or ("",)}


def assert_equal(model, heads, theirs, batch):
    expected = their_outputs(theirs, heads, batch)
    packed, got = our_outputs(model, heads, batch)
    assert set(got) == set(expected)
    for name, tensor in expected.items():
        per_token = name in ("", "masked_word", "tag", "answer", "replaced_token")
        wanted = packed.unpad(tensor) if per_token else tensor
        torch.testing.assert_close(got[name], wanted, atol=1e-5, rtol=1e-5)


def test_rows_cover_the_family():
    assert len(ROWS) == 6 * 6 + 4


@pytest.mark.parametrize(("family", "kind", "heads"), ROWS, ids=IDS)
def test_theirs_saved_ours_loaded(family, kind, heads, tmp_path):
    theirs = random_model(family, kind, heads)
    theirs.save_pretrained(tmp_path)
    loaded = load_checkpoint(tmp_path)
    assert tuple(sorted(loaded.model.heads)) == tuple(sorted(heads))
    assert not loaded.report.new
    assert set(loaded.report.dropped.values()) <= {f"a copy of {name}" for name in loaded.report.used}, (
        "only second copies of tied tensors are dropped"
    )
    for length in LENGTHS:
        assert_equal(loaded.model, heads, theirs, inputs(family, length))


@pytest.mark.parametrize(("family", "kind", "heads"), ROWS, ids=IDS)
def test_ours_saved_theirs_loaded(family, kind, heads, tmp_path):
    random_model(family, kind, heads, seed=1).save_pretrained(tmp_path / "theirs")
    ours = load_checkpoint(tmp_path / "theirs")
    save_checkpoint(ours, tmp_path / "ours")
    theirs, info = kind.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]
    for length in LENGTHS:
        assert_equal(ours.model, heads, theirs.eval(), inputs(family, length, seed=2))


@pytest.mark.parametrize(("family", "kind", "heads"), ROWS, ids=IDS)
def test_saving_and_loading_keeps_every_bit(family, kind, heads, tmp_path):
    random_model(family, kind, heads).save_pretrained(tmp_path / "theirs")
    first = load_checkpoint(tmp_path / "theirs")
    save_checkpoint(first, tmp_path / "ours")
    again = load_checkpoint(tmp_path / "ours")
    assert again.model.config == first.model.config
    for name, tensor in first.model.state_dict().items():
        assert torch.equal(tensor, again.model.state_dict()[name]), name


@pytest.mark.parametrize("activation", ["relu", "gelu_new", "silu"])
@pytest.mark.parametrize(("family", "kind", "heads"), ACTIVATED, ids=lambda value: getattr(value, "__name__", ""))
def test_other_activations(family, kind, heads, activation, tmp_path):
    """Some heads follow the encoder's activation and some are GELU whatever it is."""
    key = {"distilbert": "activation", "modernbert": "hidden_activation"}.get(family, "hidden_act")
    theirs = random_model(family, kind, heads, settings={key: activation})
    theirs.save_pretrained(tmp_path)
    assert_equal(load_checkpoint(tmp_path).model, heads, theirs, inputs(family, 7))


@pytest.mark.parametrize("family", ["bert", "roberta", "albert", "electra", "distilbert", "modernbert"])
def test_training_gradients_equal(family, tmp_path):
    """The same loss gives the same gradients: the backward pass is theirs too."""
    import transformers

    kind = next(kind for row, kind, heads in ROWS if row == family and heads == ("masked_word",))
    assert issubclass(kind, transformers.PreTrainedModel)
    theirs = random_model(family, kind, ("masked_word",))
    theirs.save_pretrained(tmp_path)
    ours = load_checkpoint(tmp_path).model
    batch = inputs(family, 7)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    theirs(**batch, labels=labels).loss.backward()
    packed = Batch.from_padded(batch["input_ids"], batch["attention_mask"], batch.get("token_type_ids"))
    torch.nn.functional.cross_entropy(ours.logits(packed, "masked_word"), packed.ids).backward()
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    compared = 0
    for name, names in state_names(ours):
        expected = torch.cat([gradients[each] for each in names]) if all(n in gradients for n in names) else None
        if expected is not None:
            torch.testing.assert_close(ours.get_parameter(name).grad, expected, atol=1e-5, rtol=1e-4)
            compared += 1
    assert compared >= 18


def test_label_names_travel(tmp_path):
    import transformers

    theirs = random_model("bert", transformers.BertForTokenClassification, ("tag",))
    theirs.config.id2label = {i: f"name-{i}" for i in range(LABELS)}
    theirs.save_pretrained(tmp_path / "theirs")
    loaded = load_checkpoint(tmp_path / "theirs")
    assert loaded.labels == tuple(f"name-{i}" for i in range(LABELS))
    save_checkpoint(loaded, tmp_path / "ours")
    again = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path / "ours")
    assert again.config.id2label == {i: f"name-{i}" for i in range(LABELS)}
    assert isinstance(loaded, Checkpoint)
