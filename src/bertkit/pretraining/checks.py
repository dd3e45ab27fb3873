"""Checks before the first step: recipes, folders and checkpoints that cannot work are refused with one sentence."""

import math
import shutil
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

from bertkit.checkpoint.save_load import Checkpoint
from bertkit.checkpoint.tensors import fingerprint
from bertkit.errors import RequestError
from bertkit.files import refuse_to_overwrite
from bertkit.pretraining.recipe import FINGERPRINTS_TABLE, Recipe, directed, read_recipe, with_absolute_paths
from bertkit.pretraining.stages import read_stages
from bertkit.pretraining.train_settings import TrainSettings
from bertkit.settings import pick
from bertkit.text.shards.reader import ShardSet, open_shards
from bertkit.text.tokenizer import Tokenizer
from bertkit.train.runs import Run
from bertkit.train.schedule import Budget, Schedule

SETTINGS_FILE = "settings.toml"
FRESH_WEIGHTS = "fresh weights"
# Settings that may change when a run is resumed, because no weight depends on them.
CHANGEABLE = ("log_every", "evaluate_every", "save_every", "keep", "compile", "sharding")
MINIMUMS = {"batch": 1, "warmup": 0, "log_every": 1, "evaluate_every": 1, "save_every": 1, "keep": 1, "seed": 0}
MINIMUMS |= {"most_skipped": 0, "average_every": 1}
FRACTIONS = ("average_decay", "average_tail")  # over 0 and under 1


def fitted(recipe: Recipe, shards: ShardSet, start: Checkpoint | None = None) -> Recipe:
    """The checked recipe, with the vocabulary of the shards, or with the shape of the model to continue from."""
    recipe = replace(recipe, model=_shape(recipe, shards, start))
    train, data = recipe.train, recipe.data
    for name, least in MINIMUMS.items():
        if getattr(train, name) < least:
            raise RequestError(f"{name}={getattr(train, name)} must be at least {least}")
    for name in ("learning_rate", "clip", "generator", "fill_weight"):
        if not getattr(train, name) > 0:
            raise RequestError(f"{name}={getattr(train, name)} must be over 0")
        if name != "clip" and math.isinf(getattr(train, name)):  # clip=inf clips nothing
            raise RequestError(f"{name}=inf must be finite")
    for name in FRACTIONS:
        if not 0 < getattr(train, name) < 1:
            raise RequestError(f"{name}={getattr(train, name)} must be over 0 and under 1")
    for name in ("sharding", "average"):
        pick(dict.fromkeys(get_args(get_type_hints(TrainSettings)[name])), getattr(train, name), name)
    for stage in read_stages(train.stages, train.batch, data):
        if stage.data.length > recipe.model.max_length:
            raise RequestError(
                f"length={stage.data.length} is over the model's max_length={recipe.model.max_length}; lower length"
                " or, for a new model, raise max_length"
            )
    if data.pairs and recipe.model.segments == 1:
        raise RequestError(
            f"objective {data.pairs} distinguishes two texts by their segments, but the model has segments=1; "
            f"leave out {data.pairs} or, for a new model, set segments=2"
        )
    if train.batch % data.block:
        raise RequestError(f"batch={train.batch} must be a multiple of block={data.block}")
    Budget(steps=train.steps, minutes=train.minutes)
    Schedule(peak=train.learning_rate, warmup=train.warmup, decay=train.decay)
    train.optimizer_settings()
    return recipe


def check_folder(out: Path, recipe: Recipe, fingerprints: Mapping[str, str], *, resume: bool) -> None:
    """Refuse a folder that is not empty; with `resume`, one of a run with other settings, text or start."""
    if not resume:
        return refuse_to_overwrite(out)
    if (out / SETTINGS_FILE).is_file():
        _refuse_other_settings(out / SETTINGS_FILE, recipe)
        return refuse_other_start(out / SETTINGS_FILE, recipe, fingerprints, trained=Run(out).latest() is not None)
    if out.exists() and (not out.is_dir() or any(not path.name.startswith(".") for path in out.iterdir())):
        raise RequestError(f"{out} is not the folder of a run: it has no {SETTINGS_FILE}; name another folder")


