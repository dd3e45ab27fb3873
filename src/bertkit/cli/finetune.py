"""`bertkit finetune`: a model and labelled files in; a model that answers out."""

import json as json_module
from pathlib import Path
from typing import Annotated, Any

import typer

from bertkit.tasks.table import TASKS

VECTORS = "vectors"
STOPPED = 130  # as the shell has it for a command that was interrupted


def finetune(
    task: Annotated[str, typer.Argument(help=f"{', '.join(TASKS)} or {VECTORS}.")],
    settings: Annotated[
        list[str] | None, typer.Argument(help="key=value ..., such as epochs=3, or text=review label=stars (columns).")
    ] = None,
    start: Annotated[Path | None, typer.Option("--from", help="The model to start from; else the bundled one.")] = None,
    train: Annotated[Path | None, typer.Option(help="Labelled examples to learn from.")] = None,
    dev: Annotated[Path | None, typer.Option(help="Labelled examples to measure by; else a tenth is held out.")] = None,
    out: Annotated[Path, typer.Option(help="The run's folder; the model will be in its folder model/.")] = Path("run"),
    teacher: Annotated[Path | None, typer.Option(help="A taught model whose probabilities are learned too.")] = None,
    seeds: Annotated[int, typer.Option(help="So many runs: mean and deviation; the median's model is kept.")] = 1,
    search: Annotated[bool, typer.Option("--search", help="Try a small grid of settings by halving.")] = False,
    find_rate: Annotated[bool, typer.Option("--find-rate", help="Only try learning rates from tiny to huge.")] = False,
    features: Annotated[
        bool, typer.Option("--features", help="Leave the encoder as it is; fit a regression on its layers.")
    ] = False,
    curve: Annotated[
        str | None, typer.Option(help="100,300,1000: only scores by examples, pre-trained and from random weights.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where this run stopped, or begin.")] = False,
    retry: Annotated[
        bool, typer.Option("--retry", help="A run that learned nothing starts again at a third of its learning rate.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Teach a model a task.

    The best model on the dev file is kept, with temperature and thresholds fitted there; report.html shows the run.
    SIGTERM and Ctrl-C keep the best so far and leave with exit code 130; --resume goes on.
    """
    from bertkit.errors import RequestError
    from bertkit.files import refuse_to_overwrite
    from bertkit.finetuning.settings import read_request
    from bertkit.settings import pick

    pick(dict.fromkeys((*TASKS, VECTORS)), task, "task")
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
