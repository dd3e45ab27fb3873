"""`bertkit info`: what a model folder holds."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from bertkit.cli.options import AsJson

SHOWN_LABELS = 20


def info(
    model: Annotated[Path | None, typer.Argument(help="A model folder; else the bundled one.")] = None,
    as_json: AsJson = False,
) -> None:
    """Describe a model: family, shape, parameters, heads, task, labels, length, size on disk, what it can answer."""
    from bertkit.checkpoint.bundled import model_folder
    from bertkit.checkpoint.save_load import load_checkpoint
    from bertkit.model.model import parameter_count
    from bertkit.tasks.folder import task_name

    folder = model_folder(model)
    loaded = load_checkpoint(model)
    config, task = loaded.model.config, task_name(loaded)
    answers = [*(["embed"] if loaded.tokenizer else []), *(["fill"] if loaded.model.fills else [])]
    facts: dict[str, Any] = {
        "folder": str(folder),
        "family": config.family,
        "layers": config.depth,
        "width": config.width,
        "attention heads": config.heads,
        "parameters": parameter_count(loaded.model),
        "vocabulary": config.vocab_size,
        "max length": loaded.max_length,
        "heads": list(loaded.model.heads),
        "task": task,
        "labels": list(loaded.labels),
        "pooling": loaded.embed.pooling if loaded.embed else None,
        "bytes": sum(path.stat().st_size for path in folder.iterdir() if path.is_file()),
        "answers": [*answers, *([f"predict ({task})"] if task else [])],
    }
    print(json.dumps(facts, ensure_ascii=False) if as_json else "\n".join(_lines(facts)))


def _lines(facts: dict[str, Any]) -> list[str]:
    """One line for each fact that there is."""
    shown = {**facts, "size on disk": f"{facts['bytes'] / 1e6:,.1f} MB"}
    del shown["bytes"]
    return [f"{name:<16} {_text(value)}" for name, value in shown.items() if value or value == 0]


def _text(value: Any) -> str:
    if isinstance(value, list):
        more = f" and {len(value) - SHOWN_LABELS:,} more" if len(value) > SHOWN_LABELS else ""
        return ", ".join(value[:SHOWN_LABELS]) + more
    return f"{value:,}" if isinstance(value, int) else str(value)
