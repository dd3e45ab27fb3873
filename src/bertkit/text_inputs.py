"""Text arguments of calls: one text or several, checked. Imports nothing heavy, as clients use this module, too."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bertkit.errors import RequestError

MISSING_TYPES = ("NAType", "NaTType")  # type names of pandas, which is not imported here


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
        elif is_missing(text):
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


def is_missing(value: object) -> bool:
    """Whether a value is None, NaN, or a missing value of pandas."""
    return value is None or type(value).__name__ in MISSING_TYPES or (isinstance(value, float) and value != value)
