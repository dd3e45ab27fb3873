"""Looking inside as plans: attention weights, and the queries and keys that they come from."""

from typing import Any

import numpy as np

from bertkit.engine.batches import Passage
from bertkit.serve.engine import ReadAttention, TokenSequence
from bertkit.serve.http.limits import check_size, check_texts
from bertkit.serve.models import Served
from bertkit.serve.refusals import Refusal
from bertkit.serve.service import Plan
from bertkit.serve.settings import ServeSettings

MOST_TOKENS = 512  # weights grow with the square of the length


def plan_attention(
    served: Served,
    text: str,
    pair: str | None,
    layer: int | None,
    head: int | None,
    limits: ServeSettings,
    *,
    neurons: bool = False,
) -> Plan:
    """Tokens, and for the layer (from 1) and the head (from 1), or for all of them, what each token looks at."""
    check_texts([text] if pair is None else [text, pair], "text", limits)
    config = served.bert.model.config
    numbers = _chosen(layer, config.depth, "layer")
    heads = _chosen(head, config.heads, "head")
    encoding = served.bert.tokenizer.encode(text, pair)
    length, limit = len(encoding), min(served.limit, MOST_TOKENS)
    if length > limit:
        raise Refusal(413, f"the text has {length} tokens, over the {limit} that can be shown; shorten it", "text")
    check_size(len(numbers) * len(heads) * length * (length + 2 * config.head_width * neurons), "name a layer", limits)
    read = ReadAttention(served.shared_encoder.encoder, numbers, tuple(number - 1 for number in heads), neurons)
    sequence = TokenSequence(Passage(encoding.ids, served.bert.known_segments(encoding.segments)), read)
    tokens = served.bert.tokenizer.shown(encoding, text, pair)

    def finish(rows: list[list[dict[str, np.ndarray]]]) -> dict[str, Any]:
        [parts] = rows
        layers = [{"layer": number, **part} for number, part in zip(numbers, parts, strict=True)]
        columns = {"tokens": tokens, "ids": encoding.ids, "segments": encoding.segments, "special": encoding.special}
        return {**columns, "heads": list(heads), "layers": layers}

    return Plan(served.shared_encoder, [sequence], finish, length)


def _chosen(wanted: int | None, most: int, what: str) -> tuple[int, ...]:
    """One number from 1, or all."""
    if wanted is None:
        return tuple(range(1, most + 1))
    if not 1 <= wanted <= most:
        raise Refusal(422, f"{what}={wanted} must be from 1 to {most}", what)
    return (wanted,)
