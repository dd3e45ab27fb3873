"""The model inside the package: found where nothing is named, told apart from folders, and missed in one sentence.

Most make a bundle of their own and point the loader at it; the last ones ask the model that is there.
"""

import json
import shutil
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from small_models import ROOT, script, tiny

sys.path.insert(0, str(Path(__file__).parents[1] / "serve"))
from serving import running

import bertkit
from bertkit.checkpoint import bundled
from bertkit.checkpoint.bundled import SMALL_FILE
from bertkit.checkpoint.save_load import load_checkpoint, save_checkpoint, save_small
from bertkit.cli.main import run
from bertkit.errors import RequestError
from bertkit.model.batch import Batch
from bertkit.pretraining.recipe import read_recipe
from bertkit.pretraining.recipe_files import FOLDER
from bertkit.pretraining.stages import read_stages
from bertkit.serve.models import load_models
from bertkit.text.tokenizer import Tokenizer


@pytest.fixture
def package(tmp_path, monkeypatch) -> Path:
    """An empty package folder that the loader looks into, and a working directory without models."""
    folder, here = tmp_path / "package", tmp_path / "here"
    folder.mkdir()
    here.mkdir()
    monkeypatch.setattr(bundled, "bundled_folder", lambda: folder)
    monkeypatch.chdir(here)
    return folder


@pytest.fixture(scope="module")
def tool():
    return script("tools/bundle.py")


@pytest.fixture(scope="module")
def made(tool, tmp_path_factory) -> Path:
    """A bundle with both variants, and the run it is of; the one for sentences has another last layer."""
    folder = tmp_path_factory.mktemp("made")
    save_checkpoint(tiny(), folder / "run" / "model")
    tool.bundle(folder / "run", folder / "bundle")
    variant = load_checkpoint(folder / "bundle")
    with torch.no_grad():
        for parameter in variant.model.encoder.layers[-1].parameters():
            parameter.mul_(0.5)
    save_checkpoint(variant, folder / "tuned")
    tool.bundle_sentences(folder / "tuned", folder / "bundle")
    return folder


@pytest.fixture
def bundle(package, made) -> Path:
    """The package with a copy of it."""
    shutil.copytree(made / "bundle", package, dirs_exist_ok=True)
    return package


def test_nothing_means_the_bundled_model(bundle):
    bert = bertkit.load()
    assert bert.model.config.width == 32
    assert len(bert.fill("the [MASK] falls.")) == 5
    assert bert.embed(["a great film"]).shape == (1, 32)
    assert [(each.word, each.probability) for each in bert.fill("the [MASK] falls.")] == [
        (each.word, each.probability) for each in bertkit.load("bundled").fill("the [MASK] falls.")
    ]


def test_embeddings_are_made_by_the_variant_where_nothing_is_named(bundle):
    bert, named, variant = bertkit.load(), bertkit.load("bundled"), bertkit.load("sentences")
    save_checkpoint(tiny(depth=1), "sentences")  # a folder of that name is not the variant
    assert bert._embedder is None, "it is loaded with the first call"
    np.testing.assert_array_equal(bert.embed(["a film", "the film"]), variant.embed(["a film", "the film"]))
    np.testing.assert_array_equal(bert.similarity(["a film"], ["the"]), variant.similarity(["a film"], ["the"]))
    assert bert.search("a film", ["the", "film"]) == variant.search("a film", ["the", "film"])
    assert (bert.name, bert.embedder.name, named.embedder.name) == ("bundled", "sentences", "bundled")
    assert "embeddings by 'sentences'" in repr(bert)
    assert "embeddings by" not in repr(named)
    for how in ({"pooling": "mean"}, {"layers": -1}, {"pooling": "none"}):
        np.testing.assert_array_equal(bert.embed("a film", **how), named.embed("a film", **how))
    np.testing.assert_array_equal(bert.trace("a film").output, named.trace("a film").output)
    assert bert.embed("a film", normalize=False) == pytest.approx(variant.embed("a film", normalize=False))


