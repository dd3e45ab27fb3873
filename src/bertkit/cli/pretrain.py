"""`bertkit pretrain`: pre-train a model on shards, following a recipe."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertkit.cli.common import INTERRUPTED
from bertkit.cli.options import AsJson, ResumeRun

if TYPE_CHECKING:
    from bertkit.pretraining.recipe import Recipe
    from bertkit.train.loop import StepReport


def pretrain(
    recipe: Annotated[Path, typer.Argument(help="A recipe: a name that bertkit recipes lists, or a TOML file.")],
    settings: Annotated[
        list[str] | None, typer.Argument(help="Changes to the recipe, as --depth 4 or depth=4.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the run; the model goes to its folder model/.")] = Path("run"),
    start: Annotated[
        Path | None, typer.Option("--from", help="Continue training this model; its shape replaces the recipe's.")
    ] = None,
    resume: ResumeRun = False,
    minutes: Annotated[float | None, typer.Option(help="Train for this many minutes instead of steps.")] = None,
    as_json: AsJson = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Measure the device, print which model sizes fit into --minutes, then exit.")
    ] = False,
    verify_resume: Annotated[
        bool,
        typer.Option("--verify-resume", help="Check that a killed and resumed run gives identical weights, then exit."),
    ] = False,
) -> None:
    """Pre-train a model. The same recipe, shards and seed give the same weights, even if the run is killed and resumed.

    SIGTERM and Ctrl-C save a checkpoint and exit with code 130; --resume continues.
    """
    from bertkit.pretraining.recipe import read_recipe

    changes = [*(settings or []), *([f"minutes={minutes}"] if minutes is not None else [])]
    changed = read_recipe(recipe, *changes)
    if plan:
        return _print_plan(changed, minutes, as_json)
    if verify_resume:
        from bertkit.pretraining.verify import verify_resume as verify

        print(verify(changed, start=start))
        return
    from bertkit.pretraining.pretraining import pretrain as run_pretraining
    from bertkit.progress import progress

    report = run_pretraining(changed, out, start=start, resume=resume, show=progress)
    finished = (out / "model").is_dir()
    if os.environ.get("RANK", "0") == "0":
        _print_result(report, out, finished, as_json)
    if not finished:
        raise typer.Exit(INTERRUPTED)


def _print_plan(recipe: "Recipe", minutes: float | None, as_json: bool) -> None:
    """Print which model size, batch and number of steps fit the time, and the loss to expect."""
    import torch

    from bertkit.errors import RequestError
    from bertkit.pretraining.planning.plan import plan as make_plan
    from bertkit.pretraining.planning.plan import plan_table
    from bertkit.pretraining.planning.probe import Work
    from bertkit.text.shards.reader import open_shards

    if minutes is None:
        raise RequestError("--plan needs a time: --plan --minutes 25")
    shards = open_shards(recipe.shards)
    data, size = recipe.data, shards.tokenizer.size
    work = Work(length=data.length, vocab_size=size, predicted=data.rate, corpus_tokens=shards.tokens)
    plan = make_plan(minutes, "cuda" if torch.cuda.is_available() else "cpu", work)
    print(json.dumps(asdict(plan)) if as_json else plan_table(plan))


def _print_result(report: "StepReport | None", out: Path, finished: bool, as_json: bool) -> None:
    """Print the steps, tokens and losses of the run, and where its model is."""
    if as_json:
        summary: dict[str, Any] = {"step": report.progress.step, "loss": dict(report.losses)} if report else {}
        summary |= {name: value for name, value in _last_evaluation(out).items() if name != "step"}
        print(json.dumps({**summary, "finished": finished, "out": str(out)}))
    elif report is None:
        print(f"{out} is finished already; the model is in {out / 'model'}")
    else:
        losses = ", ".join(f"{name} {value:.3f}" for name, value in report.losses.items())
        work = f"{report.progress.step:,} steps, {report.progress.tokens:,} tokens, loss {losses}{_held_out(out)}"
        print(f"{work}; model in {out / 'model'}" if finished else f"stopped and saved after {work}; --resume goes on")


def _held_out(out: Path) -> str:
    """`, held-out mlm perplexity 12.3, ...` of the last evaluation, if there was one."""
    from bertkit.pretraining.evaluation import format_evaluation

    last = _last_evaluation(out)
    texts = [f"{name} {value}" for name, value in format_evaluation(last.get("evaluation", {})).items()]
    averaged = format_evaluation(last.get("averaged", {}))
    texts += [f"{name.replace('held-out', 'averaged')} {value}" for name, value in averaged.items()]
    return "".join(f", {text}" for text in texts)


def _last_evaluation(out: Path) -> dict[str, Any]:
    """The last line of metrics.jsonl that holds an evaluation, or {}."""
    from bertkit.train.records import read_records

    lines = read_records(out / "metrics.jsonl").evaluations
    return dict(lines[-1]) if lines else {}
