"""Folders of sentence-transformers with Dense modules: read, applied wherever texts are embedded, and saved again."""

import json

import numpy as np
import pytest
import sentence_transformers
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers.sentence_transformer import modules
from serving import fill_folder, running
from torch import nn

import bertkit
from bertkit.checkpoint.delta import save_delta
from bertkit.checkpoint.save_load import load_checkpoint
from bertkit.errors import RequestError
from bertkit.predict.onnx.export import export_onnx
from bertkit.serve.models import load_models

TEXTS = ["a b c", "hello", "", "x " * 20, "d e", "a " * 90]
NEAR = 1e-5

pytestmark = pytest.mark.filterwarnings("ignore::bertkit.errors.BertkitWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """As sentence-transformers writes it: mean, two dense layers, length 1."""
    base = tmp_path_factory.mktemp("dense")
    torch.manual_seed(0)
    words = modules.Transformer(str(fill_folder(base / "fill")), max_seq_length=32)
    layers = [
        modules.Dense(16, 24),
        modules.Dense(24, 6, bias=False, activation_function=nn.Identity()),
        modules.Normalize(),
    ]
    model = sentence_transformers.SentenceTransformer(
        modules=[words, modules.Pooling(16, "mean"), *layers], device="cpu"
    )
    model.save(str(base / "sentences"))
    return base / "sentences"


@pytest.fixture(scope="module")
def expected(folder):
    return sentence_transformers.SentenceTransformer(str(folder), device="cpu").encode(TEXTS)


def test_python_gives_their_vectors(folder, expected):
    bert = bertkit.load(folder)
    assert expected.shape == (len(TEXTS), 6)
    np.testing.assert_allclose(bert.embed(TEXTS), expected, atol=NEAR)
    np.testing.assert_allclose(np.stack([bert.embed(text) for text in TEXTS]), expected, atol=NEAR)
    assert bert.embed([]).shape == (0, 6)


def test_files_and_http_give_the_same(folder, expected, tmp_path, command_here):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS[:2]) + "\n")
    done = command_here("embed", tmp_path / "texts.txt", "--model", folder, "--out", tmp_path / "vectors.npy")
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.load(tmp_path / "vectors.npy"), expected[:2], atol=NEAR)
    with running(load_models([f"dense={folder}"], torch.device("cpu"))) as server:
        reply = server.post("/v1/embeddings", {"input": TEXTS}).json()
        tokens = server.post("/v1/embeddings", {"input": TEXTS[:2], "pooling": "max"}).json()
    np.testing.assert_allclose([row["embedding"] for row in reply["data"]], expected, atol=NEAR)
    assert len(tokens["data"][0]["embedding"]) == 16, "another pooling than the folder's is without them"


def test_windows_are_pooled_before_the_dense_layers(folder):
    bert = bertkit.load(folder)
    rows = bert.embed(["a " * 90], pooling="none", normalize=False, too_long="window")[0]
    first, second = (load_file(folder / f"{n}_Dense" / "model.safetensors") for n in (2, 3))
    hidden = np.tanh(rows.mean(0) @ first["linear.weight"].numpy().T + first["linear.bias"].numpy())
    vector = hidden @ second["linear.weight"].numpy().T
    got = bert.embed(["a " * 90], too_long="window")[0]
    np.testing.assert_allclose(got, vector / np.linalg.norm(vector), atol=NEAR)


def test_other_pooling_is_without_them(folder):
    bert = bertkit.load(folder)
    assert bert.embed(["a"], pooling="max").shape == (1, 16)
    assert bert.embed(["a"], layers=[0, 1]).shape == (1, 32)
    assert bert.embed(["a"], pooling="mean").shape == (1, 6)
    assert bert.embed(["a"], pooling="none")[0].shape == (3, 16)


def test_saved_again(folder, expected, tmp_path):
    bertkit.load(folder).save(tmp_path / "again")
    np.testing.assert_allclose(bertkit.load(tmp_path / "again").embed(TEXTS), expected, atol=NEAR)
    (tmp_path / "again" / "bertkit.json").unlink()
    np.testing.assert_allclose(bertkit.load(tmp_path / "again").embed(TEXTS), expected, atol=NEAR)
    theirs = sentence_transformers.SentenceTransformer(str(tmp_path / "again"), device="cpu")
    np.testing.assert_allclose(theirs.encode(TEXTS), expected, atol=NEAR)


def test_an_onnx_file_has_them(folder, expected, tmp_path):
    import onnxruntime

    checkpoint = load_checkpoint(folder)
    exported = export_onnx(checkpoint, tmp_path / "out" / "model.onnx")
    session = onnxruntime.InferenceSession(exported.path)
    ids = checkpoint.tokenizer.encode("a b c").ids
    feeds = {"input_ids": [ids], "attention_mask": [[1] * len(ids)], "token_type_ids": [[0] * len(ids)]}
    [vector] = session.run(["sentence_embedding"], {name: np.array(rows) for name, rows in feeds.items()})
    np.testing.assert_allclose(vector, expected[:1], atol=NEAR)


def test_a_delta_has_no_place_for_them(folder, tmp_path):
    checkpoint = load_checkpoint(folder)
    with pytest.raises(RequestError, match="holds the encoder alone, and not dense layers"):
        save_delta(checkpoint, checkpoint, tmp_path / "change", 10**6)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"activation_function": "torch.nn.modules.activation.Softsign"}, "unknown activation_function .*'Softsign'"),
        ({"use_residual": True}, "use_residual=True is not supported, only False"),
        ({"module_input_name": "token_embeddings"}, "module_input_name='token_embeddings' is not supported"),
    ],
)
def test_other_settings_are_refused(folder, tmp_path, change, sentence):
    bertkit.load(folder).save(tmp_path / "bad")
    path = tmp_path / "bad" / "2_Dense" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(RequestError, match=sentence):
        load_checkpoint(tmp_path / "bad")


@pytest.mark.parametrize(
    "tensors",
    [
        {"linear.weight": torch.zeros(24, 17)},
        {"linear.weight": torch.zeros(24)},
        {"linear.weight": torch.full((24, 16), torch.nan)},
        {"linear.weight": torch.zeros(24, 16), "linear.bias": torch.zeros(3)},
        {"linear.weight": torch.zeros(24, 16), "residual.weight": torch.zeros(3)},
        {"weight": torch.zeros(24, 16)},
    ],
)
def test_other_tensors_are_refused(folder, tmp_path, tensors):
    bertkit.load(folder).save(tmp_path / "bad")
    save_file(tensors, tmp_path / "bad" / "2_Dense" / "model.safetensors")
    with pytest.raises(RequestError, match="a Dense module here has linear.weight with 16 columns"):
        load_checkpoint(tmp_path / "bad")
