"""Recurrent encoders through the usual commands: ULMFiT's way of fine-tuning, ELMo's features, probes, explanations."""

from dataclasses import replace
from pathlib import Path

import pytest
import tiny

import bertkit
from bertkit.checkpoint.save_load import load_checkpoint
from bertkit.errors import RequestError
from bertkit.finetuning.explore.features import feature_scores, read_features
from bertkit.finetuning.fine_tuning import fine_tune, open_data
from bertkit.finetuning.learner import freeze_below, layer_number, load_start, lowest_trainable, rate_scales
from bertkit.finetuning.settings import read_settings
from bertkit.inside.look.data import movement
from bertkit.inside.look.heads import catalogue
from bertkit.inside.look.reading import read
from bertkit.inside.look.table import step_table

pytestmark = pytest.mark.usefixtures("_one_thread")
ULMFIT = ("pooling=last-max-mean", "decay=slanted", "layer_decay=0.38", "unfreeze=0.3")
QUICK = ("epochs=8", "learning_rate=1e-2", "batch=16")
FAMILIES = ("elmo", "awd-lstm", "rnn")


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """A model of each family, without a head."""
    root = tmp_path_factory.mktemp("recurrent")
    return {name: tiny.tiny_folder(root / name, name, causal=name == "awd-lstm") for name in FAMILIES}


def test_gradual_unfreezing_goes_from_the_head_down(folders):
    model = load_checkpoint(folders["awd-lstm"]).model
    depth, settings = model.config.depth, read_settings(*ULMFIT)
    stages = []
    for progress in (0.0, 0.1, 0.2, 0.3):
        freeze_below(model, lowest_trainable(settings, depth, progress))
        stages.append({layer_number(name, depth) for name, each in model.named_parameters() if each.requires_grad})
    assert stages == [set(), {2}, {1, 2}, {0, 1, 2}]  # the head, number 3, is not there yet
    scales = rate_scales(model, 0.38)
    assert scales["encoder.layers.1.cells.0.rnn.weight_hh_l0"] == 0.38
    assert scales["encoder.embeddings.word.weight"] == pytest.approx(0.38**3)


def test_ulmfit_learns_and_its_head_reads_three_poolings(folders, tmp_path):
    train, dev = tiny.files(tmp_path, "classify")
    result = fine_tune("classify", read_settings(*QUICK, *ULMFIT), folders["awd-lstm"], train, dev, tmp_path / "run")
    assert result.scores["accuracy"] > 0.9
    bert = bertkit.load(tmp_path / "run" / "model")
    assert bert.model.pooler.dense.in_features == 3 * bert.model.config.width
    assert bert.classify("the film was lovely").label == "positive"


@pytest.mark.parametrize("pooler", ["none", "tanh"])
def test_three_poolings_with_and_without_a_dense_layer(folders, pooler, tmp_path):
    train, dev = tiny.files(tmp_path, "classify")
    base, prepared = open_data("classify", read_settings("pooling=last-max-mean"), folders["elmo"], train, dev)
    config = replace(base.model.config, parts=replace(base.model.config.parts, pooler=pooler))
    base.model.config = config
    model = load_start(base, prepared.task, read_settings("pooling=last-max-mean")).model
    widened = model.pooler.dense if pooler == "tanh" else model.heads["classify"].out
    assert widened.in_features == 3 * config.width


@pytest.mark.parametrize(("family", "task"), [("elmo", "tag"), ("elmo", "classify"), ("rnn", "tag")])
def test_other_tasks_learn(family, task, folders, tmp_path):
    train, dev = tiny.files(tmp_path, task)
    result = fine_tune(task, read_settings(*QUICK), folders[family], train, dev, tmp_path / "run")
    assert result.scores[result.metric] > 0.8


def test_elmo_s_layers_are_features_alone_and_mixed(folders, tmp_path):
    train, dev = tiny.files(tmp_path, "tag")
    base, prepared = open_data("tag", read_settings(), folders["elmo"], train, dev)
    scores = {row.layers: row.accuracy for row in feature_scores(read_features(base.model, prepared))}
    assert list(scores) == ["embeddings", "layer 1", "layer 2", "last four, side by side", "learned mixture"]
    assert scores["learned mixture"] > 0.8


@pytest.mark.parametrize("family", FAMILIES)
def test_what_has_no_heads_to_show_says_so(family, folders):
    bert = bertkit.load(folders[family])
    reading = read(bert, "the film was lovely")
    assert movement(reading).cosines.shape == (6, 3, 3), "vectors can be looked at"
    for view in (lambda: catalogue([reading]), lambda: step_table(reading)):
        with pytest.raises(RequestError, match="layers are recurrent and have no attention heads"):
            view()
