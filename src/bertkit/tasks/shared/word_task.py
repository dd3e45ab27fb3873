"""Base class of the tasks on words: a word is predicted at its first piece, in the window with most context."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from bertkit.data.examples import Example, WordsExample
from bertkit.errors import RequestError
from bertkit.model.word_loss import IGNORE
from bertkit.tasks.shared.explain import ExplainedTokens, Request, TextWord, refuse_windows
from bertkit.tasks.shared.length import Seen, refuse_too_long, window_spans
from bertkit.tasks.task import Dataset, HeadOutputs, Task, Window
from bertkit.text.characters import word_spans
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.windows import window_cuts


@dataclass(frozen=True)
class ScoredWords:
    """The words that are predicted in a window."""

    words: tuple[int, ...]  # their indices in the sentence
    positions: tuple[int, ...]  # positions of their first pieces in the window
    seen: Seen


@dataclass(frozen=True, kw_only=True)
class WordTask(Task):
    """One prediction for each word; a long sentence is read in windows."""

    answer_unit = "words"

    def preprocess(self, example: Example) -> Example:
        """The example with its plain text, if it has one, split into words."""
        assert isinstance(example, WordsExample)
        if example.text is None or example.characters is not None:
            return example
        characters = split_words(self.tokenizer, example.text)
        words = tuple(example.text[start:end] for start, end in characters)
        return replace(example, words=words, characters=characters)

    def gold(self, example: Example) -> Sequence[float] | None:
        """The target of each word; None if unlabeled."""
        raise NotImplementedError

    def windows(self, example: Example, number: int) -> list[Window]:
        """One window, or several that overlap; each word is predicted in the one with most context around it."""
        assert isinstance(example, WordsExample)
        pieces, firsts = word_pieces(self.tokenizer, example.words)
        spans = window_spans(len(pieces), self.limit - 2, self.length.stride)
        gold = self.gold(example)
        if gold is not None:  # in training, all windows and their activations are in memory
            refuse_too_long(example.location, len(pieces), len(spans), self.limit, "split it into sentences")
        seen = Seen(len(pieces), 0, len(spans))
        windows = []
        for (start, stop), words in zip(spans, words_of_windows(spans, firsts), strict=True):
            ids = (self.tokenizer.cls_id, *pieces[start:stop], self.tokenizer.sep_id)
            positions = tuple(1 + firsts[word] - start for word in words)
            target = None if gold is None else _target(len(ids), positions, [gold[word] for word in words])
            windows.append(Window(ids, (0,) * len(ids), number, target, ScoredWords(words, positions, seen)))
        return windows

    def count_targets(self, windows: Sequence[Window]) -> int:
        """The number of words that are predicted in these windows."""
        return sum(len(window.detail.words) for window in windows)

    def explained_words(self, request: Request) -> tuple[WordsExample, Window, ExplainedTokens]:
        """A text to explain: its words, its only window, and the tokens of the window."""
        if request.pair is not None:
            raise RequestError("only the words of one text are tagged; leave out the pair")
        [example] = map(self.preprocess, self.row.examples(texts=[request.text]))
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
            shown=[self.tokenizer.written(token) for token in window.ids],
            segments=window.segments,
            words=[bisect_right(firsts, n) - 1 if 0 < n < last else None for n in range(len(window.ids))],
            text_words=tuple(TextWord(0, start, end, word) for (start, end), word in spans),
        )
        return example, window, tokens


def first_piece_outputs(dataset: Dataset, outputs: HeadOutputs) -> tuple[np.ndarray, np.ndarray]:
    """(outputs at the first piece of each word, targets there), over all windows."""
    rows, gold = [], []
    for window, window_outputs in zip(dataset.flat, outputs, strict=True):
        positions = list(window.detail.positions)
        rows.append(window_outputs[positions])
        gold.append([window.target[position] for position in positions])
    return np.concatenate(rows), np.concatenate(gold)


def find_word(words: Sequence[str], name: str) -> int:
    """The index of the first word that equals `name`, ignoring case."""
    matches = [n for n, word in enumerate(words) if word.casefold() == name.strip().casefold()]
    if not matches:
        raise RequestError(f"the text has no word '{name}'; its words are: {', '.join(dict.fromkeys(words)):.300}")
    return matches[0]


def word_pieces(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[list[int], list[int]]:
    """(ids, index of the first piece of each word); a word without pieces becomes one unknown token."""
    encoding = tokenizer.encode_words(words)
    pieces: list[list[int]] = [[] for _ in words]
    for token, word in zip(encoding.ids, encoding.words, strict=True):
        if word is not None:
            pieces[word].append(token)
    ids: list[int] = []
    firsts: list[int] = []
    for pieces_of_word in pieces:
        firsts.append(len(ids))
        ids += pieces_of_word or [tokenizer.unknown_id]
    return ids, firsts


def words_of_windows(spans: Sequence[tuple[int, int]], firsts: Sequence[int]) -> list[tuple[int, ...]]:
    """The words that are predicted in each window, each word once: where its first piece has most context."""
    cuts = window_cuts(spans)
    bounds = [bisect_left(firsts, cut) for cut in cuts]
    return [tuple(range(start, stop)) for start, stop in pairwise(bounds)]


def split_words(tokenizer: Tokenizer, text: str) -> tuple[tuple[int, int], ...]:
    """Character spans [start, end) of the words of a plain text, split at spaces and punctuation by the tokenizer."""
    return word_spans(tokenizer.encode(text), text)


def _target(length: int, positions: Sequence[int], gold: Sequence[float]) -> tuple[float, ...]:
    target: list[float] = [IGNORE] * length
    for position, value in zip(positions, gold, strict=True):
        target[position] = value
    return tuple(target)
