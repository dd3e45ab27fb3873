"""What all routes share: bodies read by a fast and strict parser, and the settings of their vectors."""

from collections.abc import Iterable
from typing import Any

from bertkit.errors import RequestError
from bertkit.predict.length import TooLong
from bertkit.serve.models import Served
from bertkit.serve.plans.vectors import Wanted
from bertkit.serve.refusals import Refusal
from bertkit.serve.routes.schema import VectorChoices
from bertkit.serve.settings import LARGE, ServeSettings


def wanted_vectors(
    served: Served, asked: VectorChoices, normalize: bool | None, too_long: TooLong, pooling: str | None = None
) -> Wanted:
    """The folder's settings with what the request asks for."""
    try:
        settings = served.bert.embed_settings(
            pooling=pooling or asked.pooling, layers=asked.layers, normalize=normalize
        )
    except RequestError as error:
        raise Refusal(422, str(error)) from error
    return Wanted(settings=settings, pairs=asked.pairs, too_long=too_long, dimensions=asked.dimensions)


def length_policy(asked: TooLong | None, truncate: bool | None, limits: ServeSettings) -> TooLong:
    """The request's policy; truncate=true and false are text-embeddings-inference's words for two of them."""
    if asked is not None:
        return asked
    if truncate is not None:
        return "truncate" if truncate else "refuse"
    return limits.too_long


def fill_policy(asked: TooLong | None, limits: ServeSettings) -> TooLong:
    """The same for texts with blanks, which are read through windows rather than cut, for a blank may be anywhere."""
    return asked or ("refuse" if limits.too_long == "refuse" else "window")


def size_of(texts: Iterable[Any]) -> int:
    """About how much there is to read, counted until it is a lot: a million short texts are counted on the loop."""
    size = 0
    for text in texts:
        size += max(1, len(text)) if isinstance(text, str | list | tuple) else 1
        if size > LARGE:
            break
    return size
