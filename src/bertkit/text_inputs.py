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


def each_text(texts: Iterable[Any], what: str = "texts") -> Iterator[str]:
    """The texts one by one; an element that is not a str is refused with its index."""
    for number, text in enumerate(texts):
        if isinstance(text, str):
            yield text
        elif is_missing(text):
            raise RequestError(
                f"{what}[{number}] is a missing value ({text!r}); leave such rows out, with pandas "
                "df['text'].dropna(), or fill them, .fillna('')"
            )
        else:
            raise RequestError(f"{what}[{number}] is {type(text).__name__}, not a str")


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


def checked_labels(labels: Iterable[Any], count: int, what: str = "labels") -> list[Any]:
    """The labels of `count` texts as a list; one that is missing or empty is refused with its index."""
    listed = list(labels)
    for number, label in enumerate(listed):
        if is_missing(label):
            raise RequestError(f"{what}[{number}] is a missing value; leave such rows out")
        if isinstance(label, str) and not label.strip():
            raise RequestError(f"{what}[{number}] is empty; name the label, or leave such rows out")
    if len(listed) != count:
        raise RequestError(f"{count} texts came with {len(listed)} {what}; give one label for each text")
    return listed


def listed_words(
    sentences: Iterable[Any], tags: Iterable[Any] | None = None
) -> tuple[list[list[str]], list[list[str]]]:
    """Sentences as lists of words, and where they are given the tags of their words."""
    refuse_unlisted(sentences)
    words: list[list[str]] = []
    for number, sentence in enumerate(sentences):
        if isinstance(sentence, str) or not isinstance(sentence, Iterable):
            raise RequestError(f"sentences[{number}] must be a list of words, such as text.split(), not {sentence!r}")
        words.append(list(each_text(sentence, f"sentences[{number}]")))
    if tags is None:
        return words, []
    names = [list(each_text(each, f"tags[{number}]")) for number, each in enumerate(tags)]
    if len(names) != len(words):
        raise RequestError(f"{len(words)} sentences came with {len(names)} lists of tags; give one for each sentence")
    for number, (each, own) in enumerate(zip(words, names, strict=True)):
        if len(each) != len(own):
            raise RequestError(f"sentences[{number}] has {len(each)} words and {len(own)} tags; give one for each word")
    return words, names
