"""`bertkit finetune`: a model and labeled files in, a fine-tuned model out."""

import json as json_module
from pathlib import Path
from typing import Annotated, Any

import typer

from bertkit.tasks.table import TASKS

VECTORS = "vectors"
GLUE = "glue"  # not a task: every task of a folder
STOPPED = 130  # as the shell has it for a command that was interrupted


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
    resume: Annotated[bool, typer.Option("--resume", help="Continue where this run stopped, or begin.")] = False,
    retry: Annotated[
        bool, typer.Option("--retry", help="Restart a run that learned nothing at a third of its learning rate.")
    ] = False,
    only: Annotated[str | None, typer.Option(help="With glue: only these tasks, such as SST-2,CoLA.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Fine-tune a model on labeled examples.

    The best model on the dev file is kept, with temperature and thresholds fitted there; report.html shows the run.
    SIGTERM and Ctrl-C keep the best so far and leave with exit code 130; --resume continues.
    bertkit finetune glue FOLDER fine-tunes on every GLUE task that a folder holds, one table for all.
    """
    from bertkit.errors import RequestError
    from bertkit.files import refuse_to_overwrite
    from bertkit.finetuning.settings import read_request
    from bertkit.settings import pick

    if task == GLUE:
        if train or dev or teacher or search or find_rate or features or retry or curve is not None or resume:
            raise RequestError("of the options, --from, --out, --seeds, --only and --json go with glue")
        return _fine_tune_glue(settings or [], start, out or Path("glue"), seeds, only, json)
    pick(dict.fromkeys((*TASKS, VECTORS)), task, "task")
    if only is not None:
        raise RequestError("--only goes with glue")
    out = out or Path("run")
    if task == VECTORS:
        if seeds != 1 or search or find_rate or features or retry or curve is not None:
            raise RequestError("--seeds, --search, --find-rate, --features, --curve and --retry do not go with vectors")
        return _tune_vectors(settings or [], start, train, dev, out, teacher, resume, json)
    wanted, columns = read_request(*(settings or []))
    if train is None:
        raise RequestError("name a file to learn from: --train FILE")
    start = start or Path("bundled")
    if sum((seeds != 1, search, find_rate, features, curve is not None)) > 1:
        raise RequestError("choose one of --seeds, --search, --find-rate, --features and --curve")
    exploring = search or find_rate or features or curve is not None
    if exploring and (retry or teacher is not None):
        given = "--retry" if retry else "--teacher"
        raise RequestError(f"{given} does not go with --search, --find-rate, --features and --curve")
    from bertkit.finetuning.fine_tuning import fine_tune, open_data
    from bertkit.progress import progress

    if exploring:
        if features:
            refuse_to_overwrite(out)  # before the work of reading
        data = open_data(task, wanted, start, train, dev, columns=columns, show=progress)
        return _explore(data, start, wanted, out, _sizes(curve), search, find_rate, json)

    def teach(settings: Any, folder: Path) -> Any:
        named: dict[str, Any] = {"columns": columns, "teacher": teacher, "resume": resume, "retry": retry}
        return fine_tune(task, settings, start, train, dev, folder, **named, show=progress)

    _tell(teach(wanted, out), out, json) if seeds == 1 else _teach_seeds(teach, wanted, seeds, out, json)


def _fine_tune_glue(words: list[str], start: Path | None, out: Path, seeds: int, only: str | None, json: bool) -> None:
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
    print(json_module.dumps(scores) if json else glue_table(results, start.absolute().name))


def _tune_vectors(
    settings: list[str],
    start: Path | None,
    train: Path | None,
    dev: Path | None,
    out: Path,
    teacher: Path | None,
    resume: bool,
    json: bool,
) -> None:
    """Vectors for similarity and search, from texts, pairs or scored pairs."""
    from bertkit.errors import RequestError
    from bertkit.finetuning.embeddings.settings import read_vector_request

    wanted, columns = read_vector_request(*settings)
    if train is None:
        raise RequestError("name a file of texts or pairs to learn from: --train FILE")
    from bertkit.finetuning.embeddings.tuning import tune_vectors
    from bertkit.progress import progress

    named: dict[str, Any] = {"columns": columns, "teacher": teacher, "resume": resume, "show": progress}
    _tell(tune_vectors(wanted, start or Path("bundled"), train, dev, out, **named), out, json)


def _teach_seeds(teach: Any, settings: Any, seeds: int, out: Path, json: bool) -> None:
    """Several runs that differ in their seed; one that was stopped ends them."""
    from bertkit.finetuning.explore.seeds import teach_seeds

    found = teach_seeds(teach, settings, seeds, out)
    if not found.results[-1].finished:
        return _tell(found.results[-1], out, json)
    print(json_module.dumps(found.to_json()) if json else f"{found}\nthe median's model is in {out / 'model'}")


def _explore(
    data: Any, start: Path, settings: Any, out: Path, sizes: list[int] | None, search: bool, find_rate: bool, json: bool
) -> None:
    """The runs that compare: settings, learning rates, numbers of examples, layers."""
    from dataclasses import asdict

    from bertkit.finetuning.explore import search as searching
    from bertkit.finetuning.explore.curve import curve_table, learning_curve
    from bertkit.finetuning.explore.features import feature_scores, read_features
    from bertkit.finetuning.explore.features_model import save_best_layer
    from bertkit.finetuning.learner import load_start
    from bertkit.progress import progress

    begin, prepared = data
    if search:
        found = searching.search(prepared, begin, settings, out, model=start, show=progress)
        rows: list[Any] = list(found.trials)
        last = f"best: {' '.join(f'{k}={v}' for k, v in found.changes.items())}; model in {out / 'model'}"
    elif find_rate:
        tried = searching.rate_range(prepared, load_start(begin, prepared.task, settings), settings)
        rows, last = [tried], ""
    elif sizes:
        rows = list(learning_curve(prepared, begin, settings, sizes, out, model=start, show=progress))
        last = curve_table(rows, settings.run.metric or prepared.task.main)
    else:
        features = read_features(begin.model, prepared)
        rows, layer = list(feature_scores(features)), save_best_layer(begin, prepared, features, out / "model")
        last = f"saved: layer {layer}, chosen on the training data; model in {out / 'model'}"
    if json:
        print(json_module.dumps([asdict(row) for row in rows]))
    else:
        print("\n".join([*([] if sizes else map(str, rows)), *([last] if last else [])]))


def _sizes(text: str | None) -> list[int] | None:
    from bertkit.errors import RequestError

    if text is None:
        return None
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 1 for part in parts):
        raise RequestError(f"--curve {text}: whole numbers over 1 with commas belong here, such as 100,300,1000")
    return [int(part) for part in parts]


def _tell(result: Any, out: Path, json: bool) -> None:
    """What came of it, and where it is; a run that was stopped leaves with its own exit code."""
    if json:
        from dataclasses import asdict

        print(json_module.dumps({**asdict(result), "out": str(out)}))
    else:
        for sentence in result.said:
            print(sentence)
        names = [result.metric, *(name for name in result.scores if name != result.metric)]
        print(", ".join(f"{name} {result.scores[name]:.4f}" for name in names))
        done = f"best of {result.steps:,} steps: {result.best_step:,}; model in {out / 'model'}"
        print(done if result.finished else f"stopped; {done}; --resume goes on")
        if result.collapsed:
            print(result.collapsed)
    if not result.finished:
        raise typer.Exit(STOPPED)
