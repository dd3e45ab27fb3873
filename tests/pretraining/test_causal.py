"""A model that was pre-trained from left to right is saved, loaded and computed so, by every verb and every engine."""

import json

import numpy as np
import pytest
import torch
from tiny_runs import make_shards, tiny_recipe

import bertkit
from bertkit.cli.main import run
from bertkit.config import family_config, override
from bertkit.engine.batches import Passage, fastest, layer_vectors, make_batch
from bertkit.engine.cpu import use_onnx
from bertkit.engine.cuda import CudaOperations
from bertkit.engine.recorded import RecordedPasses
from bertkit.errors import RequestError
from bertkit.inside.look.look import look
from bertkit.model.batch import Batch
from bertkit.model.operations import TORCH
from bertkit.predict.quantize import quantize
from bertkit.pretraining.pretraining import pretrain
from bertkit.serve.engine import ReadPooled

ONE, OTHER = "the old river runs near a stone.", "the old river sings over the bridge."
SHARED = 4  # [CLS] and the three words that both texts begin with


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return make_shards(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def folder(shards, tmp_path_factory):
    """A model of 16-wide heads, so that all kernels take it, after a few steps."""
    out = tmp_path_factory.mktemp("causal") / "run"
    pretrain(tiny_recipe(shards, objective="causal", steps=3, width=32, learning_rate=0.02), out)
    return out / "model"


@pytest.fixture
def bert(folder):
    return bertkit.load(folder)


def passages(bert):
    return [Passage(each.ids, each.segments) for each in bert.tokenizer.encode_batch([ONE, OTHER])]


def test_the_folder_says_so_in_hugging_faces_words(folder):
    settings = json.loads((folder / "config.json").read_text())
    assert settings["is_decoder"] is True
    assert settings["architectures"] == ["BertLMHeadModel"]


def test_transformers_reads_it_as_we_do(bert, folder):
    import transformers

    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    batch = Batch.pack([bert.tokenizer.encode(ONE).ids])
    with torch.no_grad():
        expected = theirs(batch.ids[None]).logits[0]
        torch.testing.assert_close(bert.model.logits(batch, "masked_word"), expected, atol=1e-5, rtol=1e-5)


def plain(bert):
    with torch.inference_mode():
        return [bert.model.encoder(make_batch([each], bert.model.device)).numpy() for each in passages(bert)]


def packed(bert):
    with torch.inference_mode():
        assert fastest(bert.model.encoder).ops is not TORCH
        batch = make_batch(passages(bert), bert.model.device)
        return [each.numpy() for each in batch.split(layer_vectors(bert.model.encoder, batch, [2]))]


def int8(bert):
    quantize(bert.model, "int8", bert.tokenizer)
    return packed(bert)


def onnx_runtime(bert):
    use_onnx(bert.model.encoder)
    with torch.inference_mode():
        forward = fastest(bert.model.encoder)
        assert forward.ops.onnx is not None
        return [forward(make_batch([each], bert.model.device)).numpy() for each in passages(bert)]


def fused(bert):
    """A GPU's, with its kernels run by Triton's interpreter."""
    with torch.inference_mode():
        batch = make_batch(passages(bert), bert.model.device)
        return [each.numpy() for each in batch.split(bert.model.encoder(batch, ops=CudaOperations()))]


def padded(bert):
    """A batch of a fixed form, as a GPU's are: the kernel over the padded view."""
    with torch.inference_mode():
        batch = make_batch(passages(bert), bert.model.device).laid_out(32, 4)
        return [each.numpy() for each in batch.split(bert.model.encoder(batch))]


def traced(bert):
    return [bert.trace(text).output.numpy() for text in (ONE, OTHER)]


def embedded(bert):
    return bert.embed([ONE, OTHER], pooling="none")


ENGINES = [plain, packed, int8, onnx_runtime, fused, padded, traced, embedded]


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.__name__)
def test_what_follows_changes_nothing_before_it(bert, engine, monkeypatch):
    monkeypatch.setattr("bertkit.predict.quantize.MIN_MEAN_COSINE", 0.0)  # so small a model suffers from int8
    one, other = engine(bert)
    np.testing.assert_allclose(one[:SHARED], other[:SHARED], atol=1e-6)
    assert np.abs(one[SHARED] - other[SHARED]).max() > 1e-3
    if engine is not int8:
        np.testing.assert_allclose(one, plain(bert)[0], atol=1e-5)


