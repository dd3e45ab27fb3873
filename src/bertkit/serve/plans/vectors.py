"""Texts, pairs or token ids to sequences, and their rows to vectors: what `Bert.embed` does, in two halves."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from bertkit.engine.batches import Passage, cut, stitch, window_passages
from bertkit.model.batch import Batch
from bertkit.model.pooling import EmbedSettings, pool
from bertkit.predict.length import LengthReport, TooLong
from bertkit.serve.engine import ReadPooled, ReadTokens, TokenSequence
from bertkit.serve.http.limits import check_held, check_size, check_texts, reported
from bertkit.serve.models import Served
from bertkit.serve.refusals import Refusal
from bertkit.serve.service import Draft, Plan
from bertkit.serve.settings import ServeSettings
from bertkit.tasks.length import LengthPolicy, sequences, take
from bertkit.text.tokenizer import Encoding

PAIR = "|||"  # between the two texts of a pair, as bert-as-a-service writes it
QUICK = 64  # vectors that are handed over in no time
Input = str | list[int]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """How the texts of one request become vectors."""

    settings: EmbedSettings
    pairs: bool = False  # texts with ||| are two
    too_long: TooLong = "truncate"
    dimensions: int | None = None  # only the first so many numbers, scaled to length 1 again


def plan_vectors(
    served: Served, inputs: Sequence[Input], wanted: Wanted, limits: ServeSettings, field: str = "inputs"
) -> Draft:
    """Vectors for texts or token ids: [D] each, or with pooling 'none' [L, D]."""
    check_texts(inputs, field, limits)
    return plan_checked(served, inputs, wanted, limits, field)


def plan_cosines(
    served: Served, sentence: str, others: Sequence[str], wanted: Wanted, limits: ServeSettings, names: tuple[str, str]
) -> Draft:
    """Vectors for one text and those that it is compared with, which have two names in the request."""
    one, many = names
    check_texts([sentence], one, limits)
    check_texts(others, many, limits)
    inputs = [sentence, *others]
    return plan_checked(served, inputs, wanted, limits, many, lambda n: f"{many}[{n - 1}]" if n else one)


def plan_checked(
    served: Served,
    inputs: Sequence[Input],
    wanted: Wanted,
    limits: ServeSettings,
    field: str,
    where: Callable[[int], str] | None = None,
) -> Draft:
    """The same for inputs that are not too many; `where` names them one by one."""
    layers = known_layers(served, wanted.settings.layers)
    width = served.width(wanted.settings)
    if wanted.dimensions is not None and not 1 <= wanted.dimensions <= width:
        raise Refusal(422, f"dimensions={wanted.dimensions} must be from 1 to the model's {width}", "dimensions")

    prefix = wanted.settings.prefix
    single = [prefix + each for each in inputs if isinstance(each, str) and not _is_pair(each, wanted)]

    def complete(tokens: Iterable[Passage]) -> Plan:
        sequences: list[TokenSequence] = []
        joins: list[_Windowed | None] = []
        lengths: list[int] = []
        read, limit, plain = _reader(wanted.settings, layers), served.limit, served.plain_texts
        usual = len(single) == len(inputs)
        for encoding, length in _counted_tokens(tokens) if usual else _encodings(served, inputs, wanted, tokens, field):
            join = None
            if length <= limit and plain and isinstance(encoding, Passage):  # most are
                sequences.append(TokenSequence(encoding, read))
            else:
                passages, join = _passages(served, encoding, wanted.too_long)
                sequences += [TokenSequence(passage, ReadTokens(layers) if join else read) for passage in passages]
            joins.append(join)
            lengths.append(length)
        if max(lengths) <= limit:
            report = LengthReport(limit, wanted.too_long)
        else:
            done, told = _done(lengths, limit, joins, wanted.too_long)
            report = reported(told, limit, done, field, where or f"{field}[{{}}]".format)
        rows = sum(map(len, sequences)) if wanted.settings.pooling == "none" else len(inputs)
        check_size(rows * width, "send fewer texts at a time", limits)
        windowed = any(joins)
        if windowed:
            held = sum(len(sequence) for sequence in sequences if isinstance(sequence.read, ReadTokens))
            check_held(held * len(layers) * served.bert.model.config.width, limits)
        quick = len(inputs) <= QUICK and not windowed
        return Plan(
            served.shared_encoder, sequences, lambda found: _finished(found, joins, wanted), sum(lengths), report, quick
        )

    return Draft(served.tokenizer, single, complete)


def known_layers(served: Served, layers: Sequence[int]) -> tuple[int, ...]:
    """Layers counted from the embeddings, 0; a wrong one is refused."""
    return _counted(tuple(layers), served.shared_encoder.encoder.config.depth)


@lru_cache(maxsize=1024)
def _counted(layers: tuple[int, ...], depth: int) -> tuple[int, ...]:
    found = tuple(depth + 1 + layer if layer < 0 else layer for layer in layers)
    if not found or not all(0 <= layer <= depth for layer in found):
        raise Refusal(
            422,
            f"layers {list(layers)[:20]} must be from 0 (embeddings) to {depth}, or -1 (last) to {-depth - 1}",
            "layers",
        )
    if len(found) > depth + 1:  # each makes rows wider
        raise Refusal(422, f"{len(found)} layers are more than the model's {depth + 1}; name each once", "layers")
    return found


def _reader(settings: EmbedSettings, layers: tuple[int, ...]) -> ReadPooled | ReadTokens:
    if settings.pooling == "none":
        return ReadTokens(layers)
    return ReadPooled(layers, settings.pooling, settings.normalize)


def both_of(pair: str) -> tuple[str, str]:
    """The two texts of a pair that is written as one."""
    first, _, second = pair.partition(PAIR)
    return first.strip(), second.strip()


def _is_pair(text: str, wanted: Wanted) -> bool:
    return wanted.pairs and PAIR in text


def _counted_tokens(tokens: Iterable[Passage]) -> Iterator[tuple[Passage, int]]:
    return ((passage, len(passage.ids)) for passage in tokens)


def _encodings(
    served: Served, inputs: Sequence[Input], wanted: Wanted, tokens: Iterable[Passage], field: str
) -> Iterator[tuple[Encoding | Passage, int]]:
    """Each input as ids, and how many tokens it has.

    `tokens` are those of the single texts; pairs, which may be cut in two places, are encoded.
    """
    single = _counted_tokens(tokens)
    for number, each in enumerate(inputs):
        if not isinstance(each, str):
            yield _from_ids(served, each, wanted.too_long, f"{field}[{number}]", field)
        elif _is_pair(each, wanted):
            first, second = both_of(each)
            encoding = served.bert.tokenizer.encode(wanted.settings.prefix + first, second)
            yield encoding, len(encoding.ids)
        else:
            yield next(single)


def _from_ids(served: Served, ids: list[int], too_long: TooLong, place: str, field: str) -> tuple[Passage, int]:
    """Token ids of this model's vocabulary, with [CLS] and [SEP] put around them where they are not there.

    What is cut off, where long texts are truncated, is counted and not looked at.
    """
    tokenizer, limit = served.bert.tokenizer, served.limit
    framed = ids[0] == tokenizer.cls_id
    length = len(ids) if framed else len(ids) + 2
    if length > limit and too_long != "window":
        ids = [*ids[: limit - 1], ids[-1]] if framed else ids[: limit - 2]
    known = range(served.bert.model.config.vocab_size)
    for number, token in enumerate(ids):
        if type(token) is not int or token not in known:
            said = f"token {number} is {token if type(token) is int else 'no whole number'}"
            raise Refusal(422, f"{place}: {said}; this model has ids up to {len(known) - 1}", field)
    if not framed:
        ids = [tokenizer.cls_id, *ids, tokenizer.sep_id]
    return Passage(ids, (0,) * len(ids)), length


@dataclass(frozen=True)
class _Windowed:
    """A long text whose windows are stitched to one."""

    spans: tuple[tuple[int, int], ...]


def _passages(
    served: Served, encoding: Encoding | Passage, too_long: TooLong
) -> tuple[list[Passage], _Windowed | None]:
    """What goes through the model of one text: all of it, its beginning, or windows over it."""
    limit, join = served.limit, None
    if len(encoding.ids) <= limit:
        passages = [Passage(encoding.ids, encoding.segments)]
    elif isinstance(encoding, Encoding):  # of a pair the longer text is cut first, so that both are there
        passages = [Passage(*take(encoding, places)) for places in sequences(encoding, limit, LengthPolicy("head"))]
    elif too_long == "window":
        passages, spans = window_passages(encoding, limit)
        join = _Windowed(tuple(spans))
    else:
        passages = [cut(encoding, limit)]
    return [Passage(p.ids, served.bert.known_segments(p.segments)) for p in passages], join


def _done(
    lengths: Sequence[int], limit: int, joins: Sequence[_Windowed | None], too_long: TooLong
) -> tuple[TooLong, Sequence[int]]:
    """What is done with long texts, and the lengths to tell of: where a pair is cut, for it has no windows, its own."""
    lost = any(length > limit and join is None for length, join in zip(lengths, joins, strict=True))
    if too_long != "window" or not lost:
        return too_long, lengths
    return "truncate", [length if join is None else 0 for length, join in zip(lengths, joins, strict=True)]


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
