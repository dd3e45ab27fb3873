"""Blanks as plans: what `Bert.fill` does, in two halves."""

from collections.abc import Sequence
from typing import Any

from bertkit.predict.fill import Filled, fill_blanks, find_blanks
from bertkit.serve.engine import ReadBlanks, TokenSequence
from bertkit.serve.http.limits import check_size, check_texts, reported
from bertkit.serve.models import Served
from bertkit.serve.refusals import Refusal
from bertkit.serve.service import Plan
from bertkit.serve.settings import ServeSettings
from bertkit.text.length import TooLong


def plan_fill(
    served: Served, texts: Sequence[str], top: int, too_long: TooLong, limits: ServeSettings, field: str = "text"
) -> Plan:
    """The `top` words for each blank of each text."""
    check_texts(texts, field, limits)
    bert = served.bert
    model, tokenizer = bert.model, bert.tokenizer
    done: TooLong = "window" if too_long == "refuse" else too_long
    masked = [find_blanks(model, tokenizer, text, top=top, limit=served.limit, too_long=done) for text in texts]
    lengths = [len(blanks.encoding) for blanks in masked]
    report = reported(lengths, served.limit, too_long, field, f"{field}[{{}}]".format)
    words = sum(len(blanks.places) * top for blanks in masked)
    if words > limits.max_words:
        raise Refusal(
            413,
            f"{words:,} words for the blanks are over {limits.max_words:,}; ask for fewer words or send fewer texts",
        )
    # Every candidate carries the whole text.
    characters = sum(len(blanks.text) * len(blanks.places) * top for blanks in masked)
    check_size(characters // 8, "ask for fewer words or shorter texts", limits)
    sequences = [
        TokenSequence(
            passage, ReadBlanks(model, tuple(at for _, at in inside), top, tokenizer.size, (model.config.depth,))
        )
        for blanks in masked
        for passage, inside in blanks.views
    ]

    def finish(rows: list[Any]) -> list[list[Filled]]:
        left = iter(rows)
        return [fill_blanks(tokenizer, blanks, [next(left) for _ in blanks.views]) for blanks in masked]

    return Plan(served.shared_encoder, sequences, finish, sum(lengths), report, made=characters + words)
