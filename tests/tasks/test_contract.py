"""What every row of TASKS must do: a new task is tested by being in the table (its data: tests/finetuning/tiny.py)."""

import json
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pyarrow.parquet
import pytest
import tiny
import torch
from serving import running, same

import bertkit
from bertkit.errors import RequestError
from bertkit.finetuning.check.check_data import check_data
from bertkit.finetuning.fine_tuning import fine_tune
from bertkit.finetuning.settings import read_settings
from bertkit.inside.attribution.attribution import why
from bertkit.model.heads import HEADS
from bertkit.predict.files.answers import JSONL, TERMINAL, predict_file, predict_text
from bertkit.predict.files.pipeline import RunOptions
from bertkit.predict.files.rows import FileSettings
from bertkit.serve.models import load_models
from bertkit.tasks.folder import read_task
from bertkit.tasks.metrics.table import MEANINGS
from bertkit.tasks.read import guess_task, read_examples
from bertkit.tasks.row import Detail, TaskRow
from bertkit.tasks.table import TASKS, routes
from bertkit.tasks.task import Task, task_class

pytestmark = pytest.mark.usefixtures("_one_thread")
SETTINGS = read_settings("epochs=1", "batch=12", "learning_rate=1e-3")
ROWS = pytest.mark.parametrize("task", TASKS)


@dataclass(frozen=True)
class Made:
    """A task's files, and a model that was trained on them for two steps."""

    row: TaskRow
    train: Path
    dev: Path
    folder: Path

    @cache  # noqa: B019 - as long as the tests run
    def bert(self) -> bertkit.Bert:
        return bertkit.load(self.folder)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    base = tmp_path_factory.mktemp("contract")
    start = tiny.tiny_folder(base / "start")

    @cache
    def make(task: str) -> Made:
        folder = base / task
        folder.mkdir()
        train, dev = tiny.files(folder, task, 24, 12)
        result = fine_tune(task, SETTINGS, start, train, dev, folder / "run")
        assert (result.finished, result.steps, result.task) == (True, 2, task)
        return Made(TASKS[task], train, dev, folder / "run" / "model")

    return make


def asked(row: TaskRow) -> dict[str, object]:
    """The request that documentation shows."""
    return dict(row.request_example)


def test_the_table_is_read_without_torch():
    code = "import bertkit.tasks.table, sys; assert not {'torch', 'numpy', 'pyarrow'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@ROWS
def test_a_row_says_what_it_is(task):
    row = TASKS[task]
    assert row.name == task
    assert row.head in HEADS
    assert row.metrics.main in row.metrics.names
    assert set(row.metrics.names) <= set(MEANINGS)
    assert row.length.kind in row.length_kinds
    assert issubclass(task_class(row), Task)
    assert type(task_class(row).row) is type(row)
    assert set(row.request_example) <= {field.name for field in row.fields}
    assert row.summary
    assert row.output
    for other in routes()[row.route]:
        assert (other.fields, other.options) == (row.fields, row.options), "rows that share a route share its request"


@ROWS
def test_files_are_recognized_read_and_checked(task, tmp_path):
    train, dev = tiny.files(tmp_path, task, 24, 12)
    assert guess_task(train) == task
    found = read_examples(task, train)
    assert len(found.examples) == 24
    assert all(example.outcome is not None for example in found.examples)
    unlabeled = read_examples(task, train, labeled=False).examples
    assert [example.texts for example in unlabeled] == [example.texts for example in found.examples]
    assert all(example.outcome is None for example in unlabeled)
    report = check_data(train, dev, task=task, tokenizer=tiny.tokenizer(), limit=64)
    assert report.stops == ()
    assert report.files[0].labels or report.files[0].numbers or TASKS[task].generates
    assert report.files[0].lengths.longest > 2


@ROWS
def test_a_trained_model_is_saved_and_loaded_whole(task, made):
    found = made(task)
    bert = found.bert()
    loaded, decision = read_task(bert.checkpoint)
    saved = json.loads((found.folder / "bertkit.json").read_text())["task"]
    assert (loaded.name, saved["name"]) == (task, task)
    assert loaded.saved_fields == {name: saved[name] for name in found.row.saved_fields}
    assert saved["decision"] == decision.to_json()
    assert bool(loaded.labels) == found.row.labeled
    config = json.loads((found.folder / "config.json").read_text())
    assert config["architectures"][0].startswith(("Bert", "EncoderDecoder")), "transformers has a class for it"
    assert config.get("problem_type") == found.row.problem_type
    del bert.checkpoint.task["name"]
    bert.checkpoint.task.clear()
    assert read_task(bert.checkpoint)[0].name == task, "as its head and problem type show"
    made(task).bert.cache_clear()


@ROWS
def test_scores_and_reports_have_what_the_row_names(task, made):
    folder = made(task).folder.parent
    scores = json.loads((folder / "result.json").read_text())["scores"]
    assert set(scores) - {"loss"} <= set(TASKS[task].metrics.names)
    assert made(task).bert().answers.task.main_metric in scores or "accuracy" in scores
    assert task in (folder / "report.html").read_text()
    bert, examples = made(task).bert(), read_examples(task, made(task).dev).examples
    found = [bert.answers.task.mistake(*pair) for pair in zip(examples, bert.answers.predict(examples), strict=True)]
    assert all(each is None or (each.weight >= 0 and each.text and each.truth != each.predicted) for each in found)