def test_recorded_passes_see_nothing_ahead(bert):
    first = ReadPooled((2,), "cls", False)
    one, other = RecordedPasses(bert.model.encoder, record_after=1)(passages(bert), first)
    np.testing.assert_allclose(one, other, atol=1e-6)


def test_an_exported_file_computes_the_same(bert, tmp_path):
    import onnxruntime

    bert.export_onnx(tmp_path / "out", answers=["vectors"])
    session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx", providers=["CPUExecutionProvider"])
    found = []
    for ids, segments in passages(bert):
        cells = {"input_ids": ids, "attention_mask": [1] * len(ids), "token_type_ids": segments}
        left = {name: np.array([[0, 0, *row]]) for name, row in cells.items()}  # padding on the left, too
        found.append(session.run(["last_hidden_state"], left)[0][0, 2:])
    np.testing.assert_allclose(found[0][:SHARED], found[1][:SHARED], atol=1e-6)
    np.testing.assert_allclose(found[0], plain(bert)[0], atol=1e-5)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["is_decoder"] is True


def test_views_show_no_weight_above_the_diagonal(bert):
    for layer in bert.trace(ONE).layers:
        assert layer.weights.triu(1).abs().max() == 0
        assert torch.allclose(layer.weights.sum(-1), torch.ones_like(layer.weights[..., 0]))
    shown = look(bert, ONE).data
    assert all(layer["causal"] for layer in shown["layers"])
    assert shown["lens"] is None, "its head names the word that follows, not one for a blank"


def test_blanks_are_refused_in_one_sentence(bert, folder, capsys):
    with pytest.raises(RequestError, match="reads from left to right, so it cannot fill"):
        bert.fill("the old [MASK] runs.")
    for ways in ({"together": True}, {"pieces": 2}, {"candidates": ["river"]}):
        with pytest.raises(RequestError, match="reads from left to right"):
            bert.fill("the old [MASK] runs.", **ways)
    assert run(["fill", "the old [MASK] runs.", "--model", str(folder)]) == 2
    assert "reads from left to right" in capsys.readouterr().err


def test_saved_small_and_converted_it_stays_so(bert, folder, tmp_path):
    bert.save(tmp_path / "again")
    assert run(["convert", str(folder), str(tmp_path / "converted")]) == 0
    for name in ("again", "converted"):
        np.testing.assert_array_equal(bertkit.load(tmp_path / name).embed(ONE), bert.embed(ONE))


def test_to_carry_on_reads_as_the_objective_says(folder, shards, tmp_path):
    for objective, causal in (("causal", True), ("mlm", False)):
        recipe = tiny_recipe(shards, objective=objective, steps=1, learning_rate=1e-30, weight_decay=0)
        pretrain(recipe, tmp_path / objective, start=folder)
        found = bertkit.load(tmp_path / objective).model
        assert found.config.parts.causal == causal
        before = bertkit.load(folder).model.state_dict()
        assert all(torch.allclose(tensor, before[name]) for name, tensor in found.state_dict().items())


def test_a_run_of_an_earlier_version_goes_on(shards, tmp_path):
    """Its settings and its checkpoints do not say which way it reads; its objective does."""
    recipe = tiny_recipe(shards, objective="causal", steps=4)
    pretrain(recipe, tmp_path / "run")
    (settings := tmp_path / "run" / "settings.toml").write_text(settings.read_text().replace("causal = true\n", ""))
    for path in (tmp_path / "run").rglob("config.json"):
        content = json.loads(path.read_text())
        del content["is_decoder"]
        path.write_text(json.dumps(content | {"architectures": ["BertForMaskedLM"]}))
    assert pretrain(recipe, tmp_path / "run", resume=True) is None


def test_causal_without_its_objective_is_refused(shards):
    with pytest.raises(RequestError, match="causal=true goes with objective=causal"):
        tiny_recipe(shards, objective="mlm", causal="true")


@pytest.mark.parametrize("family", ["albert", "distilbert", "modernbert"])
def test_families_that_have_no_word_for_it_keep_it_for_bertkit(family, tmp_path):
    """transformers reads `is_decoder` in BERT, RoBERTa and ELECTRA alone."""
    from bertkit.checkpoint.save_load import Checkpoint, load_checkpoint, save_checkpoint
    from bertkit.model.model import new_model

    config = override(family_config(family, "tiny", vocab_size=60), "causal=true")
    save_checkpoint(Checkpoint(model=new_model(config)), tmp_path / "own")
    assert json.loads((tmp_path / "own" / "config.json").read_text())["model_type"] == "bertkit"
    assert load_checkpoint(tmp_path / "own").model.config == config
