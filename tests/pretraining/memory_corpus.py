"""A corpus in memory that stands in for shards: the same names, and nothing on disk."""

from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
from numpy.typing import NDArray

from bertkit.pretraining.examples.batches import TokenIds

PAD, UNK, CLS, SEP, MASK = range(5)
FIRST = 5  # the first id that is not special
WIRING = SimpleNamespace(pad_id=PAD, unknown_id=UNK, cls_id=CLS, sep_id=SEP, mask_id=MASK)


@dataclass(frozen=True)
class MemoryCorpus:
    """Documents as arrays, as `text.shards.ShardSet` shows them."""

    ids: NDArray[np.int64]
    words: NDArray[np.uint8]
    sentence_starts: NDArray[np.int64]
    document_starts: NDArray[np.int64]
    entities: NDArray[np.int64] = field(default_factory=lambda: np.empty((0, 2), np.int64))
    vocabulary: int = 1000

    @property
    def tokenizer(self):
        return SimpleNamespace(**vars(WIRING), size=self.vocabulary)

    @property
    def token_ids(self) -> TokenIds:
        return TokenIds.of(self.tokenizer)

    def gather(self, starts, lengths):
        stops = np.asarray(starts) + np.asarray(lengths)
        at = [np.arange(start, stop) for start, stop in zip(starts, stops, strict=True)]
        at = np.concatenate([np.empty(0, np.int64), *at])
        return self.ids[at], self.words[at]

    def document(self, number: int) -> list[list[int]]:
        """The sentences of a document as lists of ids."""
        first, behind = self.document_starts[number : number + 2]
        bounds = self.sentence_starts[first : behind + 1]
        return [self.ids[start:stop].tolist() for start, stop in pairwise(bounds)]


def corpus_of(documents: list[list[int]], *, distinct: bool = True, seed: int = 0) -> MemoryCorpus:
    """From the lengths of each document's sentences. With `distinct` no id occurs twice, so that an id is a place."""
    sentences = [length for document in documents for length in document]
    tokens = sum(sentences)
    rng = np.random.default_rng(seed)
    starts = np.cumsum([0, *sentences])
    words = (rng.random(tokens) < 0.75).astype(np.uint8)
    words[starts[starts < tokens]] = 1
    return MemoryCorpus(
        ids=np.arange(FIRST, FIRST + tokens) if distinct else rng.integers(FIRST, 1000, tokens),
        words=words,
        sentence_starts=starts,
        document_starts=np.cumsum([0, *map(len, documents)]),
        vocabulary=FIRST + tokens if distinct else 1000,
    )


def random_corpus(documents: int, *, seed: int = 0, distinct: bool = True, with_names: bool = False) -> MemoryCorpus:
    """Log-normal documents around 300 tokens, sentences of 24 on average; a name of 2 or 3 words in each 40 tokens."""
    rng = np.random.default_rng(seed)
    counts = np.maximum(rng.lognormal(np.log(300 / 24), 0.9, documents).astype(int), 1)
    corpus = corpus_of([rng.geometric(1 / 24, count).tolist() for count in counts], distinct=distinct, seed=seed)
    if not with_names:
        return corpus
    words = np.flatnonzero(corpus.words)
    first = np.arange(0, len(words) - 4, 30)
    names = np.stack((words[first], words[first + rng.integers(2, 4, len(first))]), axis=1)
    return MemoryCorpus(**{**vars(corpus), "entities": names})
