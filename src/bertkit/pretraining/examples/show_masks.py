"""Text beside what the model is shown of it: to look at before training."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from bertkit.errors import RequestError
from bertkit.pretraining.examples.arrays import Examples
from bertkit.pretraining.examples.batches import DataSettings, ExampleSource, TokenIds
from bertkit.pretraining.examples.spans import Corpus
from bertkit.pretraining.objectives.objective import Objective
from bertkit.pretraining.objectives.table import OBJECTIVES
from bertkit.text.tokenizer import Tokenizer

LINE = 72  # characters of a line; a token is never cut


@dataclass(frozen=True)
class MaskedExample:
    """One sequence as pieces: the text, and what the model is shown of it."""

    text: list[str]
    shown: list[str]
    asked: list[int]  # the positions it must restore, those that were left alone among them
    truth: str | None = None  # of a pair


@dataclass(frozen=True)
class Shares:
    """How much was chosen of the tokens that may be, and what became of the chosen."""

    tokens: int
    chosen: float
    masked: float
    replaced: float  # by another piece; the few that chance replaced by themselves count as kept
    kept: float
    remarks: tuple[str, ...] = ()  # what the objectives say of these examples


def masked_examples(shards: Corpus, settings: DataSettings, count: int) -> tuple[list[MaskedExample], Shares]:
    """The first `count` examples of those that training with these settings sees, and what was done to them."""
    if not settings.hides:
        others = " or ".join(row.name for row in OBJECTIVES.values() if row.kind == "tokens" and row.hides)
        listed = ",".join(settings.objective)
        raise RequestError(f"objective={listed} hides no token, so there is nothing to show; choose {others}")
    if count < 1:
        raise RequestError(f"count={count} must be at least 1")
    source = ExampleSource(shards, settings)
    examples = source.examples(np.arange(count))
    remarks = tuple(remark for row in settings.rows if (remark := row.remark(examples)))
    found = replace(shares(examples, source.ids), remarks=remarks)
    return list(_sequences(examples, shards.tokenizer, settings.pair_row)), found


def originals(examples: Examples) -> np.ndarray:
    """T: the ids before they were corrupted."""
    ids = examples.ids.copy()
    ids[examples.chosen] = examples.targets
    return ids


def shares(examples: Examples, ids: TokenIds) -> Shares:
    """What was chosen and what stands there now, counted."""
    shown = examples.ids[examples.chosen]
    tokens = int((~np.isin(originals(examples), ids.special)).sum())
    masked, kept = int((shown == ids.mask).sum()), int((shown == examples.targets).sum())
    chosen = max(len(shown), 1)
    other = len(shown) - masked - kept
    return Shares(tokens, len(shown) / max(tokens, 1), masked / chosen, other / chosen, kept / chosen)


def lines(example: MaskedExample, width: int = LINE) -> Iterator[tuple[str, str]]:
    """Pairs of lines with the same tokens in both: the text, and what is shown of it."""
    first = used = 0
    for at, (text, shown) in enumerate(zip(example.text, example.shown, strict=True)):
        room = max(len(text), len(shown)) + 1
        if at > first and used + room > width + 1:
            yield " ".join(example.text[first:at]), " ".join(example.shown[first:at])
            first, used = at, 0
        used += room
    yield " ".join(example.text[first:]), " ".join(example.shown[first:])


def _sequences(examples: Examples, tokenizer: Tokenizer, pair: Objective | None) -> Iterator[MaskedExample]:
    text, shown = tokenizer.tokens(originals(examples).tolist()), tokenizer.tokens(examples.ids.tolist())
    start = 0
    for number, length in enumerate(examples.lengths.tolist()):
        stop = start + length
        asked = examples.chosen[(examples.chosen >= start) & (examples.chosen < stop)] - start
        truth = pair.pair_labels[examples.pair_labels[number]] if pair and examples.pair_labels is not None else None
        yield MaskedExample(text[start:stop], shown[start:stop], asked.tolist(), truth)
        start = stop
