"""The shape of a model, as frozen dataclasses: an impossible shape cannot be built.

`Parts` says which module fills each slot of the encoder, `BertConfig` says how large it is. The rows of
families/ are the published models; any other mixture of parts works too, but only bertkit can load it.
"""

import json
import math
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from bertkit.errors import RequestError
from bertkit.families.table import FAMILIES

Value = TypeVar("Value")


def pick(table: Mapping[str, Value], name: str, what: str) -> Value:
    """The row called `name`; the error is the documentation."""
    if name not in table:
        raise RequestError(f"unknown {what} '{name}'; choose from: {', '.join(sorted(table))}")
    return table[name]


def _require(condition: bool, name: str, value: Any, rule: str) -> None:
    if not condition:
        raise RequestError(f"{name}={value} {rule}")


def _check_types(config: object) -> None:
    """Every field holds what its annotation says: a file can say anything."""
    for name, kind in _kinds(type(config)).items():
        value = getattr(config, name)
        kind, may_be_none = _without_none(kind)
        if value is None and may_be_none:
            continue
        if typing.get_origin(kind) is Literal:
            choices = typing.get_args(kind)
            if value not in choices:
                raise RequestError(f"{name}={value!r} is unknown; choose from: {', '.join(choices)}")
        elif kind in _WANTED and not _is_a(value, kind):
            raise RequestError(f"{name}={value!r} is not {_WANTED[kind]}")


def _without_none(kind: Any) -> tuple[Any, bool]:
    """`X | None` as (X, True), anything else as (itself, False)."""
    if typing.get_origin(kind) not in (types.UnionType, typing.Union):
        return kind, False
    return next(part for part in typing.get_args(kind) if part is not types.NoneType), True


def _is_a(value: object, kind: type) -> bool:
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


_WANTED = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}


def _kinds(config: type) -> dict[str, Any]:
    return typing.get_type_hints(config)


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Which piece stands in each slot of the encoder. The defaults are BERT's."""

    position: Literal["learned", "offset", "sinusoidal", "rotary", "none"] = "learned"
    norm: Literal["post", "pre"] = "post"
    feed_forward: Literal["plain", "gated"] = "plain"
    activation: Literal["gelu", "gelu_tanh", "relu", "silu"] = "gelu"
    bias: bool = True  # in the encoder's linear maps and norms
    causal: bool = False  # every token sees itself and what is before it, as in GPT; Hugging Face: is_decoder
    shared_layers: bool = False  # ALBERT: one layer, used `depth` times
    window: int | None = None  # ModernBERT: tokens seen on both sides together in local layers
    global_every: int = 3  # with a window: every third layer still sees everything
    theta: float = 160_000.0  # rotary base of layers that see everything
    local_theta: float = 10_000.0  # rotary base of local layers
    word_head: Literal["gelu", "gelu_tanh", "relu", "silu"] | None = None  # its activation; None: the layers'
    pooler: Literal["tanh", "gelu", "relu", "none"] = "tanh"  # after the dense map that class heads read; none: no map
    pooler_norm: bool = False  # ModernBERT: a norm after it
    pooling: Literal["first", "mean", "max", "attention"] = "first"  # what that dense map reads: [CLS], or all
    token_pooler: bool = False  # ModernBERT: token heads read through the same dense map

    def __post_init__(self) -> None:
        _check_types(self)
        _require(self.window is None or self.window >= 2, "window", self.window, "must be at least 2")
        _require(self.global_every >= 1, "global_every", self.global_every, "must be at least 1")
        _require(self.theta > 0, "theta", self.theta, "must be over 0")
        _require(self.local_theta > 0, "local_theta", self.local_theta, "must be over 0")
        if self.shared_layers and (self.window is not None or self.norm == "pre"):
            raise RequestError("shared_layers=true means one layer for all: it has no window and norm='post'")


# Far beyond any model; a file that asks for more is damaged or hostile, and would only fill the memory.
LARGEST = {"vocab_size": 10**8, "width": 10**6, "depth": 10**4, "heads": 10**5, "inner": 10**7, "max_length": 10**8}


@dataclass(frozen=True, kw_only=True)
class BertConfig:
    """The shape of one model. Hugging Face's names for these fields are in the rows of families/."""

    family: str = "bert"
    vocab_size: int = 30522
    width: int = 768
    depth: int = 12
    heads: int = 12
    inner: int = 3072  # width of the feed-forward's middle
    embedding_width: int | None = None  # ALBERT, ELECTRA: narrower tables and a map up to `width`
    max_length: int = 512
    segments: int = 2  # 0: no segment table
    dropout: float = 0.1
    attention_dropout: float = 0.1
    norm_epsilon: float = 1e-12
    pad_id: int = 0
    init_std: float = 0.02
    parts: Parts = field(default_factory=Parts)

    def __post_init__(self) -> None:
        _check_types(self)
        pick(FAMILIES, self.family, "family")
        for name, most in LARGEST.items():
            _require(getattr(self, name) >= 1, name, getattr(self, name), "must be at least 1")
            _require(getattr(self, name) <= most, name, getattr(self, name), f"must be at most {most:,}")
        _require(self.width % self.heads == 0, "width", self.width, f"must divide evenly by heads={self.heads}")
        _require(self.table_width >= 1, "embedding_width", self.embedding_width, "must be at least 1")
        _require(0 <= self.segments <= 10**4, "segments", self.segments, "must be from 0 to 10,000")
        _require(0 <= self.dropout < 1, "dropout", self.dropout, "must be in [0, 1)")
        _require(0 <= self.attention_dropout < 1, "attention_dropout", self.attention_dropout, "must be in [0, 1)")
        _require(0 < self.norm_epsilon < 1, "norm_epsilon", self.norm_epsilon, "must be in (0, 1)")
        _require(
            0 <= self.pad_id < self.vocab_size, "pad_id", self.pad_id, f"must be under vocab_size={self.vocab_size}"
        )
        _require(0 < self.init_std < 100, "init_std", self.init_std, "must be in (0, 100)")
        rotary_odd = self.parts.position == "rotary" and self.head_width % 2
        _require(not rotary_odd, "width / heads", self.head_width, "must be even for rotary positions")

    @property
    def head_width(self) -> int:
        """Numbers in one head's query, key or value."""
        return self.width // self.heads

    @property
    def table_width(self) -> int:
        """Width of the embedding tables: `embedding_width`, or the encoder's own width."""
        return self.width if self.embedding_width is None else self.embedding_width


