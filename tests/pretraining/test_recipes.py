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
from bertkit.pretraining.recipe_files import FOLDER, recipe_files
from bertkit.text.corpus import CorpusReport, read_documents
from bertkit.text.shards.writer import write_shards
from bertkit.text.vocabulary.build import VocabularySettings, make_vocabulary

ROOT = Path(__file__).parents[2]
RECIPES = sorted((FOLDER).glob("*.toml"))
# Parameters of the encoder without pooler, in millions, with the released vocabulary of 30,522 (ALBERT's of 30,000).
MILLIONS = {"tiny-cpu": 4.3, "bundled-both": 13.5, "bundled-words": 13.5}
DOCUMENTED = {"bert": 108.9, "albert": 11.1, "electra": 13.5, "continued": 108.9}  # in the order of the page
GO_ON = ("bundled-words", "continued")  # from a model whose shape replaces the usual one
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


@pytest.fixture
def recipe_path(request, tmp_path) -> Path:
    """A recipe of the folder, or one that docs/pretraining.md shows."""
    if request.param in MILLIONS:
        return FOLDER / f"{request.param}.toml"
    shown = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "pretraining.md").read_text(encoding="utf-8"), re.DOTALL)
    path = tmp_path / "shown.toml"
    path.write_text(dict(zip(DOCUMENTED, shown, strict=True))[request.param], encoding="utf-8")
    return path


every_recipe = pytest.mark.parametrize("recipe_path", [*MILLIONS, *DOCUMENTED], indirect=True)


def test_the_recipes_are_all_there():
    assert {path.stem for path in RECIPES} == set(MILLIONS)
    pages = [page.stem for page in (ROOT / "docs").glob("*.md") if "```toml" in page.read_text(encoding="utf-8")]
    assert pages == ["pretraining"], "a recipe on another page would not be tested"


@pytest.mark.parametrize("path", RECIPES, ids=name)
def test_the_first_line_is_its_command(path):
    line = path.read_text(encoding="utf-8").splitlines()[0]
    command = re.fullmatch(r"# (bertkit pretrain .+? --out run): (.+)", line)
    assert command, line
    words = shlex.split(command[1])
    assert words[2:4] == [path.stem, "shards=SHARDS"]
    assert ("--from" in words) == (path.stem in GO_ON)
    assert "measured" in command[2]
    assert "not measured" not in command[2]


@every_recipe
def test_a_recipe_leaves_the_shards_to_the_command_line(recipe_path):
    path = recipe_path
    with pytest.raises(RequestError, match=r"say where the shards are: shards=FOLDER"):
        read_recipe(path)
    recipe = read_recipe(path, "shards=somewhere")
    assert recipe.shards == Path("somewhere")
    assert recipe.train.batch % recipe.data.block == 0
    assert recipe.data.length <= recipe.model.max_length
    assert (recipe.train.steps is None) != (recipe.train.minutes is None)
    assert recipe.train.steps is None or recipe.train.warmup < recipe.train.steps / 10


@every_recipe
def test_the_model_has_the_size_that_it_should(recipe_path, request):
    with torch.device("meta"):
        model = BertModel(read_recipe(recipe_path, "shards=x").model)
    name = request.node.callspec.params["recipe_path"]
    assert round(parameter_count(model) / 1e6, 1) == (MILLIONS | DOCUMENTED)[name]


@pytest.mark.parametrize("recipe_path", sorted({*MILLIONS, *DOCUMENTED} - {*GO_ON}), indirect=True)
def test_a_small_one_of_it_trains(recipe_path, shards, tmp_path):
    path = recipe_path
    report = pretrain(read_recipe(path, f"shards={shards}", *SMALL), tmp_path / "run", device="cpu")
    assert report.progress.step == 2
    asked = {"nsp": "pair", "sop": "pair"}
    objective = read_recipe(path, "shards=x").data.objective
    expected = {asked.get(name, name) for name in objective} | ({"mlm"} if "rtd" in objective else set())
    assert set(report.losses) == expected
    assert all(0 < loss < 20 for loss in report.losses.values())
    loaded = load_checkpoint(tmp_path / "run" / "model").model
    assert loaded.config.family == read_recipe(path, "shards=x").model.family


@pytest.mark.parametrize("recipe_path", GO_ON, indirect=True)
def test_some_carry_on_from_a_model(recipe_path, shards, tmp_path):
    small = [f"shards={shards}", *SMALL]
    pretrain(read_recipe(FOLDER / "tiny-cpu.toml", *small), tmp_path / "first", device="cpu")
    start = tmp_path / "first" / "model"
    recipe = read_recipe(recipe_path, f"shards={shards}", *SMALL[4:])
    pretrain(recipe, tmp_path / "second", start=start, device="cpu")
    before, after = (load_checkpoint(path).model.state_dict() for path in (start, tmp_path / "second" / "model"))
    assert before.keys() == after.keys()
    largest = max((after[key] - before[key]).abs().max().item() for key in before)
    assert 0 < largest < 1e-3, "two steps at the first rates of a warm-up move a model, and only a little"


def test_a_recipe_is_found_by_its_name_wherever_one_is(tmp_path, monkeypatch, command_here):
    monkeypatch.chdir(tmp_path)
    for name in recipe_files():
        found = read_recipe(name, "shards=x")
        assert (
            found == read_recipe(FOLDER / f"{name}.toml", "shards=x") == read_recipe(f"recipes/{name}.toml", "shards=x")
        )
    (tmp_path / "tiny-cpu").write_text("depth = 1\n[train]\nsteps = 7\n")
    assert read_recipe("tiny-cpu", "shards=x").train.steps == 7, "a file of one's own comes first"
    with pytest.raises(RequestError, match="unknown file or recipe 'tiny-gpu'; .*did you mean 'tiny-cpu'"):
        read_recipe("tiny-gpu")
    listed = command_here("recipes").stdout.splitlines()
    assert listed[2].split(maxsplit=1) == ["tiny-cpu", "two minutes on two cores; measured: mlm loss 5.7"]
    assert len(listed) == len(recipe_files())
    assert command_here("recipes", "family/bert").stdout == (FOLDER / "family" / "bert.toml").read_text()


def test_a_wrong_key_is_named(tmp_path):
    path = tmp_path / "wrong.toml"
    path.write_text((FOLDER / "tiny-cpu.toml").read_text().replace("warmup", "warm_up"))
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
