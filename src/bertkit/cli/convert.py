"""`bertkit convert`: a checkpoint of another layout becomes a model folder."""

import json
from pathlib import Path
from typing import Annotated

import typer


def convert(
    source: Annotated[
        Path, typer.Argument(help="A Hugging Face or sentence-transformers folder, or a Google checkpoint.")
    ],
    target: Annotated[Path, typer.Argument(help="The folder to write; it must not exist.")],
    tokenizer: Annotated[Path | None, typer.Option(help="A vocab.txt or tokenizer folder, if SOURCE has none.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Say what was done as JSON.")] = False,
) -> None:
    """Read any layout that bertkit knows and write config.json, model.safetensors and the tokenizer."""
    from bertkit.checkpoint.save_load import folder_config, load_checkpoint, save_checkpoint
    from bertkit.files import refuse_to_overwrite

    refuse_to_overwrite(target)
    loaded = load_checkpoint(source, tokenizer=tokenizer)
    settings, own = folder_config(loaded.model, loaded.labels)
    save_checkpoint(loaded, target)
    kind = "bertkit only: no Hugging Face class has these parts" if own else settings["architectures"][0]
    if as_json:
        report = loaded.report
        done = {"out": str(target), "class": None if own else kind, "used": list(report.used)}
        print(json.dumps({**done, "dropped": dict(report.dropped), "new": list(report.new)}))
    else:
        print(f"{loaded.report}\n{target}: {kind}")
