"""`bertkit.finetune`, `bertkit.pretrain`, `bertkit.evaluate`: train and score from Python, with files or Python data.

Training shows its progress, also in a notebook. Without `out` a run lives in a temporary folder that is removed with
its result; `result.model.save("folder")` keeps the model.
"""

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

from bertkit.data.columns import named_columns
from bertkit.data.from_python import Examples, example_file
from bertkit.errors import RequestError
from bertkit.evaluation.measure import EvaluationResult, compared, measure
from bertkit.files import refuse_to_overwrite
from bertkit.finetuning.chain import check_step, finish_chain, step_folders
from bertkit.finetuning.result import FineTuned
from bertkit.predict.bert import Bert, load
from bertkit.progress import progress
from bertkit.report.page import REPORT_FILE
from bertkit.report.tables import html_table
from bertkit.settings import as_text, pick
from bertkit.tasks.table import TASKS

VECTORS = "vectors"  # the task name that tunes embeddings
STEP_FIELDS = ("task", "train", "dev", "test", "teacher")  # of a chain's step; all others are settings


@dataclass(frozen=True)
class Report:
    """A run's report.html; a notebook shows it."""

    path: Path

    @property
    def html(self) -> str:
        """The complete page, without scripts."""
        return self.path.read_text(encoding="utf-8")

    def _repr_html_(self) -> str:
        from bertkit.report.page import notebook_frame

        return notebook_frame(self.html)


@dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """The result of a training run; a notebook shows the scores."""

    folder: Path
    scores: Mapping[str, float]
    finished: bool  # False: interrupted; the same call with resume=True continues
    notes: tuple[str, ...] = ()  # what was guessed, truncated and fitted
    test_scores: Mapping[str, float] = field(default_factory=dict)  # of `test` or `test_share`, if one was given
    temporary: "tempfile.TemporaryDirectory[str] | None" = field(default=None, repr=False)

    @cached_property
    def model(self) -> Bert:
        """The trained model."""
        return load(self.folder)

    @property
    def report(self) -> Report:
        """The run's report: curves, scores, mistakes."""
        return Report(self.folder / REPORT_FILE)

    def _repr_html_(self) -> str:
        state = "" if self.finished else "<p>interrupted; call it again with resume=True</p>"
        notes = "".join(f"<li>{escape(note)}</li>" for note in self.notes)
        return f"{state}{html_table(('score', 'value'), self.scores.items())}<ul>{notes}</ul>"


def finetune(
    task: str,
    train: Examples,
    dev: Examples | None = None,
    model: Path | str | None = None,
    out: Path | str | None = None,
    *,
    test: Examples | None = None,
    teacher: Path | str | None = None,
    resume: bool = False,
    **settings: object,
) -> TrainingResult:
    """Fine-tune a model on labeled examples for a task of `bertkit finetune`; "vectors" tunes embeddings.

    Without `dev` a tenth of the training examples is held out; without `model` the bundled one is the start. The model
    is scored on `test`, or on a part of the training examples (test_share=0.1), at the end.
    `settings` are those of the command line (epochs=3), names of columns too (text="review", label="stars").
    """
    folder, temporary = _run_folder(out)
    data = folder.with_name(f"{folder.name}.data")  # for Python data, until the run has finished
    train_file, columns = example_file(train, data, "train")
    dev_file, test_file = (
        None if rows is None else example_file(rows, data, name)[0] for name, rows in (("dev", dev), ("test", test))
    )
    default = TASKS[task].default_start if task in TASKS else "bundled"
    start, pairs = Path(default if model is None else model), _pairs({**columns, **settings})
    options: dict[str, Any] = {"teacher": teacher if teacher is None else Path(teacher), "resume": resume}
    if test_file is not None:
        if task == VECTORS:
            raise RequestError("test= goes with labeled examples; bertkit.evaluate scores vectors on pairs of texts")
        options["test_file"] = test_file
    tune = _tune_vectors if task == VECTORS else _fine_tune
    result = tune(task, pairs, start, train_file, dev_file, folder, {**options, "show": progress})
    if result.finished:
        shutil.rmtree(data, ignore_errors=True)
    notes = (*result.notes, *([result.collapsed] if result.collapsed else []))
    return TrainingResult(
        folder=folder,
        scores=dict(result.scores),
        finished=result.finished,
        notes=notes,
        test_scores=dict(result.test.scores) if result.test else {},
        temporary=temporary,
    )


def finetune_chain(
    steps: Sequence[Mapping[str, object]],
    model: Path | str | None = None,
    out: Path | str | None = None,
    *,
    resume: bool = False,
) -> list[TrainingResult]:
    """Fine-tune for several tasks in turn, each from the model of the one before; `out/model` is the last one's.

    A step has the arguments of `finetune`: {"task": "classify", "train": ..., "dev": ..., "epochs": 3}. With `resume`
    finished steps are not repeated. An interrupted chain gives the results up to the interrupted step.
    """
    if not steps:
        raise RequestError("a chain needs one step at least: finetune_chain([{'task': ..., 'train': ...}, ...])")
    checked = [check_step(step, f"steps[{number}]") for number, step in enumerate(steps)]
    for step in checked:  # a wrong setting of the last step is said before the first one is trained
        own = {name: value for name, value in step.items() if name not in STEP_FIELDS}
        _request(step["task"], _pairs(own), Path("model"))
    folder, temporary = _run_folder(out)
    if not resume:
        refuse_to_overwrite(folder)
    folders, results = step_folders(folder, [step["task"] for step in checked]), list[TrainingResult]()
    for step, run in zip(checked, folders, strict=True):
        start = results[-1].folder / "model" if results else model
        results.append(replace(finetune(**{**step, "model": start, "out": run, "resume": resume}), temporary=temporary))
        if not results[-1].finished:
            return results
    finish_chain(folder, folders)
    return results


