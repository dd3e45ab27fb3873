"""Texts, pairs or token ids to sequences, and their rows to vectors: what `Bert.embed` does, in two halves."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from bertkit.engine.batches import Passage
from bertkit.engine.embed import Spans, split_text, stitched_vectors
from bertkit.errors import RequestError
from bertkit.model.pooling import EmbedSettings
from bertkit.serve.engine import ReadPooled, ReadTokens, TokenSequence
from bertkit.serve.http.limits import check_held, check_size, check_texts, reported
from bertkit.serve.models import Served
from bertkit.serve.refusals import Refusal
from bertkit.serve.service import Plan, PlanDraft
from bertkit.serve.settings import ServeSettings
from bertkit.tasks.shared.length import LengthPolicy, select_tokens, sequence_positions
from bertkit.text.length import LengthReport, TooLong
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
) -> PlanDraft:
    """Vectors for texts or token ids: [D] each, or with pooling 'none' [L, D]."""
    check_texts(inputs, field, limits)
    return plan_checked(served, inputs, wanted, limits, field)


def plan_cosines(
    served: Served, sentence: str, others: Sequence[str], wanted: Wanted, limits: ServeSettings, names: tuple[str, str]
) -> PlanDraft:
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
) -> PlanDraft:
    """The same for inputs that are not too many; `where` names them one by one."""
    settings = _resolved(wanted.settings, served)
    width = served.width(settings)
    if wanted.dimensions is not None and not 1 <= wanted.dimensions <= width:
        raise Refusal(422, f"dimensions={wanted.dimensions} must be from 1 to the model's {width}", "dimensions")

    single = [settings.prefix + each for each in inputs if isinstance(each, str) and not _is_pair(each, wanted)]

    def complete(tokens: Iterable[Passage]) -> Plan:
        sequences: list[TokenSequence] = []
        joins: list[Spans | None] = []  # of texts that are read through windows
        lengths: list[int] = []
        read, limit, plain = _reader(settings), served.limit, served.plain_texts
        usual = len(single) == len(inputs)
        for encoding, length in _counted_tokens(tokens) if usual else _encodings(served, inputs, wanted, tokens, field):
            join = None
            if length <= limit and plain and isinstance(encoding, Passage):  # most are
                sequences.append(TokenSequence(encoding, read))
            else:
                passages, join = _passages(served, encoding, wanted.too_long)
                tokens_read = ReadTokens(settings.layers) if join else read
                sequences += [TokenSequence(passage, tokens_read) for passage in passages]
            joins.append(join)
            lengths.append(length)
        if max(lengths) <= limit:
            report = LengthReport(limit, wanted.too_long)
        else:
            done, told = _done(lengths, limit, joins, wanted.too_long)
            report = reported(told, limit, done, field, where or f"{field}[{{}}]".format)
        rows = sum(map(len, sequences)) if settings.per_token else len(inputs)
        check_size(rows * width, "send fewer texts at a time", limits)
        windowed = any(joins)
        if windowed:
            held = sum(len(sequence) for sequence in sequences if isinstance(sequence.read, ReadTokens))
            check_held(held * len(settings.layers) * served.bert.model.config.width, limits)
        quick = len(inputs) <= QUICK and not windowed
        return Plan(
            served.shared_encoder, sequences, lambda found: _finished(found, joins, wanted), sum(lengths), report, quick
        )

    return PlanDraft(served.tokenizer, single, complete)


def _resolved(settings: EmbedSettings, served: Served) -> EmbedSettings:
    """Layers counted from the embeddings, 0; a wrong one, or more than the model has, are refused."""
    depth = served.shared_encoder.encoder.config.depth
    try:
        resolved = settings.resolved(depth)
    except RequestError as error:
        raise Refusal(422, str(error), "layers") from error
    if len(resolved.layers) > depth + 1:  # each makes rows wider
        said = f"{len(resolved.layers)} layers are more than the model's {depth + 1}; name each once"
        raise Refusal(422, said, "layers")
    return resolved


def _reader(settings: EmbedSettings) -> ReadPooled | ReadTokens:
    if settings.per_token:
        return ReadTokens(settings.layers, settings.normalize)
    return ReadPooled(settings.layers, settings.pooling, settings.normalize)


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


def _passages(served: Served, encoding: Encoding | Passage, too_long: TooLong) -> tuple[list[Passage], Spans | None]:
    """What goes through the model for one text; of a pair the longer text is cut first, so that both are there."""
    if isinstance(encoding, Encoding) and len(encoding.ids) > served.limit:
        cuts = sequence_positions(encoding, served.limit, LengthPolicy("head"))
        passages, join = [Passage(*select_tokens(encoding, places)) for places in cuts], None
    else:
        passages, join = split_text(Passage(encoding.ids, encoding.segments), served.limit, too_long)
    return [Passage(p.ids, served.bert.known_segments(p.segments)) for p in passages], join


def _done(
    lengths: Sequence[int], limit: int, joins: Sequence[Spans | None], too_long: TooLong
) -> tuple[TooLong, Sequence[int]]:
    """What is done with long texts, and the lengths to tell of: where a pair is cut, for it has no windows, its own."""
    lost = any(length > limit and join is None for length, join in zip(lengths, joins, strict=True))
    if too_long != "window" or not lost:
        return too_long, lengths
    return "truncate", [length if join is None else 0 for length, join in zip(lengths, joins, strict=True)]


def _finished(rows: list[Any], joins: Sequence[Spans | None], wanted: Wanted) -> list[np.ndarray]:
    vectors, left = [], iter(rows)
    for spans in joins:
        if spans is None:
            vector = next(left)
        else:
            parts = [torch.from_numpy(next(left)) for _ in spans]
            vector = stitched_vectors(parts, spans, wanted.settings).numpy()
        vectors.append(_shortened(vector, wanted.dimensions))
    return vectors


def _shortened(vector: np.ndarray, dimensions: int | None) -> np.ndarray:
    if dimensions is None:
        return vector
    short = vector[..., :dimensions]
    length = np.linalg.norm(short, axis=-1, keepdims=True)
    scaled: np.ndarray = (short / np.maximum(length, 1e-12)).astype(np.float32)
    return scaled
