"""One text, or a pair, run through a model with its full trace: the input of every view."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bertkit.engine.batches import Passage, make_batch
from bertkit.errors import BertkitWarning, RequestError
from bertkit.model.batch import Batch
from bertkit.model.encoder import Trace
from bertkit.predict.bert import Bert
from bertkit.text.tokenizer import Encoding

MOST_TOKENS = 512  # the weights alone of a large model are 400 MB at this length


@dataclass(frozen=True)
class Reading:
    """A text as the model took it: L tokens, and the trace of what it did with them."""

    text: str
    pair: str | None
    encoding: Encoding
    tokens: tuple[str, ...]  # what to show of each token
    parts: tuple[int, ...]  # which text of a pair each token belongs to; [CLS] and the [SEP] between to the first
    cut_from: int | None  # how many tokens there were, where some were left out
    batch: Batch
    trace: Trace

    def word_places(self, word: str) -> list[int]:
        """Where the word stands, as tokens: every piece of every occurrence, upper or lower case."""
        words = self.words()
        wanted = word.strip().casefold()
        places = [place for place, found in enumerate(words) if found is not None and found.casefold() == wanted]
        if not places:
            known = ", ".join(dict.fromkeys(found for found in words if found is not None))
            raise RequestError(f"the text has no word '{word}'; its words are: {known:.300}")
        return places

    def words(self) -> list[str | None]:
        """The written word that each token is a piece of; None for [CLS] and [SEP]."""
        spans: dict[tuple[int, int], tuple[int, int]] = {}
        keys = list(zip(self.parts, self.encoding.words, strict=True))
        for (part, number), (start, end) in zip(keys, self.encoding.offsets, strict=True):
            if number is not None:
                first, last = spans.get((part, number), (start, end))
                spans[part, number] = (min(first, start), max(last, end))
        texts = (self.text, self.pair or "")
        return [None if n is None else texts[part][slice(*spans[part, n])].strip() for part, n in keys]


def read(bert: Bert, text: str, pair: str | None = None) -> Reading:
    """Run the text, or the pair, through the model with its trace. A text over the limit is cut with a warning."""
    whole = bert.tokenizer.encode(text, pair)
    limit = min(bert.checkpoint.max_length, MOST_TOKENS)
    encoding = _cut(whole, limit, pair)
    passage = Passage(encoding.ids, bert.known_segments(encoding.segments))
    batch = make_batch([passage], bert.model.device)
    with torch.inference_mode():
        trace = bert.model.encoder.trace(batch)
    cut_from = len(whole) if len(whole) > limit else None
    tokens = tuple(bert.tokenizer.shown(encoding, text, pair))
    return Reading(text, pair, encoding, tokens, _parts(encoding), cut_from, batch, trace)


def states(reading: Reading) -> list[Tensor]:
    """L D each: the embeddings, then every layer's output; the last one normalized as the heads read it."""
    layers = [layer.output for layer in reading.trace.layers[:-1]]
    return [reading.trace.embeddings, *layers, reading.trace.output]


def _cut(encoding: Encoding, limit: int, pair: str | None) -> Encoding:
    if len(encoding) <= limit:
        return encoding
    if pair is not None:
        raise RequestError(f"the pair has {len(encoding)} tokens, over the limit of {limit}; shorten one of the texts")
    warnings.warn(f"the text has {len(encoding)} tokens; the first {limit} are shown", BertkitWarning, stacklevel=4)
    kept = [*range(limit - 1), len(encoding) - 1]
    columns: list[Sequence[object]] = [encoding.ids, encoding.segments, encoding.offsets, encoding.words]
    return Encoding(*(tuple(column[place] for place in kept) for column in columns))


def _parts(encoding: Encoding) -> tuple[int, ...]:
    """Special tokens belong to the text before them: [CLS] and the first [SEP] to the first text."""
    parts: list[int] = []
    for part in encoding.part:
        parts.append(part if part is not None else (parts[-1] if parts else 0))
    return tuple(parts)
