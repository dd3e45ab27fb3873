"""Chains: each task starts from the model of the one before, and finished steps are not repeated."""

import json
import shutil
from pathlib import Path

import pytest
import tiny
import torch

import bertkit
from bertkit.checkpoint.save_load import load_checkpoint
from bertkit.cli.main import run
from bertkit.finetuning.chain import read_step

QUICK = {"epochs": 1, "batch": 16, "learning_rate": 3e-3}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return tiny.tiny_folder(tmp_path_factory.mktemp("tiny") / "model")


def step(folder: Path, task: str, **settings):
    (folder / task).mkdir(exist_ok=True)
    train, dev = tiny.files(folder / task, task)
    return {"task": task, "train": train, "dev": dev, **QUICK, **settings}


def test_each_step_starts_from_the_model_before(model, tmp_path):
    steps = [step(tmp_path, "classify"), step(tmp_path, "tag"), step(tmp_path, "choose")]
    results = bertkit.finetune_chain(steps, model, tmp_path / "chain")
    assert [result.folder.name for result in results] == ["1-classify", "2-tag", "3-choose"]
    assert all(result.finished for result in results)
    settings = [json.loads((result.folder / "run.json").read_text()) for result in results]
    starts = [str(model), *(str(result.folder / "model") for result in results[:-1])]
    assert [each["from"] for each in settings] == starts
    alone = bertkit.finetune(**steps[2], model=results[1].folder / "model", out=tmp_path / "alone")
    tensors = [load_checkpoint(folder).model.state_dict() for folder in (alone.folder, tmp_path / "chain")]
    same = zip(*(each.values() for each in tensors), strict=True)
    assert all(torch.equal(one, other) for one, other in same), "the chain is the same runs, one by one"
    page = (tmp_path / "chain/report.html").read_text()
    for result in results:
        assert f'href="{result.folder.name}/report.html"' in page
        assert (result.folder / "report.html").is_file()
    # Stopped in its last step: the others are read, and not trained again.
    shutil.rmtree(tmp_path / "chain/3-choose")
    shutil.rmtree(tmp_path / "chain/model")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "chain").rglob("result.json")}
    again = bertkit.finetune_chain(steps, model, tmp_path / "chain", resume=True)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert again[2].scores == results[2].scores
    assert (tmp_path / "chain/model/config.json").is_file()
    with pytest.raises(bertkit.RequestError, match="exists"):
        bertkit.finetune_chain(steps, model, tmp_path / "chain")
    with pytest.raises(bertkit.RequestError, match="begun with epochs=1"):
        bertkit.finetune_chain([{**steps[0], "epochs": 2}, *steps[1:]], model, tmp_path / "chain", resume=True)


def test_the_command_line_has_it_as_then(model, tmp_path, capsys):
    first, second = step(tmp_path, "multilabel"), step(tmp_path, "classify")
    then = f"classify,train={second['train']},dev={second['dev']},epochs=1,batch=16"
    words = ["finetune", "multilabel", "--from", model, "--train", first["train"], "--dev", first["dev"]]
    words += ["--out", tmp_path / "chain", "--then", then, "epochs=1", "batch=16"]
    assert run([str(word) for word in words]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("1-multilabel: ")
    assert printed[1].startswith("2-classify: ")
    assert run([str(word) for word in [*words, "--resume", "--json"]]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["finished"] for row in rows] == [True, True]


def test_a_step_is_a_task_and_settings():
    with pytest.raises(bertkit.RequestError, match="is no step; write it as TASK,train=FILE"):
        read_step("train=a.tsv")
    with pytest.raises(bertkit.RequestError, match="is no step"):
        read_step("classify,a.tsv")
    with pytest.raises(bertkit.RequestError, match="has no 'train'"):
        read_step("classify,epochs=3")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"task": "clasify"}, "unknown task 'clasify'"),
        ({"epoch": 3}, "unknown setting 'epoch'"),
        ({"train": "missing.tsv"}, "missing.tsv does not exist"),
        ({"train": None}, r"steps\[1\] has no 'train'"),
    ],
)
def test_a_wrong_step_is_refused_before_the_first_is_trained(model, tmp_path, change, sentence):
    steps = [step(tmp_path, "classify"), {**step(tmp_path, "tag"), **change}]
    with pytest.raises(bertkit.RequestError, match=sentence):
        bertkit.finetune_chain(steps, model, tmp_path / "chain")
    assert not (tmp_path / "chain").exists()
    with pytest.raises(bertkit.RequestError, match="one step at least"):
        bertkit.finetune_chain([], model)


def test_options_that_compare_runs_do_not_go_with_a_chain(model, capsys):
    assert run(["finetune", "classify", "--train", "a.tsv", "--then", "tag,train=b.conll", "--seeds", "3"]) == 2
    assert "--then goes with --from" in capsys.readouterr().err
