"""ONNX files: every family and head as torch has them, whatever the padding; or no file at all."""

import json
import logging
import shutil
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from taught import PIECES

import bertkit
from bertkit.checkpoint.save_load import Checkpoint
from bertkit.cli.main import run
from bertkit.config import family_config, override
from bertkit.engine.batches import layer_vectors
from bertkit.errors import BertkitError, RequestError
from bertkit.model.batch import Batch
from bertkit.model.heads import HEADS as EVERY_HEAD
from bertkit.model.model import new_model
from bertkit.model.pooling import EmbedSettings, pool
from bertkit.poolings import POOLINGS, TEXT_POOLINGS
from bertkit.predict.bert import Bert
from bertkit.predict.onnx import export as exporting
from bertkit.predict.onnx.export import export_onnx
from bertkit.predict.onnx.graph import VECTORS, Graph
from bertkit.text.tokenizer import Tokenizer

pytestmark = pytest.mark.usefixtures("_one_thread")
HEADS = [name for name in EVERY_HEAD if name != "decoder"]  # a decoder writes a token at a time: not exported
FAMILIES = ("bert", "roberta", "albert", "electra", "distilbert", "modernbert")
NARROW = {"albert": {"embedding_width": 8}, "electra": {"embedding_width": 8}, "modernbert": {"depth": 2}}
LENGTHS = (7, 1, 12, 32)
LAYOUTS = [((1,), "right"), ((32,), "right"), (LENGTHS, "right"), (LENGTHS, "left"), (LENGTHS, "between")]
PER_TOKEN = ("last_hidden_state", "prediction_logits", "replaced_token_logits", "tag_logits")
PER_TOKEN += ("start_logits", "end_logits")


def checkpoint(family: str, *heads: str, seed: int = 0, **more) -> Checkpoint:
    shape = {"depth": 1, "width": 16, "heads": 2, "inner": 32, "max_length": 32, "init_std": 0.3}
    config = family_config(family, "tiny", vocab_size=len(PIECES), **shape | NARROW.get(family, {}))
    if family == "modernbert":  # a layer that sees all, and one that sees two places to each side
        config = override(config, "window=4", "global_every=2")
    model = new_model(config, dict.fromkeys(heads, 3), seed=seed).eval()
    return Checkpoint(model=model, tokenizer=Tokenizer.from_vocab(PIECES), max_length=32, **more)


@pytest.fixture(scope="module", autouse=True)
def _no_trace_log():
    """pytest would format each of the thousands of records that torch's tracing leaves."""
    log = logging.getLogger("torch.__trace")
    log.disabled, before = True, log.disabled
    yield
    log.disabled = before


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """All answers of a tiny model of each family, in one file; made when first asked for."""
    made = {}

    def export(family: str):
        if family not in made:
            found = checkpoint(family, *HEADS)
            folder = tmp_path_factory.mktemp("onnx") / family
            made[family] = (found, export_onnx(found, folder, answers=[VECTORS, *HEADS]))
        return made[family]

    return export


def rectangle(lengths, where: str, two_segments: bool) -> tuple[np.ndarray, ...]:
    """Random ids with their padding at the right, at the left or anywhere between."""
    random = np.random.default_rng(len(lengths))
    ids = random.integers(5, len(PIECES), (len(lengths), max(lengths)))
    segments = random.integers(0, 2, ids.shape) * two_segments
    order = np.arange(ids.shape[1])
    orders = {"right": lambda: order, "left": lambda: order[::-1], "between": lambda: random.permutation(order)}
    mask = np.stack([orders[where]() < length for length in lengths]).astype(np.int64)
    return ids, mask, segments


def packed(cells) -> Batch:
    return Batch.from_padded(*map(torch.from_numpy, cells))


def torch_says(model, batch, head):
    logits = model.logits(batch, head)
    return list(logits.unbind(-1)) if head == "answer" else [logits]


