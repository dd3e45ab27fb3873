"""A recipe: model, examples and training in one TOML file, with every key checked."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bertkit.config import BertConfig, family_config
from bertkit.errors import RequestError
from bertkit.files import FORMAT_VERSION, VERSION_KEY, check_format_version
from bertkit.pretraining.examples.batches import DataSettings
from bertkit.pretraining.objectives.table import OBJECTIVES
from bertkit.pretraining.recipe_files import find_recipe
from bertkit.pretraining.train_settings import TrainSettings
from bertkit.settings import as_text, change, check_name, flat, read_toml, split_pair, toml_lines

SECTIONS = ("model", "data", "train")
FINGERPRINTS_TABLE = "begun"  # a table in the settings.toml of a run, not a setting


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """All settings of a run."""

    shards: Path
    heldout: Path | None = None
    model: BertConfig = field(default_factory=BertConfig)
    data: DataSettings = field(default_factory=DataSettings)
    train: TrainSettings = field(default_factory=TrainSettings)


def read_recipe(path: Path | str, *pairs: str) -> Recipe:
    """A recipe from a TOML file, or of the package by its name, with `key=value` changes."""
    settings = _flat(read_toml(find_recipe(path), "recipe"), Path(path))
    try:
        return build_recipe(settings | dict(split_pair(pair, _names()) for pair in pairs))
    except RequestError as error:
        raise RequestError(f"{path}: {error}") from error


def build_recipe(settings: Mapping[str, str]) -> Recipe:
    """A recipe from settings as text; unknown names and wrong values are refused."""
    values = dict(settings)
    if "shards" not in values:
        raise RequestError("say where the shards are: shards=FOLDER (made by bertkit shards)")
    for name in values:
        check_name(name, _names())
    start = Recipe(shards=Path(), model=family_config(values.pop("family", "bert"), values.pop("size", "base")))
    recipe = change(start, values)
    if recipe.model.parts.causal and not recipe.data.causal:
        causal = " or ".join(row.name for row in OBJECTIVES.values() if row.causal)
        listed = ",".join(recipe.data.objective)
        raise RequestError(f"causal=true goes with objective={causal}, not {listed}; leave it out")
    return replace(recipe, model=directed(recipe.model, recipe.data))


def directed(model: BertConfig, data: DataSettings) -> BertConfig:
    """The shape with the attention that the objective needs: causal to predict next words, else bidirectional."""
    return replace(model, parts=replace(model.parts, causal=data.causal))


def with_absolute_paths(recipe: Recipe) -> Recipe:
    """The recipe with absolute paths of its folders."""
    heldout = Path(recipe.heldout).resolve() if recipe.heldout else None
    return replace(recipe, shards=Path(recipe.shards).resolve(), heldout=heldout)


def recipe_toml(recipe: Recipe, fingerprints: Mapping[str, str] = MappingProxyType({})) -> str:
    """The recipe as TOML that `read_recipe` reads back; the table of `fingerprints` is ignored when read."""
    top = {VERSION_KEY: FORMAT_VERSION, "shards": recipe.shards, "heldout": recipe.heldout}
    sections = {name: flat(getattr(recipe, name)) for name in SECTIONS} | {FINGERPRINTS_TABLE: dict(fingerprints)}
    for name in ("data", "train"):  # None is their default; for a model it may be a value
        sections[name] = {key: value for key, value in sections[name].items() if value is not None}
    lines = toml_lines({name: value for name, value in top.items() if value})
    return lines + "".join(f"\n[{name}]\n{toml_lines(values)}" for name, values in sections.items() if values)


def _flat(table: Mapping[str, Any], path: Path) -> dict[str, str]:
    settings: dict[str, str] = {}
    for name, value in table.items():
        if name == FINGERPRINTS_TABLE and isinstance(value, dict):
            continue
        if name == VERSION_KEY:
            check_format_version(value, path)
            continue
        inner = value if isinstance(value, dict) else {name: value}
        if isinstance(value, dict) and name not in SECTIONS:
            raise RequestError(f"{path}: unknown section '{name}'; choose from: data, model, train")
        settings |= {key: as_text(item) for key, item in inner.items()}
    return settings


def _names() -> list[str]:
    """Every key that a recipe may have."""
    return [*flat(Recipe(shards=Path())), "size"]
