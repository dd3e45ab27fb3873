"""Text arguments of calls: one text or several, checked. Imports nothing heavy, as clients use this module, too."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar, overload

from bertkit.errors import RequestError

MISSING_TYPES = ("NAType", "NaTType")  # type names of pandas, which is not imported here
One = TypeVar("One", covariant=True)
Many = TypeVar("Many", covariant=True)
Call = TypeVar("Call")


class TextsCall(Protocol[One, Many]):
    """A call with one text, or with several, each a text or a list of words."""

    @overload
    def __call__(self, texts: str) -> One: ...
    @overload
    def __call__(self, texts: Sequence[str | Sequence[str]]) -> Many: ...


class PairsCall(Protocol[One, Many]):
    """A call with one text or pair of texts, or with several."""

    @overload
    def __call__(self, texts: str, pairs: str | None = None) -> One: ...
    @overload
    def __call__(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> Many: ...


class ChoicesCall(Protocol[One, Many]):
    """A call with a question and its choices, or with several questions."""

    @overload
    def __call__(self, question: str, choices: Sequence[str]) -> One: ...
    @overload
    def __call__(self, question: Sequence[str], choices: Sequence[Sequence[str]]) -> Many: ...


def overloaded(call: Callable[..., Call]) -> Callable[[Callable[..., object]], Call]:
    """A decorator: type checkers see the overloads of the protocol `call`; at run time the method is unchanged."""

    def unchanged(method: Any) -> Any:
        return method

    return unchanged


def listed_texts(texts: str | Iterable[str]) -> list[str]:
    """The texts as a list, a single text as a list of one; an element that is not a str is refused with its index."""
    if isinstance(texts, str):
        return [texts]
    refuse_unlisted(texts)
    if isinstance(texts, bytes | bytearray) or not isinstance(texts, Iterable):
        raise RequestError(f"texts must be a str or a list of them, not {type(texts).__name__}")
    return list(each_text(texts))


def each_text(texts: Iterable[Any]) -> Iterator[str]:
    """The texts one by one; an element that is not a str is refused with its index."""
    for number, text in enumerate(texts):
        if isinstance(text, str):
            yield text
        elif _is_missing(text):
            raise RequestError(
                f"texts[{number}] is a missing value ({text!r}); leave such rows out, with pandas df['text'].dropna(), "
                "or fill them, .fillna('')"
            )
        else:
            raise RequestError(f"texts[{number}] is {type(text).__name__}, not a str")


def refuse_unlisted(texts: object) -> None:
    """Refuse mappings and data frames, whose iteration gives keys or column names, and sets, which have no order."""
    kind = type(texts).__name__
    if isinstance(texts, Mapping):
        raise RequestError(f"texts is a {kind}, whose keys would be read; pass a list, such as list(texts.values())")
    if isinstance(texts, set | frozenset):
        raise RequestError(f"texts is a {kind}, which has no order; pass a list, such as sorted(texts)")
    names = getattr(texts, "column_names", getattr(texts, "columns", None))
    if names is not None:
        columns = [str(name) for name in names]
        column = "text" if "text" in columns or not columns else columns[0]
        raise RequestError(f"texts is a {kind}; pass one column of it, such as df['{column}']")


def _is_missing(value: object) -> bool:
    """Whether a value is None, NaN, or a missing value of pandas."""
    return value is None or type(value).__name__ in MISSING_TYPES or (isinstance(value, float) and value != value)
