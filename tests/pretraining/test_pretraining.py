"""A run from shards to a model: it learns, it evaluates, and what cannot work is said before the first step."""

import json
import shutil
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny_runs import WORDS, make_shards, recipe_words, tiny_recipe

import bertkit
from bertkit.checkpoint.save_load import load_checkpoint
from bertkit.errors import BertkitError, RequestError
from bertkit.pretraining import check_shards, checks, pretraining, session
from bertkit.pretraining.check_shards import report_shards
from bertkit.pretraining.pretraining import pretrain
from bertkit.pretraining.recipe import read_recipe, recipe_toml
from bertkit.settings import toml_string
from bertkit.text.shards.reader import open_shards
from bertkit.train.runs import Run


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return make_shards(tmp_path_factory.mktemp("corpus"))


def lines(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_a_tiny_model_learns_a_few_documents_by_heart(tmp_path):
    """Google's sample-text exercise in kind: masks that never change, and nothing left to guess."""
    shards = make_shards(tmp_path / "corpus", documents=4)
    shape = {"width": 64, "inner": 128, "dropout": 0, "attention_dropout": 0}
    shape |= {"static": "true", "steps": 250, "batch": 16, "block": 16, "warmup": 20, "log_every": 10}
    report = pretrain(tiny_recipe(shards, **shape, learning_rate=0.005, save_every=1000), tmp_path / "run")
    assert report.accuracies["mlm"] > 0.95
    assert report.accuracies["pair"] == 1.0
    first = lines(tmp_path / "run")[0]
    assert first["loss"]["mlm"] > 2
    assert report.losses["mlm"] < 0.2


HEADS = {"mlm": {"masked_word"}, "mlm,sop": {"masked_word", "next_sentence"}}
HEADS |= {"rtd": {"replaced_token"}, "rtd,fill": {"replaced_token", "masked_word"}, "causal": {"masked_word"}}


@pytest.mark.parametrize("objective", HEADS)
def test_every_objective_trains_and_its_model_loads(shards, tmp_path, objective):
    pretrain(tiny_recipe(shards, objective=objective, heldout=shards, steps=3, evaluate_every=2), tmp_path / "run")
    assert set(load_checkpoint(tmp_path / "run" / "model").model.heads) == HEADS[objective]
    evaluated = [line for line in lines(tmp_path / "run") if "evaluation" in line]
    assert [line["step"] for line in evaluated] == [2, 3]
    assert all(line["evaluation"][key] >= 0 for line in evaluated for key in line["evaluation"])


def test_evaluation_is_opened_once_and_never_changes(shards, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr(pretraining, "open_shards", lambda path: opened.append(path) or open_shards(path))
    recipe = tiny_recipe(shards, heldout=shards, steps=4, evaluate_every=1, learning_rate=1e-30)
    pretrain(recipe, tmp_path / "run")
    assert len(opened) == 2
    found = [line["evaluation"] for line in lines(tmp_path / "run") if "evaluation" in line]
    assert len(found) == 4
    assert found[0] == pytest.approx(found[3], rel=1e-6)


def test_shared_embeddings_survive_saving_and_resuming(shards, tmp_path):
    recipe = tiny_recipe(shards, objective="rtd", steps=3)
    pretrain(recipe, tmp_path / "run")
    newest = Run(tmp_path / "run").latest()
    ours, theirs = (load_checkpoint(newest / name).model.encoder.embeddings for name in ("generator", "model"))
    assert torch.equal(ours.word.weight, theirs.word.weight)
    assert torch.equal(ours.norm.weight, theirs.norm.weight)
    learner = pretraining.build_learner(checks.fitted(recipe, open_shards(shards)))
    pretraining._load_models(newest, learner)
    tables = [learner.models[name].encoder.embeddings for name in ("generator", "model")]
    assert tables[0].word.weight.data_ptr() == tables[1].word.weight.data_ptr()
    assert torch.equal(tables[0].word.weight, theirs.word.weight)


def test_a_poisoned_model_stops_with_a_sentence_and_the_last_checkpoint_is_kept(shards, tmp_path, monkeypatch):
    after = session.PretrainingSession._finish_step

    def poison(self, report, meter):
        going_on = after(self, report, meter)
        if report.progress.step == 5:
            with torch.no_grad():
                self.module.models["model"].encoder.layers[1].attention.out.weight[0, 0] = float("nan")
        return going_on

    monkeypatch.setattr(session.PretrainingSession, "_finish_step", poison)
    with pytest.raises(
        BertkitError, match=r"step 11: the weight model\.encoder\.layers\.1\.attention\.out\.weight is NaN"
    ):
        pretrain(tiny_recipe(shards), tmp_path / "run")
    bad = [line for line in lines(tmp_path / "run") if "bad" in line]
    assert [line["step"] for line in bad] == [6, 7, 8, 9, 10]
    assert bad[0]["loss"]["mlm"] is None
    assert "NaN" not in (tmp_path / "run" / "metrics.jsonl").read_text()
    assert Run(tmp_path / "run").checkpoints()[0].name == "step-00000004"


def test_the_loader_does_not_outlive_the_run_and_its_errors_come_through(shards, tmp_path, monkeypatch):
    block = pretraining.ExampleSource.block

    def fails(self, number):
        if number == 7:
            raise OSError("the disk is gone")
        return block(self, number)

    monkeypatch.setattr(pretraining.ExampleSource, "block", fails)
    before = threading.active_count()
    with pytest.raises(OSError, match="the disk is gone"):
        pretrain(tiny_recipe(shards), tmp_path / "run")
    assert threading.active_count() == before
    assert [line["step"] for line in lines(tmp_path / "run")] == [1, 2, 3], "steps before the error are done"


def test_carrying_on_takes_the_shape_and_weights_of_the_model(shards, tmp_path):
    pretrain(tiny_recipe(shards, steps=2), tmp_path / "first")
    recipe = tiny_recipe(shards, steps=2, width=64, learning_rate=1e-30)
    pretrain(recipe, tmp_path / "second", start=tmp_path / "first" / "model")
    first, second = (load_checkpoint(tmp_path / name / "model").model for name in ("first", "second"))
    assert second.config.width == 16
    assert all(torch.allclose(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_settings_come_back_as_they_were(shards, tmp_path):
    recipe = tiny_recipe(shards, seed=7, heldout=shards, static="true", sharding="fsdp")
    (tmp_path / "again.toml").write_text(recipe_toml(recipe))
    assert read_recipe(tmp_path / "again.toml") == recipe
    assert (recipe.data.seed, recipe.train.seed) == (7, 7)


REFUSED = {
    "length over the positions": ({"length": 64}, "length=64 is over the model's max_length=32"),
    "batch not divisible": ({"batch": 10}, "batch=10 must be a multiple of block=4"),
    "no budget": ({"steps": "none"}, "say how long to train: steps="),
    "no steps": ({"steps": 0}, "a budget must be over 0 and finite"),
    "a decay": ({"decay": "quadratic"}, "unknown decay 'quadratic'"),
    "an optimizer": ({"optimizer": "sgd"}, "unknown optimizer 'sgd'"),
    "a sharding": ({"sharding": "pipeline"}, "unknown sharding 'pipeline'; choose from: ddp, fsdp"),
    "nothing kept": ({"keep": 0}, "keep=0 must be at least 1"),
    "log never": ({"log_every": 0}, "log_every=0 must be at least 1"),
    "a rate": ({"learning_rate": 0}, "learning_rate=0.0 must be over 0"),
    "a rate without end": ({"learning_rate": "inf"}, "learning_rate=inf must be finite"),
    "a decay of weights": ({"weight_decay": -1}, "weight_decay=-1.0 must be 0 or more"),
    "no number": ({"weight_decay": "nan"}, "weight_decay=nan must be 0 or more"),
    "a scale": ({"muon_scale": 0}, "muon_scale=0.0 must be over 0"),
    "no minutes": ({"minutes": "nan"}, "minutes=nan: a budget must be over 0 and finite"),
    "a weight": ({"objective": "rtd,fill", "fill_weight": "nan"}, "fill_weight=nan must be over 0"),
    "an objective": ({"objective": "mlm,psychic"}, "psychic"),
    "a pair for GPT": ({"objective": "causal,sop"}, "objective=causal, sop reads one text; leave out the pair"),
    "one segment": (
        {"family": "roberta"},
        "objective nsp distinguishes two texts by their segments, but the model has",
    ),
    "no such shards": ({"shards": "/nowhere"}, "/nowhere"),
    "no such held-out text": ({"heldout": "/nowhere"}, "/nowhere"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_work_is_said_before_the_first_step(shards, tmp_path, name):
    changes, sentence = REFUSED[name]
    with pytest.raises(RequestError, match=sentence) as caught:
        pretrain(tiny_recipe(**({"shards": shards} | changes)), tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_one_segment_for_pairs_is_found_by_check(shards):
    report = report_shards(open_shards(shards), tiny_recipe(shards, family="roberta"))
    assert [stop.partition(" distinguishes")[0] for stop in report.stops] == ["objective nsp"]


def test_check_counts_sentences_against_the_room_for_text(shards):
    notes = report_shards(open_shards(shards), tiny_recipe(shards, length=10)).notes
    assert any("sentences are longer than the 7 tokens of text in a sequence and are cut" in note for note in notes)


def test_check_advises_no_smaller_vocabulary_where_there_is_no_text():
    none = SimpleNamespace(documents=0, sentences=0, tokens=0, tokenizer=SimpleNamespace(unknown_id=1))
    assert list(check_shards._notes(none, np.zeros(9), 0, 510)) == []


def test_a_folder_of_any_name_comes_back_and_is_the_same_from_the_root(shards, tmp_path, monkeypatch):
    """Quotes and backslashes are escaped; a path from the root and one from here name the same shards."""
    odd = tmp_path / 'a "folder\\of\x7f'
    shutil.copytree(shards, odd)
    monkeypatch.chdir(tmp_path)
    pretrain(tiny_recipe(odd.name, steps=1, heldout=odd.name), tmp_path / "run")
    assert read_recipe("run/settings.toml").shards == odd.resolve()
    pretrain(tiny_recipe(odd, steps=1, heldout=odd), "run", resume=True)
    text = (tmp_path / "run" / "settings.toml").read_text()
    (tmp_path / "run" / "settings.toml").write_text(text.replace(toml_string(str(odd)), toml_string(odd.name)))
    pretrain(tiny_recipe(odd, steps=1, heldout=odd), tmp_path / "run", resume=True)


def test_any_seed_that_is_promised_will_do(shards, tmp_path):
    pretrain(tiny_recipe(shards, steps=1, objective="rtd", seed=2**64 - 1), tmp_path / "run")


def test_one_document_has_no_other_to_take_a_next_sentence_from(tmp_path):
    shards = make_shards(tmp_path / "corpus", documents=1)
    with pytest.raises(RequestError, match="objective nsp takes texts from other documents, but the shards hold 1"):
        pretrain(tiny_recipe(shards), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_shards_of_another_vocabulary_are_refused(shards, tmp_path):
    pretrain(tiny_recipe(shards, steps=1), tmp_path / "first")
    other = make_shards(tmp_path / "corpus", words=list(reversed(WORDS)))
    with pytest.raises(RequestError, match="was made with another vocabulary"):
        pretrain(tiny_recipe(other), tmp_path / "run", start=tmp_path / "first" / "model")
    with pytest.raises(RequestError, match="was made with another vocabulary"):
        pretrain(tiny_recipe(shards, heldout=other), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_too_little_disk_is_said_with_what_is_needed(shards, tmp_path, monkeypatch):
    monkeypatch.setattr(checks.shutil, "disk_usage", lambda path: SimpleNamespace(free=100_000))
    with pytest.raises(RequestError, match=r"needs 0\.\d GB for 3 checkpoints, but 0\.0 GB are free there; lower keep"):
        pretrain(tiny_recipe(shards), tmp_path / "run")
    checks.check_disk(tmp_path / "deep" / "run", 8_000, keep=3)
    with pytest.raises(RequestError, match="for 4 checkpoints"):
        checks.check_disk(tmp_path / "deep" / "run", 9_000, keep=3)


def test_a_folder_that_exists_is_left_alone(shards, tmp_path, bertkit_command):
    (tmp_path / "recipe.toml").write_text("")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("mine")
    command = ("pretrain", tmp_path / "recipe.toml", *recipe_words(shards), "--out", tmp_path / "run")
    done = bertkit_command(*command)
    assert done.returncode == 2
    assert "exists already" in done.stderr
    assert done.stderr.count("\n") == 1
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["mine.txt"]


def test_an_unknown_key_names_the_ones_there_are(tmp_path):
    (tmp_path / "recipe.toml").write_text('[train]\nlearningrate = 1\nshards = "x"\n')
    with pytest.raises(RequestError, match=r"recipe\.toml: unknown setting 'learningrate'; choose from: "):
        read_recipe(tmp_path / "recipe.toml")


def test_electra_also_learns_pairs_and_keeps_that_head(shards, tmp_path):
    recipe = tiny_recipe(shards, family="electra", embedding_width=8, objective="rtd,fill,sop", steps=2)
    report = pretrain(recipe, tmp_path / "run")
    assert set(report.losses) == {"mlm", "rtd", "fill", "pair"}
    folder = tmp_path / "run" / "model"
    assert set(load_checkpoint(folder).model.heads) == {"masked_word", "next_sentence", "replaced_token"}
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["ElectraForMaskedLM"]
    assert 0 < bertkit.load(folder).follows("the old river.", "the new bridge.") < 1
