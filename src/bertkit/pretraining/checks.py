"""What cannot work is said before the first step, in one sentence."""

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
from bertkit.pretraining.recipe import BEGUN, Recipe, directed, read_recipe, with_absolute_paths
from bertkit.pretraining.stages import read_stages
from bertkit.pretraining.train_settings import TrainSettings
from bertkit.settings import pick
from bertkit.text.shards.reader import ShardSet, open_shards
from bertkit.text.tokenizer import Tokenizer
from bertkit.train.runs import Run
from bertkit.train.schedule import Budget, Schedule

SETTINGS = "settings.toml"
FRESH = "fresh weights"
# What may change when a run goes on: it decides when and where, but no weight.
FREE = ("log_every", "evaluate_every", "save_every", "keep", "compile", "sharding")
LEAST = {"batch": 1, "warmup": 0, "log_every": 1, "evaluate_every": 1, "save_every": 1, "keep": 1, "seed": 0}
LEAST |= {"most_skipped": 0, "average_every": 1}
SHARES = ("average_decay", "average_tail")


def fitted(recipe: Recipe, shards: ShardSet, start: Checkpoint | None = None) -> Recipe:
    """The recipe with the vocabulary of the shards, or with the shape of the model to carry on from."""
    recipe = replace(recipe, model=_shape(recipe, shards, start))
    train, data = recipe.train, recipe.data
    for name, least in LEAST.items():
        if getattr(train, name) < least:
            raise RequestError(f"{name}={getattr(train, name)} must be at least {least}")
    for name in ("learning_rate", "clip", "generator", "fill_weight"):
        if not getattr(train, name) > 0:
            raise RequestError(f"{name}={getattr(train, name)} must be over 0")
        if name != "clip" and math.isinf(getattr(train, name)):  # clip=inf clips nothing
            raise RequestError(f"{name}=inf must be finite")
    for name in SHARES:
        if not 0 < getattr(train, name) < 1:
            raise RequestError(f"{name}={getattr(train, name)} must be over 0 and under 1")
    for name in ("sharding", "average"):
        pick(dict.fromkeys(get_args(get_type_hints(TrainSettings)[name])), getattr(train, name), name)
    for stage in read_stages(train.stages, train.batch, data):
        if stage.data.length > recipe.model.max_length:
            raise RequestError(
                f"length={stage.data.length} is over the model's max_length={recipe.model.max_length}; lower the one"
                " or, for a fresh model, raise the other"
            )
    if data.pairs and recipe.model.segments == 1:
        raise RequestError(
            f"objective {data.pairs} tells two texts apart by their segments, but the model has segments=1; "
            f"leave out {data.pairs} or, for a fresh model, set segments=2"
        )
    if train.batch % data.block:
        raise RequestError(f"batch={train.batch} must be a multiple of block={data.block}")
    Budget(steps=train.steps, minutes=train.minutes)
    Schedule(peak=train.learning_rate, warmup=train.warmup, decay=train.decay)
    train.optimizer_settings()
    return recipe


def check_folder(out: Path, recipe: Recipe, begun: Mapping[str, str], *, resume: bool) -> None:
    """A new run needs an empty folder, and one that goes on a folder of the same settings and text, or none yet."""
    if not resume:
        return refuse_to_overwrite(out)
    if (out / SETTINGS).is_file():
        _refuse_other_settings(out / SETTINGS, recipe)
        return refuse_other_beginning(out / SETTINGS, recipe, begun, trained=Run(out).latest() is not None)
    if out.exists() and (not out.is_dir() or any(not path.name.startswith(".") for path in out.iterdir())):
        raise RequestError(f"{out} is not the folder of a run: it has no {SETTINGS}; name another place")


def check_disk(out: Path, parameter_bytes: int, keep: int) -> None:
    """Room for `keep` checkpoints and the one that is being written: weights, twice as much memory of AdamW."""
    existing = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.exists())
    needed, free = 3 * parameter_bytes * (keep + 1), shutil.disk_usage(existing).free
    if needed > free:
        raise RequestError(
            f"{out} needs {_gigabytes(needed)} for {keep + 1} checkpoints, but {_gigabytes(free)} are free there; "
            "lower keep or name another place"
        )


