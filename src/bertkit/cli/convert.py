"""`bertkit convert`: convert a checkpoint to a model folder in the Hugging Face layout, or to an ONNX file."""

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
        Path, typer.Argument(help="The new folder to write; or a path such as new/model.onnx, for ONNX.")
    ],
    to: Annotated[str | None, typer.Option(help="folder or onnx; by default as the ending of TARGET says.")] = None,
    answers: Annotated[
        str | None,
        typer.Option(
            help="For ONNX: the outputs, vectors or names of heads such as masked_word,next_sentence; "
            "by default what the model was fine-tuned for."
        ),
    ] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="A vocab.txt or tokenizer folder, if SOURCE has none.")] = None,
    as_json: AsJson = False,
) -> None:
    """Read a checkpoint of any supported layout; write config.json, model.safetensors and tokenizer, or an ONNX file.

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


def _write_folder(checkpoint: "Checkpoint", target: Path, as_json: bool) -> None:
    from bertkit.checkpoint.save_load import folder_config, save_checkpoint

    settings, bertkit_only = folder_config(checkpoint.model, checkpoint.labels)
    save_checkpoint(checkpoint, target)
    name = "bertkit only: no Hugging Face class has these parts" if bertkit_only else settings["architectures"][0]
    report = checkpoint.report
    if as_json:
        written = {"out": str(target), "class": None if bertkit_only else name, "used": list(report.used)}
        print(json.dumps({**written, "dropped": dict(report.dropped), "new": list(report.new)}))
    else:
        print(f"{report}\n{target}: {name}")


def _write_onnx(source: Path, tokenizer: Path | None, target: Path, answers: str | None, as_json: bool) -> None:
    from bertkit.checkpoint.save_load import load_checkpoint
    from bertkit.predict.onnx.export import export_onnx, onnx_file
    from bertkit.progress import progress

    onnx_file(target)  # refuses a wrong target before the weights are read
    checkpoint = load_checkpoint(source, tokenizer=tokenizer)
    outputs = None if answers is None else [name.strip() for name in answers.split(",")]
    exported = export_onnx(checkpoint, target, answers=outputs, show=progress)
    print(json.dumps({**asdict(exported), "path": str(exported.path)}) if as_json else exported)
