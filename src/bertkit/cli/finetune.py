"""`bertkit finetune`: a model and labeled files in, a fine-tuned model out."""

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertkit.cli.options import AsJson, ResumeRun
from bertkit.tasks.table import TASKS

if TYPE_CHECKING:
    from bertkit.finetuning.result import FineTuned
    from bertkit.finetuning.settings import FineTuneSettings

VECTORS = "vectors"
GLUE = "glue"  # not a task: every task of a folder
EXPLORATIONS = ("search", "find_rate", "features", "curve")  # options that compare runs instead of making one model
STOPPED = 130  # exit code of an interrupted command, as in a shell


def finetune(
    task: Annotated[str, typer.Argument(help=f"{', '.join(TASKS)} or {VECTORS}; or {GLUE}.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            help="key=value ..., such as epochs=3, or text=review label=stars (columns). After glue: the folder first."
        ),
    ] = None,
    start: Annotated[Path | None, typer.Option("--from", help="The model to start from; else the bundled one.")] = None,
    train: Annotated[Path | None, typer.Option(help="Labeled examples to train on.")] = None,
    dev: Annotated[Path | None, typer.Option(help="Labeled examples to evaluate on; else a tenth is held out.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The run's folder, by default run/ (or glue/); the model is in its folder model/."),
    ] = None,
    teacher: Annotated[
        Path | None, typer.Option(help="A fine-tuned model to distill: its probabilities are learned too.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Number of runs; prints mean ± std and keeps the median model.")] = 1,
    search: Annotated[
        bool, typer.Option("--search", help="Try a small grid of settings by successive halving.")
    ] = False,
    find_rate: Annotated[bool, typer.Option("--find-rate", help="Only run a learning rate range test.")] = False,
    features: Annotated[
        bool, typer.Option("--features", help="Freeze the encoder; fit a logistic regression on its layers.")
    ] = False,
    curve: Annotated[
        str | None, typer.Option(help="Only a learning curve, pre-trained and from random weights: 100,300,1000.")
    ] = None,
    resume: ResumeRun = False,
    retry: Annotated[
        bool, typer.Option("--retry", help="Restart a run that learned nothing at a third of its learning rate.")
    ] = False,
    only: Annotated[str | None, typer.Option(help="With glue: only these tasks, such as SST-2,CoLA.")] = None,
    as_json: AsJson = False,
) -> None:
    """Fine-tune a model on labeled examples.

    The best model on the dev file is kept, with temperature and thresholds fitted there; report.html shows the run.
    SIGTERM and Ctrl-C keep the best so far and leave with exit code 130; --resume continues.
    bertkit finetune glue FOLDER fine-tunes on every GLUE task that a folder holds, one table for all.
    """
    options = {**locals(), "seeds": seeds != 1}
    given = {name for name, value in options.items() if value not in (None, False)}
    _refuse_options(task, given)
    if task == GLUE:
        return _fine_tune_glue(settings or [], start, out or Path("glue"), seeds, only, as_json)
    start, out, pairs = start or Path("bundled"), out or Path("run"), settings or []
    if task == VECTORS:
        return _tune_vectors(pairs, start, train, dev, out, as_json, teacher=teacher, resume=resume)
    from bertkit.finetuning.settings import read_request
    from bertkit.progress import progress

    wanted, columns = read_request(*pairs)
    data: dict[str, Any] = {"model": start, "train_file": _train_file(train), "dev_file": dev, "columns": columns}
    data |= {"show": progress}
    if explored := given & set(EXPLORATIONS):
        return _explore(explored.pop(), task, wanted, data, out, _sizes(curve), as_json)
    from bertkit.finetuning.fine_tuning import fine_tune

    tune: Callable[..., FineTuned] = partial(fine_tune, task, teacher=teacher, resume=resume, retry=retry, **data)
    _print_result(tune(wanted, out=out), out, as_json) if seeds == 1 else _tune_seeds(tune, wanted, seeds, out, as_json)


def _refuse_options(task: str, given: set[str]) -> None:
    """Say which options do not go together, before any work is done."""
    from bertkit.errors import RequestError
    from bertkit.settings import pick

    comparing = given & {"seeds", *EXPLORATIONS}
    if task == GLUE:
        if given - {"task", "settings", "start", "out", "seeds", "only", "as_json"}:
            raise RequestError("of the options, --from, --out, --seeds, --only and --json go with glue")
        return
    pick(dict.fromkeys((*TASKS, VECTORS)), task, "task")
    if "only" in given:
        raise RequestError("--only goes with glue")
    if task == VECTORS and (comparing or "retry" in given):
        raise RequestError("--seeds, --search, --find-rate, --features, --curve and --retry do not go with vectors")
    if len(comparing) > 1:
        raise RequestError("choose one of --seeds, --search, --find-rate, --features and --curve")
    if given & set(EXPLORATIONS) and given & {"retry", "teacher"}:
        wrong = "--retry" if "retry" in given else "--teacher"
        raise RequestError(f"{wrong} does not go with --search, --find-rate, --features and --curve")


