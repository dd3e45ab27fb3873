"""Settings: dataclasses that are validated by their annotations and read from `key=value` pairs and TOML files.

A field's type, the choices of its Literal and the ranges in its Annotated are checked by `check_fields`, which a class
calls in `__post_init__`; a class adds only checks across fields. Fields of nested settings are keys like its own.
"""

import difflib
import json
import math
import tomllib
import types
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, TypeVarTuple

from bertkit.errors import RequestError, UnknownSetting

Value = TypeVar("Value")
Settings = TypeVar("Settings")
SettingsTuple = TypeVarTuple("SettingsTuple")
OTHER_NAMES = {"lr": "learning_rate", "batch_size": "batch", "max_len": "max_length"}  # usual names in other tools
TYPE_NAMES: dict[Any, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}


def pick(table: Mapping[str, Value], name: str, what: str) -> Value:
    """`table[name]`; an unknown name raises RequestError with the list of names and the most similar one."""
    if name not in table:
        similar = difflib.get_close_matches(name, list(table), n=1)
        hint = f"; did you mean '{similar[0]}'?" if similar else ""
        raise RequestError(f"unknown {what} '{name}'; choose from: {', '.join(sorted(table))}{hint}")
    return table[name]


@dataclass(frozen=True)
class Range:
    """Allowed values of a number: inclusive bounds (least, most) or exclusive ones (over, under)."""

    least: float | None = None
    most: float | None = None
    over: float | None = None
    under: float | None = None

    def __contains__(self, value: float) -> bool:
        above = value >= self.least if self.least is not None else self.over is None or value > self.over
        below = value <= self.most if self.most is not None else self.under is None or value < self.under
        return above and below and value == value  # NaN is in no range

    def __str__(self) -> str:
        least, most, over, under = (_digits(bound) for bound in (self.least, self.most, self.over, self.under))
        if under:
            return f"in {'[' + least if least else '(' + over}, {under})"
        if most:
            return (
                f"from {least} to {most}" if least else f"over {over} and at most {most}" if over else f"at most {most}"
            )
        return f"at least {least}" if least else f"over {over}"


# Common ranges.
Natural = Annotated[int, Range(0)]
Count = Annotated[int, Range(1)]
Share = Annotated[float, Range(0, 1)]
Positive = Annotated[float, Range(over=0)]
NotNegative = Annotated[float, Range(0)]


def _digits(bound: float | None) -> str:
    return "" if bound is None else f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"


@dataclass(frozen=True)
class Rule:
    """The rule in a field's annotation: its type, whether None is allowed, choices and ranges."""

    name: str
    kind: Any
    optional: bool
    choices: tuple[Any, ...]
    ranges: tuple[Range, ...]

    def check(self, value: Any) -> None:
        """Raise RequestError if the value breaks the rule."""
        if value is None and self.optional:
            return
        if self.choices and value not in self.choices:
            raise RequestError(f"unknown {self.name} '{value}'; choose from: {', '.join(map(str, self.choices))}")
        if self.kind in TYPE_NAMES and not _is_a(value, self.kind):
            raise RequestError(f"{self.name}={value!r} is not {TYPE_NAMES[self.kind]}")
        for allowed in self.ranges:
            if value not in allowed:
                raise RequestError(f"{self.name}={value} must be {allowed}")
        if self.kind is float and not math.isfinite(value):
            raise RequestError(f"{self.name}={value!r} is not {TYPE_NAMES[float]}")

    def cast(self, text: str) -> Any:
        """The value that `text` spells; `none` is None for an optional field, an empty text is an empty list."""
        if self.optional and text.lower() == "none":
            return None
        if typing.get_origin(self.kind) is tuple:
            item = replace(self, kind=typing.get_args(self.kind)[0], optional=False)
            return tuple(item.cast(part.strip()) for part in text.split(",") if part.strip())
        if not text:
            raise RequestError(f"setting '{self.name}' needs a value: {self.name}=...")
        if self.choices:
            return text
        try:
            return {"true": True, "false": False}[text.lower()] if self.kind is bool else self.kind(text)
        except (KeyError, ValueError) as error:
            raise RequestError(f"{self.name}={text} is not {TYPE_NAMES[self.kind]}") from error