def check_disk(out: Path, parameter_bytes: int, keep: int) -> None:
    """Refuse a disk without room for `keep` + 1 checkpoints: weights, and twice as much AdamW state."""
    existing = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.exists())
    needed, free = 3 * parameter_bytes * (keep + 1), shutil.disk_usage(existing).free
    if needed > free:
        raise RequestError(
            f"{out} needs {_gigabytes(needed)} for {keep + 1} checkpoints, but {_gigabytes(free)} are free there; "
            "lower keep or name another folder"
        )


def start_fingerprints(recipe: Recipe, shards: ShardSet, start: Checkpoint | None) -> dict[str, str]:
    """Fingerprints of the weights to continue from, of the shards, and of the held-out text if there is any."""
    weights = fingerprint(start.model.state_dict()) if start else FRESH_WEIGHTS
    return {"start": weights, "shards": shards.fingerprint} | (
        {"heldout": open_shards(recipe.heldout).fingerprint} if recipe.heldout else {}
    )


def read_fingerprints(settings: Path) -> dict[str, str]:
    """The fingerprints that a run was begun with; {} for a new run or one of an earlier version."""
    if not settings.is_file():
        return {}
    return {
        name: str(text) for name, text in tomllib.loads(settings.read_text("utf-8")).get(FINGERPRINTS_TABLE, {}).items()
    }


def refuse_other_start(settings: Path, recipe: Recipe, now: Mapping[str, str], *, trained: bool) -> None:
    """Refuse other shards or another start model; a run that has `trained` needs no --from."""
    before, out = read_fingerprints(settings), settings.parent
    for name, folder in {"shards": recipe.shards, "heldout": recipe.heldout}.items():
        if name in before and before[name] != now[name]:
            raise RequestError(
                f"{folder} no longer holds the text and the vocabulary that {out} was begun with; "
                "make these shards again, or start another run with another --out"
            )
    start = now["start"]
    if "start" in before and before["start"] != start and not (trained and start == FRESH_WEIGHTS):
        fresh = start == FRESH_WEIGHTS
        now_from = FRESH_WEIGHTS if fresh else "this model"
        was = FRESH_WEIGHTS if before["start"] == FRESH_WEIGHTS else "a model" if fresh else "another model"
        raise RequestError(
            f"{out} was begun from {was}, not from {now_from}; "
            "continue with the same --from, or start another run with another --out"
        )


def refuse_other_vocabulary(checkpoint: Path, tokenizer: Tokenizer | None, shards: ShardSet) -> None:
    """Refuse shards of another vocabulary than the checkpoint's: its ids mean other words."""
    if tokenizer is not None and tokenizer.hash != shards.tokenizer.hash:
        raise RequestError(
            f"{checkpoint} was trained with another vocabulary than that of {shards.folder}; "
            "make the shards with the vocabulary in it, or start another run with another --out"
        )


def _shape(recipe: Recipe, shards: ShardSet, start: Checkpoint | None) -> Any:
    tokenizer = shards.tokenizer
    if start is None:
        return replace(directed(recipe.model, recipe.data), vocab_size=tokenizer.size, pad_id=tokenizer.pad_id)
    if start.model.config.vocab_size < tokenizer.size:  # an extended model has the rows already
        raise RequestError(
            f"the model to continue from has {start.model.config.vocab_size} words but {shards.folder} "
            f"{tokenizer.size}, and no tokenizer to extend; make the shards with the model's own vocabulary"
        )
    return start.model.config


def _refuse_other_settings(path: Path, recipe: Recipe) -> None:
    before, now = (_flat(asdict(with_absolute_paths(one))) for one in (read_recipe(path), recipe))
    for name in read_fingerprints(path).keys() & {"shards", "heldout"}:  # compared by content: they may have moved
        before[name] = now[name] or before[name]
    for name in now:
        if name not in CHANGEABLE and before[name] != now[name]:
            raise RequestError(
                f"{path.parent} was begun with {name}={before[name]}, not {now[name]}; "
                "continue with the same settings (and --from), or start another run with another --out"
            )


def _flat(table: dict[str, Any]) -> dict[str, Any]:
    """All settings by their name; where a name is in two sections, such as `seed`, prefixed by its section."""
    flat: dict[str, Any] = {}
    for name, value in table.items():
        inner = _flat(value) if isinstance(value, dict) else {name: value}
        flat |= {(f"{name}.{key}" if key in flat else key): item for key, item in inner.items()}
    return flat


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:,.1f} GB"
