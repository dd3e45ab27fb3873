"""Adapters in PEFT's layout: the same logits in both directions, and one sentence for folders that are not right."""

import json
import sys
from pathlib import Path

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).parents[1] / "finetuning"))
from tiny import tiny_adapter, tiny_folder, write_classes, write_tags

import bertkit
from bertkit.checkpoint.save_load import load_checkpoint
from bertkit.errors import RequestError
from bertkit.model.batch import Batch
from bertkit.model.low_rank import LowRankUpdate, merge

SIZES = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
BERT = transformers.BertConfig(**SIZES, num_labels=3)
ROBERTA = transformers.RobertaConfig(**SIZES, num_labels=3)
DISTILBERT = transformers.DistilBertConfig(vocab_size=60, dim=16, n_layers=2, n_heads=2, hidden_dim=32, num_labels=3)
MODERN = transformers.ModernBertConfig(**SIZES, num_labels=3, pad_token_id=0, cls_token_id=1, sep_token_id=2)
SEQUENCES, TOKENS = {"task_type": "SEQ_CLS"}, {"task_type": "TOKEN_CLS"}
LAYERS = {"modules_to_save": ["pre_classifier", "classifier"]}
PATTERNS = {"rank_pattern": {"v_lin": 2}, "alpha_pattern": {"layer.1.attention.v_lin": 3}}
WITH_HEAD = {"modules_to_save": ["head", "classifier"]}
ROWS = [
    ("BertForSequenceClassification", BERT, {**SEQUENCES, "target_modules": ["query", "dense"]}),
    ("BertForTokenClassification", BERT, {**TOKENS, "target_modules": ["key"], "use_rslora": True}),
    ("BertModel", BERT, {"target_modules": "all-linear"}),
    ("RobertaForSequenceClassification", ROBERTA, {**SEQUENCES, "target_modules": ["query", "value"]}),
    ("RobertaForTokenClassification", ROBERTA, {**TOKENS, "target_modules": ["intermediate.dense"]}),
    ("DistilBertForSequenceClassification", DISTILBERT, {**SEQUENCES, **LAYERS, "target_modules": ["q_lin", "lin1"]}),
    ("DistilBertForTokenClassification", DISTILBERT, {**TOKENS, **PATTERNS, "target_modules": ["v_lin"]}),
    ("ModernBertForSequenceClassification", MODERN, {**SEQUENCES, **WITH_HEAD, "target_modules": ["Wqkv", "Wi"]}),
]  # fmt: skip
IDS = torch.arange(5, 31).view(2, 13)


def written_by_peft(kind, config, settings, folder):
    """PEFT's model and its folder, whose trunk is beside it; every trained tensor is random."""
    torch.manual_seed(0)
    theirs = getattr(transformers, kind)
    theirs(config).save_pretrained(folder / "trunk")
    model = theirs.from_pretrained(folder / "trunk")
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=4, lora_alpha=6, **settings)).eval()
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.3)
    adapted.save_pretrained(folder / "adapter")
    return adapted


def output_of(bert):
    batch = Batch.pack(IDS.tolist())
    with torch.inference_mode():
        hidden = bert.model(batch)
        return bert.model.read(next(iter(bert.model.heads)), hidden, batch) if bert.model.heads else hidden


@torch.inference_mode()
def theirs_of(model):
    found = model(input_ids=IDS)
    return found.logits if "logits" in found else found.last_hidden_state


@pytest.mark.parametrize(("kind", "config", "settings"), ROWS, ids=[row[0] for row in ROWS])
def test_an_adapter_of_peft_gives_its_logits_merged(kind, config, settings, tmp_path):
    adapted = written_by_peft(kind, config, settings, tmp_path)
    expected, bert = theirs_of(adapted), bertkit.load(tmp_path / "adapter")
    found = output_of(bert)
    torch.testing.assert_close(found.reshape(expected.shape), expected, atol=1e-5, rtol=1e-5)
    with adapted.disable_adapter():
        assert (theirs_of(adapted) - expected).abs().max() > 0.01  # the updates count
    bert.save(tmp_path / "whole")  # a full folder, which transformers loads
    whole = getattr(transformers, kind).from_pretrained(tmp_path / "whole").eval()
    torch.testing.assert_close(theirs_of(whole), expected, atol=1e-5, rtol=1e-5)


TASKS = [("classify", write_classes, "SequenceClassification"), ("tag", write_tags, "TokenClassification")]
FAMILIES = {"bert": "Bert", "roberta": "Roberta", "distilbert": "DistilBert", "albert": "Albert", "electra": "Electra"}


