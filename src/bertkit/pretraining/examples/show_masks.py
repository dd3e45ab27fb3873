"""Texts next to their masked form, to inspect the masking before training (`bertkit check --masks`)."""

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

LINE_WIDTH = 72  # characters; tokens are not split


@dataclass(frozen=True)
class MaskedExample:
    """The tokens of one sequence: the text, and the corrupted input of the model."""

    text: list[str]
    shown: list[str]
    asked: list[int]  # the positions to predict, including those that were kept
    truth: str | None = None  # the label of a pair, in words


@dataclass(frozen=True)
class Shares:
    """The share of the maskable tokens that was chosen, and the shares of the chosen ones by replacement."""

    tokens: int  # maskable
    chosen: float
    masked: float
    replaced: float  # by another token; a random token that equals the original counts as kept
    kept: float
    remarks: tuple[str, ...] = ()  # of the objectives on these examples


def masked_examples(shards: Corpus, settings: DataSettings, count: int) -> tuple[list[MaskedExample], Shares]:
    """The first `count` training examples with these settings, and the measured shares."""
    if not settings.masks_tokens:
        others = " or ".join(row.name for row in OBJECTIVES.values() if row.kind == "tokens" and row.masks_tokens)
        listed = ",".join(settings.objective)
        raise RequestError(f"objective={listed} masks no token, so there is nothing to show; choose {others}")
    if count < 1:
        raise RequestError(f"count={count} must be at least 1")
    source = ExampleSource(shards, settings)
    examples = source.examples(np.arange(count))
    remarks = tuple(remark for row in settings.rows if (remark := row.remark(examples)))
    measured = replace(shares(examples, source.ids), remarks=remarks)
    return list(_sequences(examples, shards.tokenizer, settings.pair_row)), measured


def originals(examples: Examples) -> np.ndarray:
    """T: the ids before corruption."""
    ids = examples.ids.copy()
    ids[examples.chosen] = examples.targets
    return ids


def shares(examples: Examples, ids: TokenIds) -> Shares:
    """The shares of chosen, masked, replaced and kept tokens."""
    shown = examples.ids[examples.chosen]
    tokens = int((~np.isin(originals(examples), ids.special)).sum())
    masked, kept = int((shown == ids.mask).sum()), int((shown == examples.targets).sum())
    chosen = max(len(shown), 1)
    other = len(shown) - masked - kept
    return Shares(tokens, len(shown) / max(tokens, 1), masked / chosen, other / chosen, kept / chosen)


def lines(example: MaskedExample, width: int = LINE_WIDTH) -> Iterator[tuple[str, str]]:
    """Pairs of lines with the same tokens: the text, and the corrupted input."""
    first = used = 0
    for position, (text, shown) in enumerate(zip(example.text, example.shown, strict=True)):
        size = max(len(text), len(shown)) + 1
        if position > first and used + size > width + 1:
            yield " ".join(example.text[first:position]), " ".join(example.shown[first:position])
            first, used = position, 0
        used += size
    yield " ".join(example.text[first:]), " ".join(example.shown[first:])


def _sequences(examples: Examples, tokenizer: Tokenizer, pair: Objective | None) -> Iterator[MaskedExample]:
    text, shown = tokenizer.tokens(originals(examples).tolist()), tokenizer.tokens(examples.ids.tolist())
    start = 0
    for number, length in enumerate(examples.lengths.tolist()):
        stop = start + length
        chosen = examples.chosen[(examples.chosen >= start) & (examples.chosen < stop)] - start
        truth = pair.pair_labels[examples.pair_labels[number]] if pair and examples.pair_labels is not None else None
        yield MaskedExample(text[start:stop], shown[start:stop], chosen.tolist(), truth)
        start = stop
