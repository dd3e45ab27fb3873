"""Which number of a model is to be explained, a label's, a tag's, an answer's or a blank's, and from which tokens."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bertkit.data.examples import AnswerSpan, Place, QuestionExample, TaggedExample
from bertkit.errors import RequestError
from bertkit.model.batch import Batch
from bertkit.predict.bert import Bert
from bertkit.settings import pick
from bertkit.tasks.answer import Answered, token_span
from bertkit.tasks.length import sequences
from bertkit.tasks.tag import words_of
from bertkit.text.characters import with_marks
from bertkit.text.tokenizer import Encoding

PLACE = Place(Path("the request"), 0, "number")
Read = Callable[[Tensor, Batch], Tensor]


@dataclass(frozen=True)
class Written:
    """A word as it stands in one of the texts: `(text, pair)[part][start:end]`."""

    part: int
    start: int
    end: int
    word: str


@dataclass(frozen=True)
class Tokens:
    """What the model reads: every token's id, how it is shown, and the word that it is a piece of (None: wiring)."""

    ids: Sequence[int]
    shown: Sequence[str]
    segments: Sequence[int]
    words: Sequence[int | None]
    written: tuple[Written, ...]
    cut_from: int | None = None  # how many tokens there were, where the model was taught to read fewer


@dataclass(frozen=True)
class Target:
    """One number: `read` takes the vectors T D of N copies of the tokens and gives N numbers, in these units."""

    name: str
    units: str
    tokens: Tokens
    read: Read


@dataclass(frozen=True)
class Request:
    """What is asked about a text; what is not said is what the model itself would say."""

    text: str
    pair: str | None = None
    target: str | None = None  # a label, a tag, an answer, or a word for the blank
    word: str | None = None  # of tags: the word that has it


def find_target(bert: Bert, request: Request) -> Target:
    """A blank of a model that fills, else what the model was taught."""
    tokenizer = bert.tokenizer
    fills = bert.model.fills
    if fills and tokenizer.mask_id in tokenizer.encode(request.text, request.pair).ids:
        _refuse_word(request)
        return _blank(bert, request)
    if fills and not {"classify", "tag", "answer", "choose"} & set(bert.model.heads):
        raise RequestError(f"the text has no blank to explain: write {tokenizer.mask_token} where a word is missing")
    name = bert.answers.task.name
    if name == "choose":
        raise RequestError("choices between texts are not explained; classify, tag and answer models are")
    if name != "tag":
        _refuse_word(request)
    return FINDERS[name](bert, request)


def text_tokens(bert: Bert, request: Request, places: Sequence[int] | None = None) -> Tokens:
    """A text or a pair, or some of its tokens, with the words as they are written."""
    encoding = bert.tokenizer.encode(request.text, request.pair)
    chosen = range(len(encoding)) if places is None else places
    written, numbers = _written(encoding, (request.text, request.pair or ""))
    shown = bert.tokenizer.shown(encoding, request.text, request.pair)
    return Tokens(
        ids=[encoding.ids[n] for n in chosen],
        shown=[shown[n] for n in chosen],
        segments=bert.known_segments([encoding.segments[n] for n in chosen]),
        words=[numbers[n] for n in chosen],
        written=written,
        cut_from=len(encoding) if len(chosen) < len(encoding) else None,
    )


def _blank(bert: Bert, request: Request) -> Target:
    """The log probability of a word for the first blank."""
    tokens, tokenizer = text_tokens(bert, request), bert.tokenizer
    _refuse_longer(len(tokens.ids), bert.checkpoint.max_length)
    place, known = list(tokens.ids).index(tokenizer.mask_id), tokenizer.size

    def chances(hidden: Tensor, batch: Batch) -> Tensor:
        rows = hidden[batch.offsets[:-1].long() + place]
        return bert.model.read("masked_word", rows, batch)[:, :known].float().log_softmax(dim=-1)

    if request.target is None:
        batch = Batch.pack([tokens.ids], [tokens.segments]).to(bert.model.device)
        with torch.inference_mode():
            chosen = int(chances(bert.model(batch), batch)[0].argmax())
    else:
        [pieces] = tokenizer.encode_ids([request.target])
        if len(pieces) != 1 or pieces[0] == tokenizer.unknown_id:
            raise RequestError(f"'{request.target}' is not one piece of the vocabulary; name a word that is")
        chosen = pieces[0]
    name = f"the word '{tokenizer.written(chosen)}' for the blank"
    return Target(name, "nats of log probability", tokens, lambda hidden, batch: chances(hidden, batch)[:, chosen])


def _label(bert: Bert, request: Request) -> Target:
    """The logit of a label; the likeliest one where none is named."""
    labels = {label: number for number, label in enumerate(bert.answers.task.labels)}
    if request.target is None:
        said: Any = bert.classify([request.text], _several(request.pair))[0]
        label = max(said.probabilities, key=said.probabilities.__getitem__)
    else:
        label = request.target
    number = pick(labels, label, "label")
    return Target(f"the label '{label}'", "logit", _one_sequence(bert, request), _pooled(bert, number))


def _number(bert: Bert, request: Request) -> Target:
    """A regression's number, in the units of its data."""
    if request.target is not None:
        raise RequestError(f"target={request.target} does not go with a model that gives a number; leave it out")
    task: Any = bert.answers.task
    read = _pooled(bert, 0)
    tokens = _one_sequence(bert, request)
    return Target("the number", "units", tokens, lambda *given: read(*given) * task.spread + task.center)


