"""What all routes share: settings of the vectors, length policies, and replies as JSON."""

import base64
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import orjson
from starlette.responses import Response

from bertkit.errors import RequestError
from bertkit.predict.length import LengthReport, TooLong
from bertkit.serve.models import Served
from bertkit.serve.planner import Plan
from bertkit.serve.plans.vectors import Wanted
from bertkit.serve.refusals import Refusal
from bertkit.serve.routes.schema import VectorChoices
from bertkit.serve.service import Service
from bertkit.serve.settings import LARGE, ServeSettings
from bertkit.tasks.answer import Answered

ORJSON_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
MAX_LISTED = 20  # of the texts that were too long


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


async def reply(service: Service, content: Any, plan: Plan | None = None, numbers: int = 0) -> Response:
    """The content as JSON, made in a thread where there is much of it; texts that were cut are in the headers."""
    dump = partial(orjson.dumps, content, default=_default, option=ORJSON_OPTIONS)
    body = await service.off_loop(dump, numbers) if numbers > LARGE else dump()
    return Response(body, media_type="application/json", headers=length_headers(plan.lengths if plan else None))


def length_headers(report: LengthReport | None) -> dict[str, str]:
    """How many texts were over the limit, and in a sentence what was done."""
    if report is None or not report.long:
        return {}
    return {"bertkit-long-texts": str(len(report.long)), "bertkit-length-note": str(report)}


def length_note(report: LengthReport | None) -> dict[str, Any]:
    """The same for the reply itself; nothing where every text was read whole."""
    if report is None or not report.long:
        return {}
    texts = [{"index": index, "tokens": tokens} for index, tokens in report.long[:MAX_LISTED]]
    note = {"limit": report.limit, "policy": report.policy, "count": len(report.long), "texts": texts}
    return {"long_texts": note}


def encoded(array: np.ndarray, how: str) -> np.ndarray | str:
    """Numbers as they are, or their float32 bytes, little-endian, in base64."""
    if how == "float":
        return np.ascontiguousarray(array, dtype=np.float32)
    return base64.b64encode(np.ascontiguousarray(array, dtype="<f4").tobytes()).decode("ascii")


def as_json(prediction: Any, best: int = 0) -> dict[str, Any]:
    """A prediction as an object: the fields of its Python class, nothing renamed."""
    found = asdict(prediction)
    found.pop("id", None)  # made up by us
    if isinstance(prediction, Answered):
        found["candidates"] = found["candidates"][:best]
    return found


def _default(value: Any) -> Any:
    """What orjson does not know by itself: arrays that are not contiguous."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"{type(value).__name__} has no JSON")
