"""What an attribution explains: one output of a model, and the tokens that it is read from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from bertkit.errors import RequestError
from bertkit.model.batch import Batch
from bertkit.model.model import BertModel
from bertkit.text.characters import with_marks
from bertkit.text.tokenizer import Encoding, Tokenizer

Read = Callable[[Tensor, Batch], Tensor]


@dataclass(frozen=True)
class Written:
    """A word as it stands in one of the texts: `(text, pair)[part][start:end]`."""

    part: int
    start: int
    end: int
    word: str


@dataclass(frozen=True)
class ExplainedTokens:
    """What the model reads: each token's id, how it is shown, and the word it is a piece of (None: special token)."""

    ids: Sequence[int]
    shown: Sequence[str]
    segments: Sequence[int]
    words: Sequence[int | None]
    written: tuple[Written, ...]
    cut_from: int | None = None  # how many tokens there were, where the task's length policy keeps fewer


@dataclass(frozen=True)
class Target:
    """One output: `read` takes the vectors T D of N copies of the tokens and gives N numbers, in these units."""

    name: str
    units: str
    tokens: ExplainedTokens
    read: Read


@dataclass(frozen=True)
class Request:
    """What is asked about a text; what is not given is what the model itself predicts."""

    text: str
    pair: str | None = None
    target: str | None = None  # a label, a tag, an answer, or a word for the blank
    word: str | None = None  # of tags: the word that has it


def text_tokens(
    model: BertModel, tokenizer: Tokenizer, request: Request, positions: Sequence[int] | None = None
) -> ExplainedTokens:
    """A text or a pair, or some of its tokens, with the words as they are written."""
    encoding = tokenizer.encode(request.text, request.pair)
    chosen = range(len(encoding)) if positions is None else positions
    written, numbers = _written(encoding, (request.text, request.pair or ""))
    shown = tokenizer.shown(encoding, request.text, request.pair)
    segments = [encoding.segments[n] for n in chosen]
    return ExplainedTokens(
        ids=[encoding.ids[n] for n in chosen],
        shown=[shown[n] for n in chosen],
        segments=segments if model.config.segments > max(segments, default=0) else [0] * len(segments),
        words=[numbers[n] for n in chosen],
        written=written,
        cut_from=len(encoding) if len(chosen) < len(encoding) else None,
    )


def read_pooled(model: BertModel, head: str, number: int) -> Read:
    """An output of a head that reads one vector of each sequence."""
    return lambda hidden, batch: model.read(head, hidden, batch)[:, number].float()


def read_at(model: BertModel, head: str, position: int, number: int) -> Read:
    """An output of a token head at one position of each copy."""

    def read(hidden: Tensor, batch: Batch) -> Tensor:
        return model.read(head, hidden[batch.offsets[:-1].long() + position], batch)[:, number].float()

    return read


def refuse_windows(windows: int) -> None:
    """An attribution is over one sequence."""
    if windows > 1:
        raise RequestError(f"the text is read through {windows} windows; an explanation is of one: give a part of it")


def refuse_word(request: Request) -> None:
    """Only tasks on words have a word to name."""
    if request.word is not None:
        raise RequestError(f"word={request.word} goes with a model that tags words; leave it out")


def refuse_target(request: Request) -> None:
    """A task with one output has nothing to name."""
    if request.target is not None:
        raise RequestError(f"target={request.target} does not go with a model that gives a number; leave it out")


def _written(encoding: Encoding, texts: tuple[str, str]) -> tuple[tuple[Written, ...], list[int | None]]:
    """The words of both texts in order, and for every token the number of its word."""
    numbers: list[int | None] = []
    spans: dict[tuple[int | None, int], tuple[int, int]] = {}
    order: dict[tuple[int | None, int], int] = {}
    for word, part, (start, end) in zip(encoding.words, encoding.part, encoding.offsets, strict=True):
        if word is None:
            numbers.append(None)
            continue
        key = (part, word)
        first, last = spans.get(key, (start, end))
        spans[key] = (min(first, start), max(last, end))
        numbers.append(order.setdefault(key, len(order)))
    written = []
    for part, text in enumerate(texts):
        own = with_marks([span for (where, _), span in spans.items() if where == part], text)
        for start, end in own:
            start += len(text[start:end]) - len(text[start:end].lstrip())  # byte-level words take the space before
            written.append(Written(part, start, end, text[start:end]))
    return tuple(written), numbers
