"""A request on its way: sequences to compute, and what is made of their rows."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bertkit.engine.batches import Passage
from bertkit.errors import RequestError
from bertkit.serve.engine import Lane, Piece
from bertkit.serve.refusals import Refusal
from bertkit.serve.settings import ServeSettings
from bertkit.text.length import LengthReport, TooLong, report_lengths
from bertkit.text.tokenizer import Tokenizer

SIZED = (str, list, tuple)


@dataclass(slots=True)  # not frozen, as one is made for every request: that takes three times as long
class Plan:
    """What a device has to do for a request, and how its rows become the answer."""

    lane: Lane
    pieces: Sequence[Piece]
    finish: Callable[[list[Any]], Any]
    tokens: int  # of the texts, as the client is told
    lengths: LengthReport | None = None  # which texts were over the limit
    quick: bool = False  # whether finishing takes no time worth a thread
    made: int = 0  # characters and numbers that finishing makes, where they are more than the tokens


@dataclass(slots=True)
class Draft:
    """A plan but for the tokens of its texts, which are looked up together with those of other requests."""

    tokenizer: Tokenizer
    texts: Sequence[str]
    complete: Callable[[Iterable[Passage]], Plan]


def check_count(texts: Sequence[object], field: str, settings: ServeSettings) -> None:
    """Refuse more texts than one request may have."""
    if len(texts) > settings.max_texts:
        raise Refusal(413, f"{field} has {len(texts):,} texts; at most {settings.max_texts:,} go in a request", field)


def check_texts(texts: Sequence[object], field: str, settings: ServeSettings) -> None:
    """Refuse more, or longer, texts than one request may have."""
    if not texts:
        raise Refusal(422, f"{field} is empty; give one text at least", field)
    check_count(texts, field, settings)
    for number, text in enumerate(texts):
        size = len(text) if isinstance(text, SIZED) else 0
        if size > settings.max_characters:
            most = settings.max_characters
            raise Refusal(
                413, f"{field}[{number}] has {size:,} characters, over the {most:,} of one text; split it", field
            )


def check_size(numbers: int, what: str, settings: ServeSettings) -> None:
    """Refuse a reply that would fill the memory."""
    if numbers > settings.max_numbers:
        raise Refusal(413, f"the reply would have {numbers:,} numbers, over {settings.max_numbers:,}; {what}")


def check_held(numbers: int, settings: ServeSettings) -> None:
    """Refuse a request whose long texts would fill the memory before their vectors are pooled."""
    if numbers > settings.max_held:
        raise Refusal(
            413,
            f"long texts through windows would keep {numbers:,} numbers, over {settings.max_held:,}; send fewer or "
            "shorter texts at a time, or ask for fewer layers",
        )


def reported(
    lengths: Sequence[int], limit: int, too_long: TooLong, field: str, where: Callable[[int], str]
) -> LengthReport:
    """Which texts are over the limit; refused where that is the policy."""
    try:
        return report_lengths(lengths, limit, too_long, where=where)
    except RequestError as error:
        raise Refusal(413, str(error), field) from error


def refused(error: RequestError, field: str | None = None) -> Refusal:
    """A wrong request, as it goes over the wire."""
    return Refusal(422, str(error), field)
