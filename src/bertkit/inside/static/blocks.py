"""Blocks of text for training by matrix products instead of pair by pair, as word2vec does.

A block has 32 consecutive words, their 42 context words and 20 negative samples; a step has 64 blocks, so that 2,048
words are updated by three batched products. Two changes make this possible: a pair is weighted by the probability that
word2vec's random window contains it, and negative samples are shared by the block, with a weight that corresponds to
five samples per pair.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertkit.inside.static.corpus import WordCorpus
from bertkit.inside.static.settings import StaticSettings

BLOCK_LENGTH = 32  # words; longer blocks compute more unused products, shorter ones draw more samples
BLOCKS_PER_STEP = 64
SAMPLES_PER_BLOCK = 20  # negative samples
WORDS_PER_JOB = 100_000  # of one thread
SAMPLING_TABLE_SIZE = 1 << 22


@dataclass(frozen=True)
class Blocks:
    """B blocks of L words with C = L + 2 x window context words and K negative samples."""

    centers: Tensor  # B L
    contexts: Tensor  # B C
    weights: Tensor  # B L C: of each pair, from 0 to 1
    samples: Tensor  # B K


@dataclass(frozen=True, eq=False)
class BlockMaker:
    """Makes the blocks of a corpus."""

    corpus: WordCorpus
    settings: StaticSettings
    keep: NDArray[np.float32]  # W: the share of a word's occurrences that is kept by subsampling
    sampling_table: Tensor  # word ids, each in proportion to its sampling probability
    window_weights: Tensor  # L C

    @classmethod
    def of(cls, corpus: WordCorpus, settings: StaticSettings) -> "BlockMaker":
        """The block maker of a corpus."""
        keep = kept_share(corpus.counts, settings.subsample)
        return cls(corpus, settings, keep, sampling_table(corpus.counts), window_weights(settings))

    def blocks(self, epoch: int, start: int) -> Iterator[tuple[float, Blocks]]:
        """(share of the job before it, blocks) of one job, which starts at word `start`; a function of the seed."""
        rng = np.random.default_rng([self.settings.seed, epoch, start])
        generator = torch.Generator().manual_seed(int(rng.integers(1 << 62)))
        ids, sentences = self._subsampled(start, rng)
        window, step = self.settings.window, BLOCK_LENGTH * BLOCKS_PER_STEP
        for first in range(0, len(ids) - 2 * window, step):
            part = slice(first, first + step + 2 * window)
            yield first / len(ids), self._make_blocks(ids[part], sentences[part], generator)

    def _subsampled(self, start: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Word ids and sentence numbers of a job after subsampling, padded with words of no sentence at both ends."""
        ids = self.corpus.ids[start : start + WORDS_PER_JOB]
        kept = rng.random(len(ids), np.float32) < self.keep[ids]
        sentences = self.corpus.sentence_numbers(start, start + WORDS_PER_JOB)[kept]
        window = self.settings.window
        padding = (window, window + -int(kept.sum()) % BLOCK_LENGTH)
        padded = np.pad(ids[kept].astype(np.int64), padding)
        unique = [-np.arange(1, size + 1) for size in padding]  # padding words pair with no word
        return torch.from_numpy(padded), torch.from_numpy(np.concatenate([unique[0], sentences, unique[1] - window]))

    def _make_blocks(self, ids: Tensor, sentences: Tensor, generator: torch.Generator) -> Blocks:
        window, width = self.settings.window, BLOCK_LENGTH + 2 * self.settings.window
        inside = slice(window, len(ids) - window)
        centers, contexts = ids[inside].view(-1, BLOCK_LENGTH), ids.unfold(0, width, BLOCK_LENGTH)
        same = sentences[inside].view(-1, BLOCK_LENGTH, 1) == sentences.unfold(0, width, BLOCK_LENGTH)[:, None]
        drawn = torch.randint(SAMPLING_TABLE_SIZE, (len(contexts), SAMPLES_PER_BLOCK), generator=generator)
        weights = torch.where(same, self.window_weights, 0.0)
        return Blocks(centers, contexts, weights, self.sampling_table[drawn])


def kept_share(counts: NDArray[np.int64], subsample: float) -> NDArray[np.float32]:
    """word2vec's subsampling: of a word with frequency f, the share sqrt(t / f) + t / f is kept; t is `subsample`."""
    if not subsample:
        return np.ones(len(counts), np.float32)
    ratio = subsample * counts.sum() / counts
    share: NDArray[np.float32] = np.minimum(np.sqrt(ratio) + ratio, 1).astype(np.float32)
    return share


def sampling_table(counts: NDArray[np.int64]) -> Tensor:
    """Word ids to sample from, each in proportion to its count to the power of 0.75."""
    sums = np.cumsum(counts**0.75)
    return torch.from_numpy(
        np.searchsorted(sums, (np.arange(SAMPLING_TABLE_SIZE) + 0.5) / SAMPLING_TABLE_SIZE * sums[-1])
    )


def window_weights(settings: StaticSettings) -> Tensor:
    """L C: the weight of a context word at distance d is (window - d + 1) / window, of the word itself 0."""
    window = settings.window
    distance = np.abs(np.arange(BLOCK_LENGTH + 2 * window) - window - np.arange(BLOCK_LENGTH)[:, None])
    weights = np.where((distance > 0) & (distance <= window), (window - distance + 1) / window, 0)
    return torch.from_numpy(weights.astype(np.float32))