def test_the_table_of_heads_is_whole():
    assert set(HEADS) >= {
        "masked_word",
        "next_sentence",
        "replaced_token",
        "classify",
        "tag",
        "answer",
        "choose",
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_every_head_of_every_family_is_as_in_torch(exported, family):
    found, done = exported(family)
    assert done.difference < 1e-5
    session = onnxruntime.InferenceSession(done.path)
    assert [given.name for given in session.get_inputs()] == list(done.inputs)
    assert all(given.shape == ["batch", "length"] for given in session.get_inputs())
    two = found.model.config.segments > 1
    assert ("token_type_ids" in done.inputs) == two == (family in ("bert", "albert", "electra"))
    for lengths, where in LAYOUTS:
        cells = rectangle(lengths, where, two)
        got = dict(zip(done.outputs, session.run(None, dict(zip(done.inputs, cells, strict=False))), strict=True))
        with torch.inference_mode():
            batch = packed(cells)
            expected = [found.model(batch), pool(found.model(batch), batch, "mean")]
            expected += [tensor for head in HEADS for tensor in torch_says(found.model, batch, head)]
        real = cells[1].astype(bool)
        for (name, one), other in zip(got.items(), expected, strict=True):
            assert np.isfinite(one).all(), (name, where)
            one = one[real] if name in PER_TOKEN else one
            np.testing.assert_allclose(one, other, atol=1e-5, err_msg=f"{name} {where}")


def test_the_folder_has_what_a_user_of_the_file_needs(exported):
    _, done = exported("bert")
    folder = done.path.parent
    names = {path.name for path in folder.iterdir()}
    assert names >= {"model.onnx", "tokenizer.json", "tokenizer_config.json", "config.json", "bertkit.json"}
    beside = json.loads((folder / "bertkit.json").read_text())
    assert beside["onnx"]["opset"] == 18 == done.opset
    assert beside["onnx"]["inputs"] == ["input_ids", "attention_mask", "token_type_ids"]
    assert (beside["max_length"], beside["pad_id"], beside["onnx"]["texts"]) == (32, 0, 100)
    content = done.path.read_bytes()
    assert str(Path(bertkit.__file__).parent).encode() not in content, "where it was traced is nobody's business"
    import onnx

    graph = onnx.load(done.path)
    onnx.checker.check_model(graph)
    assert {(each.domain, each.version) for each in graph.opset_import if each.domain == ""} == {("", 18)}
    assert "differs from torch by" in str(done)
    assert "tolerance 0.0001" in str(done)


def test_transformers_tokenizer_feeds_it_as_it_is(exported):
    import transformers

    found, done = exported("bert")
    tokenizer = transformers.AutoTokenizer.from_pretrained(done.path.parent)
    texts = ["a cat sat", "", "🙂 ünïcode\u200b ?", "w " * 50]
    feeds = dict(tokenizer(texts, padding=True, truncation=True, return_tensors="np"))
    assert sorted(feeds) == sorted(done.inputs)
    [vectors] = onnxruntime.InferenceSession(done.path).run(["sentence_embedding"], feeds)
    with pytest.warns(bertkit.errors.BertkitWarning, match="cut to 32"):
        np.testing.assert_allclose(vectors, Bert(found).embed(texts), atol=1e-5)


def test_choices_come_as_a_block_for_each_question(tmp_path, monkeypatch):
    """And a model of over 2 GB, which this one passes for, has its weights in a file beside it."""
    monkeypatch.setattr(exporting, "MAX_FILE_BYTES", 0)
    found = checkpoint("bert", "choose", task={"name": "choose", "decision": {"temperature": 1.5}})
    done = export_onnx(found, tmp_path / "new" / "chooser.onnx")
    assert (tmp_path / "new" / "chooser.onnx.data").stat().st_size > done.path.stat().st_size
    assert json.loads((tmp_path / "new" / "bertkit.json").read_text())["task"]["decision"] == {"temperature": 1.5}
    assert done.path == tmp_path / "new" / "chooser.onnx"
    assert done.outputs == ("logits",)
    session = onnxruntime.InferenceSession(done.path)
    assert session.get_inputs()[0].shape == ["batch", "choices", "length"]
    for questions, choices in [(2, 3), (1, 5), (3, 1)]:
        cells = rectangle([3 + i for i in range(questions * choices)], "right", True)
        shaped = [each.reshape(questions, choices, -1) for each in cells]
        [scores] = session.run(None, dict(zip(done.inputs, shaped, strict=True)))
        with torch.inference_mode():
            expected = found.model.logits(packed(cells), "choose").view(questions, choices)
        np.testing.assert_allclose(scores, expected, atol=1e-5)


@pytest.mark.parametrize("where", ["right", "left", "between"])
@pytest.mark.parametrize("pooling", TEXT_POOLINGS)
def test_each_pooling_is_its_packed_twin(pooling, where):
    found = checkpoint("bert")
    settings = EmbedSettings(pooling=pooling, layers=(-1, 0), normalize=True)
    cells = rectangle(LENGTHS, where, True)
    with torch.inference_mode():
        batch = packed(cells)
        expected = pool(layer_vectors(found.model.encoder, batch, (1, 0)), batch, pooling)
        got = Graph(found.model, [VECTORS], settings)(*map(torch.from_numpy, cells))[1]
    torch.testing.assert_close(got, torch.nn.functional.normalize(expected, dim=-1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("pooling", [name for name, row in POOLINGS.items() if row.head])
def test_what_a_class_head_reads_is_its_packed_twin(pooling):
    config = override(checkpoint("bert").model.config, f"pooling={pooling}", "position=sinusoidal")
    model = new_model(config, {"classify": 3}).eval()
    cells = rectangle(LENGTHS, "left", True)
    with torch.inference_mode():
        got = Graph(model, ["classify"], EmbedSettings())(*map(torch.from_numpy, cells))[0]
        torch.testing.assert_close(got, model.logits(packed(cells), "classify"), atol=1e-5, rtol=1e-5)


def test_the_model_itself_stays_as_it_was():
    found = checkpoint("bert", "tag")
    before = str(found.model)
    Graph(found.model.bfloat16(), ["tag"], EmbedSettings())
    assert str(found.model) == before
    assert found.model.encoder.dtype == torch.bfloat16


@pytest.fixture
def another_file(exported, monkeypatch):
    """The exporter goes wrong: it writes the graph of a model with other numbers."""
    path = exported("bert")[1].path
    monkeypatch.setattr(exporting, "_write_graph", lambda graph, target: shutil.copy(path, target))


def test_a_file_that_differs_from_torch_is_not_written(another_file, tmp_path):
    answers = [VECTORS, *HEADS]
    with pytest.raises(
        BertkitError, match=r"was not written: its answers differ .* over the tolerance of 0.0001"
    ) as said:
        export_onnx(checkpoint("bert", *HEADS, seed=1), tmp_path / "out", answers=answers)
    assert said.value.exit_code == 1
    assert list(tmp_path.iterdir()) == []


def test_numbers_that_are_none_are_not_written(another_file, tmp_path):
    broken = checkpoint("bert", *HEADS)
    with torch.no_grad():
        broken.model.encoder.layers[0].feed_forward.down.bias[3] = float("nan")
    with pytest.raises(BertkitError, match="differ from torch's by nan"):
        export_onnx(broken, tmp_path / "out", answers=[VECTORS, *HEADS])
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_named_with_its_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(RequestError, match=r"need onnxscript; install: pip install 'bertkit\[onnx\]'"):
        export_onnx(checkpoint("bert"), tmp_path / "out")


@pytest.mark.parametrize(
    ("answers", "sentence"),
    [
        (["tagged"], "this model has no 'tagged' to export; choose from: vectors, tag"),
        ([], "one at least"),
        (["tag", "tag"], "must name each answer once"),
        ("tag", "give a list of names"),
    ],
)
def test_wrong_answers(answers, sentence, tmp_path):
    with pytest.raises(RequestError, match=sentence):
        export_onnx(checkpoint("bert", "tag"), tmp_path / "out", answers=answers)
    assert list(tmp_path.iterdir()) == []


def test_places_that_are_taken_and_models_without_words(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(RequestError, match=r"holds files already, .* name a new folder: .*/model/model.onnx"):
        export_onnx(checkpoint("bert"), tmp_path / "model.onnx")
    with pytest.raises(RequestError, match="exists already"):
        export_onnx(checkpoint("bert"), tmp_path)
    deep = checkpoint("bert", embed=EmbedSettings(layers=(7,)))
    with pytest.raises(RequestError, match=r"asks for vectors of layers \(7,\), and the model has 1"):
        export_onnx(deep, tmp_path / "out")
    wordless = Checkpoint(model=checkpoint("bert").model)
    with pytest.raises(RequestError, match="has no tokenizer"):
        export_onnx(wordless, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_the_command_on_real_weights(capsys, minilm, tmp_path):
    assert run(["convert", str(minilm), str(tmp_path / "new" / "minilm.onnx"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["outputs"] == ["last_hidden_state", "sentence_embedding"]
    assert said["difference"] < said["tolerance"] == 1e-4
    bert = bertkit.load(minilm)
    texts = ["A cat sat on the mat.", "", "naïve 東京 🙂", "word " * 200]
    encodings = [bert.tokenizer.encode(text) for text in texts]
    batch = Batch.pack([each.ids for each in encodings])
    feeds = {
        "input_ids": batch.pad(batch.ids),
        "attention_mask": batch.mask.long(),
        "token_type_ids": batch.pad(batch.segments),
    }
    session = onnxruntime.InferenceSession(said["path"])
    [vectors] = session.run(["sentence_embedding"], {name: each.numpy() for name, each in feeds.items()})
    np.testing.assert_allclose(vectors, bert.embed(texts), atol=1e-5)


def test_the_command_refuses(capsys, tmp_path):
    for arguments, sentence in [
        (["--to", "tflite"], "unknown form 'tflite'; choose from: folder, onnx"),
        (["--answers", "tag"], "--answers belongs to an ONNX file"),
    ]:
        assert run(["convert", str(tmp_path), str(tmp_path / "new"), *arguments]) == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert sentence in said.err
        assert len(said.err.splitlines()) == 1
