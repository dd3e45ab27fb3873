"""Statistics of a folder of shards, and problems that would make training fail."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertkit.errors import RequestError
from bertkit.pretraining.examples.batches import DataSettings, ExampleSource
from bertkit.pretraining.examples.random import Ints
from bertkit.pretraining.recipe import Recipe
from bertkit.text.shards.reader import ShardSet

TOKENS_AT_ONCE = 1 << 22  # bounds the memory of counting
MAX_UNKNOWN_SHARE = 0.01  # more is noted; with released BERT vocabularies it is under 0.1 % on their own language
MIN_USED_SHARE = 0.5  # of the vocabulary; less is noted


@dataclass(frozen=True)
class Lengths:
    """Statistics of lengths in tokens."""

    mean: float
    median: int
    most: int  # 95 % are no longer than this
    longest: int

    @classmethod
    def of(cls, lengths: Ints) -> "Lengths":
        """The statistics of at least one length."""
        median, most = (int(value) for value in np.quantile(lengths, (0.5, 0.95), method="lower"))
        return cls(round(float(lengths.mean()), 1), median, most, int(lengths.max()))


@dataclass(frozen=True)
class ShardReport:
    """The statistics of a folder of shards; `stops` are problems that prevent training, `notes` are not."""

    shards: int
    tokens: int
    sentences: int
    documents: int
    entities: int | None
    sentence_lengths: Lengths | None  # None if there is no text
    document_lengths: Lengths | None
    vocabulary: int
    pieces_used: int
    unknown_share: float
    epoch: dict[str, Any] | None = None  # with a recipe: examples, epochs, padding_share
    stops: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def report_shards(shards: ShardSet, recipe: Recipe | None = None) -> ShardReport:
    """Count everything; with a recipe, also check whether the shards can be trained on with it."""
    counts = piece_counts(shards)
    room = (recipe.data if recipe else DataSettings(length=512)).room
    epoch, stops = _epoch(shards, recipe) if recipe else (None, ())
    sentences = np.diff(shards.sentence_starts)
    documents = np.diff(shards.sentence_starts[shards.document_starts])
    return ShardReport(
        shards=len(shards.manifest["shards"]),
        tokens=shards.tokens,
        sentences=shards.sentences,
        documents=shards.documents,
        entities=len(shards.entities) if shards.has_entities else None,
        sentence_lengths=Lengths.of(sentences) if len(sentences) else None,
        document_lengths=Lengths.of(documents) if len(documents) else None,
        vocabulary=len(counts),
        pieces_used=int((counts > 0).sum()),
        unknown_share=float(counts[shards.tokenizer.unknown_id] / max(shards.tokens, 1)),
        epoch=epoch,
        stops=tuple(stops),
        notes=tuple(_notes(shards, counts, int((sentences > room).sum()), room)),
    )


def piece_counts(shards: ShardSet) -> Ints:
    """V: the number of occurrences of each token of the vocabulary."""
    counts = np.zeros(shards.tokenizer.size, dtype=np.int64)
    for start in range(0, shards.tokens, TOKENS_AT_ONCE):
        ids, _ = shards.gather([start], [min(TOKENS_AT_ONCE, shards.tokens - start)])
        counts += np.bincount(ids, minlength=len(counts))
    return counts


def _epoch(shards: ShardSet, recipe: Recipe) -> tuple[dict[str, Any] | None, list[str]]:
    """(examples, epochs and padding of a recipe on these shards; reasons why it cannot be trained)."""
    from bertkit.pretraining.checks import fitted  # imports torch, which is needed with a recipe only

    stops = []
    try:
        fitted(recipe, shards)
    except RequestError as error:
        stops.append(str(error))
    try:
        source = ExampleSource(shards, recipe.data)
    except RequestError as error:
        return None, [*stops, str(error)]
    examples, steps = source.examples_per_epoch, recipe.train.steps
    blocks = recipe.train.batch / recipe.data.block
    epochs = None if steps is None else round(steps * blocks / source.blocks_in_epoch, 2)
    lengths = source.block(0).lengths
    padding = round(1 - float(lengths.mean()) / recipe.data.length, 3)
    return {"examples": examples, "epochs": epochs, "padding_share": padding}, stops


def _notes(shards: ShardSet, counts: Ints, too_long: int, room: int) -> Iterator[str]:
    if shards.documents == 1:
        yield "there is one document, so objective nsp is refused; put a blank line between documents, or use sop"
    if shards.sentences == shards.documents > 0:
        yield "every document is one sentence: nsp and sop then cut sentences in the middle"
    if too_long:
        yield f"{too_long:,} sentences are longer than the {room} tokens of text in a sequence and are cut"
    unknown = counts[shards.tokenizer.unknown_id] / max(shards.tokens, 1)
    if unknown > MAX_UNKNOWN_SHARE:
        yield f"{unknown:.1%} of the tokens are unknown: the vocabulary is of another language, or too small"
    used = (counts > 0).mean()
    if shards.tokens and used < MIN_USED_SHARE:
        yield f"only {used:.0%} of the vocabulary occurs; a smaller one made of this text trains faster"