@ROWS
def test_python_answers_one_and_many(task, made):
    found = made(task)
    method, request = getattr(found.bert(), found.row.route.replace("-", "_")), asked(found.row)
    first = next(iter(request.values()))
    one = method(**request) if isinstance(first, str) else method(**request)[0]
    many = method(**{name: [value if isinstance(first, str) else value[0]] * 2 for name, value in request.items()})
    options = {option.name: option.default for option in found.row.options}
    first_reply, *replies = (found.row.reply(each, **options) for each in (one, *many))
    same(json.loads(json.dumps([first_reply, first_reply])), json.loads(json.dumps(replies)))
    assert one.seen.windows >= 1
    others = [route for route in routes() if route != found.row.route]
    with pytest.raises(RequestError, match=f"it cannot {others[0]}"):
        found.bert().answers.ask(others[0], **asked(routes()[others[0]][0]))


@ROWS
@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
def test_files_are_answered_row_by_row(task, ending, made, tmp_path):
    found, out = made(task), tmp_path / f"out{ending}"
    done = predict_file(found.folder, found.dev, out, FileSettings(), RunOptions(device="cpu"))
    assert done.scores.values == pytest.approx(bertkit.evaluate(found.bert(), found.dev).scores, nan_ok=True)
    assert (done.task, done.state.written) == (task, 12)
    if ending == ".parquet":
        rows = pyarrow.parquet.read_table(out).to_pylist()
    else:
        rows = [json.loads(line) for line in out.read_text().splitlines()]
    examples = read_examples(task, found.dev, labeled=False).examples
    predictions = found.bert().answers.predict(examples)
    detail = FileSettings().detail
    for row, example, prediction in zip(rows, examples, predictions, strict=True):
        cells = found.row.cells(example, prediction, detail)
        assert list(cells) == list(found.row.columns(found.bert().answers.task.labels, detail))
        same([row[name] for name in done.columns], list(cells.values()))


@ROWS
def test_a_text_is_answered_for_a_terminal_and_a_pipe(task, made):
    found = made(task)
    first, *others = found.row.fields
    second = found.row.request_example[others[0].name] if others and not others[0].optional else []
    text = found.row.request_example[first.name]
    question = (text if isinstance(text, str) else text[0], [second] if isinstance(second, str) else second)
    row = json.loads(predict_text(found.bert(), *question, JSONL, Detail()))
    assert row[first.name.removesuffix("s")] == question[0]
    assert len(row) > 3
    line = predict_text(found.bert(), *question, TERMINAL, Detail()).decode()
    assert line.strip()
    assert line.count("\n") == 1
    if second:
        with pytest.raises(RequestError, match="add --pair TEXT"):
            predict_text(found.bert(), question[0], [], JSONL, Detail())


@ROWS
def test_the_server_replies_as_python_does(task, made):
    found = made(task)
    request = asked(found.row)
    with running(load_models([f"{task}={found.folder}"], torch.device("cpu"))) as server:
        reply = server.post(f"/{found.row.route}", request)
        assert reply.status_code == 200, reply.text
        [card] = server.http.get("/v1/models").json()["data"]
        schema = server.http.get("/openapi.json").json()
        tools = server.http.get("/page/task_tools.js").text
        page = server.http.get(f"/page/{found.row.route}.js")
        wrong = server.post(f"/{found.row.route}", {**request, "nonsense": 1})
    assert (card["task"], card["abilities"][0]) == (task, found.row.route)
    assert f"/{found.row.route}" in schema["paths"]
    assert f'"./{found.row.route}.js"' in tools
    assert page.status_code == 200
    assert "export const tool = {" in page.text
    assert f'ability: "{found.row.route}"' in page.text
    assert wrong.status_code == 422
    inputs = {name: [value] if isinstance(value, str) else value for name, value in request.items()}
    grouped = [field.name for field in found.row.fields if field.kind == "choices"]
    inputs |= {name: [inputs[name]] for name in grouped if isinstance(inputs[name][0], str)}
    options = {option.name: option.default for option in found.row.options}
    predictions = found.bert().answers.ask(found.row.route, **inputs)
    expected = [found.row.reply(prediction, **options) for prediction in predictions]
    same(reply.json()["results"], json.loads(json.dumps(expected)))


@pytest.mark.parametrize("head", dict.fromkeys(row.head for row in TASKS.values()))
def test_the_head_is_exported(head, made, tmp_path):
    task = next(row.name for row in TASKS.values() if row.head == head)
    if TASKS[task].generates:
        with pytest.raises(RequestError, match="a decoder, which"):
            made(task).bert().export_onnx(tmp_path / "out")
        return
    done = made(task).bert().export_onnx(tmp_path / "out")
    assert done.outputs == HEADS[head].onnx
    assert done.difference < done.tolerance


@ROWS
def test_a_prediction_is_explained_or_refused_with_a_sentence(task, made):
    found = made(task)
    request = {name: value if isinstance(value, str) else value[0] for name, value in asked(found.row).items()}
    given = list(request.values())[: 1 if found.row.word_level else 2]
    if HEADS[found.row.head].grouped or found.row.generates:  # read from several sequences, or a new one
        with pytest.raises(RequestError, match="are not explained"):
            why(found.bert(), *given)
        return
    explained = why(found.bert(), *given)
    shares = sum(word.share for word in explained.words)
    assert [word.word for word in explained.words if word.part == 0]
    assert shares == pytest.approx(explained.score - explained.baseline_score, abs=0.05)


@ROWS
def test_the_documentation_has_a_line_for_it(task):
    docs = Path(__file__).parents[2] / "docs"
    assert (docs / "fine-tuning.md").read_text(encoding="utf-8").count(f"\n| {task}") == 2, "what it learns, its files"
    assert f"\n| {task} | " in (docs / "answers.md").read_text(encoding="utf-8"), "its columns"
    assert f"/{TASKS[task].route}`" in (docs / "serving.md").read_text(encoding="utf-8"), "its route"
