"""Models of the Hugging Face hub in the local cache, by their ids, such as bert-base-uncased; nothing is downloaded.

`bertkit download ID` fills the cache, as every program does that uses huggingface_hub.
"""

import os
import re
from pathlib import Path

FILE_ENDINGS = (".txt", ".json", ".ckpt")
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


def cache_folder() -> Path:
    """The folder of the local cache; environment variables have the meaning that huggingface_hub gives them."""
    if cache := os.environ.get("HF_HUB_CACHE"):
        return Path(cache).expanduser()
    caches = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache"))
    return Path(os.environ.get("HF_HOME", caches / "huggingface")).expanduser() / "hub"


def cached_model(name: str) -> Path | None:
    """The folder of a model in the local cache; an id without owner means the only one of this name."""
    if not HUB_ID.fullmatch(name):
        return None
    cache = cache_folder()
    exact = cache / f"models--{name.replace('/', '--')}"
    folders = [exact] if exact.is_dir() or "/" in name else list(cache.glob(f"models--*--{name}"))
    snapshots = [snapshot for folder in folders if (snapshot := _snapshot(folder))]
    return snapshots[0] if len(snapshots) == 1 else None


def download_hint(name: str) -> str:
    """What to do if a name is an id of the hub; empty if it looks like a path."""
    in_a_folder = "/" in name and Path(name).parent.is_dir()
    if not HUB_ID.fullmatch(name) or in_a_folder or name.endswith(FILE_ENDINGS):
        return ""
    return f"; if it is the id of a model on the Hugging Face hub, fetch it: bertkit download {name}"


def _snapshot(folder: Path) -> Path | None:
    """The newest version that was downloaded, with a config.json."""
    main = folder / "refs" / "main"
    commit = main.read_text(encoding="utf-8").strip() if main.is_file() else ""
    snapshot = folder / "snapshots" / commit
    return snapshot if commit and (snapshot / "config.json").is_file() else None
