"""A training's history: from a run's checkpoints, or from models in order."""

import json
import random
import shutil
from dataclasses import replace

import pytest

from bertkit.cli.main import run
from bertkit.errors import RequestError
from bertkit.inside.look.heads import catalogue
from bertkit.inside.look.reading import read
from bertkit.inside.probes.data import ProbeSettings
from bertkit.inside.probes.probe import probe
from bertkit.inside.through_training import HistorySettings, _kinds, find_checkpoints, through_training
from bertkit.predict.bert import load
from bertkit.pretraining.pretraining import pretrain
from bertkit.pretraining.recipe import build_recipe
from bertkit.text.shards.writer import write_shards

pytestmark = pytest.mark.usefixtures("_one_thread")
NOUNS, VERBS = ("river", "stone", "cloud"), ("runs", "sings", "falls")
TEXTS = ("the river [MASK]", "a stone sings")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of 12 steps that keeps three checkpoints and evaluates twice; and tagged sentences."""
    folder, draw = tmp_path_factory.mktemp("history"), random.Random(0)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "the", "a", *NOUNS, *VERBS]
    (folder / "vocab").mkdir()
    (folder / "vocab" / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    lines = [f"{draw.choice(['the', 'a'])} {draw.choice(NOUNS)} {draw.choice(VERBS)}." for _ in range(200)]
    (folder / "text.txt").write_text("\n".join(lines))
    write_shards([folder / "text.txt"], folder / "vocab", folder / "shards", processes=1)
    settings = {"size": "tiny", "width": "16", "depth": "2", "heads": "2", "inner": "32", "max_length": "32"}
    settings |= {"length": "24", "objective": "mlm", "block": "4", "steps": "12", "batch": "8", "warmup": "2"}
    settings |= {"save_every": "4", "keep": "9", "evaluate_every": "6", "learning_rate": "0.003"}
    shards = str(folder / "shards")
    pretrain(build_recipe(settings | {"shards": shards, "heldout": shards}), folder / "run")
    rows = []
    for line in lines[:60]:
        words = zip(line[:-1].split(), ("DET", "NOUN", "VERB"), strict=True)
        rows += [f"{n}\t{word}\t_\t{tag}\t_\t_\t0\t_\t_\t_" for n, (word, tag) in enumerate(words, start=1)]
        rows.append("")
    (folder / "tags.conllu").write_text("\n".join(rows) + "\n")
    return folder


@pytest.fixture(scope="module")
def history(trained):
    settings = HistorySettings(texts=TEXTS, probe=(trained / "tags.conllu",))
    return through_training([trained / "run"], settings)


def test_every_checkpoint_is_looked_at(history, trained):
    assert [stage.step for stage in history.stages] == [4, 8, 12]
    assert history.title == "run"
    for stage in history.stages:
        bert = load(trained / "run" / "checkpoints" / f"step-{stage.step:08d}" / "model")
        kinds = [head.kind for head in catalogue(read(bert, text) for text in TEXTS)]
        assert stage.heads == {kind: kinds.count(kind) for kind in kinds}
        assert sum(stage.heads.values()) == 4
        filled = [each.word for each in bert.fill(TEXTS[0], whole_words=False)]
        assert stage.filled == ({"text": TEXTS[0], "words": filled},)


def test_the_probe_is_that_of_bertkit_probe(history, trained):
    bert = load(trained / "run" / "checkpoints" / "step-00000012" / "model")
    twin = probe(bert, [trained / "tags.conllu"], ProbeSettings(what="pos"))
    assert history.stages[-1].accuracy == pytest.approx([layer.accuracy for layer in twin.layers], abs=0.02)
    assert history.notes[0] == "the last 12 of 60 sentences are held out"


def test_the_runs_own_numbers_are_there(history):
    assert [step for step, _ in history.held_out["mlm_loss"]] == [6, 12]


def test_page_json_and_lines(history, tmp_path):
    history.save(tmp_path / "history.html")
    page = (tmp_path / "history.html").read_text()
    for part in (
        "Accuracy of part-of-speech probes",
        "Number of heads that look at",
        "mlm loss",
        "the river [MASK]",
        "step 12",
        "default-src 'none",
    ):
        assert part in page
    assert "<script" not in page
    assert "<svg" not in page, "three points are a table"
    step = history.stages[-1]
    more = replace(history, stages=(*history.stages, replace(step, step=16)))
    assert more.html.count("<svg") == 2 + len(_kinds(more)), "four are charts; held-out numbers are of two steps"
    assert json.loads((tmp_path / "history.json").read_text())["stages"][0]["step"] == 4
    head, *rows = str(history).splitlines()
    assert head.split()[0] == "step"
    assert [row.split()[0] for row in rows[:3]] == ["4", "8", "12"]


def test_models_in_order_need_no_run(trained, tmp_path, capsys):
    models = [trained / "run" / "checkpoints" / f"step-{step:08d}" / "model" for step in (4, 12)]
    words = [word for model in models for word in ("--runs", str(model))]
    out = tmp_path / "history.html"
    assert run(["look", "a <b>[MASK]", *words, "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["runs"]
    assert [stage["step"] for stage in found["stages"]] == [1, 2]
    assert found["along"] == "model"
    assert found["stages"][0]["accuracy"] is None
    assert found["held_out"] == {}
    page = out.read_text()
    assert "2 models: through training" in page
    assert "a &lt;b&gt;[MASK]" in page
    assert "<b>[MASK]" not in page
    assert run(["look", *words, "--out", str(out)]) == 2
    assert "exists already" in capsys.readouterr().err


def test_a_page_is_not_written_over_its_numbers(history, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(["look", "--runs", "one", "--runs", "two", "--out", "x.json"]) == 2
    assert "x.json would be an HTML page: name it x.html" in capsys.readouterr().err
    with pytest.raises(RequestError, match="name a page, such as x.html"):
        history.save("x.JSON")
    assert not list(tmp_path.iterdir())


def test_a_model_without_the_head_has_no_fills(tiny_bert, tmp_path):
    for name in ("one", "two"):
        tiny_bert(heads=()).save(tmp_path / name)
    history = through_training([tmp_path / "one", tmp_path / "two"], HistorySettings(texts=("a cab",)))
    assert history.stages[0].filled == ()
    assert "nothing recorded" in history.html


def test_one_checkpoint_or_none_is_one_sentence(trained, tmp_path):
    shutil.copytree(trained / "run", tmp_path / "run")
    for old in sorted((tmp_path / "run" / "checkpoints").iterdir())[:-1]:
        shutil.rmtree(old)
    with pytest.raises(
        RequestError, match="has one checkpoint, step-00000012; the curves need two or more: .* keep=20"
    ):
        find_checkpoints([tmp_path / "run"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(RequestError, match="empty has no checkpoints"):
        find_checkpoints([tmp_path / "empty"])
    with pytest.raises(RequestError, match="nowhere is not a folder"):
        find_checkpoints([tmp_path / "nowhere"])
    (tmp_path / "run" / "checkpoints" / "step-00000020").mkdir()
    with pytest.raises(RequestError, match=r"state\.json"):
        find_checkpoints([tmp_path / "run"])
