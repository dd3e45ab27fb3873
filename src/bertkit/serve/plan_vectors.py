"""Texts, pairs or token ids to sequences, and their rows to vectors: what `Bert.embed` does, in two halves."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from bertkit.engine.batches import Passage, cut, stitch, window_passages
from bertkit.errors import RequestError
from bertkit.finetune.length import LengthPolicy, sequences, take
from bertkit.model.batch import Batch
from bertkit.model.pooling import EmbedSettings, pool
from bertkit.predict.length import LengthReport, TooLong, report_lengths
from bertkit.serve.engine import Piece, ReadPooled, ReadTokens
from bertkit.serve.models import Served
from bertkit.serve.plan import Plan, check_size, check_texts
from bertkit.serve.refusals import Refusal
from bertkit.serve.settings import ServeSettings
from bertkit.text.tokenizer import Encoding

PAIR = "|||"  # between the two texts of a pair, as bert-as-a-service writes it
CHARACTERS_AT_ONCE = 200_000  # an encoding is some hundred bytes for each token; what is kept of it, eight
QUICK = 64  # vectors that are handed over in no time
Input = str | tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """How the texts of one request become vectors."""

    settings: EmbedSettings
    pairs: bool = False  # texts with ||| are two
    too_long: TooLong = "truncate"
    dimensions: int | None = None  # only the first so many numbers, scaled to length 1 again


def plan_vectors(
    served: Served, inputs: Sequence[Input], wanted: Wanted, limits: ServeSettings, field: str = "inputs"
) -> Plan:
    """Vectors for texts or token ids: [D] each, or with pooling 'none' [L, D]."""
    check_texts(inputs, field, limits)
    layers = known_layers(served, wanted.settings.layers)
    width = served.bert.width(wanted.settings)
    if wanted.dimensions is not None and not 1 <= wanted.dimensions <= width:
        raise Refusal(422, f"dimensions={wanted.dimensions} must be from 1 to the model's {width}", "dimensions")
    read = _reader(wanted.settings, layers)
    pieces: list[Piece] = []
    joins: list[_Windowed | None] = []
    lengths: list[int] = []
    for encoding, pair in _encodings(served, inputs, wanted):
        passages, join = _passages(served, encoding, pair, wanted.too_long)
        pieces += [Piece(passage, ReadTokens(layers) if join else read) for passage in passages]
        joins.append(join)
        lengths.append(len(encoding.ids))
    report = _reported(lengths, served.limit, wanted.too_long, field)
    rows = sum(map(len, pieces)) if wanted.settings.pooling == "none" else len(inputs)
    check_size(rows * width, "send fewer texts at a time", limits)
    quick = len(inputs) <= QUICK and not any(joins)
    return Plan(served.lane, pieces, lambda found: _finished(found, joins, wanted), sum(lengths), report, quick)


def known_layers(served: Served, layers: Sequence[int]) -> tuple[int, ...]:
    """Layers counted from the embeddings, 0; a wrong one is refused."""
    depth = served.bert.model.config.depth
    found = tuple(depth + 1 + layer if layer < 0 else layer for layer in layers)
    if not found or not all(0 <= layer <= depth for layer in found):
        raise Refusal(
            422,
            f"layers {list(layers)[:20]} must be from 0 (embeddings) to {depth}, or -1 (last) to {-depth - 1}",
            "layers",
        )
    return found


def _reader(settings: EmbedSettings, layers: tuple[int, ...]) -> ReadPooled | ReadTokens:
    if settings.pooling == "none":
        return ReadTokens(layers)
    return ReadPooled(layers, settings.pooling, settings.normalize)


def _encodings(served: Served, inputs: Sequence[Input], wanted: Wanted) -> Iterator[tuple[Encoding, bool]]:
    """Each input as ids, and whether it is a pair; few at a time, for encodings are large."""
    prefix = wanted.settings.prefix
    waiting: list[tuple[str, str | None]] = []
    for number, each in enumerate(inputs):
        if isinstance(each, str):
            first, mark, second = each.partition(PAIR) if wanted.pairs else (each, "", "")
            waiting.append((prefix + first.strip() if mark else prefix + each, second.strip() if mark else None))
        if waiting and (not isinstance(each, str) or sum(len(a) for a, _ in waiting) > CHARACTERS_AT_ONCE):
            yield from _encoded(served, waiting)
            waiting = []
        if not isinstance(each, str):
            yield _from_ids(served, each, number), False
    yield from _encoded(served, waiting)


def _encoded(served: Served, texts: Sequence[tuple[str, str | None]]) -> Iterator[tuple[Encoding, bool]]:
    tokenizer = served.bert.tokenizer
    if all(pair is None for _, pair in texts):
        yield from ((encoding, False) for encoding in tokenizer.encode_batch([text for text, _ in texts]))
        return
    for text, pair in texts:
        yield tokenizer.encode(text, pair), pair is not None


def _from_ids(served: Served, ids: tuple[int, ...], number: int) -> Encoding:
    """Token ids of this model's vocabulary, with [CLS] and [SEP] put around them where they are not there."""
    tokenizer = served.bert.tokenizer
    known = range(served.bert.model.config.vocab_size)
    for place, token in enumerate(ids):
        if token not in known:
            raise Refusal(
                422, f"input {number}: token {place} is {token}; this model has ids up to {len(known) - 1}", "input"
            )
    if ids[:1] != (tokenizer.cls_id,):
        ids = (tokenizer.cls_id, *ids, tokenizer.sep_id)
    return Encoding(ids, (0,) * len(ids), ((0, 0),) * len(ids), (None,) * len(ids))