def pretrain(
    recipe: Path | str | Mapping[str, object],
    shards: Path | str | None = None,
    out: Path | str | None = None,
    model: Path | str | None = None,
    *,
    resume: bool = False,
    **settings: object,
) -> TrainingResult:
    """Pre-train as a recipe says: a TOML file, or its settings as a dict; `settings` change it (steps=1000).

    `shards` is a folder that `bertkit shards` wrote. With `model` training continues from that model.
    """
    from bertkit.pretraining import pretraining
    from bertkit.pretraining.recipe import build_recipe, read_recipe

    changes = {**({"shards": shards} if shards is not None else {}), **settings}
    if isinstance(recipe, Mapping):
        changed = build_recipe(_texts({**recipe, **changes}))
    else:
        changed = read_recipe(recipe, *_pairs(changes))
    folder, temporary = _run_folder(out)
    last = pretraining.pretrain(changed, folder, start=model, resume=resume, show=progress)
    scores = {**(last.losses if last else {}), **_last_evaluation(folder)}
    finished = (folder / "model").is_dir()
    return TrainingResult(folder=folder, scores=scores, finished=finished, temporary=temporary)


def evaluate(
    model: Bert | Path | str | None,
    examples: Examples,
    /,
    *,
    by: str | None = None,
    against: Bert | Path | str | None = None,
    seeds: int | None = None,
    report: Path | str | None = None,
    **columns: object,
) -> EvaluationResult:
    """Score a model: a fine-tuned one on labeled examples by its task's metrics, another one by a yardstick.

    `report` names an HTML file to write: scores with intervals and a baseline, labels, calibration, the worst errors.
    `against` is a second model: the result has the difference of the main metric with its interval and a p-value.

    A yardstick is recognized by the columns of the examples, or named with `by`: "minimal-pairs" (sentence_good,
    sentence_bad), "blanks" (text, answers), "similarity" (two texts and a score), "retrieval" (a folder with corpus,
    queries and judgements, as BEIR's), "clustering" (text, label), "glue" (a folder with folders of its tasks, on which
    the model is fine-tuned `seeds` times). Columns are named as text="review".
    """
    with tempfile.TemporaryDirectory(prefix="bertkit-") as folder:
        path, named = example_file(examples, Path(folder), "examples")
        chosen = named_columns(_pairs({**named, **columns}))
        measured = measure(model, path, chosen, by, seeds, None if report is None else Path(report))
        if against is None:
            return measured.result
        return compared(measured, measure(against, path, chosen, by, seeds, None))


def _fine_tune(
    task: str, pairs: list[str], start: Path, train: Path, dev: Path | None, out: Path, options: dict[str, Any]
) -> FineTuned:
    from bertkit.finetuning.fine_tuning import fine_tune

    settings, columns = _request(task, pairs, start)
    return fine_tune(task, settings, start, train, dev, out, columns=columns, **options)


def _tune_vectors(
    task: str, pairs: list[str], start: Path, train: Path, dev: Path | None, out: Path, options: dict[str, Any]
) -> FineTuned:
    from bertkit.finetuning.embeddings.tuning import tune_vectors

    settings, columns = _request(task, pairs, start)
    return tune_vectors(settings, start, train, dev, out, columns=columns, **options)


def _request(task: str, pairs: list[str], start: Path) -> tuple[Any, Any]:
    """(settings, columns) of `key=value` pairs, for a task of the table or for embeddings."""
    from bertkit.finetuning.embeddings.settings import read_vector_request
    from bertkit.finetuning.settings import read_task_request

    pick(dict.fromkeys((*TASKS, VECTORS)), task, "task")
    return read_vector_request(*pairs) if task == VECTORS else read_task_request(TASKS[task], str(start), *pairs)


def _run_folder(out: Path | str | None) -> tuple[Path, "tempfile.TemporaryDirectory[str] | None"]:
    """(folder of the run, temporary folder around it or None, which is removed when it is garbage-collected)."""
    if out is not None:
        return Path(out), None
    temporary = tempfile.TemporaryDirectory(prefix="bertkit-", ignore_cleanup_errors=True)
    return Path(temporary.name) / "run", temporary


def _last_evaluation(folder: Path) -> dict[str, float]:
    """The scores of the last evaluation on held-out text; empty if there is none."""
    from bertkit.train.records import read_records

    lines = read_records(folder / "metrics.jsonl").evaluations
    return dict(lines[-1]["evaluation"]) if lines else {}


def _texts(settings: Mapping[str, object]) -> dict[str, str]:
    """Settings as the texts of `key=value` pairs."""
    return {name: as_text(value) for name, value in settings.items() if value is not None}


def _pairs(settings: Mapping[str, object]) -> list[str]:
    return [f"{name}={text}" for name, text in _texts(settings).items()]
