"""From the name that a user gives to a folder: the bundled models, runs, models and vocabularies on disk.

Every argument that names a model or a vocabulary goes through `model_folder` or `tokenizer_folder`, in Python and on
the command line, so that a name means the same everywhere. Importable without torch.
"""

from pathlib import Path

from bertkit.checkpoint.hub import cached_model, download_hint
from bertkit.errors import RequestError
from bertkit.text.tokenizer_files import TOKENIZER_FILES

BUNDLED = "bundled"
SENTENCES = "sentences"  # the variant that was tuned for embeddings
# Name -> folder inside the package.
NAMES = {BUNDLED: ".", SENTENCES: SENTENCES}
# Files of a model with small weights (`checkpoint/small.py`): the weights, their checksums, and the base model's
# weights in the parent folder, which the checksums name if the folder holds only what differs from them.
SMALL_FILE = "model.small.safetensors"
CHECKSUM_FILE = "model.small.sha256"
BASE_FILE = f"../{SMALL_FILE}"

ADAPTER_FILE = "adapter_config.json"  # of a folder that holds low-rank updates of another model (`adapters.py`)


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter, and not a whole model."""
    return (folder / ADAPTER_FILE).is_file() and not (folder / "config.json").exists()


def bundled_folder() -> Path:
    """The folder of the bundled models, whether it exists or not."""
    return Path(__file__).parents[1] / "pretrained"


def model_folder(model: Path | str | None) -> Path:
    """The folder of a model: None is the bundled one, a name in NAMES a bundled one unless there is such a path.

    The folder of a run stands for the model in it, and an id of the Hugging Face hub for its folder in the local cache.
    """
    if model is not None and (str(model) not in NAMES or Path(model).exists()):
        path = Path(model)
        return _model_of_run(path) if path.exists() else cached_model(str(model)) or path
    name = BUNDLED if model is None else str(model)
    folder = bundled_folder() / NAMES[name]
    if (folder / SMALL_FILE).is_file():
        return folder
    if name == BUNDLED:
        problem = "no model is bundled with this version"
    else:
        problem = f"no model called '{name}' is bundled with this version, and there is no folder {name} here"
    raise RequestError(f"{problem}: name a folder, as load('my-model') or --model my-model")


def embedding_model(
    model: Path | None = None, *, pooling: object = None, layers: object = None, dtype: str | None = None
) -> Path | None:
    """The model for embeddings: where nothing is named, the bundled variant for sentences, else the given model.

    A pooling or layers that are named are those of the bundled model itself. int8 would change the variant's vectors.
    """
    folder = bundled_folder() / NAMES[SENTENCES]
    named = any(given is not None for given in (model, pooling, layers)) or dtype == "int8"
    return model if named or not (folder / SMALL_FILE).is_file() else folder


def model_name(folder: Path) -> str:
    """What a model is called: a bundled one by its name, others by their folder, a run's model by the run."""
    folder = folder.absolute()
    if folder == bundled_folder():
        return BUNDLED
    folder = folder.resolve() if folder.name == ".." else folder
    # The best model of a run is in RUN/model: the name of the run says more.
    return folder.parent.name if folder.name == "model" else folder.name


def tokenizer_folder(model: Path | str | None) -> Path:
    """The folder or file (such as vocab.txt) that holds the tokenizer of a model or a vocabulary."""
    if model is not None and has_tokenizer(Path(model)):
        return Path(model)  # even if it looks like a run: a vocabulary's folder may hold a model, too
    folder = model_folder(model)
    if not folder.exists() and (hint := download_hint(str(model))):
        raise RequestError(f"{model} does not exist; name a folder with a tokenizer.json or vocab.txt{hint}")
    return with_tokenizer(folder)


def with_tokenizer(folder: Path) -> Path:
    """The folder itself or, if it has no tokenizer and holds only what differs from its base model, the base's."""
    base = None if has_tokenizer(folder) else base_folder(folder)
    return folder if base is None else with_tokenizer(base)


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder has the files of a tokenizer."""
    return any((folder / name).is_file() for name in TOKENIZER_FILES)


def base_folder(folder: Path) -> Path | None:
    """The parent folder, if this one holds only what differs from the model there; else None."""
    checksums = folder / CHECKSUM_FILE
    return folder.parent if checksums.is_file() and BASE_FILE in read_checksums(checksums) else None


def read_checksums(path: Path) -> dict[str, str]:
    """File name -> sha256, from lines as sha256sum prints them."""
    try:
        pairs = [line.split() for line in path.read_text(encoding="ascii").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(
            f"{path}, the checksum of {SMALL_FILE}, cannot be read; copy the whole folder again"
        ) from error
    checksums = {pair[-1]: pair[0] for pair in pairs if len(pair) == 2 and len(pair[0]) == 64}
    if len(checksums) != len(pairs) or list(checksums) not in ([SMALL_FILE], [SMALL_FILE, BASE_FILE]):
        raise RequestError(f"{path} is not as bertkit writes it; copy the whole folder again")
    return checksums


def _model_of_run(folder: Path) -> Path:
    inner = folder / "model"
    own = (folder / "config.json").exists() or is_adapter(folder)
    return inner if not own and ((inner / "config.json").is_file() or is_adapter(inner)) else folder
