"""What the tasks on words share: a word is scored at its first piece, once, in the window that shows most around it."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from bertkit.data.examples import Example, WordsExample
from bertkit.errors import RequestError
from bertkit.model.word_loss import IGNORE
from bertkit.tasks.shared.explain import ExplainedTokens, Request, Written, refuse_windows
from bertkit.tasks.shared.length import Seen, refuse_too_long, spread
from bertkit.tasks.task import Part, Rows, Task, Window
from bertkit.text.characters import word_spans
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.windows import window_cuts


@dataclass(frozen=True)
class ScoredWords:
    """Which words a window scores, and at which of its tokens."""

    words: tuple[int, ...]
    positions: tuple[int, ...]
    seen: Seen


@dataclass(frozen=True, kw_only=True)
class WordTask(Task):
    """One answer for each word, through windows where a sentence is long; no word goes without."""

    answer_unit = "words"

    def ready(self, example: Example) -> Example:
        """A plain text is split into words."""
        assert isinstance(example, WordsExample)
        if example.text is None or example.characters is not None:
            return example
        characters = words_of(self.tokenizer, example.text)
        words = tuple(example.text[start:end] for start, end in characters)
        return replace(example, words=words, characters=characters)

    def gold(self, example: Example) -> Sequence[float] | None:
        """What the loss asks of each word; None when unlabeled."""
        raise NotImplementedError

    def windows(self, example: Example, number: int) -> list[Window]:
        """One window, or several that overlap; each word is scored in the one that shows most around it."""
        assert isinstance(example, WordsExample)
        pieces, firsts = word_pieces(self.tokenizer, example.words)
        spans = spread(len(pieces), self.limit - 2, self.length.stride)
        gold = self.gold(example)
        if gold is not None:  # to train on: with what the backward needs, all windows are in memory
            refuse_too_long(example.place, len(pieces), len(spans), self.limit, "part it into sentences")
        served = words_of_windows(spans, firsts)
        seen = Seen(len(pieces), 0, len(spans))
        made = []
        for (start, stop), words in zip(spans, served, strict=True):
            ids = (self.tokenizer.cls_id, *pieces[start:stop], self.tokenizer.sep_id)
            positions = tuple(1 + firsts[word] - start for word in words)
            target = None if gold is None else _target(len(ids), positions, [gold[word] for word in words])
            made.append(Window(ids, (0,) * len(ids), number, target, ScoredWords(words, positions, seen)))
        return made

    def targets(self, windows: Sequence[Window]) -> int:
        """How many words these windows score."""
        return sum(len(window.detail.words) for window in windows)

    def explained_word(self, model_input: Request) -> tuple[WordsExample, Window, ExplainedTokens]:
        """A text to explain: its words, its one window, and the tokens of that with the words they belong to."""
        if model_input.pair is not None:
            raise RequestError("tags are of one text; leave out the pair")
        [example] = map(self.ready, self.row.examples(texts=[model_input.text]))
        assert isinstance(example, WordsExample)
        if not example.words:
            raise RequestError("the text has no word to tag")
        windows = self.windows(example, 0)
        refuse_windows(len(windows))
        [window] = windows
        firsts, last = list(window.detail.positions), len(window.ids) - 1
        spans = zip(example.characters or (), example.words, strict=True)
        tokens = ExplainedTokens(
            ids=window.ids,
            shown=[self.tokenizer.written(number) for number in window.ids],
            segments=window.segments,
            words=[bisect_right(firsts, n) - 1 if 0 < n < last else None for n in range(len(window.ids))],
            written=tuple(Written(0, start, end, word) for (start, end), word in spans),
        )
        return example, window, tokens


def at_words(part: Part, outputs: Rows) -> tuple[np.ndarray, np.ndarray]:
    """The outputs at the first piece of each word, and what the loss asks there."""
    positions = [list(window.detail.positions) for window in part.flat]
    gold = [[window.target[position] for position in own] for window, own in zip(part.flat, positions, strict=True)]
    return np.concatenate([row[own] for row, own in zip(outputs, positions, strict=True)]), np.concatenate(gold)


def find_word(words: Sequence[str], wanted: str) -> int:
    """The number of the first word that is written so."""
    found = [n for n, word in enumerate(words) if word.casefold() == wanted.strip().casefold()]
    if not found:
        raise RequestError(f"the text has no word '{wanted}'; its words are: {', '.join(dict.fromkeys(words)):.300}")
    return found[0]


def word_pieces(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[list[int], list[int]]:
    """(ids, where each word begins in them); a word of nothing the tokenizer keeps is one unknown piece."""
    encoding = tokenizer.encode_words(words)
    pieces: list[list[int]] = [[] for _ in words]
    for token, word in zip(encoding.ids, encoding.words, strict=True):
        if word is not None:
            pieces[word].append(token)
    ids: list[int] = []
    firsts: list[int] = []
    for own in pieces:
        firsts.append(len(ids))
        ids += own or [tokenizer.unknown_id]
    return ids, firsts


def words_of_windows(spans: Sequence[tuple[int, int]], firsts: Sequence[int]) -> list[tuple[int, ...]]:
    """For each window the words it scores: those whose first piece it shows with most around it; each word once."""
    cuts = window_cuts(spans)
    bounds = [bisect_left(firsts, cut) for cut in cuts]
    return [tuple(range(start, stop)) for start, stop in pairwise(bounds)]


def words_of(tokenizer: Tokenizer, text: str) -> tuple[tuple[int, int], ...]:
    """A plain text's words as characters [start, end): parted at spaces and punctuation, as the tokenizer does it."""
    return word_spans(tokenizer.encode(text), text)


def _target(length: int, positions: Sequence[int], gold: Sequence[float]) -> tuple[float, ...]:
    target: list[float] = [IGNORE] * length
    for position, wanted in zip(positions, gold, strict=True):
        target[position] = wanted
    return tuple(target)