@pytest.mark.parametrize(("family", "stem"), FAMILIES.items())
@pytest.mark.parametrize(("task", "write", "ending"), TASKS, ids=[row[0] for row in TASKS])
def test_peft_loads_what_a_run_wrote(task, write, ending, family, stem, tmp_path):
    trunk = tiny_folder(tmp_path / "trunk", family)
    rows = write(tmp_path / f"rows.{'conll' if task == 'tag' else 'tsv'}", 24)
    settings = {"rank": 3, "alpha": 6, "matrices": "all", "epochs": 2, "learning_rate": 0.003}
    run = bertkit.finetune(task, rows, model=trunk, out=tmp_path / "run", **settings)
    assert sorted(path.name for path in (tmp_path / "run" / "model").iterdir()) == [
        *("adapter_config.json", "adapter_model.safetensors", "bertkit.json"),
    ]
    labels = len(run.model.checkpoint.labels)
    base = getattr(transformers, f"{stem}For{ending}").from_pretrained(trunk, num_labels=labels)
    adapted = peft.PeftModel.from_pretrained(base, tmp_path / "run" / "model").eval()
    expected = theirs_of(adapted)
    torch.testing.assert_close(output_of(run.model).reshape(expected.shape), expected, atol=1e-5, rtol=1e-5)
    with adapted.disable_adapter():
        assert (theirs_of(adapted) - expected).abs().max() > 1e-3


def test_the_scores_of_a_run_are_those_of_the_saved_adapter(tmp_path):
    trunk, rows, test = tiny_folder(tmp_path / "trunk"), write_classes(tmp_path / "a.tsv", 200), tmp_path / "b.tsv"
    settings = {"rank": 4, "epochs": 10, "learning_rate": 0.001}
    run = bertkit.finetune("classify", rows, write_classes(test, 100, 1), trunk, tmp_path / "run", **settings)
    scored = bertkit.evaluate(bertkit.load(tmp_path / "run"), test)
    assert run.scores["accuracy"] == scored.scores["accuracy"] > 0.8


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A folder with `trunk` and an `adapter` that bertkit wrote: one update of each map, and a head."""
    folder = tmp_path_factory.mktemp("sound")
    trunk = tiny_folder(folder / "trunk")
    tiny_adapter(trunk, folder / "adapter")
    return folder


def spoiled(sound, folder, change=None, **config):
    """A copy of the sound adapter, whose tensors and config are changed."""
    folder.mkdir()
    for path in (sound / "adapter").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    own = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**own, **config}))
    if change is not None:
        tensors = load_file(folder / "adapter_model.safetensors")
        change(tensors)
        save_file(tensors, folder / "adapter_model.safetensors")
    return folder


QUERY = "base_model.model.bert.encoder.layer.0.attention.self.query.lora_A.weight"
OUTPUT = "base_model.model.classifier.weight"
FAULTS = [
    ({"peft_type": "IA3"}, None, "peft_type='IA3' is not supported, only 'LORA'"),
    ({"use_dora": True}, None, "use_dora=True is not supported; merge the adapter by PEFT"),
    ({"bias": "all"}, None, "bias='all' is not supported"),
    ({"init_lora_weights": "pissa"}, None, "init_lora_weights='pissa' is not supported"),
    ({"r": 0}, None, "r=0 must be a number over 0"),
    ({"lora_alpha": "much"}, None, "lora_alpha='much' must be a number"),
    ({"r": 3}, None, r"lora_A.weight has shape \(2, 32\), but r=3 in adapter_config.json .* make it \(3, 32\)"),
    ({"target_modules": ["c_attn"]}, None, "target_modules names 'c_attn', which its trunk .*trunk does not have"),
    ({"base_model_name_or_path": "nowhere"}, None, "its trunk nowhere is not here; name it, as in .*base='FOLDER'"),
    ({"base_model_name_or_path": None}, None, "adapter_config.json names no trunk; name it"),
    ({"r": 2.5}, None, "r=2.5 must be a number over 0"),
    ({"rank_pattern": {"query": 0}}, None, "query=0 must be a number over 0"),
    ({"rank_pattern": [3]}, None, r"rank_pattern=\[3\] must be an object"),
    ({}, lambda t: t.pop(QUERY), "lacks .*query.lora_A.weight; copy the adapter again"),
    ({}, lambda t: [t.pop(QUERY), t.pop(QUERY.replace("_A", "_B"))], "lacks bert.encoder.layer.0.*query.lora_A.weight"),
    ({}, lambda t: t.pop(OUTPUT), "neither adapter_model.safetensors nor the trunk .* holds classifier.weight"),
    ({}, lambda t: t.update({QUERY: t[QUERY].long()}), "query.lora_A.weight is torch.int64; train the adapter again"),
    ({}, lambda t: t[QUERY].fill_(float("nan")), "query.lora_A.weight holds NaN or infinity; train the adapter again"),
    ({}, lambda t: t.update({QUERY.replace("query", "qkv"): t[QUERY].clone()}), "attention.self.qkv is no linear map"),
    (
        {},
        lambda t: t.update({"base_model.model.other": t[OUTPUT].clone()}),
        "other is neither a low-rank update nor part of",
    ),
    ({}, lambda t: t.update({OUTPUT: t[OUTPUT][:1].clone()}), r"classifier.weight has shape \(1, 32\)"),
]


@pytest.mark.parametrize(("config", "change", "message"), FAULTS, ids=range(len(FAULTS)))
def test_a_folder_that_is_not_right_is_one_sentence(config, change, message, sound, tmp_path):
    with pytest.raises(RequestError, match=message) as caught:
        bertkit.load(spoiled(sound, tmp_path / "spoiled", change, **config))
    assert "spoiled" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_adapter_without_its_tensors_is_refused(sound, tmp_path):
    (spoiled(sound, tmp_path / "spoiled") / "adapter_model.safetensors").unlink()
    with pytest.raises(RequestError, match="holds no adapter_model.safetensors"):
        bertkit.load(tmp_path / "spoiled")


def test_a_head_that_nobody_holds_is_refused(sound, tmp_path):
    """PEFT's own folders have no bertkit.json, so the kind of task says which head it is."""
    folder = spoiled(sound, tmp_path / "spoiled", lambda tensors: tensors.pop(OUTPUT))
    (folder / "bertkit.json").unlink()
    with pytest.raises(RequestError, match=r"task_type=SEQ_CLS, but neither .* holds classifier.weight"):
        bertkit.load(folder)