@dataclass(frozen=True)
class _Windowed:
    """A long text whose windows are stitched to one."""

    spans: tuple[tuple[int, int], ...]


def _passages(
    served: Served, encoding: Encoding, pair: bool, too_long: TooLong
) -> tuple[list[Passage], _Windowed | None]:
    """What goes through the model of one text: all of it, its beginning, or windows over it."""
    limit = served.limit
    if len(encoding.ids) <= limit:
        passages, join = [Passage(encoding.ids, encoding.segments)], None
    elif pair:  # the longer text is cut first, so that both are there
        passages = [Passage(*take(encoding, places)) for places in sequences(encoding, limit, LengthPolicy("head"))]
        join = None
    elif too_long == "window":
        passages, spans = window_passages(encoding, limit)
        join = _Windowed(tuple(spans))
    else:
        passages, join = [cut(encoding, limit)], None
    return [Passage(p.ids, served.bert.known_segments(p.segments)) for p in passages], join


def _reported(lengths: Sequence[int], limit: int, too_long: TooLong, field: str) -> LengthReport:
    try:
        return report_lengths(lengths, limit, too_long, where=f"{field}[{{}}]".format)
    except RequestError as error:
        raise Refusal(413, str(error), field) from error


def _finished(rows: list[Any], joins: Sequence[_Windowed | None], wanted: Wanted) -> list[np.ndarray]:
    vectors, at = [], 0
    for join in joins:
        count = 1 if join is None else len(join.spans)
        vector = rows[at] if join is None else _stitched(rows[at : at + count], join, wanted.settings)
        if join is None and wanted.settings.pooling == "none" and wanted.settings.normalize:
            vector = F.normalize(torch.from_numpy(vector), dim=-1).numpy()
        vectors.append(_shortened(vector, wanted.dimensions))
        at += count
    return vectors


def _stitched(parts: Sequence[np.ndarray], join: _Windowed, settings: EmbedSettings) -> np.ndarray:
    """The windows of one long text as one sequence, pooled like any other."""
    whole_LD = stitch([torch.from_numpy(part) for part in parts], join.spans)
    if settings.pooling != "none":
        nothing = torch.zeros(len(whole_LD), dtype=torch.long)
        whole_LD = pool(whole_LD, Batch(nothing, nothing, (len(whole_LD),)), settings.pooling)[0]
    found: np.ndarray = (F.normalize(whole_LD, dim=-1) if settings.normalize else whole_LD).numpy()
    return found


def _shortened(vector: np.ndarray, dimensions: int | None) -> np.ndarray:
    if dimensions is None:
        return vector
    short = vector[..., :dimensions]
    length = np.linalg.norm(short, axis=-1, keepdims=True)
    scaled: np.ndarray = (short / np.maximum(length, 1e-12)).astype(np.float32)
    return scaled
