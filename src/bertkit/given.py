"""Texts as a caller gives them; nothing heavy is imported here, for clients need it, too."""

from collections.abc import Iterable

from bertkit.errors import RequestError


def listed_texts(texts: str | Iterable[str]) -> list[str]:
    """Texts as a list, one text as a list of one; what is no text is refused by its number."""
    if isinstance(texts, str):
        return [texts]
    if isinstance(texts, bytes | bytearray) or not isinstance(texts, Iterable):
        raise RequestError(f"texts must be a str or a list of them, not {type(texts).__name__}")
    found = list(texts)
    for number, text in enumerate(found):
        if not isinstance(text, str):
            raise RequestError(f"texts[{number}] is {type(text).__name__}, not a str")
    return found