@pytest.mark.parametrize("heads", [["classify"], {"classify": "two"}, {"classify": 0}, {"judge": 2}])
def test_heads_that_bertkit_does_not_write_are_refused(heads, sound, tmp_path):
    folder = spoiled(sound, tmp_path / "spoiled")
    own = json.loads((folder / "bertkit.json").read_text())
    own["adapter"]["heads"] = heads
    (folder / "bertkit.json").write_text(json.dumps(own))
    with pytest.raises(RequestError, match="heads|unknown head"):
        bertkit.load(folder)


def test_another_trunk_is_refused_by_its_weights_and_the_same_one_found_elsewhere(sound, tmp_path):
    other, moved = tiny_folder(tmp_path / "other", seed=1), tiny_folder(tmp_path / "moved")
    with pytest.raises(RequestError, match=r"belongs to .*trunk \(encoder \w{12}\), not to other \(encoder \w{12}\)"):
        bertkit.load(sound / "adapter", base=other)
    assert torch.equal(
        output_of(bertkit.load(sound / "adapter", base=moved)), output_of(bertkit.load(sound / "adapter"))
    )


def test_a_base_belongs_to_an_adapter_and_is_none_itself(sound):
    with pytest.raises(RequestError, match="is a whole model and has no base"):
        bertkit.load(sound / "trunk", base=sound / "trunk")
    with pytest.raises(RequestError, match="is an adapter itself"):
        bertkit.load(sound / "adapter", base=sound / "adapter")


def test_merging_leaves_the_files_of_the_trunk_as_they_are(sound):
    before = (sound / "trunk" / "model.safetensors").read_bytes()
    bert = load_checkpoint(sound / "trunk")
    name = "encoder.layers.0.attention.out.weight"
    weight = bert.model.get_parameter(name).detach().clone()
    merge(bert.model, {name: LowRankUpdate(torch.ones(32, 1), torch.ones(1, 32))})
    assert torch.equal(bert.model.get_parameter(name).detach(), weight + 1)
    assert (sound / "trunk" / "model.safetensors").read_bytes() == before


def test_a_saved_adapter_has_what_was_given_and_the_trunks_other_weights(sound):
    bert, trunk = bertkit.load(sound / "adapter"), bertkit.load(sound / "trunk")
    tensors = {
        name: tensor.float() for name, tensor in load_file(sound / "adapter" / "adapter_model.safetensors").items()
    }
    up, down = tensors[QUERY.replace("_A", "_B")], tensors[QUERY]
    name = "encoder.layers.0.attention.qkv.weight"
    change = (bert.model.get_parameter(name) - trunk.model.get_parameter(name)).detach()
    torch.testing.assert_close(change[:32], up @ down, atol=1e-5, rtol=1e-4)
    assert torch.equal(bert.model.encoder.embeddings.word.weight, trunk.model.encoder.embeddings.word.weight)
    assert bert.checkpoint.tokenizer is not None
    assert bert.checkpoint.labels == ("no", "yes")
