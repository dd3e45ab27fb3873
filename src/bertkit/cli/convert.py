"""`bertkit convert`: a checkpoint of another layout becomes a model folder, or an ONNX file."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertkit.cli.options import AsJson

if TYPE_CHECKING:
    from bertkit.checkpoint.save_load import Checkpoint

FORMS = {"folder": "folder", "onnx": "onnx"}


def convert(
    source: Annotated[
        Path, typer.Argument(help="A Hugging Face or sentence-transformers folder, or a Google checkpoint.")
    ],
    target: Annotated[
        Path,
        typer.Argument(help="The folder to write, which must not exist; or NEW/model.onnx for an ONNX file in it."),
    ],
    to: Annotated[str | None, typer.Option(help="folder or onnx; else as TARGET's ending says.")] = None,
    answers: Annotated[
        str | None, typer.Option(help="For ONNX: vectors, or heads as masked_word,next_sentence; else as the model is.")
    ] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="A vocab.txt or tokenizer folder, if SOURCE has none.")] = None,
    as_json: AsJson = False,
) -> None:
    """Read any layout that bertkit knows; write config.json, model.safetensors and the tokenizer, or an ONNX file.

    To ONNX: bertkit convert model/ exported/model.onnx (needs pip install 'bertkit[onnx]').
    """
    from bertkit.checkpoint.save_load import load_checkpoint
    from bertkit.errors import RequestError
    from bertkit.files import refuse_to_overwrite
    from bertkit.settings import pick

    form = pick(FORMS, to or ("onnx" if target.suffix == ".onnx" else "folder"), "form")
    if form == "folder":
        if answers is not None:
            raise RequestError("--answers belongs to an ONNX file; a folder keeps all heads (--to onnx writes one)")
        refuse_to_overwrite(target)
        _write_folder(load_checkpoint(source, tokenizer=tokenizer), target, as_json)
    else:
        _write_onnx(source, tokenizer, target, answers, as_json)


def _write_folder(loaded: "Checkpoint", target: Path, as_json: bool) -> None:
    from bertkit.checkpoint.save_load import folder_config, save_checkpoint

    settings, own = folder_config(loaded.model, loaded.labels)
    save_checkpoint(loaded, target)
    kind = "bertkit only: no Hugging Face class has these parts" if own else settings["architectures"][0]
    if as_json:
        report = loaded.report
        done = {"out": str(target), "class": None if own else kind, "used": list(report.used)}
        print(json.dumps({**done, "dropped": dict(report.dropped), "new": list(report.new)}))
    else:
        print(f"{loaded.report}\n{target}: {kind}")


def _write_onnx(source: Path, tokenizer: Path | None, target: Path, answers: str | None, as_json: bool) -> None:
    from bertkit.checkpoint.save_load import load_checkpoint
    from bertkit.predict.onnx.export import export_onnx, onnx_file
    from bertkit.progress import progress

    onnx_file(target)  # before the weights are read
    loaded = load_checkpoint(source, tokenizer=tokenizer)
    wanted = None if answers is None else [name.strip() for name in answers.split(",")]
    done = export_onnx(loaded, target, answers=wanted, show=progress)
    print(json.dumps({**asdict(done), "path": str(done.path)}) if as_json else done)