# Turc 2019's miniatures, and the two sizes of the BERT paper.
SIZES: dict[str, dict[str, int]] = {
    "tiny": {"depth": 2, "width": 128, "heads": 2, "inner": 512},
    "mini": {"depth": 4, "width": 256, "heads": 4, "inner": 1024},
    "small": {"depth": 4, "width": 512, "heads": 8, "inner": 2048},
    "medium": {"depth": 8, "width": 512, "heads": 8, "inner": 2048},
    "base": {"depth": 12, "width": 768, "heads": 12, "inner": 3072},
    "large": {"depth": 24, "width": 1024, "heads": 16, "inner": 4096},
}


def family_config(family: str = "bert", size: str = "base", **settings: Any) -> BertConfig:
    """`family_config("roberta", "small", vocab_size=8000)`: a row of each table, then settings of your own."""
    row = pick(FAMILIES, family, "family")
    merged = {**row.settings, **pick(SIZES, size, "size"), **settings}
    if "vocab_size" in settings and "pad_id" not in settings and merged.get("pad_id", 0) >= settings["vocab_size"]:
        merged["pad_id"] = 0
    parts = {name: merged.pop(name) for name in _kinds(Parts) if name in merged}
    return BertConfig(family=family, parts=Parts(**parts), **merged)


def override(config: BertConfig, *pairs: str) -> BertConfig:
    """`override(config, "depth=6", "position=rotary")`: unknown names and wrong values stop here, not later."""
    own, parts = _kinds(BertConfig), _kinds(Parts)
    own.pop("parts")
    changes: dict[str, Any] = {}
    part_changes: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        kind = pick({**own, **parts}, name, "setting")
        if not equals:
            raise RequestError(f"setting '{name}' needs a value: {name}=...")
        (changes if name in own else part_changes)[name] = cast_setting(name, text, kind)
    return replace(config, parts=replace(config.parts, **part_changes), **changes)


def read_config(path: Path) -> BertConfig:
    """A model's shape from TOML: `family`, `size`, and any setting of `override`."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise RequestError(f"{path} is not a readable TOML file: {error}") from error
    start = family_config(str(table.pop("family", "bert")), str(table.pop("size", "base")))
    try:
        return override(start, *(f"{name}={_as_text(value)}" for name, value in table.items()))
    except RequestError as error:
        raise RequestError(f"{path}: {error}") from error


def config_settings(config: BertConfig) -> dict[str, Any]:
    """Every setting by name, those of `parts` beside the others."""
    settings = {f.name: getattr(config, f.name) for f in fields(config) if f.name != "parts"}
    return settings | {f.name: getattr(config.parts, f.name) for f in fields(config.parts)}


def config_toml(config: BertConfig) -> str:
    """The shape as TOML that `read_config` reads back to an equal config."""
    settings = config_settings(config)
    lines = (f"{name} = {_toml('none' if value is None else value)}" for name, value in settings.items())
    return "".join(f"{line}\n" for line in lines)


def cast_setting(name: str, text: str, kind: Any) -> Any:
    """`text` as the field's type; `none` clears a field that may be empty."""
    kind, may_be_none = _without_none(kind)
    if may_be_none and text.lower() == "none":
        return None
    if typing.get_origin(kind) is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if typing.get_origin(kind) is Literal or kind is str:
        return text
    try:
        return {"true": True, "false": False}[text.lower()] if kind is bool else kind(text)
    except (KeyError, ValueError) as error:
        raise RequestError(f"{name}={text} is not {_WANTED[kind]}") from error


def _as_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def toml_string(text: str) -> str:
    """Text as a TOML string: JSON's, but for one character more that is escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml(value: Any) -> str:
    return toml_string(value) if isinstance(value, str) else _as_text(value)


def check_choice(settings: object, name: str) -> None:
    """One of the values that the annotation of this field lists."""
    choices = typing.get_args(typing.get_type_hints(type(settings))[name])
    pick(dict.fromkeys(choices), getattr(settings, name), name)


def check_at_least(settings: object, name: str, least: float) -> None:
    """None, or at least so much."""
    value = getattr(settings, name)
    if value is not None and not value >= least:
        raise RequestError(f"{name}={value} must be at least {least}")


def check_within(settings: object, name: str, least: float, most: float) -> None:
    """None, or from `least` to `most`."""
    value = getattr(settings, name)
    if value is not None and not least <= value <= most:
        raise RequestError(f"{name}={value} must be from {least:g} to {most:g}")
