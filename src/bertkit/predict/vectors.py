"""Embeddings of texts by a loaded model, with progress and a note on long texts: `Bert.embed` and `Bert.search`."""

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from functools import partial, reduce
from typing import TYPE_CHECKING

import numpy as np

from bertkit.calls import TooLong
from bertkit.checkpoint.save_load import Checkpoint
from bertkit.engine.embed import Embedded, embed_blocks
from bertkit.errors import warn
from bertkit.model.pooling import DOCUMENT, QUERY, EmbedSettings
from bertkit.progress import late_progress
from bertkit.text.length import LengthReport, name_text
from bertkit.text_inputs import listed_texts

if TYPE_CHECKING:
    from bertkit.predict.search import Found, TextsOrVectors, VectorBlock, VectorsOrFile


def text_blocks(
    checkpoint: Checkpoint,
    texts: Iterable[str],
    settings: EmbedSettings,
    too_long: TooLong = "truncate",
    where: Callable[[int], str] = name_text,
    *,
    tick: Callable[[int], None] | None = None,
) -> Iterator[Embedded]:
    """Embeddings of any number of texts in constant memory: blocks of texts with their vectors."""
    model, tokenizer, limit = checkpoint.model, checkpoint.required_tokenizer, checkpoint.max_length
    return embed_blocks(model, tokenizer, texts, settings, limit, too_long, where, tick)


def embed_texts(
    checkpoint: Checkpoint, texts: str | Sequence[str], settings: EmbedSettings, too_long: TooLong = "truncate"
) -> np.ndarray | list[np.ndarray]:
    """float32 [texts, width], or [width] for one text; without pooling a list of [tokens, width]."""
    blocks = list(_shown_blocks(checkpoint, listed_texts(texts), settings, too_long))
    if isinstance(texts, str):
        vector: np.ndarray = blocks[0].vectors[0]
        return vector
    if settings.per_token:
        return [vector for block in blocks for vector in block.vectors]
    if not blocks:
        return np.zeros((0, settings.width(checkpoint.model.config.width)), dtype=np.float32)
    return np.concatenate([block.vectors for block in blocks]) if len(blocks) > 1 else np.asarray(blocks[0].vectors)


def search_texts(
    checkpoint: Checkpoint,
    query: str | Sequence[str],
    texts: "TextsOrVectors | None",
    k: int,
    vectors: "VectorsOrFile | None",
) -> "list[list[Found]]":
    """The `k` nearest texts of each query, best first; `vectors` are those of the texts, if they are known."""
    from bertkit.predict.search import check_count, search_blocks, searched_blocks

    count, settings = check_count(k), checkpoint.embed_settings().one_vector()
    width, of_texts = settings.width(checkpoint.model.config.width), settings.side(DOCUMENT)
    blocks = searched_blocks(texts, vectors, width, partial(_vector_blocks, checkpoint, of_texts, _count(texts)))
    queries = embed_texts(checkpoint, listed_texts(query), settings.side(QUERY))
    return search_blocks(np.asarray(queries), blocks, count)


def _count(texts: object) -> int:
    """How many texts there are; 0 for an iterator, whose end is not known."""
    return len(texts) if isinstance(texts, Sized) else 0


def _vector_blocks(
    checkpoint: Checkpoint, settings: EmbedSettings, total: int, texts: Iterable[str]
) -> "Iterator[VectorBlock]":
    from bertkit.predict.search import VectorBlock

    for block in _shown_blocks(checkpoint, texts, settings, "truncate", total):
        words = np.array([bool(text.strip()) for text in block.texts])  # a text without any is near to nothing
        yield VectorBlock(np.asarray(block.vectors) * words[:, None], block.texts)


def _shown_blocks(
    checkpoint: Checkpoint, texts: Iterable[str], settings: EmbedSettings, too_long: TooLong, total: int | None = None
) -> Iterator[Embedded]:
    """The blocks, with a progress bar where they take long, and at the end a warning of texts over the limit."""
    reports = []
    with late_progress("embedding", _count(texts) if total is None else total) as advance:
        for block in text_blocks(checkpoint, texts, settings, too_long, tick=advance):
            reports += [block.lengths] if block.lengths.long else []
            yield block
    if reports:
        remedy = "; embed with too_long='window' to read whole texts" if too_long == "truncate" else ""
        warn(f"{reduce(LengthReport.joined, reports)}{remedy}")
