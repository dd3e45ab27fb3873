"""One text or pair with the full trace of a model: the input of every view."""

from dataclasses import dataclass

import torch
from torch import Tensor

from bertkit.engine.batches import Passage, known_segments, make_batch
from bertkit.errors import RequestError, warn
from bertkit.model.batch import Batch
from bertkit.model.encoder import RECURRENT, Trace
from bertkit.predict.bert import Bert
from bertkit.predict.trace import trace_target
from bertkit.text.tokenizer import Encoding

MAX_WRITTEN = 64  # tokens that an encoder-decoder writes if no target is given
MAX_TOKENS = 512  # the attention weights of a large model take 400 MB at this length


@dataclass(frozen=True)
class SourceText:
    """The source of an encoder-decoder."""

    text: str
    tokens: tuple[str, ...]


@dataclass(frozen=True)
class Reading:
    """A text as L tokens, and the trace of the model's computation."""

    text: str
    pair: str | None
    encoding: Encoding
    tokens: tuple[str, ...]  # the text to show for each token
    parts: tuple[int, ...]  # the text of a pair that each token belongs to; [CLS] and the first [SEP]: the first
    cut_from: int | None  # number of tokens before the text was cut, if it was
    batch: Batch
    trace: Trace
    source: "SourceText | None" = None  # of a decoder: what its layers attend to beside the text

    def refuse_without_heads(self) -> None:
        """Refuse a view of attention heads for a recurrent model."""
        if not len(self.trace.layers[0].weights):
            raise RequestError(RECURRENT)

    def positions_of(self, word: str) -> list[int]:
        """The positions of all tokens of all occurrences of a word, ignoring case."""
        words = self.words()
        folded = word.strip().casefold()
        positions = [position for position, text in enumerate(words) if text is not None and text.casefold() == folded]
        if not positions:
            listed = ", ".join(dict.fromkeys(text for text in words if text is not None))
            raise RequestError(f"the text has no word '{word}'; its words are: {listed:.300}")
        return positions

    def words(self) -> list[str | None]:
        """The word of the text that each token belongs to; None for [CLS] and [SEP]."""
        spans: dict[tuple[int, int], tuple[int, int]] = {}
        keys = list(zip(self.parts, self.encoding.words, strict=True))
        for (part, number), (start, end) in zip(keys, self.encoding.offsets, strict=True):
            if number is not None:
                first, last = spans.get((part, number), (start, end))
                spans[part, number] = (min(first, start), max(last, end))
        texts = (self.text, self.pair or "")
        return [None if n is None else texts[part][slice(*spans[part, n])].strip() for part, n in keys]


def read(bert: Bert, text: str, pair: str | None = None) -> Reading:
    """Run the model on a text or pair and keep the trace. A text over the limit is cut, with a warning.

    An encoder-decoder's decoder is followed: the text is the source, the pair the target; by default, what it writes.
    """
    if bert.model.decoder is not None:
        room = min(MAX_WRITTEN, bert.checkpoint.max_length // 2)
        return _read_target(bert, text, bert.write(text, tokens=room).text if pair is None else pair)
    full = bert.tokenizer.encode(text, pair)
    limit = min(bert.checkpoint.max_length, MAX_TOKENS)
    encoding = _truncated(full, limit, pair)
    passage = Passage(encoding.ids, known_segments(bert.model.config, encoding.segments))
    batch = make_batch([passage], bert.model.device)
    with torch.inference_mode():
        trace = bert.model.encoder.trace(batch)
    cut_from = len(full) if len(full) > limit else None
    tokens = tuple(bert.tokenizer.shown(encoding, text, pair))
    return Reading(text, pair, encoding, tokens, _parts(encoding), cut_from, batch, trace)


def _read_target(bert: Bert, source: str, target: str) -> Reading:
    traced = trace_target(bert.checkpoint, source, target)
    tokens = tuple(bert.tokenizer.shown(traced.target, target))
    read_from = SourceText(source, tuple(bert.tokenizer.shown(traced.source, source)))
    parts = (0,) * len(tokens)
    return Reading(target, None, traced.target, tokens, parts, None, traced.batch, traced.trace, read_from)


def states(reading: Reading) -> list[Tensor]:
    """L D each: the embeddings, then every layer's output; the last one after the final norm."""
    layers = [layer.output for layer in reading.trace.layers[:-1]]
    return [reading.trace.embeddings, *layers, reading.trace.output]


def _truncated(encoding: Encoding, limit: int, pair: str | None) -> Encoding:
    if len(encoding) <= limit:
        return encoding
    if pair is not None:
        raise RequestError(f"the pair has {len(encoding)} tokens, over the limit of {limit}; shorten one of the texts")
    warn(f"the text has {len(encoding)} tokens; the first {limit} are shown")
    return encoding.truncated(limit)


def _parts(encoding: Encoding) -> tuple[int, ...]:
    """The text of each token; special tokens belong to the text before them, [CLS] to the first."""
    parts: list[int] = []
    for part in encoding.part:
        parts.append(part if part is not None else (parts[-1] if parts else 0))
    return tuple(parts)
