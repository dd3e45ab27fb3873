"""From what a user names to a folder: the models inside the package, runs, models and vocabularies on disk.

Every argument that names a model or a vocabulary goes through `model_folder` or `tokenizer_folder`, in Python and in
every verb, so that a name means the same everywhere.
"""

from pathlib import Path

from bertkit.checkpoint.small_files import SMALL, folder_above
from bertkit.errors import RequestError
from bertkit.text.tokenizer_files import LOADERS

BUNDLED = "bundled"
# Name -> folder inside the package.
NAMES = {BUNDLED: ".", "sentences": "sentences"}


def bundled_folder() -> Path:
    """Where the bundled models are, or would be."""
    return Path(__file__).parents[1] / "pretrained"


def model_folder(given: Path | str | None) -> Path:
    """The folder of a model: nothing means the bundled one, and so do its names where nothing is called so on disk.

    The folder of a run stands for the model in it.
    """
    if given is not None and (str(given) not in NAMES or Path(given).exists()):
        return _of_run(Path(given))
    name = BUNDLED if given is None else str(given)
    folder = bundled_folder() / NAMES[name]
    if (folder / SMALL).is_file():
        return folder
    if name == BUNDLED:
        problem = "no model is bundled with this version"
    else:
        problem = f"no model called '{name}' is bundled with this version, and there is no folder {name} here"
    raise RequestError(f"{problem}: name a folder, as load('my-model') or --model my-model")


def tokenizer_folder(given: Path | str | None) -> Path:
    """Where the tokenizer is of a model that is named, or of a vocabulary: a folder, or a file such as vocab.txt."""
    if given is not None and has_tokenizer(Path(given)):
        return Path(given)  # even if it looks like a run: a model may lie in a vocabulary's folder
    return with_tokenizer(model_folder(given))


def with_tokenizer(folder: Path) -> Path:
    """The folder itself or, if it has no tokenizer and holds only what differs from the one above it, that one."""
    above = None if has_tokenizer(folder) else folder_above(folder)
    return folder if above is None else with_tokenizer(above)


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder has the files of a tokenizer."""
    return any((folder / name).is_file() for name in LOADERS)


def _of_run(folder: Path) -> Path:
    inner = folder / "model"
    return inner if not (folder / "config.json").exists() and (inner / "config.json").is_file() else folder
