"""`bertkit pretrain`: train a model on shards, as a recipe says."""

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from bertkit.cli.options import AsJson, ResumeRun

STOPPED = 130  # as the shell has it for a command that was interrupted


def pretrain(
    recipe: Annotated[Path, typer.Argument(help="A recipe, such as recipes/tiny-cpu.toml.")],
    settings: Annotated[list[str] | None, typer.Argument(help="Changes to it: key=value ...")] = None,
    out: Annotated[Path, typer.Option(help="The run's folder; the model will be in its folder model/.")] = Path("run"),
    start: Annotated[
        Path | None, typer.Option("--from", help="Continue from this model; its shape replaces the recipe's.")
    ] = None,
    resume: ResumeRun = False,
    minutes: Annotated[float | None, typer.Option(help="Train for so many minutes instead of steps.")] = None,
    as_json: AsJson = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Measure the device, print what fits into --minutes, then exit.")
    ] = False,
    verify_resume: Annotated[
        bool,
        typer.Option("--verify-resume", help="Check that a killed and resumed run gives identical weights, then exit."),
    ] = False,
) -> None:
    """Pre-train a model. The same recipe, shards and seed give the same weights, even if a run is killed and resumed.

    SIGTERM and Ctrl-C save a checkpoint and exit with code 130.
    """
    from bertkit.pretraining.recipe import read_recipe

    changes = [*(settings or []), *([f"minutes={minutes}"] if minutes is not None else [])]
    wanted = read_recipe(recipe, *changes)
    if plan:
        return _print_plan(wanted, minutes, as_json)
    if verify_resume:
        from bertkit.pretraining.verify import verify_resume as verify

        print(verify(wanted, start=start))
        return
    from bertkit.pretraining.pretraining import pretrain as run
    from bertkit.progress import progress

    report = run(wanted, out, start=start, resume=resume, show=progress)
    finished = (out / "model").is_dir()
    if os.environ.get("RANK", "0") == "0":
        _print_result(report, out, finished, as_json)
    if not finished:
        raise typer.Exit(STOPPED)


def _print_plan(wanted: Any, minutes: float | None, as_json: bool) -> None:
    """Which size, batch and steps fit the time, and what to expect of them."""
    import torch

    from bertkit.errors import RequestError
    from bertkit.pretraining.planning.plan import plan as make_plan
    from bertkit.pretraining.planning.plan import plan_json, plan_table
    from bertkit.pretraining.planning.probe import Work
    from bertkit.text.shards.reader import open_shards

    if minutes is None:
        raise RequestError("say how long: --plan --minutes 25")
    shards = open_shards(wanted.shards)
    data, size = wanted.data, shards.tokenizer.size
    work = Work(length=data.length, vocab_size=size, predicted=data.rate, corpus_tokens=shards.tokens)
    made = make_plan(minutes, "cuda" if torch.cuda.is_available() else "cpu", work)
    print(json.dumps(plan_json(made)) if as_json else plan_table(made))


def _print_result(report: Any, out: Path, finished: bool, as_json: bool) -> None:
    """The last line: what was done, and where it is."""
    if as_json:
        last = {"step": report.progress.step, "loss": dict(report.losses)} if report else {}
        last |= {name: value for name, value in _evaluation(out).items() if name != "step"}
        print(json.dumps({**last, "finished": finished, "out": str(out)}))
    elif report is None:
        print(f"{out} is finished already; the model is in {out / 'model'}")
    else:
        losses = ", ".join(f"{name} {value:.3f}" for name, value in report.losses.items())
        done = f"{report.progress.step:,} steps, {report.progress.tokens:,} tokens, loss {losses}{_held_out(out)}"
        print(f"{done}; model in {out / 'model'}" if finished else f"stopped and saved after {done}; --resume goes on")


def _held_out(out: Path) -> str:
    """`, held-out mlm perplexity 12.3, ...` of the last evaluation, if there was one."""
    from bertkit.pretraining.evaluation import in_words

    last = _evaluation(out)
    texts = [f"{name} {value}" for name, value in in_words(last.get("evaluation", {})).items()]
    mean = in_words(last.get("averaged", {}))
    texts += [f"{name.replace('held-out', 'averaged')} {value}" for name, value in mean.items()]
    return "".join(f", {text}" for text in texts)


def _evaluation(out: Path) -> dict[str, Any]:
    """The last evaluation's line of metrics.jsonl, or nothing."""
    from bertkit.train.records import read_records

    lines = read_records(out / "metrics.jsonl").evaluations
    return dict(lines[-1]) if lines else {}
