"""A corpus in memory for the facts about pre-training: random pieces in words, sentences and documents."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertkit.pretraining.examples.random import Ints
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.wordpiece import SPECIALS

WORDS = 700  # pieces that begin a word; as many again less some go on with one
PIECES = 1000


@dataclass(frozen=True, eq=False)
class RandomText:
    """What `text.shards.ShardSet` is to the loader, without a folder."""

    tokenizer: Tokenizer
    ids: Ints
    words: NDArray[np.uint8]
    sentence_starts: Ints
    document_starts: Ints
    entities: Ints

    def gather(self, starts: Ints, lengths: Ints) -> tuple[NDArray[Any], NDArray[np.uint8]]:
        """The tokens of many ranges, end to end."""
        at = np.concatenate([np.arange(start, start + n) for start, n in zip(starts, lengths, strict=True)])
        return self.ids[at], self.words[at]

    def document_of(self, tokens: Ints) -> Ints:
        """Which document each token is in."""
        firsts = self.sentence_starts[self.document_starts]
        return np.searchsorted(firsts, tokens, side="right").astype(np.int64) - 1

    def begins_word(self, ids: NDArray[Any]) -> NDArray[np.bool_]:
        """Whether each id is of a piece that begins a word, or is a special token."""
        return np.asarray(ids) < len(SPECIALS) + WORDS


@cache
def random_text(documents: int = 800, sentences: int = 12, tokens: int = 24) -> RandomText:
    """Documents of about so many sentences of about so many tokens; every tenth word begins a name of two words."""
    rng = np.random.default_rng(0)
    counts = 1 + rng.poisson(sentences - 1, documents)
    starts = np.concatenate(([0], np.cumsum(1 + rng.poisson(tokens - 1, counts.sum()))))
    size = int(starts[-1])
    words = rng.random(size) < 0.75
    words[starts[:-1]] = True
    begin, go_on = rng.integers(0, WORDS, size), rng.integers(WORDS, PIECES, size)
    firsts = np.flatnonzero(words)
    names = np.stack((firsts[0:-2:10], firsts[2::10][: len(firsts[0:-2:10])]), axis=1)
    return RandomText(
        tokenizer=_tokenizer(),
        ids=len(SPECIALS) + np.where(words, begin, go_on),
        words=words.astype(np.uint8),
        sentence_starts=starts,
        document_starts=np.concatenate(([0], np.cumsum(counts))),
        entities=names,
    )


def equal_sentences(documents: int, sentences: int, tokens: int) -> RandomText:
    """Every document of exactly so many sentences, every sentence of exactly so many tokens."""
    size = documents * sentences * tokens
    return RandomText(
        tokenizer=_tokenizer(),
        ids=np.full(size, len(SPECIALS)),
        words=np.ones(size, dtype=np.uint8),
        sentence_starts=np.arange(0, size + 1, tokens),
        document_starts=np.arange(0, documents * sentences + 1, sentences),
        entities=np.empty((0, 2), dtype=np.int64),
    )


@cache
def _tokenizer() -> Tokenizer:
    begin, go_on = [f"w{n}" for n in range(WORDS)], [f"##x{n}" for n in range(WORDS, PIECES)]
    return Tokenizer.from_vocab([*SPECIALS, *begin, *go_on])
