"""What every row of FAMILIES must do; a new row is tested by being in the table.

Its config survives both ways of writing it, and every head equals transformers within 1e-5, in both directions, with
gradients. A folder with a tokenizer embeds and fills in a masked word.
"""

from dataclasses import replace

import pytest
import torch
import transformers
from family_rows import (
    ENCODERS,
    LABELS,
    LENGTHS,
    PUBLISHED,
    ROWS,
    SHAPE,
    TOKENIZERS,
    decoder_inputs,
    inputs,
    random_model,
    their_outputs,
    tiny_config,
    tokenizer_of,
)

import bertkit
from bertkit.checkpoint.hugging_face import config_from_json, state_names, stored_form
from bertkit.checkpoint.save_load import Checkpoint, folder_config, load_checkpoint, save_checkpoint
from bertkit.config import SIZES, family_config, read_config
from bertkit.families.family import FAMILIES
from bertkit.model.batch import Batch
from bertkit.model.model import BertModel, new_model
from bertkit.model.operations import Source
from bertkit.settings import flat, toml_lines
from bertkit.text.tokenizer_files import TOKENIZER_KINDS

ACTIVATED = [
    (*row, activation)
    for row in ROWS
    if row[2] in (("masked_word",), ("classify",), ("replaced_token",))
    for activation in ("relu", "gelu_new", "silu")
    if (row[0], activation) != ("openai-gpt", "gelu_new")  # it is called gelu there
]
IDS = [f"{kind.__name__}" for _, kind, _ in ROWS]


def packed_batch(model, batch):
    """The batch as bertkit has it: packed, and [CLS] first where the family has it last."""
    packed = Batch.from_padded(batch["input_ids"], batch["attention_mask"], batch.get("token_type_ids"))
    return replace(packed, ids=cls_moved(model, packed, packed.ids), segments=cls_moved(model, packed, packed.segments))


def cls_moved(model, packed, values, by=1):
    """Values per token, with that of [CLS] moved from the end of each sequence to its start (by=-1: back)."""
    moved = [part.roll(by, dims=0) for part in packed.split(values)]
    return torch.cat(moved) if model.config.parts.two_streams else values


def our_outputs(model, heads, batch):
    packed = packed_batch(model, batch)
    with torch.no_grad():
        hidden = model(packed)
        if heads == ("decoder",):
            target = Batch.from_padded(*decoder_inputs(batch).values())
            return target, {"decoder": model.decoder.words(model.decoder(target, Source(hidden, packed)))}
        return packed, {name: model.read(name, hidden, packed) if name else hidden for name in heads or ("",)}


def assert_equal(model, heads, theirs, batch):
    batch = batch | (decoder_inputs(batch) if heads == ("decoder",) else {})
    expected = their_outputs(theirs, heads, batch)
    packed, got = our_outputs(model, heads, batch)
    assert set(got) == set(expected)
    for name, tensor in expected.items():
        per_token = name in ("", "masked_word", "tag", "answer", "replaced_token", "decoder")
        mask = batch["decoder_attention_mask" if name == "decoder" else "attention_mask"].bool()
        wanted = cls_moved(model, packed, tensor[mask]) if per_token else tensor
        torch.testing.assert_close(got[name], wanted, atol=1e-5, rtol=1e-5)


def test_rows_cover_the_family():
    assert len(ROWS) == 6 * len(ENCODERS) + 4 + 5 + 3 + 2  # GPT-2's and GPT's classes, two encoder-decoders
    assert len(ENCODERS) >= 6


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_in_every_size_survives_toml(family, size, tmp_path):
    config = family_config(family, size)
    path = tmp_path / "model.toml"
    path.write_text(toml_lines(flat(config)))
    assert read_config(path) == config


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("family", PUBLISHED)
def test_every_family_in_every_size_is_one_that_others_know(family, size):
    with torch.device("meta"):
        heads = {"decoder": None} if FAMILIES[family].kind == "encoder-decoder" else {}
        settings, own = folder_config(BertModel(family_config(family, size), heads))
    assert not own
    assert settings["model_type"] == family
    assert config_from_json(settings, "") == family_config(family, size)


# EncoderDecoderConfig has no defaults of its own: it is two others.
@pytest.mark.parametrize(
    "family", [row for name, row in PUBLISHED.items() if name != "encoder-decoder"], ids=lambda row: row.name
)
def test_what_a_config_leaves_out_is_as_transformers_has_it(family):
    theirs = getattr(transformers, f"{family.class_stem}Config")()
    full = {key: value for key, value in theirs.to_dict().items() if key not in ("layer_types", "rope_parameters")}
    assert theirs.model_type == family.name
    assert config_from_json({"model_type": family.name}, "") == config_from_json(full, "")


@pytest.mark.parametrize(("family", "kind", "heads"), ROWS, ids=IDS)
def test_theirs_saved_ours_loaded(family, kind, heads, tmp_path):
    theirs = random_model(family, kind, heads)
    theirs.save_pretrained(tmp_path)
    loaded = load_checkpoint(tmp_path)
    assert tuple(sorted(loaded.model.heads)) == tuple(sorted(heads))
    assert loaded.model.config == tiny_config(family)
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


