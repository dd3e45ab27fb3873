"""What is given in the place of texts and is none is refused in one sentence that says what to give instead."""

import pyarrow as pa
import pytest

from bertkit.errors import RequestError
from bertkit.predict.search import checked_texts
from bertkit.text_inputs import each_text, listed_texts


class DataFrame:
    """As pandas and polars have it: it iterates over the names of its columns."""

    def __init__(self, *columns):
        self.columns = columns

    def __iter__(self):
        return iter(self.columns)


class NAType:
    """As pandas.NA: whether it equals itself cannot be said."""

    def __eq__(self, other):
        return self

    __ne__ = __eq__
    __hash__ = object.__hash__

    def __bool__(self):
        raise TypeError("boolean value of NA is ambiguous")


def listed_lazily(texts):
    return list(checked_texts(texts))


both_ways = pytest.mark.parametrize("read", [listed_texts, listed_lazily])


@both_ways
@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (DataFrame("id", "text"), r"texts is a DataFrame; pass one column of it, such as df\['text'\]"),
        (DataFrame("id", "review"), r"texts is a DataFrame; pass one column of it, such as df\['id'\]"),
        (DataFrame(), r"texts is a DataFrame; pass one column of it, such as df\['text'\]"),
        (pa.table({"text": ["a"]}), r"texts is a Table; pass one column of it, such as df\['text'\]"),
        ({"a": "one"}, r"texts is a dict, .*; pass a list, such as list\(texts\.values\(\)\)"),
        ({"a", "b"}, r"texts is a set, which has no order; pass a list, such as sorted\(texts\)"),
        (frozenset("ab"), r"texts is a frozenset, which has no order"),
    ],
)
def test_what_would_give_names_or_keys_is_refused(read, given, sentence):
    with pytest.raises(RequestError, match=sentence):
        read(given)


@both_ways
@pytest.mark.parametrize("missing", [None, float("nan"), NAType()])
def test_a_missing_value_is_named_by_its_row(read, missing):
    with pytest.raises(RequestError, match=r"texts\[2\] is a missing value \(.*\); leave such rows out, with "):
        read(["a", "b", missing])


@both_ways
def test_other_kinds_are_named(read):
    for wrong, kind in [(3, "int"), (2.5, "float"), (["a"], "list"), (b"a", "bytes")]:
        with pytest.raises(RequestError, match=rf"texts\[1\] is {kind}, not a str"):
            read(["a", wrong])


@both_ways
def test_what_has_an_order_is_taken(read):
    known = {"x": "a", "y": "b"}
    for given in (["a", "b"], ("a", "b"), iter("ab"), known.values(), dict.fromkeys("ab").keys()):
        assert read(given) == ["a", "b"]


def test_texts_are_checked_one_by_one():
    texts = each_text(iter(["a", 5]))
    assert next(texts) == "a"
    with pytest.raises(RequestError, match=r"texts\[1\] is int"):
        next(texts)
