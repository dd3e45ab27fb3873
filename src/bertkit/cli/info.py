"""`bertkit info`: describe a model folder."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from bertkit.cli.options import AsJson

SHOWN_LABELS = 20  # more are only counted


def info(
    model: Annotated[
        Path | None, typer.Argument(help="A folder of a model or adapter; by default the bundled model.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Describe a model: family, shape, parameters, heads, task, labels, length, size on disk, and usable commands."""
    from bertkit.checkpoint.adapters import read_adapter
    from bertkit.checkpoint.bundled import is_adapter, model_folder
    from bertkit.checkpoint.save_load import load_checkpoint
    from bertkit.model.model import parameter_count
    from bertkit.predict.questions import answerable
    from bertkit.tasks.folder import task_name

    folder = model_folder(model)
    checkpoint = load_checkpoint(model)
    config, task = checkpoint.model.config, task_name(checkpoint)
    answers = [*(["embed"] if checkpoint.tokenizer else []), *(["fill"] if checkpoint.model.fills else [])]
    answers += [] if checkpoint.retrieval is None else [checkpoint.retrieval.what]
    description: dict[str, Any] = {
        "folder": str(folder),
        **(read_adapter(folder).describe() if is_adapter(folder) else {}),
        "family": config.family,
        "layers": config.depth,
        "width": config.width,
        "attention heads": config.attention_heads,
        "parameters": parameter_count(checkpoint.model),
        "vocabulary": config.vocab_size,
        "max length": checkpoint.max_length,
        "heads": list(checkpoint.model.heads),
        "task": task,
        "labels": list(checkpoint.labels),
        "pooling": checkpoint.embed.pooling if checkpoint.embed else None,
        "prompts": [name for name, _ in checkpoint.embed_settings().prompts],
        "dimensions": list(checkpoint.embed_settings().trained_dimensions),
        "bytes": sum(path.stat().st_size for path in folder.iterdir() if path.is_file()),
        "answers": [*answers, *answerable(checkpoint.model), *([f"predict ({task})"] if task else [])],
    }
    print(json.dumps(description, ensure_ascii=False) if as_json else "\n".join(_format_lines(description)))


def _format_lines(description: dict[str, Any]) -> list[str]:
    """One line for each entry that is not empty."""
    shown = {**description, "size on disk": f"{description['bytes'] / 1e6:,.1f} MB"}
    del shown["bytes"]
    return [f"{name:<16} {_format_value(value)}" for name, value in shown.items() if value or value == 0]


def _format_value(value: Any) -> str:
    if isinstance(value, list):
        more = f" and {len(value) - SHOWN_LABELS:,} more" if len(value) > SHOWN_LABELS else ""
        return ", ".join(map(str, value[:SHOWN_LABELS])) + more
    return f"{value:,}" if isinstance(value, int) else str(value)