@pytest.mark.parametrize(
    ("family", "kind", "heads", "activation"), ACTIVATED, ids=[f"{row[1].__name__}-{row[3]}" for row in ACTIVATED]
)
def test_other_activations(family, kind, heads, activation, tmp_path):
    """Some heads follow the encoder's activation and some are GELU whatever it is."""
    theirs = random_model(family, kind, heads, settings={FAMILIES[family].activation_field: activation})
    theirs.save_pretrained(tmp_path)
    assert_equal(load_checkpoint(tmp_path).model, heads, theirs, inputs(family, 7))


@pytest.mark.parametrize("family", [name for name, row in PUBLISHED.items() if row.kind != "encoder-decoder"])
def test_training_gradients_equal(family, tmp_path):
    """The same loss gives the same gradients: the backward pass is theirs too."""
    kind = next(kind for row, kind, heads in ROWS if row == family and heads == ("masked_word",))
    assert issubclass(kind, transformers.PreTrainedModel)
    theirs = random_model(family, kind, ("masked_word",))
    theirs.save_pretrained(tmp_path)
    ours = load_checkpoint(tmp_path).model
    batch = inputs(family, 7)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    theirs(**batch, labels=labels).loss.backward()
    packed = packed_batch(ours, batch)
    logits, targets = ours.logits(packed, "masked_word"), packed.ids
    if ours.config.parts.causal:  # each token predicts the next one
        logits = torch.cat([each[:-1] for each in packed.split(logits)])
        targets = torch.cat([each[1:] for each in packed.split(targets)])
    torch.nn.functional.cross_entropy(logits, targets).backward()
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters() if parameter.grad is not None}
    compared = 0
    for name, names in state_names(ours):
        if all(each in gradients for each in names):
            stored = stored_form(FAMILIES[family], name)
            expected = torch.cat([gradients[n] if stored is None else stored.read(gradients[n]) for n in names])
            torch.testing.assert_close(ours.get_parameter(name).grad, expected, atol=1e-5, rtol=1e-4)
            compared += 1
    assert compared >= 18


@pytest.mark.parametrize("family", ENCODERS)
def test_a_folder_embeds_and_fills_as_transformers_would(family, tmp_path):
    tokenizer = tokenizer_of(family, tmp_path / "vocabulary")
    config = family_config(family, **SHAPE | {"vocab_size": tokenizer.size, "pad_id": tokenizer.pad_id})
    model = new_model(config, {"masked_word": None}, seed=2).eval()
    save_checkpoint(Checkpoint(model=model, tokenizer=tokenizer, max_length=64), tmp_path / "model")
    ours = bertkit.load(tmp_path / "model")
    kind = getattr(transformers, FAMILIES[family].classes[("masked_word",)])
    theirs = kind.from_pretrained(tmp_path / "model").eval()
    text = f"a cab {tokenizer.mask_token} back"
    encoded = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")([text], return_tensors="pt")
    ids = encoded["input_ids"][0]
    assert tuple(ids.roll(int(config.parts.two_streams)).tolist()) == ours.tokenizer.encode(text).ids
    [blank] = (ids == tokenizer.mask_id).nonzero()[:, 0].tolist()
    if config.parts.two_streams:  # a token that no other sees, and that is predicted
        is_blank = (ids == tokenizer.mask_id)[None, None].float()
        encoded |= {"perm_mask": is_blank.expand(1, len(ids), -1), "target_mapping": is_blank}
    with torch.no_grad():
        out = theirs(**encoded, output_hidden_states=True)
    states, cls = (out.hidden_states[-2], -1) if config.parts.two_streams else (out.hidden_states[-1], 0)
    vector = ours.embed([text], pooling="first")[0]
    torch.testing.assert_close(torch.from_numpy(vector), states[0, cls], atol=1e-5, rtol=1e-5)
    best = out.logits[0, 0 if config.parts.two_streams else blank].softmax(-1).topk(3)
    filled = ours.fill(text, top=3, whole_words=False)
    assert [word.probability for word in filled] == pytest.approx(best.values.tolist(), abs=1e-5)
    assert [word.word.removeprefix("##") for word in filled] == [
        ours.tokenizer.written(number).removeprefix("##") for number in best.indices.tolist()
    ]


def test_every_kind_of_tokenizer_is_tried():
    assert set(TOKENIZERS) == set(TOKENIZER_KINDS)
    assert {family.tokenizer for family in FAMILIES.values()} == set(TOKENIZERS)


def test_label_names_travel(tmp_path):
    theirs = random_model("bert", transformers.BertForTokenClassification, ("tag",))
    theirs.config.id2label = {i: f"name-{i}" for i in range(LABELS)}
    theirs.save_pretrained(tmp_path / "theirs")
    loaded = load_checkpoint(tmp_path / "theirs")
    assert loaded.labels == tuple(f"name-{i}" for i in range(LABELS))
    save_checkpoint(loaded, tmp_path / "ours")
    again = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path / "ours")
    assert again.config.id2label == {i: f"name-{i}" for i in range(LABELS)}
    assert isinstance(loaded, Checkpoint)
