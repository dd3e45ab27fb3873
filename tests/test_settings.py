"""One reader of settings: annotations are rules, pairs and TOML go through the same casts and checks."""

import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import pytest

from bertkit.errors import RequestError, UnknownSetting
from bertkit.settings import (
    Count,
    Positive,
    Range,
    Share,
    as_text,
    change,
    check_fields,
    flat,
    read_pairs,
    read_toml,
    toml_lines,
)


@dataclass(frozen=True, kw_only=True)
class Inner:
    rate: Positive = 0.5
    kind: Literal["plain", "gated"] = "plain"
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, kw_only=True)
class Outer:
    steps: Count | None = None
    names: tuple[str, ...] = ("a", "b")
    fast: bool = False
    folder: Path | None = None
    seed: int = 0
    inner: Inner = field(default_factory=Inner)

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class Other:
    text: str | None = None
    share: Share = 0.5


def test_pairs_reach_nested_settings_and_a_shared_key_reaches_both():
    pairs = ["steps=3", "rate=2", "kind=gated", "fast=TRUE", "names=x, y,", "folder=a/b", "seed=7", "text=review"]
    outer, other = read_pairs(pairs, Outer(), Other())
    inner = Inner(rate=2.0, kind="gated", seed=7)
    assert outer == Outer(steps=3, names=("x", "y"), fast=True, folder=Path("a/b"), seed=7, inner=inner)
    assert other == Other(text="review")
    assert read_pairs([], Outer()) == (Outer(),)


def test_none_clears_what_may_be_none_and_nothing_empties_a_list():
    start = Outer(steps=3, folder=Path("a"))
    assert change(start, {"steps": "none", "folder": "None"}) == Outer()
    assert read_pairs(["names="], start)[0].names == ()
    with pytest.raises(RequestError, match="seed=none is not a whole number"):
        change(start, {"seed": "none"})


@pytest.mark.parametrize(
    ("pair", "sentence"),
    [
        (
            "step=3",
            "unknown setting 'step'; choose from: fast, folder, kind, names, rate, seed, steps; did you mean 's",
        ),
        ("zebra=1", r"unknown setting 'zebra'; choose from: .*steps$"),
        ("inner=1", "unknown setting 'inner'"),
        ("steps", "setting 'steps' needs a value: 'steps' is not of the form key=value"),
        ("steps=", "setting 'steps' needs a value"),
        ("steps=0", "steps=0 must be at least 1"),
        ("steps=many", "steps=many is not a whole number"),
        ("fast=maybe", "fast=maybe is not true or false"),
        ("kind=bent", "unknown kind 'bent'; choose from: plain, gated"),
        ("rate=0", "rate=0.0 must be over 0"),
        ("rate=nan", "rate=nan must be over 0"),
        ("rate=inf", "rate=inf is not a number"),
    ],
)
def test_what_is_wrong_is_one_sentence(pair, sentence):
    with pytest.raises(RequestError, match=sentence):
        read_pairs([pair], Outer())


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"steps": 2.0}, "steps=2.0 is not a whole number"),
        ({"steps": True}, "steps=True is not a whole number"),
        ({"seed": None}, "seed=None is not a whole number"),
        ({"fast": 1}, "fast=1 is not true or false"),
    ],
)
def test_values_from_python_obey_the_annotations_too(values, sentence):
    with pytest.raises(RequestError, match=sentence):
        Outer(**values)


@pytest.mark.parametrize(
    ("allowed", "text", "inside", "outside"),
    [
        (Range(1), "at least 1", [1, 10**9], [0, -1]),
        (Range(0, 10**4), "from 0 to 10,000", [0, 10_000], [-1, 10_001]),
        (Range(0.01, 1), "from 0.01 to 1", [0.01, 1], [0.0, 1.1]),
        (Range(most=1000), "at most 1,000", [-5, 1000], [1001]),
        (Range(over=0), "over 0", [0.1], [0, -1]),
        (Range(over=0, most=1), "over 0 and at most 1", [0.5, 1], [0, 1.5]),
        (Range(0, under=1), "in [0, 1)", [0, 0.9], [1, -0.1]),
        (Range(over=0, under=100), "in (0, 100)", [1], [0, 100]),
    ],
)
def test_ranges_say_what_they_hold(allowed, text, inside, outside):
    assert str(allowed) == text
    assert all(value in allowed for value in inside)
    assert not any(value in allowed for value in [*outside, float("nan")])


def test_only_some_names_may_be_given():
    assert read_pairs(["share=1"], Other(), names=["share"])[0].share == 1.0
    with pytest.raises(RequestError, match="unknown column setting 'text'; choose from: share$"):
        read_pairs(["text=a"], Other(), names=["share"], what="column setting")


def test_toml_gives_back_what_was_written(tmp_path):
    outer = Outer(
        steps=None, names=('a "b"', "\x7f"), fast=True, folder=Path("c"), inner=Inner(rate=1e-9, kind="gated")
    )
    path = tmp_path / "settings.toml"
    path.write_text(toml_lines(flat(outer)), encoding="utf-8")
    assert change(Outer(steps=5), {name: as_text(value) for name, value in read_toml(path).items()}) == outer
    path.write_text("a = [")
    with pytest.raises(RequestError, match=r"settings\.toml is not a readable recipe: "):
        read_toml(path, "recipe")


def test_an_annotation_may_hold_several_ranges_and_none():
    @dataclass(frozen=True)
    class Sized:
        size: Annotated[int, Range(1), Range(most=10)] | None = None

        def __post_init__(self) -> None:
            check_fields(self)

    assert Sized(size=None).size is None
    for size, sentence in ((0, "size=0 must be at least 1"), (11, "size=11 must be at most 10")):
        with pytest.raises(RequestError, match=sentence):
            Sized(size)


def test_an_unknown_name_survives_the_way_from_a_worker_process():
    error = UnknownSetting("there is no setting 'epoch'", "epoch", {"epochs": 1}.keys())
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.name, copy.names) == (UnknownSetting, str(error), "epoch", ("epochs",))
