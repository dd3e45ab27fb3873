"""Every recipe reads, builds, trains a step at reduced size, and says in its first line how it is run."""

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bertkit.checkpoint.save_load import load_checkpoint
from bertkit.errors import RequestError
from bertkit.model.model import BertModel, parameter_count
from bertkit.pretraining.pretraining import pretrain
from bertkit.pretraining.recipe import read_recipe
from bertkit.text.corpus import CorpusReport, read_documents
from bertkit.text.shards.writer import write_shards
from bertkit.text.vocabulary.build import VocabularySettings, make_vocabulary

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "recipes").glob("*.toml"))
# Numbers in the encoder without pooler, in millions, with the released vocabulary of 30,522 (ALBERT's of 30,000).
MILLIONS = {
    "tiny-cpu": 4.3,
    "mini": 11.1,
    "small": 28.5,
    "base": 108.9,
    "electra-small": 13.5,
    "roberta-style": 108.9,
    "albert-style": 11.1,
    "whole-word": 108.9,
    "domain": 108.9,
    "bundled": 13.5,
    "bundled-both": 13.5,
    "bundled-electra": 13.5,
    "bundled-muon": 13.5,
    "bundled-words": 13.5,
}
GO_ON = ("domain", "bundled-words")  # from a model whose shape replaces the usual one
SMALL = ["depth=2", "width=32", "heads=4", "inner=64", "length=32", "batch=4", "block=4", "minutes=none", "steps=2"]
SMALL += ["stages="]


@pytest.fixture(scope="module")
def shards(tmp_path_factory) -> Path:
    """Docstrings of thirty modules as shards."""
    folder = tmp_path_factory.mktemp("recipes")
    docstrings().write_corpus(folder / "corpus.txt", 30)
    make_vocabulary([folder / "corpus.txt"], VocabularySettings(size=500)).save(folder / "vocab")
    write_shards([folder / "corpus.txt"], folder / "vocab", folder / "shards", processes=1)
    return folder / "shards"


def docstrings():
    spec = importlib.util.spec_from_file_location("docstrings", ROOT / "tools" / "docstrings.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def name(path: Path) -> str:
    return path.stem


def test_the_recipes_are_all_there():
    assert {path.stem for path in RECIPES} == set(MILLIONS)
    assert len(RECIPES) == 14


@pytest.mark.parametrize("path", RECIPES, ids=name)
def test_the_first_line_is_its_command(path):
    line = path.read_text(encoding="utf-8").splitlines()[0]
    command = re.fullmatch(r"# (bertkit pretrain .+? --out run): (.+)", line)
    assert command, line
    words = shlex.split(command[1])
    assert words[2:4] == [f"recipes/{path.name}", "shards=SHARDS"]
    assert ("--from" in words) == (path.stem in GO_ON)
    assert "measured" in command[2], "what to expect is measured, or it says that it is not"


@pytest.mark.parametrize("path", RECIPES, ids=name)
def test_a_recipe_leaves_the_shards_to_the_command_line(path):
    with pytest.raises(RequestError, match=r"say where the shards are: shards=FOLDER"):
        read_recipe(path)
    recipe = read_recipe(path, "shards=somewhere")
    assert recipe.shards == Path("somewhere")
    assert recipe.train.batch % recipe.data.block == 0
    assert recipe.data.length <= recipe.model.max_length
    assert (recipe.train.steps is None) != (recipe.train.minutes is None)
    assert recipe.train.steps is None or recipe.train.warmup < recipe.train.steps / 10


@pytest.mark.parametrize("path", RECIPES, ids=name)
def test_the_model_has_the_size_that_it_should(path):
    with torch.device("meta"):
        model = BertModel(read_recipe(path, "shards=x").model)
    assert round(parameter_count(model) / 1e6, 1) == MILLIONS[path.stem]


@pytest.mark.parametrize("path", [path for path in RECIPES if path.stem not in GO_ON], ids=name)
def test_a_small_one_of_it_trains(path, shards, tmp_path):
    report = pretrain(read_recipe(path, f"shards={shards}", *SMALL), tmp_path / "run", device="cpu")
    assert report.progress.step == 2
    asked = {"nsp": "pair", "sop": "pair"}
    objective = read_recipe(path, "shards=x").data.objective
    expected = {asked.get(name, name) for name in objective} | ({"mlm"} if "rtd" in objective else set())
    assert set(report.losses) == expected
    assert all(0 < loss < 20 for loss in report.losses.values())
    loaded = load_checkpoint(tmp_path / "run" / "model").model
    assert loaded.config.family == read_recipe(path, "shards=x").model.family


@pytest.mark.parametrize("name", GO_ON)
def test_some_carry_on_from_a_model(name, shards, tmp_path):
    small = [f"shards={shards}", *SMALL]
    pretrain(read_recipe(ROOT / "recipes" / "tiny-cpu.toml", *small), tmp_path / "first", device="cpu")
    start = tmp_path / "first" / "model"
    recipe = read_recipe(ROOT / "recipes" / f"{name}.toml", f"shards={shards}", *SMALL[4:])
    pretrain(recipe, tmp_path / "second", start=start, device="cpu")
    before, after = (load_checkpoint(path).model.state_dict() for path in (start, tmp_path / "second" / "model"))
    assert before.keys() == after.keys()
    largest = max((after[key] - before[key]).abs().max().item() for key in before)
    assert 0 < largest < 1e-3, "two steps at the first rates of a warm-up move a model, and only a little"


def test_a_wrong_key_is_named(tmp_path):
    path = tmp_path / "wrong.toml"
    path.write_text((ROOT / "recipes" / "mini.toml").read_text().replace("warmup", "warm_up"))
    with pytest.raises(RequestError, match=r"wrong\.toml: unknown setting 'warm_up'"):
        read_recipe(path, "shards=x")


def test_docstrings_make_a_corpus(tmp_path):
    out = tmp_path / "corpus.txt"
    command = [sys.executable, str(ROOT / "tools" / "docstrings.py"), str(out), "--modules", "20"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("20 documents, ")
    first = out.read_bytes()
    report = CorpusReport()
    documents = list(read_documents([out], report=report))
    assert len(documents) == 20
    assert not report.notes
    assert all(">>>" not in paragraph for document in documents for paragraph in document.paragraphs)
    subprocess.run(command, capture_output=True, check=True)
    assert out.read_bytes() == first