def _is_a(value: object, kind: type) -> bool:
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def rules(settings: object) -> dict[str, Rule]:
    """The rules of the fields of a dataclass, by name."""
    kind: type = type(settings)
    return _rules(kind)


@cache
def _rules(kind: type) -> dict[str, Rule]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return {field.name: _rule(field.name, hints[field.name]) for field in fields(kind)}


def _rule(name: str, hint: Any) -> Rule:
    parts = list(_parts(hint))
    [kind] = [part for part in parts if part is not types.NoneType and not isinstance(part, Range)]
    choices = typing.get_args(kind) if typing.get_origin(kind) is Literal else ()
    return Rule(name, kind, types.NoneType in parts, choices, tuple(part for part in parts if isinstance(part, Range)))


def _parts(hint: Any) -> Iterator[Any]:
    """The parts of an annotation: `Annotated[int, Range(1)] | None` gives int, Range(1), NoneType."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union, typing.Annotated):
        for part in (hint.__origin__, *hint.__metadata__) if hasattr(hint, "__metadata__") else typing.get_args(hint):
            yield from _parts(part)
    else:
        yield hint


def check_fields(settings: object) -> None:
    """Raise RequestError if a field breaks the rule in its annotation."""
    for name, rule in rules(settings).items():
        rule.check(getattr(settings, name))


def flat(settings: Any) -> dict[str, Any]:
    """All keys with their values, with those of nested settings."""
    values: dict[str, Any] = {}
    for field in fields(settings):
        value = getattr(settings, field.name)
        values |= flat(value) if is_dataclass(value) else {field.name: value}
    return values


def change(settings: Settings, changes: Mapping[str, str]) -> Settings:
    """The settings with some keys changed; values are given as text, and unknown keys are refused."""
    names = flat(settings)
    for name in changes:
        check_name(name, names)
    changed: Settings = _changed(settings, changes)
    return changed


def _changed(settings: Any, changes: Mapping[str, str]) -> Any:
    values: dict[str, Any] = {}
    for name, rule in rules(settings).items():
        if is_dataclass(value := getattr(settings, name)):
            values[name] = _changed(value, changes)
        elif name in changes:
            values[name] = rule.cast(changes[name])
    return replace(settings, **values)


def read_pairs(
    pairs: Iterable[str], *defaults: *SettingsTuple, names: Collection[str] = (), what: str = "setting"
) -> tuple[*SettingsTuple]:
    """The defaults, each with its changes from one list of `key=value` pairs; `names` restricts the keys."""
    allowed = names or [name for settings in defaults for name in flat(settings)]
    changes = dict(split_pair(pair, allowed, what) for pair in pairs)
    return typing.cast("tuple[*SettingsTuple]", tuple(_changed(settings, changes) for settings in defaults))


def split_pair(pair: str, names: Collection[str], what: str = "setting") -> tuple[str, str]:
    """(name, text) of a pair such as `depth=6`; an unknown name and a missing value are refused."""
    name, equals, text = pair.partition("=")
    if name not in names and OTHER_NAMES.get(name) in names:
        name = OTHER_NAMES[name]
    check_name(name, names, what)
    if not equals:
        raise RequestError(f"{what} '{name}' needs a value: '{pair}' is not of the form key=value")
    return name, text


def check_name(name: str, names: Collection[str], what: str = "setting") -> None:
    """Raise UnknownSetting, with the most similar name as suggestion, if `name` is not among `names`."""
    try:
        pick(dict.fromkeys(names), name, what)
    except RequestError as error:
        raise UnknownSetting(str(error), name, names) from None


def read_toml(path: Path, what: str = "TOML file") -> dict[str, Any]:
    """The content of a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise RequestError(f"{path} is not a readable {what}: {error}") from error


def as_text(value: Any) -> str:
    """A value of a TOML file as the text of a `key=value` pair."""
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def toml_lines(values: Mapping[str, Any]) -> str:
    """Lines `name = value` of a TOML file; None is written as "none", which `change` reads."""
    return "".join(f"{name} = {_toml('none' if value is None else value)}\n" for name, value in values.items())


def _toml(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return toml_string(str(value)) if isinstance(value, str | Path) else as_text(value)


def toml_string(text: str) -> str:
    """Text as a TOML string: a JSON string in which DEL is escaped, too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
