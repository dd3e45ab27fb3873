"""Matryoshka: prefixes of vectors are trained as vectors, and embed, files, HTTP and sentence-transformers cut them."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
import torch.nn.functional as F
from fastapi.testclient import TestClient

import bertkit
from bertkit.checkpoint.save_load import load_checkpoint
from bertkit.cli.main import run
from bertkit.errors import RequestError
from bertkit.finetuning.embeddings.losses import VectorTargets, contrastive_loss, matryoshka
from bertkit.finetuning.embeddings.settings import read_vector_request
from bertkit.finetuning.embeddings.tuning import tune_vectors
from bertkit.predict.onnx.graph import VECTORS, Graph

pytestmark = pytest.mark.usefixtures("_one_thread")
TEXTS = ["the film was very good", "a dull film", "it is"]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory) -> Path:
    """A model trained for 16 and 8 dimensions of 32, in steps that are computed in parts."""
    folder = tmp_path_factory.mktemp("matryoshka")
    draw = np.random.default_rng(0)
    words = [tiny.GOOD, tiny.BAD]
    rows = [f"{draw.choice(words[n % 2])} film\tit is {draw.choice(words[n % 2])}" for n in range(64)]
    (folder / "pairs.tsv").write_text("\n".join(["query\tpassage", *rows]) + "\n")
    settings = read_vector_request("dimensions=16,8,32", "batch=32", "tokens=64", "learning_rate=1e-3")[0]
    tune_vectors(settings, tiny.tiny_folder(folder / "start"), folder / "pairs.tsv", None, folder / "run")
    return folder / "run" / "model"


def test_the_loss_is_the_mean_over_prefixes():
    vectors = F.normalize(torch.randn(6, 8, generator=torch.Generator().manual_seed(0)), dim=-1)
    targets = VectorTargets(3, torch.arange(6))

    def contrast(vectors, targets):
        return contrastive_loss(vectors, targets, 0.1)

    loss, correct = matryoshka(contrast, (4, 2))(vectors, targets)
    parts = [contrast(F.normalize(vectors[:, :count], dim=-1), targets)[0] for count in (8, 4, 2)]
    assert float(loss) == pytest.approx(float(sum(parts)) / 3, rel=1e-6)
    assert int(correct) == int(contrast(vectors, targets)[1])
    assert float(matryoshka(contrast, ())(vectors, targets)[0]) == float(parts[0])


def test_the_folder_knows_its_dimensions(tuned, tmp_path, capsys):
    bert = bertkit.load(tuned)
    assert run(["info", str(tuned)]) == 0
    assert "dimensions       16, 8" in capsys.readouterr().out
    assert bert.checkpoint.embed.trained_dimensions == (16, 8)
    bert.save(tmp_path / "again")
    assert load_checkpoint(tmp_path / "again").embed == bert.checkpoint.embed
    assert json.loads((tuned / "bertkit.json").read_text())["embed"]["trained_dimensions"] == [16, 8]


def test_embed_cuts_and_scales_again(tuned, tmp_path, capsys):
    bert = bertkit.load(tuned)
    whole, short = bert.embed(TEXTS), bert.embed(TEXTS, dimensions=8)
    expected = whole[:, :8] / np.linalg.norm(whole[:, :8], axis=1, keepdims=True)
    np.testing.assert_allclose(short, expected, atol=1e-6)
    np.testing.assert_allclose(bert.embed(TEXTS[0], dimensions=8), expected[0], atol=1e-6)
    plain = bert.embed(TEXTS, dimensions=8, normalize=False)
    np.testing.assert_allclose(plain, bert.embed(TEXTS, normalize=False)[:, :8], atol=1e-6)
    assert bert.embed([], dimensions=8).shape == (0, 8)
    tokens = bert.embed(TEXTS, pooling="none", dimensions=4)
    assert [part.shape[1] for part in tokens] == [4, 4, 4]
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    words = ["embed", tmp_path / "texts.txt", "--model", tuned, "--out", tmp_path / "v.npy", "--dimensions", "8"]
    assert run([str(word) for word in words]) == 0
    assert "3 vectors of 8" in capsys.readouterr().out
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), expected, atol=1e-6)


@pytest.mark.parametrize("dimensions", [0, 33, -1])
def test_wrong_dimensions_are_one_sentence(tuned, dimensions):
    with pytest.raises(RequestError, match=rf"dimensions={dimensions} must be from 1 to the model's 32"):
        bertkit.load(tuned).embed(TEXTS, dimensions=dimensions)


def test_a_server_cuts_too(tuned):
    from bertkit.predict.bert import load
    from bertkit.serve.app import create_app
    from bertkit.serve.models import load_models

    expected = bertkit.load(tuned).embed(TEXTS, dimensions=8)
    app = create_app(load_models([str(tuned)], torch.device("cpu"), load=load))
    with TestClient(app) as server:
        for body in ({"dimensions": 8}, {"dimensions": 8, "too_long": "window"}):
            data = server.post("/v1/embeddings", json={"input": TEXTS, **body}).json()["data"]
            np.testing.assert_allclose([row["embedding"] for row in data], expected, atol=1e-5)
        refused = server.post("/v1/embeddings", json={"input": TEXTS, "dimensions": 33})
        assert refused.status_code == 422
        assert "must be from 1 to the model's 32" in refused.text


def test_sentence_transformers_cuts_to_the_same(tuned, tmp_path):
    """`truncate_dim` of a folder, read and written; sentence-transformers does not scale what it has cut."""
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(str(tuned), device="cpu", truncate_dim=8)
    theirs.save(str(tmp_path / "theirs"))
    ours = bertkit.load(tmp_path / "theirs")
    assert ours.checkpoint.embed.dimensions == 8
    cut = theirs.encode(TEXTS, normalize_embeddings=True)
    np.testing.assert_allclose(ours.embed(TEXTS), cut, atol=1e-5)
    ours.save(tmp_path / "ours")
    again = SentenceTransformer(str(tmp_path / "ours"), device="cpu")
    np.testing.assert_allclose(again.encode(TEXTS, normalize_embeddings=True), cut, atol=1e-5)
    config = tmp_path / "ours" / "config_sentence_transformers.json"
    config.write_text(json.dumps({"truncate_dim": "8"}))
    with pytest.raises(RequestError, match="truncate_dim='8' must be a whole number from 1"):
        load_checkpoint(tmp_path / "ours")


@pytest.mark.parametrize(
    ("pair", "sentence"),
    [
        ("dimensions=16,none", "dimensions=none is not a whole number"),
        ("dimensions=0,8", "dimensions=0,8 must be at least 1 each"),
        ("dimensions=64,33", "dimensions=64,33 are more than the model's 32; give fewer"),
    ],
)
def test_wrong_settings_stop_before_a_folder_is_made(pair, sentence, tuned, tmp_path):
    (tmp_path / "pairs.tsv").write_text("query\tpassage\na\tb\nc\td\n")
    with pytest.raises(RequestError) as error:
        settings = read_vector_request(pair)[0]
        tune_vectors(settings, tuned, tmp_path / "pairs.tsv", None, tmp_path / "run")
    assert sentence in str(error.value)
    assert not (tmp_path / "run").exists()


def test_the_graph_that_is_exported_cuts(tuned):
    checkpoint = load_checkpoint(tuned)
    embed = replace(checkpoint.embed, dimensions=8)
    graph = Graph(checkpoint.model, (VECTORS,), embed)
    ids = torch.tensor([checkpoint.tokenizer.encode(TEXTS[0]).ids])
    with torch.inference_mode():
        vector = graph(ids, torch.ones_like(ids), torch.zeros_like(ids))[1]
    np.testing.assert_allclose(vector[0].numpy(), bertkit.load(tuned).embed(TEXTS[0], dimensions=8), atol=1e-5)