def _tag(bert: Bert, request: Request) -> Target:
    """The logit of a tag at a word's first piece: a named word's, or the first that has a tag other than O."""
    _refuse_pair(request)
    task: Any = bert.answers.task
    spans = words_of(task.tokenizer, request.text)
    words = tuple(request.text[start:end] for start, end in spans)
    if not words:
        raise RequestError("the text has no word to tag")
    windows = task.windows(TaggedExample(words, None, PLACE), 0)
    _refuse_windows(len(windows))
    [window] = windows
    [said] = bert.answers.tag([words])
    at = _tagged_word(words, said.tags, request.word)
    tag = said.tags[at] if request.target is None else request.target
    number = pick({label: n for n, label in enumerate(task.labels)}, tag, "tag")
    firsts, last = list(window.detail.places), len(window.ids) - 1
    tokens = Tokens(
        ids=window.ids,
        shown=[bert.tokenizer.written(number) for number in window.ids],
        segments=window.segments,
        words=[bisect_right(firsts, n) - 1 if 0 < n < last else None for n in range(len(window.ids))],
        written=tuple(Written(0, a, b, word) for (a, b), word in zip(spans, words, strict=True)),
    )
    return Target(f"the tag '{tag}' of '{words[at]}'", "logit", tokens, _at(bert, "tag", {firsts[at]: number}))


def _tagged_word(words: Sequence[str], tags: Sequence[str], wanted: str | None) -> int:
    if wanted is None:
        return next((n for n, tag in enumerate(tags) if tag != "O"), 0)
    found = [n for n, word in enumerate(words) if word.casefold() == wanted.strip().casefold()]
    if not found:
        raise RequestError(f"the text has no word '{wanted}'; its words are: {', '.join(dict.fromkeys(words)):.300}")
    return found[0]


def _span(bert: Bert, request: Request) -> Target:
    """The logits of an answer's start and end, added; of [CLS] where there is no answer."""
    if request.pair is None:
        raise RequestError("a question needs the passage to answer it from; give it as the pair")
    task: Any = bert.answers.task
    windows = task.windows(QuestionExample("", request.text, request.pair, (), "", PLACE, labelled=False), 0)
    _refuse_windows(len(windows))
    shown = windows[0].detail
    answer = _wanted_answer(bert, request)
    found = None if answer is None else token_span(shown.offsets, answer)
    first, last = (0, 0) if found is None else (shown.first + found[0], shown.first + found[1])
    name = "that there is no answer" if answer is None or found is None else f"the answer '{answer.text}'"
    read_start, read_end = _at(bert, "answer", {first: 0}), _at(bert, "answer", {last: 1})
    tokens = text_tokens(bert, request)
    if list(tokens.ids) != list(windows[0].ids):
        raise RequestError(f"the question is over half of the model's {task.limit} tokens; shorten it")
    return Target(name, "logits of start and end", tokens, lambda *given: read_start(*given) + read_end(*given))


def _wanted_answer(bert: Bert, request: Request) -> AnswerSpan | None:
    passage = request.pair or ""
    if request.target is None:
        said: Answered = bert.answer(request.text, passage)
        return None if said.start is None else AnswerSpan(said.start, said.text)
    start = passage.find(request.target)
    if start < 0 or not request.target:
        raise RequestError(f"the passage has no '{request.target}'; name an answer that stands in it")
    return AnswerSpan(start, request.target)


FINDERS: dict[str, Callable[[Bert, Request], Target]] = {
    "classify": _label,
    "multilabel": _label,
    "regress": _number,
    "tag": _tag,
    "answer": _span,
}


def _one_sequence(bert: Bert, request: Request) -> Tokens:
    """What the task reads of the text, by its own length policy."""
    task: Any = bert.answers.task
    chosen = sequences(task.tokenizer.encode(request.text, request.pair), task.limit, task.length)
    _refuse_windows(len(chosen))
    return text_tokens(bert, request, chosen[0])


def _pooled(bert: Bert, number: int) -> Read:
    return lambda hidden, batch: bert.model.read("classify", hidden, batch)[:, number].float()


def _at(bert: Bert, head: str, numbers: dict[int, int]) -> Read:
    """A token head's number at one place of each copy."""
    [(place, number)] = numbers.items()

    def read(hidden: Tensor, batch: Batch) -> Tensor:
        return bert.model.read(head, hidden[batch.offsets[:-1].long() + place], batch)[:, number].float()

    return read


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


def _several(pair: str | None) -> list[str] | None:
    return None if pair is None else [pair]


def _refuse_windows(windows: int) -> None:
    if windows > 1:
        raise RequestError(f"the text is read through {windows} windows; an explanation is of one: give a part of it")


def _refuse_longer(tokens: int, limit: int) -> None:
    if tokens > limit:
        raise RequestError(f"the text has {tokens} tokens, over the model's {limit}; give a part of it")


def _refuse_word(request: Request) -> None:
    if request.word is not None:
        raise RequestError(f"word={request.word} goes with a model that tags words; leave it out")


def _refuse_pair(request: Request) -> None:
    if request.pair is not None:
        raise RequestError("tags are of one text; leave out the pair")
