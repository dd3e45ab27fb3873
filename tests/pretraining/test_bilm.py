"""ELMo's objective: its loss against a slow twin, which models it takes, and a model that is pre-trained with it."""

import pytest
import torch
import torch.nn.functional as F
from tiny_runs import make_shards, tiny_recipe

import bertkit
from bertkit.config import family_config
from bertkit.errors import RequestError
from bertkit.model.batch import Batch
from bertkit.model.model import new_model
from bertkit.model.word_loss import IGNORE
from bertkit.pretraining.objectives.module import ForPretraining
from bertkit.pretraining.objectives.table import objective_rows
from bertkit.pretraining.objectives.targets import Targets
from bertkit.pretraining.pretraining import pretrain
from bertkit.pretraining.recipe import read_recipe
from bertkit.pretraining.recipe_files import FOLDER
from bertkit.train.speed import layer_parameters

TEXTS = [[5, 6, 7, 8], [9], [10, 11]]


def model_of(family="elmo", **settings):
    return new_model(family_config(family, "tiny", vocab_size=60, dropout=0.0, **settings), {"masked_word": None})


def test_each_neighbor_predicts_the_other():
    model, batch = model_of(), Batch.pack(TEXTS)
    chosen, words = torch.tensor([0, 1, 2, 5, 0, 0]), torch.tensor([6, 7, 8, 11, IGNORE, IGNORE])
    module = ForPretraining(model, objective_rows(["bilm"]))
    loss, count, correct = module(batch, Targets(chosen, words, torch.empty(0)))["bilm"]
    expected, right = 0.0, 0
    for text in TEXTS:
        logits_L2V = model.logits(Batch.pack([text]), "masked_word")
        for place in range(len(text)):
            for side, neighbor in ((0, place + 1), (1, place - 1)):
                if 0 <= neighbor < len(text):
                    target = torch.tensor(text[neighbor])
                    expected += F.cross_entropy(logits_L2V[place, side], target)
                    right += int(logits_L2V[place, side].argmax() == target)
    assert int(count) == 8
    assert int(correct) == right
    torch.testing.assert_close(loss, expected)


def test_it_takes_models_that_do_not_see_the_word():
    for family, objective, message in (
        ("bert", "bilm", "needs a model that reads both ways apart, as family=elmo does"),
        ("awd-lstm", "bilm", "needs a model that reads both ways apart"),
        ("elmo", "mlm", "predicts a word from one side alone; set objective=bilm, or word_head=gelu"),
        ("elmo", "causal", "objective=causal needs a model with causal=true"),
    ):
        with pytest.raises(RequestError, match=message):
            ForPretraining(model_of(family), objective_rows([objective]))
    ForPretraining(model_of("elmo", word_head="gelu"), objective_rows(["mlm"]))


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return make_shards(tmp_path_factory.mktemp("corpus"))


@pytest.mark.parametrize(("family", "objective"), [("elmo", "bilm"), ("awd-lstm", "causal"), ("rnn", "mlm")])
def test_pretrained_saved_and_used(family, objective, shards, tmp_path):
    recipe = tiny_recipe(shards, family=family, objective=objective, steps=6, learning_rate=0.01, max_length=64)
    report = pretrain(recipe, tmp_path / "run")
    assert report.progress.step == 6
    bert = bertkit.load(tmp_path / "run" / "model")
    assert bert.model.config.family == family
    assert bert.embed(["the old river", "a stone"]).shape == (2, 16)
    trace = bert.trace("the old river")
    assert len(trace.layers) == bert.model.config.depth
    if family == "elmo":
        with pytest.raises(RequestError, match="reads each side apart, so it cannot fill"):
            bert.fill("the old [MASK] runs.")
        with pytest.raises(RequestError, match="cannot write"):
            bert.write("the old")
    if family == "awd-lstm":
        assert bert.write("the old").text
    shown = bertkit.look(bert, "the old river").data
    assert shown["heads"] == 0
    assert not shown["layers"], "vectors alone are shown"
    with pytest.raises(RequestError, match="ONNX files are for models with attention"):
        bert.export_onnx(tmp_path / "onnx")


@pytest.mark.parametrize("name", ["elmo", "ulmfit"])
def test_the_recipes_of_the_family_table(name, shards, tmp_path):
    path = FOLDER / "family" / f"{name}.toml"
    assert path.read_text().startswith(f"# bertkit pretrain family/{name} shards=SHARDS --out run: ")
    config = read_recipe(path, f"shards={shards}").model
    assert 9.5e6 < layer_parameters(config) * config.depth < 10.5e6
    small = ("width=16", "inner=32", "length=24", "block=4", "batch=8", "minutes=none", "steps=2")
    report = pretrain(read_recipe(path, f"shards={shards}", *small), tmp_path / "run")
    assert report.progress.step == 2
