"""An in-memory corpus for facts about pre-training: random pieces in words, sentences and documents."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit.pretraining.examples.random import Ints
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.wordpiece import SPECIALS

WORD_STARTS = 700  # pieces that start a word
PIECES = 1000  # the others continue a word


@dataclass(frozen=True, eq=False)
class RandomText:
    """The interface of `text.shards.ShardSet` that the loader needs, without files."""

    tokenizer: Tokenizer
    ids: Ints
    words: NDArray[np.uint8]
    sentence_starts: Ints
    document_starts: Ints
    entities: Ints

    def gather(self, starts: Ints, lengths: Ints) -> tuple[NDArray[Any], NDArray[np.uint8]]:
        """The tokens of many ranges, concatenated, and which of them start a word."""
        index = np.concatenate([np.arange(start, start + n) for start, n in zip(starts, lengths, strict=True)])
        return self.ids[index], self.words[index]

    def document_of(self, tokens: Ints) -> Ints:
        """The document of each token."""
        firsts = self.sentence_starts[self.document_starts]
        return np.searchsorted(firsts, tokens, side="right").astype(np.int64) - 1

    def begins_word(self, ids: NDArray[Any]) -> NDArray[np.bool_]:
        """Whether each id is a piece that starts a word, or a special token."""
        return np.asarray(ids) < len(SPECIALS) + WORD_STARTS


@cache
def random_text(documents: int = 800, sentences: int = 12, tokens: int = 24) -> RandomText:
    """Documents with these mean numbers of sentences and tokens; every tenth word starts a name of two words."""
    rng = np.random.default_rng(0)
    counts = 1 + rng.poisson(sentences - 1, documents)
    starts = np.concatenate(([0], np.cumsum(1 + rng.poisson(tokens - 1, counts.sum()))))
    size = int(starts[-1])
    words = rng.random(size) < 0.75
    words[starts[:-1]] = True
    first, other = rng.integers(0, WORD_STARTS, size), rng.integers(WORD_STARTS, PIECES, size)
    starts_of_words = np.flatnonzero(words)
    name_starts = starts_of_words[0:-2:10]
    names = np.stack((name_starts, starts_of_words[2::10][: len(name_starts)]), axis=1)
    return RandomText(
        tokenizer=_tokenizer(),
        ids=len(SPECIALS) + np.where(words, first, other),
        words=words.astype(np.uint8),
        sentence_starts=starts,
        document_starts=np.concatenate(([0], np.cumsum(counts))),
        entities=names,
    )


def equal_sentences(documents: int, sentences: int, tokens: int) -> RandomText:
    """Documents with exactly these numbers of sentences and tokens."""
    ids = np.full(documents * sentences * tokens, len(SPECIALS))
    return even_text(_tokenizer(), ids, sentences, tokens)


def even_text(tokenizer: Tokenizer, ids: Ints, sentences: int, tokens: int) -> RandomText:
    """Ids of whole words as documents of `sentences` sentences of `tokens` tokens."""
    return RandomText(
        tokenizer=tokenizer,
        ids=ids,
        words=np.ones(len(ids), dtype=np.uint8),
        sentence_starts=np.arange(0, len(ids) + 1, tokens),
        document_starts=np.arange(0, len(ids) // tokens + 1, sentences),
        entities=np.empty((0, 2), dtype=np.int64),
    )


@cache
def _tokenizer() -> Tokenizer:
    first, other = [f"w{n}" for n in range(WORD_STARTS)], [f"##x{n}" for n in range(WORD_STARTS, PIECES)]
    return Tokenizer.from_vocab([*SPECIALS, *first, *other])
