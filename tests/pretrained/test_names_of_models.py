"""`bundled` and `sentences` stand for folders wherever a model or vocabulary is named; what is on disk comes first."""

import inspect
import json
import shutil
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from small_models import PIECES, script, tiny

import bertkit
from bertkit.checkpoint import bundled
from bertkit.checkpoint.bundled import model_folder, tokenizer_folder
from bertkit.checkpoint.save_load import load_checkpoint, save_checkpoint
from bertkit.cli.main import VERBS, run
from bertkit.serve.models import load_models
from bertkit.text.tokenizer import Tokenizer

NAMES = ("bundled", "sentences")
CONLLU = """1\tthe\tthe\tDET\t_\t_\t2\tdet\t_\t_
2\tfilm\tfilm\tNOUN\t_\t_\t3\tnsubj\t_\t_
3\tfalls\tfall\tVERB\t_\t_\t0\troot\t_\t_

"""
SETTINGS = ["shards=shards", "steps=1", "batch=4", "block=4", "length=16", "objective=mlm", "warmup=0"]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A package folder with a bundle and its variant."""
    folder, tool = tmp_path_factory.mktemp("made"), script("tools/bundle.py")
    save_checkpoint(tiny(), folder / "model")
    tool.bundle(folder / "model", folder / "bundle")
    variant = load_checkpoint(folder / "bundle")
    with torch.no_grad():
        for parameter in variant.model.encoder.layers[-1].parameters():
            parameter.mul_(0.5)
    save_checkpoint(variant, folder / "tuned")
    tool.bundle_sentences(folder / "tuned", folder / "bundle")
    return folder / "bundle"


@pytest.fixture
def here(made, tmp_path, monkeypatch) -> Path:
    """A working directory with files for every verb, and no model."""
    monkeypatch.setattr(bundled, "bundled_folder", lambda: made)
    monkeypatch.chdir(tmp_path)
    rows = ["text\tlabel", *(f"a {word} film\t{word}" for word in ("good", "bad") * 8)]
    Path("rows.tsv").write_text("\n".join(rows) + "\n")
    Path("tasks/SST-2").mkdir(parents=True)
    for name in ("train", "dev"):
        shutil.copy("rows.tsv", f"tasks/SST-2/{name}.tsv")
    Path("pairs.tsv").write_text("one\ttwo\n" + "a good film\tthe great film\nthe river runs\tthe cloud falls\n" * 8)
    Path("text.txt").write_text("the rivers run.\nthe stone falls.\na good film.\na film runs.\nthe bad film.\n\n" * 20)
    Path("trees.conllu").write_text(CONLLU * 8)
    Path("recipe.toml").write_text("")
    return tmp_path


TRAIN = ["--train", "rows.tsv", "--dev", "rows.tsv", "epochs=1", "batch=8"]
PAIRS = ["--train", "pairs.tsv", "text=one", "pair=two", "epochs=1"]
RANKS = ["--from", "1", "--to", "4", "--negatives", "2", "--out", "mined.jsonl"]
# Every way to name a model or a vocabulary on the command line; {} is the name.
COMMANDS = {
    "vocab --extend": ["vocab", "text.txt", "--extend", "{}", "--size", "22", "--min-count", "1", "--out", "out"],
    "shards --vocab": ["shards", "text.txt", "--vocab", "{}", "--out", "out", "--processes", "1"],
    "pretrain --from": ["pretrain", "recipe.toml", *SETTINGS, "--from", "{}", "--out", "out"],
    "finetune --from": ["finetune", "classify", "--from", "{}", *TRAIN, "--out", "out"],
    "finetune vectors --from": ["finetune", "vectors", "--from", "{}", *PAIRS, "--out", "out"],
    "finetune vectors --teacher": ["finetune", "vectors", "--teacher", "{}", *PAIRS, "--out", "out"],
    "finetune glue --from": ["finetune", "glue", "tasks", "--from", "{}", "epochs=1", "--out", "out"],
    "check --model": ["check", "rows.tsv", "--model", "{}"],
    "embed --model": ["embed", "text.txt", "--model", "{}", "--out", "out.npy"],
    "index --model": ["index", "text.txt", "--on-error", "skip", "--model", "{}", "--out", "index"],
    "mine --model": ["mine", "pairs.tsv", "text=one", "pair=two", "--corpus", "text.txt", *RANKS, "--model", "{}"],
    "evaluate": ["evaluate", "{}", "rows.tsv"],
    "fill --model": ["fill", "the [MASK] falls.", "--model", "{}"],
    "look --model": ["look", "the film falls.", "--model", "{}", "--out", "out.html"],
    "look --runs": ["look", "--runs", "{}", "--runs", "{}"],
    "heads --model": ["heads", "the film falls.", "--model", "{}"],
    "why --model": ["why", "the [MASK] falls.", "--model", "{}"],
    "why --fill-model": ["why", "a good film", "--model", "taught", "--flip", "--fill-model", "{}"],
    "tokenize --model": ["tokenize", "a good film", "--model", "{}"],
    "info": ["info", "{}"],
    "probe --model": ["probe", "trees.conllu", "trees.conllu", "--model", "{}", "--task", "pos"],
    "senses --model": ["senses", "film", "text.txt", "--model", "{}"],
    "convert": ["convert", "{}", "out"],
    "convert --tokenizer": ["convert", "bundled", "out", "--tokenizer", "{}"],
}
# Verbs that need another head than that of masked words: the name is understood, and the head is missing.
TAUGHT = {
    "predict": ["predict", "{}", "rows.tsv", "--out", "out.jsonl"],
    "finetune --teacher": ["finetune", "classify", "--teacher", "{}", *TRAIN, "--out", "out"],
    "follows --model": ["follows", "a film.", "it falls.", "--model", "{}"],
    "replaced --model": ["replaced", "a good film", "--model", "{}"],
    "write --model": ["write", "a good film", "--model", "{}"],
}
MISSING = {"follows": "no next-sentence head", "replaced": "no replaced-token head", "write": "cannot write"}


OPTIONS = {"--from", "--model", "--teacher", "--extend", "--vocab", "--fill-model", "--tokenizer", "--runs"}
ELSEWHERE = {
    "bench --model",
    "predict --model",
    "evaluate --model",
    "info --model",
    "look --fill-model",
    "search --model",
}
# A name that the server knows; arguments by their place; an old spelling; that of an index, which has its model.


def test_every_option_that_names_a_model_is_in_the_tables():
    known = {(words[0], word) for words in [*COMMANDS.values(), *TAUGHT.values()] for word in words}
    for verb in VERBS:
        parameters = inspect.signature(getattr(import_module(f"bertkit.cli.{verb}"), verb)).parameters
        options = {f"--{name.replace('_', '-')}".replace("--start", "--from") for name in parameters} & OPTIONS
        missing = {f"{verb} {option}" for option in options if (verb, option) not in known}
        assert missing <= ELSEWHERE


def named(words: list[str], name: str) -> list[str]:
    return [word.format(name) if word == "{}" else word for word in words]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("command", COMMANDS)
def test_every_verb_knows_the_names(here, command, name, capsys):
    if command == "pretrain --from":
        assert run(["shards", "text.txt", "--vocab", name, "--out", "shards", "--processes", "1"]) == 0
    if command == "why --fill-model":
        assert run(["finetune", "classify", *TRAIN, "--out", "taught"]) == 0
    assert run(named(COMMANDS[command], name)) == 0, capsys.readouterr().err


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("command", TAUGHT)
def test_verbs_for_taught_models_know_the_names_too(here, command, name, capsys):
    assert run(named(TAUGHT[command], name)) == 2
    assert MISSING.get(TAUGHT[command][0], "this model has no head for a task") in capsys.readouterr().err


@pytest.mark.parametrize("name", NAMES)
def test_servers_and_python_know_the_names(here, made, name):
    for given in (name, f"other={name}"):
        served = load_models([given], torch.device("cpu")).named(None)
        np.testing.assert_allclose(served.bert.embed("a film"), bertkit.load(name).embed("a film"), atol=1e-6)
    save_checkpoint(tiny(), "model")
    assert bertkit.load("model", tokenizer=name).tokenizer.hash == Tokenizer.load(made).hash


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_of_that_name_comes_first_everywhere(here, name, capsys):
    """Another vocabulary and another depth show which one was taken."""
    other = tiny(depth=1)
    words = [piece if piece != "apple" else "film2" for piece in PIECES]
    own = Tokenizer.from_vocab(words)
    save_checkpoint(other, "plain")
    shutil.copytree("plain", name)
    own.save(Path(name))
    assert (model_folder(name), tokenizer_folder(name)) == (Path(name), Path(name))
    assert run(["shards", "text.txt", "--vocab", name, "--out", "shards", "--processes", "1"]) == 0
    assert run(["vocab", "text.txt", "--extend", name, "--size", "22", "--min-count", "1", "--out", "vocab"]) == 0
    assert run(["convert", name, "converted"]) == 0
    assert run(["convert", "plain", "worded", "--tokenizer", name]) == 0
    for found in ("shards/tokenizer", "vocab", "converted", "worded"):
        assert "film2" in Tokenizer.load(found).vocab
    assert bertkit.load(name).model.config.depth == 1


def test_a_run_stands_for_its_model_and_a_variant_for_the_words_above_it(here, made):
    save_checkpoint(tiny(), "run/model")
    assert tokenizer_folder("run") == model_folder("run") == Path("run/model")
    assert model_folder("sentences") == made / "sentences"
    assert tokenizer_folder("sentences") == made
    assert tokenizer_folder("run/model/vocab.txt") == Path("run/model/vocab.txt")


def test_the_model_that_was_used_is_told(here):
    assert run(["finetune", "classify", "--from", "sentences", *TRAIN, "--out", "taught"]) == 0
    assert json.loads(Path("taught/run.json").read_text())["from"] == "sentences"
