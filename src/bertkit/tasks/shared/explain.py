"""What an attribution explains: one output of a model, and the tokens that it is computed from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from bertkit.errors import RequestError
from bertkit.model.batch import Batch
from bertkit.model.model import BertModel
from bertkit.text.characters import with_marks
from bertkit.text.tokenizer import Encoding, Tokenizer

ReadOutput = Callable[[Tensor, Batch], Tensor]
ReadProbability = Callable[[Tensor, Batch, float], Tensor]  # the last argument is the temperature


@dataclass(frozen=True)
class TextWord:
    """A word of the text or its pair: `word == (text, pair)[part][start:end]`."""

    part: int
    start: int
    end: int
    word: str


@dataclass(frozen=True)
class ExplainedTokens:
    """The tokens of one sequence, and the words of the texts that they are pieces of."""

    ids: Sequence[int]
    shown: Sequence[str]  # the string of each token
    segments: Sequence[int]
    words: Sequence[int | None]  # the index of each token's word in `text_words`; None for special tokens
    text_words: tuple[TextWord, ...]
    cut_from: int | None = None  # number of tokens before truncation, None if nothing was cut


@dataclass(frozen=True)
class Target:
    """One output of a model: `read` computes N numbers from the vectors T D of N copies of the tokens."""

    name: str
    units: str
    tokens: ExplainedTokens
    read: ReadOutput
    probability: ReadProbability | None = None  # of this output; None: it has none


@dataclass(frozen=True)
class Request:
    """A text and which of its outputs to explain; None means what the model predicts."""

    text: str
    pair: str | None = None
    target: str | None = None  # a label, a tag, an answer, or a word for the masked position
    word: str | None = None  # tasks on words: the word whose tag or number is explained


def text_tokens(
    model: BertModel, tokenizer: Tokenizer, request: Request, positions: Sequence[int] | None = None
) -> ExplainedTokens:
    """The tokens of a text or a pair, or those at `positions`, with the words of the texts."""
    encoding = tokenizer.encode(request.text, request.pair)
    positions = range(len(encoding)) if positions is None else positions
    text_words, word_indices = _words(encoding, (request.text, request.pair or ""))
    strings = tokenizer.shown(encoding, request.text, request.pair)
    segments = [encoding.segments[n] for n in positions]
    return ExplainedTokens(
        ids=[encoding.ids[n] for n in positions],
        shown=[strings[n] for n in positions],
        segments=segments if model.config.segments > max(segments, default=0) else [0] * len(segments),
        words=[word_indices[n] for n in positions],
        text_words=text_words,
        cut_from=len(encoding) if len(positions) < len(encoding) else None,
    )


def read_pooled(model: BertModel, head: str, output: int) -> ReadOutput:
    """A function that computes one output of a pooled head for each sequence."""
    return lambda hidden, batch: model.read(head, hidden, batch)[:, output].float()


def read_at(model: BertModel, head: str, position: int, output: int) -> ReadOutput:
    """A function that computes one output of a token head at `position` of each sequence."""

    def read(hidden: Tensor, batch: Batch) -> Tensor:
        return model.read(head, hidden[batch.offsets[:-1].long() + position], batch)[:, output].float()

    return read


def pooled_probability(model: BertModel, head: str, output: int, *, exclusive: bool) -> ReadProbability:
    """A function that computes the probability of one label for each sequence; labels exclude each other, or not."""

    def read(hidden: Tensor, batch: Batch, temperature: float) -> Tensor:
        logits = model.read(head, hidden, batch).float() / temperature
        return logits.softmax(dim=-1)[:, output] if exclusive else logits[:, output].sigmoid()

    return read


def probability_at(model: BertModel, head: str, position: int, output: int) -> ReadProbability:
    """A function that computes the probability of one tag at `position` of each sequence."""

    def read(hidden: Tensor, batch: Batch, temperature: float) -> Tensor:
        logits = model.read(head, hidden[batch.offsets[:-1].long() + position], batch).float()
        return (logits / temperature).softmax(dim=-1)[:, output]

    return read


def refuse_windows(windows: int) -> None:
    """Refuse texts of several windows: an attribution is over one sequence."""
    if windows > 1:
        raise RequestError(f"the text is read through {windows} windows; only one can be explained: give a part of it")


def refuse_word(request: Request) -> None:
    """Refuse a named word, for tasks that are not on words."""
    if request.word is not None:
        raise RequestError(f"word={request.word} goes with a model that tags words; leave it out")


def refuse_target(request: Request) -> None:
    """Refuse a named target, for tasks with a single output."""
    if request.target is not None:
        raise RequestError(f"target={request.target} does not go with a model that gives a number; leave it out")


def _words(encoding: Encoding, texts: tuple[str, str]) -> tuple[tuple[TextWord, ...], list[int | None]]:
    """(the words of both texts in order, the index of each token's word)."""
    indices: list[int | None] = []
    spans: dict[tuple[int | None, int], tuple[int, int]] = {}
    order: dict[tuple[int | None, int], int] = {}
    for word, part, (start, end) in zip(encoding.words, encoding.part, encoding.offsets, strict=True):
        if word is None:
            indices.append(None)
            continue
        key = (part, word)
        first, last = spans.get(key, (start, end))
        spans[key] = (min(first, start), max(last, end))
        indices.append(order.setdefault(key, len(order)))
    words = []
    for part, text in enumerate(texts):
        part_spans = [span for (span_part, _), span in spans.items() if span_part == part]
        for start, end in with_marks(part_spans, text):
            start += len(text[start:end]) - len(text[start:end].lstrip())  # byte-level words include the space before
            words.append(TextWord(part, start, end, text[start:end]))
    return tuple(words), indices
