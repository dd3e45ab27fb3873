"""Words → blocks: stretches of text and the words around them, so that training is products of matrices.

word2vec goes pair by pair. Here 32 words in a row, the 42 words they may see and 20 drawn words make one block, and 64
blocks one step: 2,048 words are moved by three batched products. Two choices make that possible. A pair counts with the
share of draws in which word2vec's random window would have reached it. And the drawn words serve the whole block, with
a weight that makes their sum what five draws for each pair would give.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertkit.inside.static.corpus import WordCorpus
from bertkit.inside.static.settings import StaticSettings

LENGTH = 32  # words of a block: longer ones compute more products that do not count, shorter ones draw more words
BLOCKS = 64  # of one step
DRAWN = 20  # words drawn for each block
STRETCH = 100_000  # words that one thread takes at a time
PLACES = 1 << 22  # of the table that words are drawn from


@dataclass(frozen=True)
class Blocks:
    """B blocks of L words, which see C = L + 2 x window words and K drawn ones."""

    centers: Tensor  # B L
    contexts: Tensor  # B C
    weights: Tensor  # B L C: how much each pair counts, from 0 to 1
    drawn: Tensor  # B K


@dataclass(frozen=True, eq=False)
class BlockMaker:
    """What making blocks needs to know of a corpus."""

    corpus: WordCorpus
    settings: StaticSettings
    keep: NDArray[np.float32]  # W: the share of a word's occurrences that is not passed over
    lots: Tensor  # PLACES: word numbers, each as often as it is to be drawn
    band: Tensor  # L C

    @classmethod
    def of(cls, corpus: WordCorpus, settings: StaticSettings) -> "BlockMaker":
        """The tables for a corpus."""
        return cls(corpus, settings, kept_share(corpus.counts, settings.subsample), lots(corpus.counts), band(settings))

    def blocks(self, epoch: int, start: int) -> Iterator[tuple[float, Blocks]]:
        """The blocks of one stretch, each with how much of the stretch came before it: a pure function of the seed."""
        rng = np.random.default_rng([self.settings.seed, epoch, start])
        generator = torch.Generator().manual_seed(int(rng.integers(1 << 62)))
        ids, sentences = self._thinned(start, rng)
        window, step = self.settings.window, LENGTH * BLOCKS
        for place in range(0, len(ids) - 2 * window, step):
            here = slice(place, place + step + 2 * window)
            yield place / len(ids), self._cut(ids[here], sentences[here], generator)

    def _thinned(self, start: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """A stretch without the words that are passed over, with words that pair with nothing at both ends."""
        ids = self.corpus.ids[start : start + STRETCH]
        kept = rng.random(len(ids), np.float32) < self.keep[ids]
        sentences = self.corpus.sentence_numbers(start, start + STRETCH)[kept]
        window = self.settings.window
        ends = (window, window + -int(kept.sum()) % LENGTH)
        padded = np.pad(ids[kept].astype(np.int64), ends)
        alone = [-np.arange(1, size + 1) for size in ends]
        return torch.from_numpy(padded), torch.from_numpy(np.concatenate([alone[0], sentences, alone[1] - window]))

    def _cut(self, ids: Tensor, sentences: Tensor, generator: torch.Generator) -> Blocks:
        window, seen = self.settings.window, LENGTH + 2 * self.settings.window
        inside = slice(window, len(ids) - window)
        same = sentences[inside].view(-1, LENGTH, 1) == sentences.unfold(0, seen, LENGTH)[:, None]
        contexts = ids.unfold(0, seen, LENGTH)
        chosen = torch.randint(PLACES, (len(contexts), DRAWN), generator=generator)
        return Blocks(ids[inside].view(-1, LENGTH), contexts, torch.where(same, self.band, 0.0), self.lots[chosen])


def kept_share(counts: NDArray[np.int64], subsample: float) -> NDArray[np.float32]:
    """word2vec's: of a word with frequency f the share sqrt(t / f) + t / f is kept, t being `subsample`."""
    if not subsample:
        return np.ones(len(counts), np.float32)
    ratio = subsample * counts.sum() / counts
    share: NDArray[np.float32] = np.minimum(np.sqrt(ratio) + ratio, 1).astype(np.float32)
    return share


def lots(counts: NDArray[np.int64]) -> Tensor:
    """Word numbers to draw from, each in proportion to its count to the power of 0.75."""
    sums = np.cumsum(counts**0.75)
    return torch.from_numpy(np.searchsorted(sums, (np.arange(PLACES) + 0.5) / PLACES * sums[-1]))


def band(settings: StaticSettings) -> Tensor:
    """L C: a word's neighbor at distance d counts (window - d + 1) / window, and itself nothing."""
    window = settings.window
    distance = np.abs(np.arange(LENGTH + 2 * window) - window - np.arange(LENGTH)[:, None])
    share = np.where((distance > 0) & (distance <= window), (window - distance + 1) / window, 0)
    return torch.from_numpy(share.astype(np.float32))
