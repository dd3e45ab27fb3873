"""`bertkit finetune`: fine-tune a model on labeled files."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertkit.cli.common import INTERRUPTED, parse_integers
from bertkit.cli.options import AsJson, ResumeRun
from bertkit.errors import RequestError
from bertkit.progress import is_quiet
from bertkit.report.page import REPORT_FILE
from bertkit.tasks.table import TASKS

if TYPE_CHECKING:
    from bertkit.finetuning.result import FineTuned
    from bertkit.finetuning.settings import FineTuneSettings
    from bertkit.tasks.metrics.intervals import Interval

VECTORS = "vectors"  # tunes embeddings: not a task of the table
GLUE = "glue"  # every GLUE task of a folder
EXPERIMENTS = ("search", "find_rate", "features", "curve")  # options that compare runs instead of training one model


def finetune(
    task: Annotated[str, typer.Argument(help=f"The task: {', '.join(TASKS)} or {VECTORS}; or {GLUE}.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            help="Settings, as --epochs 3 or epochs=3, and columns, as label=stars; after glue: the folder first."
        ),
    ] = None,
    start: Annotated[
        Path | None, typer.Option("--from", help="The model to start from; by default the bundled one.")
    ] = None,
    train: Annotated[Path | None, typer.Option(help="A file of labeled examples to train on.")] = None,
    dev: Annotated[
        Path | None, typer.Option(help="A file of labeled examples to evaluate on; by default a tenth of --train.")
    ] = None,
    test: Annotated[
        Path | None,
        typer.Option(help="Labeled examples to score the model on at the end; or a part of --train: --test-share 0.1."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the run, by default run/ (or glue/); the model is written to its folder model/."),
    ] = None,
    teacher: Annotated[
        Path | None, typer.Option(help="A fine-tuned model to distill: its predicted probabilities are learned too.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Number of runs; prints mean ± std and keeps the median model.")] = 1,
    search: Annotated[
        bool, typer.Option("--search", help="Search a small grid of settings by successive halving.")
    ] = False,
    find_rate: Annotated[bool, typer.Option("--find-rate", help="Only run a learning-rate range test.")] = False,
    features: Annotated[
        bool, typer.Option("--features", help="Freeze the encoder and fit a logistic regression on each layer.")
    ] = False,
    curve: Annotated[
        str | None,
        typer.Option(help="Only measure a learning curve at these numbers of examples, such as 100,300,1000."),
    ] = None,
    then: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TASK,train=FILE,...",
            help="Then fine-tune that model for another task, with its own settings; repeat it for a chain of tasks.",
        ),
    ] = None,
    resume: ResumeRun = False,
    retry: Annotated[
        bool,
        typer.Option("--retry", help="If a run learns nothing, start it again at a third of the learning rate."),
    ] = False,
    only: Annotated[str | None, typer.Option(help="With glue: only these tasks, such as SST-2,CoLA.")] = None,
    as_json: AsJson = False,
) -> None:
    """Fine-tune a model on labeled examples.

    Often used settings: --epochs 3 --batch 32 --lr 2e-4 --seed 1 --patience 3 --frozen 6 --class-weights balanced.
    Without --epochs there are 3, or as many as make 500 steps (20 at most): small files need more than 3.
    With under 50 rows a label and no setting, classify takes few=true (contrastive tuning, then a classifier).
    The model that is best on the dev file is kept, calibrated on that file; report.html describes the run.
    SIGTERM and Ctrl-C keep the best model so far, write its report and exit with code 130; --resume continues.
    bertkit finetune glue FOLDER fine-tunes on every GLUE task in a folder and prints one table.
    """
    options = {**locals(), "seeds": seeds != 1}
    given = {name for name, value in options.items() if value not in (None, False, [])}
    _refuse_options(task, given)
    if task == GLUE:
        return _fine_tune_glue(settings or [], start, out or Path("glue"), seeds, only, as_json)
    default = "bundled" if task == VECTORS else TASKS[task].default_start
    start, out, pairs = start or Path(default), out or Path("run"), settings or []
    if files := [word for word in pairs if "=" not in word and Path(word).is_file()]:
        raise RequestError(f"{files[0]} is a file and not a setting; the training file is given as --train {files[0]}")
    if then:
        return _fine_tune_chain(task, pairs, train, dev, then, start, out, resume, as_json)
    if task == VECTORS:
        return _tune_vectors(pairs, start, train, dev, out, as_json, teacher=teacher, resume=resume)
    from bertkit.finetuning.settings import read_task_request
    from bertkit.progress import progress

    parsed, columns = read_task_request(TASKS[task], str(start), *pairs)
    data: dict[str, Any] = {"model": start, "train_file": _train_file(train), "dev_file": dev, "columns": columns}
    data |= {"show": progress}
    if experiments := given & set(EXPERIMENTS):
        return _run_experiment(experiments.pop(), task, parsed, data, out, _curve_sizes(curve), as_json)
    from bertkit.finetuning.fine_tuning import fine_tune

    data |= {"test_file": test, "teacher": teacher, "resume": resume, "retry": retry}
    tune: Callable[..., FineTuned] = partial(fine_tune, task, **data)
    _print_result(tune(parsed, out=out), out, as_json) if seeds == 1 else _tune_seeds(tune, parsed, seeds, out, as_json)


def _refuse_options(task: str, given: set[str]) -> None:
    """Refuse options that cannot be combined, before any work is done."""
    from bertkit.settings import pick

    comparing = given & {"seeds", *EXPERIMENTS}
    if task == GLUE:
        if given - {"task", "settings", "start", "out", "seeds", "only", "as_json"}:
            raise RequestError("of the options, --from, --out, --seeds, --only and --json go with glue")
        return
    pick(dict.fromkeys((*TASKS, VECTORS)), task, "task")
    if "then" in given and (comparing or given & {"retry", "teacher", "test"}):
        raise RequestError("--then goes with --from, --train, --dev, --out, --resume, --json and settings alone")
    if "only" in given:
        raise RequestError("--only goes with glue")
    if task == VECTORS and (comparing or given & {"retry", "test"}):
        wrong = "--test, --seeds, --search, --find-rate, --features, --curve and --retry"
        raise RequestError(f"{wrong} do not go with vectors")
    if len(comparing) > 1:
        raise RequestError("choose one of --seeds, --search, --find-rate, --features and --curve")
    if given & set(EXPERIMENTS) and (others := given & {"retry", "teacher", "test"}):
        raise RequestError(f"--{min(others)} does not go with --search, --find-rate, --features and --curve")


def _fine_tune_chain(
    task: str,
    pairs: list[str],
    train: Path | None,
    dev: Path | None,
    then: list[str],
    start: Path,
    out: Path,
    resume: bool,
    as_json: bool,
) -> None:
    """Several tasks in turn, each from the model of the one before; a line for each."""
    from bertkit.api import finetune_chain
    from bertkit.finetuning.chain import read_step
    from bertkit.settings import split_pair

    own = dict(split_pair(pair, [pair.split("=", 1)[0]]) for pair in pairs)
    steps = [{"task": task, "train": _train_file(train), "dev": dev, **own}, *map(read_step, then)]
    results = finetune_chain(steps, start, out, resume=resume)
    for result in results:
        scores = ", ".join(f"{name} {value:.4f}" for name, value in result.scores.items())
        row = {"out": str(result.folder), "scores": dict(result.scores), "finished": result.finished}
        print(json.dumps(row) if as_json else f"{result.folder.name}: {scores}")
    if not results[-1].finished:
        raise typer.Exit(INTERRUPTED)
    if not as_json:
        print(f"model in {out / 'model'}; all steps: {out / 'report.html'}")


def _train_file(train: Path | None, kind: str = "a file") -> Path:
    if train is None:
        raise RequestError(f"name {kind} to learn from: --train FILE")
    return train


def _fine_tune_glue(
    words: list[str], start: Path | None, out: Path, seeds: int, only: str | None, as_json: bool
) -> None:
    """Fine-tune every task in a folder and print one table with published scores; finished tasks are not run again."""
    from bertkit.finetuning.explore.glue import find_tasks, glue_table, run_glue
    from bertkit.finetuning.settings import read_settings
    from bertkit.progress import progress
    from bertkit.settings import pick

    if not words:
        raise RequestError("name a folder with a folder for each task: bertkit finetune glue FOLDER")
    settings, start = read_settings(*words[1:]), start or Path("bundled")
    tasks = {data.task.name: data for data in find_tasks(Path(words[0]))}
    chosen = [pick(tasks, name, "task in this folder") for name in only.split(",")] if only else list(tasks.values())
    results = run_glue(chosen, start, settings, out, seeds=seeds, show=progress)
    scores = {name: result.to_json() for name, result in results.items()}
    print(json.dumps(scores) if as_json else glue_table(results, start.absolute().name))


def _tune_vectors(
    pairs: list[str], start: Path, train: Path | None, dev: Path | None, out: Path, as_json: bool, **options: Any
) -> None:
    """Tune embeddings for similarity and search on texts, pairs or scored pairs."""
    from bertkit.finetuning.embeddings.settings import read_vector_request
    from bertkit.progress import progress

    settings, columns = read_vector_request(*pairs)
    train = _train_file(train, "a file of texts or pairs")
    from bertkit.finetuning.embeddings.tuning import tune_vectors

    result = tune_vectors(settings, start, train, dev, out, columns=columns, show=progress, **options)
    _print_result(result, out, as_json)


def _tune_seeds(
    tune: "Callable[..., FineTuned]", settings: "FineTuneSettings", seeds: int, out: Path, as_json: bool
) -> None:
    """Run once per seed; an interrupted run ends the series."""
    from bertkit.finetuning.explore.seeds import run_seeds

    runs = run_seeds(lambda settings, folder: tune(settings, out=folder), settings, seeds, out)
    if not runs.results[-1].finished:
        return _print_result(runs.results[-1], out, as_json)
    print(json.dumps(runs.to_json()) if as_json else f"{runs}\nthe median's model is in {out / 'model'}")


def _run_experiment(
    name: str,
    task: str,
    settings: "FineTuneSettings",
    data: dict[str, Any],
    out: Path,
    sizes: list[int],
    as_json: bool,
) -> None:
    """Compare settings, learning rates, layers or numbers of examples, and print a row for each."""
    from bertkit.files import refuse_to_overwrite
    from bertkit.finetuning.explore import curve, features, features_model, search
    from bertkit.finetuning.fine_tuning import open_data
    from bertkit.finetuning.learner import load_start
    from bertkit.tasks.metrics.intervals import format_interval, wilson

    if name == "features":
        refuse_to_overwrite(out)  # before the data is read
    begin, prepared = open_data(task, settings, **data)
    shared, model, rows = {"model": data["model"], "show": data["show"]}, out / "model", list[Any]()
    if name == "search":
        result = search.search(prepared, begin, settings, out, **shared)
        rows += result.trials
        last = f"best: {' '.join(f'{k}={v}' for k, v in result.changes.items())}; model in {model}"
    elif name == "find_rate":
        rows += [search.rate_range(prepared, load_start(begin, prepared.task, settings), settings)]
        last = ""
    elif name == "curve":
        rows += curve.learning_curve(prepared, begin, settings, sizes, out, **shared)
        last = curve.curve_table(rows, settings.run.metric or prepared.task.main_metric)
    else:
        with data["show"]("fitting classifiers on frozen features", 3) as meter:
            meter.say("computing the vectors of every layer")
            layers = features.read_features(begin.model, prepared)
            meter.update(1)
            meter.say("a classifier for every layer")
            rows = features.feature_scores(layers)
            meter.update(2)
            meter.say("choosing a layer on the training data")
            layer = features_model.save_best_layer(begin, prepared, layers, model)
        share = next(row.accuracy for row in rows if row.layers == f"layer {layer}")
        count = len(layers.dev_labels)
        interval = f"95 % interval {format_interval(wilson(share, count))} on {count:,} dev {prepared.task.answer_unit}"
        last = f"saved: layer {layer} ({interval}), chosen on the training data; model in {model}"
        last += f"\ntry: {_next_command(task, out)}"
    lines = [*([] if sizes else map(str, rows)), *([last] if last else [])]
    print(json.dumps([asdict(row) for row in rows]) if as_json else "\n".join(lines))


def _curve_sizes(text: str | None) -> list[int]:
    sizes = [] if text is None else parse_integers(text, "--curve", "100,300,1000")
    if any(size < 2 for size in sizes):
        raise RequestError(f"--curve {text} must be whole numbers over 1, such as 100,300,1000")
    return sizes


def _next_command(task: str, out: Path) -> str:
    """What to do with a new model."""
    if task == VECTORS:
        return f"bertkit embed texts.txt --model {out} --out vectors.npy"
    return f"bertkit predict {out} TEXT, or bertkit serve {out} --open"


def _score_lines(result: "FineTuned") -> Iterator[str]:
    """A line for each score on dev and on test, with its interval and its meaning."""
    yield f"on {result.examples:,} dev examples:" if result.examples else "scores:"
    yield from _score_table(result.scores, result.intervals, result.metric)
    if result.chosen_on_dev and not is_quiet():
        remedy = "" if result.test or result.task == VECTORS else "; --test FILE or --test-share 0.1 measures that"
        yield f"the dev examples also chose the weights, so new examples may score lower{remedy}"
    if result.test:
        yield f"on {result.test.examples:,} test examples, which had no part in training:"
        yield from _score_table(result.test.scores, result.test.intervals, result.metric)


def _score_table(scores: "Mapping[str, float]", intervals: "Mapping[str, Interval]", metric: str) -> Iterator[str]:
    from bertkit.tasks.metrics.intervals import format_interval
    from bertkit.tasks.metrics.table import MEANINGS

    names, width = sorted(scores, key=lambda name: name != metric), max(map(len, scores))
    bounds = {name: f"95 % interval {format_interval(interval)}" for name, interval in intervals.items()}
    room = max(map(len, bounds.values()), default=0)
    for name in names:
        meaning = f"({MEANINGS[name]})" if name in MEANINGS else ""
        yield f"  {name:<{width}} {scores[name]:.4f}  {bounds.get(name, ''):<{room}}  {meaning}".rstrip()


def _print_result(result: "FineTuned", out: Path, as_json: bool) -> None:
    """Print the scores and where the model is; exit with code 130 if the run was interrupted."""
    if as_json:
        print(json.dumps({**result.to_json(), "out": str(out)}))
    else:
        summary = f"best of {result.steps:,} steps: {result.best_step:,}; model in {out / 'model'}"
        print(*([] if is_quiet() else result.notes), *_score_lines(result), sep="\n")
        print(summary if result.finished else f"stopped; {summary}; --resume goes on")
        print(f"report: {out / REPORT_FILE}")
        if result.collapsed:
            print(result.collapsed)
        elif result.finished and not is_quiet():
            print(f"try: {_next_command(result.task, out)}")
    if not result.finished:
        raise typer.Exit(INTERRUPTED)
