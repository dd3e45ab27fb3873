"""`bertkit download`: a model of the Hugging Face hub, into the local cache or a folder."""

import json
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertkit.cli.options import AsJson
from bertkit.errors import BertkitError, RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

# What bertkit reads: configuration, tokenizer, modules of sentence-transformers, and weights.
SMALL_FILES = ("*.json", "*.txt", "*.model", "[0-9]_*/*.json", "[0-9]_*/*.safetensors", "[0-9]_*/*.bin")
WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")  # the first kind that is there


def download(
    hub_id: Annotated[
        str, typer.Argument(metavar="ID", help="A model of the hub, such as google-bert/bert-base-uncased.")
    ],
    folder: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="A folder to write; by default the Hugging Face cache.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Download a model of the Hugging Face hub; from then on its ID names it: bertkit fill ... --model ID.

    This is the only command that uses the network by itself. HF_TOKEN, HF_HOME and HF_ENDPOINT work as usual.
    """
    from bertkit.files import refuse_to_overwrite

    if folder is not None:
        refuse_to_overwrite(folder)
    path = _fetch(hub_id, folder)
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file() and ".cache" not in file.parts)
    name = folder or hub_id
    if as_json:
        print(json.dumps({"model": hub_id, "folder": str(path), "bytes": size}))
    else:
        print(f"{hub_id}: {size / 1e6:,.1f} MB in {path}\ntry: bertkit info {name}")


def _fetch(model: str, folder: Path | None) -> Path:
    """Download the files that bertkit reads; the folder that holds them."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    try:
        files = needed_files(HfApi().list_repo_files(model))
        if not files:
            raise RequestError(f"{model} has no config.json with weights (safetensors or pytorch_model.bin)")
        return Path(snapshot_download(model, allow_patterns=files, local_dir=folder))
    except GatedRepoError as error:
        raise RequestError(f"{model} asks for an agreement on its page and a token in HF_TOKEN") from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise RequestError(f"the hub has no model '{model}', or none that may be read; check OWNER/NAME") from error
    except BertkitError:
        raise
    except Exception as error:  # no network, or HF_HUB_OFFLINE=1: the class depends on the hub's HTTP library
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise BertkitError(f"{model} could not be downloaded: {reason}") from error


def needed_files(files: "Sequence[str]") -> list[str]:
    """Those of a repository's files that bertkit reads; none if there is no configuration or there are no weights."""
    small = [name for name in files if any(_matches(name, pattern) for pattern in SMALL_FILES)]
    weights = next((found for kind in WEIGHTS if (found := [name for name in files if _matches(name, kind)])), [])
    return [*small, *weights] if weights and "config.json" in files else []


def _matches(name: str, pattern: str) -> bool:
    """As a shell's patterns: * stays inside a folder."""
    return name.count("/") == pattern.count("/") and fnmatch(name, pattern)