def _train_file(train: Path | None, what: str = "a file") -> Path:
    from bertkit.errors import RequestError

    if train is None:
        raise RequestError(f"name {what} to learn from: --train FILE")
    return train


def _fine_tune_glue(
    words: list[str], start: Path | None, out: Path, seeds: int, only: str | None, as_json: bool
) -> None:
    """Every task that a folder holds, one table with published rows beside it; finished tasks are not run again."""
    from bertkit.errors import RequestError
    from bertkit.finetuning.explore.glue import find_tasks, glue_table, run_glue
    from bertkit.finetuning.settings import read_settings
    from bertkit.progress import progress
    from bertkit.settings import pick

    if not words:
        raise RequestError("name a folder with a folder for each task: bertkit finetune glue FOLDER")
    wanted, start = read_settings(*words[1:]), start or Path("bundled")
    tasks = {data.task.name: data for data in find_tasks(Path(words[0]))}
    chosen = [pick(tasks, name, "task in this folder") for name in only.split(",")] if only else list(tasks.values())
    results = run_glue(chosen, start, wanted, out, seeds=seeds, show=progress)
    scores = {name: each.to_json() for name, each in results.items()}
    print(json.dumps(scores) if as_json else glue_table(results, start.absolute().name))


def _tune_vectors(
    settings: list[str], start: Path, train: Path | None, dev: Path | None, out: Path, as_json: bool, **more: Any
) -> None:
    """Tune embeddings for similarity and search on texts, pairs or scored pairs."""
    from bertkit.finetuning.embeddings.settings import read_vector_request
    from bertkit.progress import progress

    wanted, columns = read_vector_request(*settings)
    train = _train_file(train, "a file of texts or pairs")
    from bertkit.finetuning.embeddings.tuning import tune_vectors

    _print_result(tune_vectors(wanted, start, train, dev, out, columns=columns, show=progress, **more), out, as_json)


def _tune_seeds(
    tune: "Callable[..., FineTuned]", settings: "FineTuneSettings", seeds: int, out: Path, as_json: bool
) -> None:
    """Several runs that differ in their seed; an interrupted one ends them."""
    from bertkit.finetuning.explore.seeds import run_seeds

    found = run_seeds(lambda settings, folder: tune(settings, out=folder), settings, seeds, out)
    if not found.results[-1].finished:
        return _print_result(found.results[-1], out, as_json)
    print(json.dumps(found.to_json()) if as_json else f"{found}\nthe median's model is in {out / 'model'}")


def _explore(
    name: str, task: str, settings: "FineTuneSettings", data: dict[str, Any], out: Path, sizes: list[int], as_json: bool
) -> None:
    """Runs that compare settings, learning rates, layers or numbers of examples."""
    from bertkit.files import refuse_to_overwrite
    from bertkit.finetuning.explore import curve, features, features_model, search
    from bertkit.finetuning.fine_tuning import open_data
    from bertkit.finetuning.learner import load_start

    if name == "features":
        refuse_to_overwrite(out)  # before the work of reading
    begin, prepared = open_data(task, settings, **data)
    named, model, rows = {"model": data["model"], "show": data["show"]}, out / "model", list[Any]()
    if name == "search":
        found = search.search(prepared, begin, settings, out, **named)
        rows += found.trials
        last = f"best: {' '.join(f'{k}={v}' for k, v in found.changes.items())}; model in {model}"
    elif name == "find_rate":
        rows += [search.rate_range(prepared, load_start(begin, prepared.task, settings), settings)]
        last = ""
    elif name == "curve":
        rows += curve.learning_curve(prepared, begin, settings, sizes, out, **named)
        last = curve.curve_table(rows, settings.run.metric or prepared.task.main_metric)
    else:
        read = features.read_features(begin.model, prepared)
        rows, layer = features.feature_scores(read), features_model.save_best_layer(begin, prepared, read, model)
        last = f"saved: layer {layer}, chosen on the training data; model in {model}"
    lines = [*([] if sizes else map(str, rows)), *([last] if last else [])]
    print(json.dumps([asdict(row) for row in rows]) if as_json else "\n".join(lines))


def _sizes(text: str | None) -> list[int]:
    from bertkit.errors import RequestError

    parts = [] if text is None else text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 1 for part in parts):
        raise RequestError(f"--curve {text}: whole numbers over 1 with commas belong here, such as 100,300,1000")
    return [int(part) for part in parts]


def _print_result(result: "FineTuned", out: Path, as_json: bool) -> None:
    """The scores, and where the model is; an interrupted run leaves with its own exit code."""
    if as_json:
        print(json.dumps({**result.to_json(), "out": str(out)}))
    else:
        names = [result.metric, *(name for name in result.scores if name != result.metric)]
        done = f"best of {result.steps:,} steps: {result.best_step:,}; model in {out / 'model'}"
        print(*result.notes, ", ".join(f"{name} {result.scores[name]:.4f}" for name in names), sep="\n")
        print(done if result.finished else f"stopped; {done}; --resume goes on")
        if result.collapsed:
            print(result.collapsed)
    if not result.finished:
        raise typer.Exit(STOPPED)
