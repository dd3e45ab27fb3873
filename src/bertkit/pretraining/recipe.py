"""A recipe: the model's shape, the examples, the training, in one TOML file; every key is checked at the door."""

import tomllib
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from bertkit.config import BertConfig, cast_setting, family_config, override, pick, toml_string
from bertkit.errors import RequestError
from bertkit.files import FORMAT_VERSION, VERSION_KEY, check_format_version
from bertkit.pretraining.batches import DataSettings
from bertkit.pretraining.objectives.table import OBJECTIVES
from bertkit.train.schedule import Decay

BEGUN = "begun"  # a table of a run's own settings: it is no setting


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """How long, how fast, how often to look and to save."""

    steps: int | None = None
    minutes: float | None = None
    batch: int = 256  # sequences in a step, over all ranks
    stages: tuple[str, ...] = ()  # before batch and length are reached: "0.3: 512 x 64" until 30 % of the budget
    learning_rate: float = 1e-3
    warmup: int = 500
    decay: Decay = "linear"
    optimizer: str = "adamw"
    muon_scale: float = 10.0  # "muon": its learning rate is this many times AdamW's, which keeps tables and vectors
    weight_decay: float = 0.01
    clip: float = 1.0
    most_skipped: int = 5  # steps in a row that may be left out because of a NaN
    log_every: int = 10
    evaluate_every: int = 500
    save_every: int = 500
    keep: int = 2
    seed: int = 0
    compile: bool = True  # on CUDA
    replay: bool = True  # on CUDA, one rank, one block a step: the step is recorded, and one launch from then on
    sharding: Literal["ddp", "fsdp"] = "ddp"  # over ranks: "ddp" copies the model to each, "fsdp" spreads its tensors
    average: Literal["none", "ema", "tail"] = "none"  # weights of the saved model: the last, or a mean over steps
    average_every: int = 10  # steps between two looks at the weights
    average_decay: float = 0.99  # "ema": what a look leaves of the mean before it
    average_tail: float = 0.2  # "tail": the share of the budget, at its end, that is averaged
    generator: float = 0.25  # ELECTRA: the generator's width as a share of the discriminator's
    fill_weight: float = 1.0  # objective "fill": of the discriminator's own words, beside 50 of its judgements


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides a run besides the corpus."""

    shards: Path
    heldout: Path | None = None
    model: BertConfig = field(default_factory=BertConfig)
    data: DataSettings = field(default_factory=DataSettings)
    train: TrainSettings = field(default_factory=TrainSettings)


def read_recipe(path: Path | str, *pairs: str) -> Recipe:
    """A recipe from TOML, with `key=value` changes; a key belongs to exactly one section."""
    path = Path(path)
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise RequestError(f"{path} is not a readable recipe: {error}") from error
    settings = _flat(table, path)
    settings |= dict(_split(pair) for pair in pairs)
    try:
        return build_recipe(settings)
    except RequestError as error:
        raise RequestError(f"{path}: {error}") from error


def build_recipe(settings: Mapping[str, str]) -> Recipe:
    """A recipe from settings as text; unknown names and wrong values stop here."""
    left = dict(settings)
    if "shards" not in left:
        raise RequestError("say where the shards are: shards=FOLDER (made by bertkit shards)")
    shards, heldout = Path(left.pop("shards")), left.pop("heldout", None)
    start = family_config(left.pop("family", "bert"), left.pop("size", "base"))
    seed = {"seed": left.pop("seed")} if "seed" in left else {}  # one seed for examples and weights
    data = {f.name: left[f.name] for f in fields(DataSettings) if f.name in left}
    train = {f.name: left[f.name] for f in fields(TrainSettings) if f.name in left}
    left = {name: value for name, value in left.items() if name not in data | train}  # `seed` goes to both
    for name in left:
        pick(dict.fromkeys(_names()), name, "setting")
    model = override(start, *(f"{name}={value}" for name, value in left.items()))
    wanted: DataSettings = _changed(DataSettings(), data | seed)
    if model.parts.causal and not wanted.causal:
        others = " or ".join(row.name for row in OBJECTIVES.values() if row.causal)
        raise RequestError(f"causal=true goes with objective={others}, not {','.join(wanted.objective)}; leave it out")
    return Recipe(
        shards=shards,
        heldout=Path(heldout) if heldout else None,
        model=directed(model, wanted),
        data=wanted,
        train=_changed(TrainSettings(), train | seed),
    )


def directed(model: BertConfig, data: DataSettings) -> BertConfig:
    """The shape with the attention that the objective needs: causal to predict next words, else in both directions."""
    return replace(model, parts=replace(model.parts, causal=data.causal))


def with_whole_paths(recipe: Recipe) -> Recipe:
    """The recipe with its folders named from the root, so that they are the same seen from any other folder."""
    heldout = Path(recipe.heldout).resolve() if recipe.heldout else None
    return replace(recipe, shards=Path(recipe.shards).resolve(), heldout=heldout)


def recipe_toml(recipe: Recipe, begun: Mapping[str, str] = MappingProxyType({})) -> str:
    """The recipe as TOML that `read_recipe` reads back to an equal one; what a run has `begun` with is passed over."""
    from bertkit.config import config_toml

    lines = [f"{VERSION_KEY} = {FORMAT_VERSION}", f"shards = {toml_string(str(recipe.shards))}"]
    lines += [f"heldout = {toml_string(str(recipe.heldout))}"] if recipe.heldout else []
    lines += ["", "[model]", config_toml(recipe.model).rstrip()]
    for name in ("data", "train"):
        section = getattr(recipe, name)
        values = {f.name: getattr(section, f.name) for f in fields(section)}
        lines += ["", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in values.items() if value is not None)]
    lines += ["", f"[{BEGUN}]", *(f"{key} = {_toml(value)}" for key, value in begun.items())] if begun else []
    return "\n".join(lines) + "\n"


def _flat(table: Mapping[str, Any], path: Path) -> dict[str, str]:
    settings: dict[str, str] = {}
    for name, value in table.items():
        if name == BEGUN and isinstance(value, dict):
            continue
        if name == VERSION_KEY:
            check_format_version(value, path)
            continue
        inner = value if isinstance(value, dict) else {name: value}
        if isinstance(value, dict) and name not in ("model", "data", "train"):
            raise RequestError(f"{path}: unknown section '{name}'; choose from: data, model, train")
        settings |= {key: _text(item) for key, item in inner.items()}
    return settings


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _toml(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(toml_string, value)) + "]"
    return toml_string(value) if isinstance(value, str) else _text(value)


def _split(pair: str) -> tuple[str, str]:
    name, equals, text = pair.partition("=")
    if not equals:
        raise RequestError(f"'{pair}' is not of the form key=value")
    return name, text


def _changed(settings: Any, changes: Mapping[str, str]) -> Any:
    kinds = typing.get_type_hints(type(settings))
    return replace(settings, **{name: cast_setting(name, text, kinds[name]) for name, text in changes.items()})


def _names() -> list[str]:
    """Every key that a recipe may have."""
    sections = [f.name for section in (DataSettings, TrainSettings) for f in fields(section)]
    return ["shards", "heldout", "family", "size", *sections, *_model_names()]


def _model_names() -> list[str]:
    return [f.name for f in fields(BertConfig) if f.name != "parts"] + [f.name for f in fields(BertConfig().parts)]