def test_the_variant_goes_where_the_model_goes(bundle):
    bert = bertkit.load()
    assert bert.embedder.dtype == "float32"
    assert bert.to("cpu", "bfloat16").embedder.dtype == "bfloat16"
    assert bert.to("cpu", "float32").embedder.dtype == "float32"
    vocabulary = bertkit.load("bundled").tokenizer
    vocabulary.save("vocabulary")
    other = bertkit.load(tokenizer="vocabulary")
    assert other.embedder is other, "the variant was not tuned with another vocabulary"


def test_the_variant_is_not_used_for_changed_weights(bundle):
    bert = bertkit.load()
    assert bert.embedder is not bert
    with torch.no_grad():
        bert.model.encoder.layers[0].attention.out.weight.mul_(2)
    assert bert.embedder is bert
    assert bert.to("cpu", "bfloat16").embedder is bert


def test_embedding_a_file_uses_the_variant_where_nothing_is_named(bundle, capsys):
    Path("texts.txt").write_text("a film\nthe film\n")
    found = {}
    for name, options in {"plain": [], "mean": ["--pooling", "mean"], "model": ["--model", "bundled"]}.items():
        assert run(["embed", "texts.txt", "--out", f"{name}.npy", *options]) == 0
        found[name] = capsys.readouterr().out
    np.testing.assert_allclose(np.load("plain.npy"), bertkit.load().embed(["a film", "the film"]), atol=1e-5)
    np.testing.assert_allclose(np.load("mean.npy"), np.load("model.npy"), atol=1e-5)
    assert found["plain"] == "2 vectors of 32 in plain.npy, by the model 'sentences'\n"
    assert found["mean"].endswith("by the model 'bundled'\n")
    assert found["model"] == "2 vectors of 32 in model.npy\n"
    assert run(["embed", "texts.txt", "--out", "json.npy", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == "sentences"


def test_a_server_embeds_with_the_variant_where_nothing_is_named(bundle):
    sentences = {"source_sentence": "a film", "sentences": ["the"]}
    with running(load_models([], torch.device("cpu"))) as server:
        for path, body, model in [
            ("/v1/embeddings", {"input": "a film"}, "sentences"),
            ("/v1/embeddings", {"input": "a film", "model": "bertkit"}, "bertkit"),
            ("/v1/embeddings", {"input": "a film", "layers": [-1]}, "bertkit"),
            ("/embed", {"inputs": "a film"}, "sentences"),
            ("/embed", {"inputs": "a film", "pooling": "max"}, "bertkit"),
            ("/embed_all", {"inputs": "a film"}, "bertkit"),
            ("/similarity", {"inputs": sentences}, "sentences"),
            ("/rerank", {"query": "a film", "texts": ["the"]}, "sentences"),
            ("/", {"inputs": "a film"}, "sentences"),
            ("/", {"inputs": "a film", "parameters": {"pooling": "max"}}, "bertkit"),
            ("/", {"inputs": sentences}, "sentences"),
            ("/", {"inputs": "the [MASK] falls."}, "bertkit"),
        ]:
            assert server.post(path, body).headers["bertkit-model"] == model, (path, body)
        assert server.post("/v1/embeddings", {"input": "a film"}).json()["model"] == "sentences"
        assert server.post("/fill", {"text": "the [MASK] falls."}).json()["model"] == "bertkit"
        vector = bertkit.Client(server.url).embed("a film")
    np.testing.assert_allclose(vector, bertkit.load("sentences").embed("a film"), atol=1e-5)
    assert list(load_models([], torch.device("cpu"), dtype="int8").by_name) == ["bertkit"], "int8 changes its vectors"


def test_the_variant_has_no_vocabulary_of_its_own_unless_it_is_another(bundle, tmp_path):
    own, found = bertkit.load().tokenizer, bertkit.load("sentences")
    assert found.tokenizer.hash == own.hash
    assert not [*(bundle / "sentences").glob("tok*"), *(bundle / "sentences").glob("voc*")]
    found.save(tmp_path / "alone")
    assert bertkit.load(tmp_path / "alone").tokenizer.hash == own.hash
    cased = Tokenizer.from_vocab(sorted(own.vocab, key=own.vocab.get), lowercase=not own.lowercase)
    save_small(replace(found.checkpoint, tokenizer=cased), bundle / "other", delta=True)
    assert load_checkpoint(bundle / "other").tokenizer.hash == cased.hash != own.hash


def test_the_variant_for_sentences_has_a_name(bundle):
    plain, sentences = bertkit.load("bundled"), bertkit.load("sentences")
    assert sentences.checkpoint.embed.pooling == "mean"
    assert sentences.checkpoint.embed.normalize
    assert np.linalg.norm(sentences.embed("a film")) == pytest.approx(1, abs=1e-5)
    assert not np.allclose(plain.embed("a film", normalize=True), sentences.embed("a film"), atol=1e-3)
    assert len(sentences.fill("the [MASK] falls.")) == 5, "it kept the head of the model that it was tuned from"


def test_what_exists_on_disk_comes_before_a_name(bundle):
    save_checkpoint(tiny(depth=1), "sentences")
    assert bertkit.load("sentences").model.config.depth == 1
    assert bertkit.load(Path("sentences")).model.config.depth == 1
    shutil.rmtree("sentences")
    assert bertkit.load(Path("sentences")).model.config.depth == 3
    with pytest.raises(RequestError, match="sentence is not a folder"):
        bertkit.load("sentence")


def test_without_a_bundle_the_sentence_says_what_to_do(package):
    with pytest.raises(
        RequestError, match=r"no model is bundled with this version: name a folder, as load\('my-model'\)"
    ):
        bertkit.load()
    with pytest.raises(RequestError, match="no model is bundled with this version"):
        bertkit.load("bundled")
    with pytest.raises(
        RequestError, match="no model called 'sentences' is bundled .* there is no folder sentences here"
    ):
        bertkit.load("sentences")
    (package / "config.json").write_text("{}")  # a checkout whose weights were never fetched
    with pytest.raises(RequestError, match="no model is bundled"):
        bertkit.load()


def test_a_truncated_bundle_is_said_in_one_sentence(bundle):
    (bundle / SMALL_FILE).write_bytes((bundle / SMALL_FILE).read_bytes()[:-100])
    for name in (None, "sentences"):
        with pytest.raises(RequestError, match="is truncated or changed: .* install bertkit again"):
            bertkit.load(name)


def test_commands_without_a_model_use_it(bundle, capsys):
    assert run(["fill", "the [MASK] falls.", "--top", "2", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["word"] for row in rows] == [each.word for each in bertkit.load().fill("the [MASK] falls.", top=2)]
    assert run(["convert", "bundled", "full"]) == 0
    assert "ElectraForMaskedLM" in capsys.readouterr().out
    full, own = load_checkpoint("full").model.state_dict(), bertkit.load().model.state_dict()
    assert all(torch.equal(full[name], tensor) for name, tensor in own.items())


def test_commands_without_a_model_say_that_there_is_none(package, capsys):
    assert run(["fill", "the [MASK] falls."]) == 2
    assert "no model is bundled with this version" in capsys.readouterr().err
    Path("train.tsv").write_text("text\tlabel\na film\tgood\nthe film\tbad\n" * 4)
    assert run(["finetune", "classify", "--train", "train.tsv", "--dev", "train.tsv"]) == 2
    assert "no model is bundled" in capsys.readouterr().err
    assert not Path("run").exists()


def test_fine_tuning_starts_from_it(bundle, capsys):
    lines = ["text\tlabel", *(f"a {word} film\t{word}" for word in ("good", "bad") * 8)]
    Path("train.tsv").write_text("\n".join(lines) + "\n")
    words = ["finetune", "classify", "--train", "train.tsv", "--dev", "train.tsv", "epochs=1", "batch=4"]
    assert run([*words, "--out", "taught"]) == 0, capsys.readouterr().err
    assert json.loads(Path("taught/run.json").read_text())["from"] == "bundled"
    assert bertkit.load("taught").classify("a good film").label in ("good", "bad")


def test_the_tool_tells_what_storing_has_cost(package, tool, tmp_path, capsys):
    save_checkpoint(tiny(), tmp_path / "model")
    assert tool.main([str(tmp_path / "model"), "--out", str(package)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["bytes"] == (package / SMALL_FILE).stat().st_size
    assert 0.99 < told["cosine_least"] <= told["cosine_mean"] <= 1.0001
    assert told["cosine_mean"] < 1
    assert 0 < told["worst_logit"] < 0.1 * told["largest_logit"]
    assert told["same_first"] >= told["blanks"] - 2
    assert 0 < told["load_seconds"] < 30


def test_the_tool_replaces_a_bundle_and_its_variant(bundle, tool, tmp_path):
    before = (bundle / SMALL_FILE).read_bytes()
    (bundle / "__init__.py").write_text('"""Stays."""\n')
    save_checkpoint(tiny(seed=4), tmp_path / "better")
    tool.bundle(tmp_path / "better", bundle)
    assert (bundle / SMALL_FILE).read_bytes() != before
    assert (bundle / "__init__.py").is_file()
    assert not (bundle / "sentences").exists(), "its differences were those from another model"
    assert bertkit.load().fill("a [MASK].")


def test_the_tool_writes_how_far_the_model_has_learned_to_read(tool, tmp_path, capsys):
    save_checkpoint(tiny(), tmp_path / "run")
    own = load_checkpoint(tmp_path / "run").max_length
    assert tool.main([str(tmp_path / "run"), "--out", str(tmp_path / "bundle"), "--max-length", "7"]) == 0
    stored = load_checkpoint(tmp_path / "bundle")
    assert (stored.max_length, stored.model.config.max_length) == (7, own)
    for wrong, words in ((own + 1, f"between 3 and the model's own {own}"), (2, "is not between")):
        assert tool.main([str(tmp_path / "run"), "--out", str(tmp_path / "other"), "--max-length", str(wrong)]) == 2
        assert words in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
    assert (
        tool.main([str(tmp_path / "run"), "--out", str(tmp_path / "bundle"), "--sentences", "--max-length", "7"]) == 2
    )


def test_the_tool_refuses(bundle, made, tool, tmp_path, capsys, monkeypatch):
    save_checkpoint(tiny(depth=4), tmp_path / "deeper")
    save_checkpoint(tiny(depth=1), tmp_path / "shallow")
    assert tool.main([str(tmp_path / "shallow"), "--out", str(bundle), "--sentences"]) == 2
    assert "tune the bundled one itself" in capsys.readouterr().err
    kept = {path: path.read_bytes() for path in bundle.rglob("*") if path.is_file()}
    monkeypatch.setattr(tool, "MAX_BYTES", 1000)
    assert tool.main([str(tmp_path / "deeper"), "--out", str(bundle)]) == 2
    assert "over the 1,000 that a bundle may have" in capsys.readouterr().err
    assert tool.main([str(made / "run"), "--out", str(bundle), "--sentences"]) == 2
    assert kept == {path: path.read_bytes() for path in bundle.rglob("*") if path.is_file()}


def test_a_headless_variant_keeps_the_heads_of_the_bundle(bundle, tool, tmp_path):
    save_checkpoint(tiny(heads=()), tmp_path / "headless")
    tool.bundle_sentences(tmp_path / "headless", bundle)
    assert "masked_word" in bertkit.load("sentences").model.heads


def test_the_wheel_takes_the_bundle_along(bundle):
    """Every file that the tool writes is named by package-data, and nothing in the package folder is code."""
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    named = {path for pattern in patterns["bertkit.pretrained"] for path in bundle.glob(pattern) if path.is_file()}
    assert named == {path for path in bundle.rglob("*") if path.is_file()}
    assert [path.name for path in (ROOT / "src/bertkit/pretrained").glob("*.py")] == ["__init__.py"]


def test_the_package_folder_is_where_the_loader_looks():
    assert bundled.bundled_folder() == Path(bertkit.__file__).parent / "pretrained"


def test_what_the_package_holds_is_whole():
    weights = sorted(bundled.bundled_folder().rglob(SMALL_FILE))
    assert weights
    assert sum(path.stat().st_size for path in weights) <= script("tools/bundle.py").MAX_BYTES
    for path in weights:
        assert load_checkpoint(path.parent).report.new == ()


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("The president of the United [MASK] lives in the White House.", "states"),
        ("The book was written [MASK] a young author.", "by"),
        ("They [MASK] been friends for years.", "have"),
    ],
)
def test_the_model_inside_fills_easy_blanks(text, word):
    """Far from chance: 1 in 30,522."""
    best = bertkit.load().fill(text, top=1)[0]
    assert best.word == word
    assert best.probability > 0.5


def test_loading_leaves_the_compiler_alone():
    """It takes longer to import than a model takes to load; once, drawing numbers without memory brought it in."""
    code = "import sys, bertkit; bertkit.load(); sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_model_inside_reads_as_far_as_it_was_taught():
    """A blank at the end of 400 tokens is filled as in a short text; before, positions beyond 128 were noise."""
    bert = bertkit.load()
    assert bert.checkpoint.max_length == 512
    with pytest.warns(UserWarning, match="512"):
        assert bert.embed("word " * 600).shape == (256,)
    filler = "The committee met again in the morning and talked about the weather of the past week. " * 22
    assert bert.fill(f"{filler}The book was written [MASK] a young author.", top=1)[0].word == "by"


# A sentence, the same in other words, and another with its words.
SAID_AGAIN = (
    ("How do I reset my password?", "I forgot my login and need a new one.", "How do I get to the station?"),
    ("The king died in battle.", "The ruler was killed in the war.", "The king ate in the hall."),
    ("Add salt to the soup.", "Season the broth.", "Add a name to the list."),
    ("A man is playing a guitar.", "Someone performs music on a string instrument.", "A man is playing football."),
    ("The firm lost money this year.", "The company made no profit.", "The team lost a match this year."),
    ("She is afraid of dogs.", "Dogs frighten her.", "She is fond of dogs and cats."),
    ("The flight was cancelled because of snow.", "Bad weather stopped the plane.", "The concert was cancelled again."),
    ("Prices rose sharply.", "Things became much more expensive.", "Smoke rose slowly."),
    ("The doctor examined the patient.", "A physician checked the sick man.", "The teacher examined the pupil."),
    ("It is raining heavily.", "There is a downpour.", "It is growing quickly."),
)


def test_the_variant_for_sentences_knows_what_is_said_again_in_other_words():
    """Most of the time: 9 of 10 when it was made, where the model that it was tuned from had 3."""

    def right(bert: bertkit.Bert) -> int:
        pairs = [bert.similarity([text], others)[0] for text, *others in SAID_AGAIN]
        return sum(bool(same > other) for same, other in pairs)

    assert right(bertkit.load()) >= 8 > right(bertkit.load("bundled")) + 2


def test_the_model_inside_is_transformers_too(tmp_path):
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    bert = bertkit.load()
    bert.save(tmp_path / "full")
    theirs = AutoModelForMaskedLM.from_pretrained(tmp_path / "full").eval()
    encoded = AutoTokenizer.from_pretrained(tmp_path / "full")("Paris is the [MASK] of France.", return_tensors="pt")
    with torch.inference_mode():
        logits = theirs(**encoded).logits[0]
        ours = bert.model.logits(Batch.from_padded(encoded["input_ids"]), "masked_word")
    torch.testing.assert_close(ours, logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("bundled*.toml")), ids=lambda path: path.stem)
def test_every_position_is_trained_and_the_expectation_is_written_down(path):
    recipe = read_recipe(path, "shards=x")
    stages = read_stages(recipe.train.stages, recipe.train.batch, recipe.data)
    assert stages[-1].data.length == recipe.model.max_length == 512
    assert len({stage.data.block * stage.data.length for stage in stages}) == 1, "each stage fills the device as well"
    assert recipe.model.dropout == recipe.model.attention_dropout == 0
    comment = [line for line in path.read_text(encoding="utf-8").splitlines()[1:4] if line.startswith("# ")]
    assert comment
    assert comment[0].startswith("# Measured: ")
