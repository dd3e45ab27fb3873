"""Embeddings from a server: many texts in several requests, and in smaller ones where the server refuses their size."""

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import index
from typing import TYPE_CHECKING, Any, cast

from bertkit.calls import Layers
from bertkit.connection import Connection, TooLarge, without_none
from bertkit.errors import RequestError
from bertkit.poolings import NO_POOLING
from bertkit.text_inputs import listed_texts

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_TEXTS = 256  # in one request; more are sent in several requests
MAX_CHARACTERS = 1_000_000  # in one request, unless a single text has more


def embedded(
    connection: Connection, texts: str | Sequence[str], options: Mapping[str, object]
) -> "NDArray[np.float32] | list[NDArray[np.float32]]":
    """An array for one text, [texts, width] for several; without pooling a list of arrays."""
    import numpy as np

    vectors = [vector for batch in _batches(listed_texts(texts)) for vector in _embed(connection, batch, options)]
    if isinstance(texts, str):
        return vectors[0]
    if options["pooling"] == NO_POOLING:
        return vectors
    return np.stack(vectors) if vectors else np.stack(_embed(connection, [""], options))[:0]  # [0, width]


def layer_list(layers: Layers | None) -> list[int] | None:
    """Layers as a list of int: one layer is a list of one, and NumPy integers become int."""
    if layers is None:
        return None
    try:
        return [index(layer) for layer in (layers if isinstance(layers, Iterable) else [layers])]
    except TypeError as error:
        raise RequestError(f"layers={layers!r} must be whole numbers") from error


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """The texts of each request: at most MAX_TEXTS, and MAX_CHARACTERS unless it is a single text."""
    batch: list[str] = []
    size = 0
    for text in texts:
        if batch and (len(batch) == MAX_TEXTS or size + len(text) > MAX_CHARACTERS):
            yield batch
            batch, size = [], 0
        batch.append(text)
        size += len(text)
    if batch:
        yield batch


def _embed(connection: Connection, texts: list[str], options: Mapping[str, object]) -> "list[NDArray[np.float32]]":
    """The texts' embeddings; a batch that is too large for one request is sent in halves."""
    try:
        return _vectors(connection, texts, options)
    except TooLarge:
        if len(texts) == 1:
            raise
    half = len(texts) // 2
    return _embed(connection, texts[:half], options) + _embed(connection, texts[half:], options)


def _vectors(connection: Connection, texts: list[str], options: Mapping[str, object]) -> "list[NDArray[np.float32]]":
    import numpy as np

    if options["pooling"] == NO_POOLING:
        # Here null, not a missing field, is the folder's setting of `normalize`.
        body = {**without_none({**options, "inputs": texts}), "normalize": options["normalize"]}
        reply: Any = connection.request("POST", "/embed_all", body)
        return [np.array(rows, dtype=np.float32) for rows in reply]
    body = without_none({**options, "input": texts, "encoding_format": "base64"})
    reply = cast(Any, connection.request("POST", "/v1/embeddings", body))
    rows = [np.frombuffer(base64.b64decode(row["embedding"]), dtype="<f4") for row in reply["data"]]
    return [row.astype(np.float32) for row in rows]
