"""The models inside the package, and how their names are told from folders."""

from pathlib import Path

from bertkit.checkpoint.small import SMALL
from bertkit.errors import RequestError

BUNDLED = "bundled"
# Name -> folder inside the package.
NAMES = {BUNDLED: ".", "sentences": "sentences"}


def bundled_folder() -> Path:
    """Where the bundled models are, or would be."""
    return Path(__file__).parents[1] / "pretrained"


def model_folder(given: Path | str | None) -> Path:
    """The folder of a model: nothing means the bundled one, and so do its names where nothing is called so on disk."""
    if given is not None and (str(given) not in NAMES or Path(given).exists()):
        return Path(given)
    name = BUNDLED if given is None else str(given)
    folder = bundled_folder() / NAMES[name]
    if (folder / SMALL).is_file():
        return folder
    if name == BUNDLED:
        said = "no model is bundled with this version"
    else:
        said = f"no model called '{name}' is bundled with this version, and there is no folder {name} here"
    raise RequestError(f"{said}: name a folder, as load('my-model') or --model my-model")