def start_fingerprints(recipe: Recipe, shards: ShardSet, start: Checkpoint | None) -> dict[str, str]:
    """Fingerprints of the weights to carry on from, of the shards, and of held-out text if there is some."""
    found = {"start": fingerprint(start.model.state_dict()) if start else FRESH, "shards": shards.fingerprint}
    return found | ({"heldout": open_shards(recipe.heldout).fingerprint} if recipe.heldout else {})


def read_begun(settings: Path) -> dict[str, str]:
    """What a run's settings say that it began with; nothing for a run that has none, or of an earlier version."""
    if not settings.is_file():
        return {}
    return {name: str(text) for name, text in tomllib.loads(settings.read_text("utf-8")).get(BEGUN, {}).items()}


def refuse_other_beginning(settings: Path, recipe: Recipe, now: Mapping[str, str], *, trained: bool) -> None:
    """Refuse what would make another run of it; a run that has `trained` has its weights, so --from may be left out."""
    before, out = read_begun(settings), settings.parent
    for name, folder in {"shards": recipe.shards, "heldout": recipe.heldout}.items():
        if name in before and before[name] != now[name]:
            raise RequestError(
                f"{folder} no longer holds the text and the vocabulary that {out} was begun with; "
                "make these shards again, or begin another run with another --out"
            )
    start = now["start"]
    if "start" in before and before["start"] != start and not (trained and start == FRESH):
        now_from = FRESH if start == FRESH else "this model"
        was = FRESH if before["start"] == FRESH else "a model" if start == FRESH else "another model"
        raise RequestError(
            f"{out} was begun from {was}, not from {now_from}; "
            "go on with the same --from, or begin another run with another --out"
        )


def refuse_other_vocabulary(checkpoint: Path, tokenizer: Tokenizer | None, shards: ShardSet) -> None:
    """Ids of another vocabulary would mean other words to the weights of a checkpoint."""
    if tokenizer is not None and tokenizer.hash != shards.tokenizer.hash:
        raise RequestError(
            f"{checkpoint} was trained with another vocabulary than that of {shards.folder}; "
            "make the shards with the vocabulary in it, or begin another run with another --out"
        )


def _shape(recipe: Recipe, shards: ShardSet, start: Checkpoint | None) -> Any:
    tokenizer = shards.tokenizer
    if start is None:
        return replace(directed(recipe.model, recipe.data), vocab_size=tokenizer.size, pad_id=tokenizer.pad_id)
    if start.model.config.vocab_size < tokenizer.size:  # an extension has its rows already
        raise RequestError(
            f"the model to carry on from has {start.model.config.vocab_size} words but {shards.folder} "
            f"{tokenizer.size}, and no tokenizer to extend; make the shards with the model's own vocabulary"
        )
    return start.model.config


def _refuse_other_settings(path: Path, recipe: Recipe) -> None:
    before, now = (_flat(asdict(with_absolute_paths(each))) for each in (read_recipe(path), recipe))
    for name in read_begun(path).keys() & {"shards", "heldout"}:  # known by what they hold: they may have moved
        before[name] = now[name] or before[name]
    for name in now:
        if name not in FREE and before[name] != now[name]:
            raise RequestError(
                f"{path.parent} was begun with {name}={before[name]}, not {now[name]}; "
                "go on with the same settings (and --from), or begin another run with another --out"
            )


def _flat(table: dict[str, Any]) -> dict[str, Any]:
    """All settings by their own name; `seed` is in two sections, so sections stay in front where names collide."""
    flat: dict[str, Any] = {}
    for name, value in table.items():
        inner = _flat(value) if isinstance(value, dict) else {name: value}
        flat |= {(f"{name}.{key}" if key in flat else key): item for key, item in inner.items()}
    return flat


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:,.1f} GB"
