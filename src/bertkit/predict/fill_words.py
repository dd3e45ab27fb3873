"""Blanks that hang together: words of several pieces, several blanks at once, candidates that are given.

A masked-word head gives one piece for one blank. Longer things are put in from left to right, and every piece is read
with those before it in their places and those after it still blank; the probability of the whole is the product. So a
word of one piece has the head's own probability, and a long word is not helped by its own later pieces, each of which
is nearly certain once the others are seen. How many pieces there are is told by the number of blanks, and is free.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from bertkit.engine.batches import TOKENS_PER_BATCH, Passage, last_layer, truncate
from bertkit.errors import BertkitWarning, RequestError
from bertkit.model.model import BertModel
from bertkit.predict.fill import Blanks, Filled, find_blanks, put_in
from bertkit.text.length import TooLong, report_lengths
from bertkit.text.tokenizer import Encoding, Tokenizer

BEAM = 32  # unfinished chains that are kept at each step, if no more are asked for
MOST_PIECES = 10
MOST_TOGETHER = 50  # blanks of one text
MOST_CHAINS = 1000
Chain = tuple[int, ...]  # pieces, from left to right


@dataclass(frozen=True)
class FilledTogether:
    """One candidate for all blanks of a text at once."""

    words: tuple[str, ...]
    probability: float  # of all of them together
    text: str


@dataclass(frozen=True)
class Masked:
    """A sequence with blanks at `places`, which are filled from left to right."""

    ids: tuple[int, ...]
    segments: tuple[int, ...]
    places: tuple[int, ...]

    def with_chain(self, chain: Chain) -> Passage:
        """The first blanks filled."""
        ids = list(self.ids)
        for place, piece in zip(self.places, chain, strict=False):
            ids[place] = piece
        return Passage(ids, self.segments)


class ChainFiller:
    """A model and a tokenizer that fill a text's blanks piece by piece; `limit` and `too_long` as in `fill`."""

    def __init__(self, model: BertModel, tokenizer: Tokenizer, limit: int, too_long: TooLong) -> None:
        self.model, self.tokenizer, self.limit, self.too_long = model, tokenizer, limit, too_long

    def together(self, text: str, top: int, beam: int = BEAM) -> list[FilledTogether]:
        """The best fillings of all blanks at once, as a beam search finds them; special tokens are no words."""
        _check_top(top)
        blanks = self._blanks(text)
        if len(blanks.places) > MOST_TOGETHER:
            raise RequestError(f"the text has {len(blanks.places)} blanks; at most {MOST_TOGETHER} are filled together")
        masked = self._masked(blanks.encoding, blanks.places)
        starts, continues = self._kinds()
        chains = self.best_chains(masked, [starts | continues] * len(blanks.places), max(top, beam))
        return [self._all_put_in(blanks, chain, chance) for chain, chance in chains[:top]]

    def whole_words(self, text: str, top: int, pieces: int, beam: int = BEAM) -> list[Filled]:
        """The best whole words of up to so many pieces for each blank, the others left blank; blank by blank."""
        _check_top(top)
        if isinstance(pieces, bool) or not isinstance(pieces, int) or not 1 <= pieces <= MOST_PIECES:
            raise RequestError(f"pieces={pieces!r} must be from 1 to {MOST_PIECES}")
        blanks = self._blanks(text)
        starts, continues = self._kinds()
        filled: list[Filled] = []
        for blank, place in enumerate(blanks.places):
            chains: list[tuple[Chain, float]] = []
            for count in range(1, pieces + 1):
                masked = self._masked(_widened(blanks.encoding, place, count), range(place, place + count))
                chains += self.best_chains(masked, [starts] + [continues] * (count - 1), max(top, beam))
            best = sorted(chains, key=lambda chain: -chain[1])[:top]
            filled += [self._word_put_in(blanks, blank, chain, chance) for chain, chance in best]
        return filled

    def candidates(self, text: str, words: Sequence[str]) -> list[Filled]:
        """All the given words for each blank, best first, the other blanks left as they are; blank by blank."""
        blanks = self._blanks(text)
        filled = []
        for blank in range(len(blanks.places)):
            start, end = blank_span(blanks, blank)
            read = [self._read_candidate(text, (start, end), word) for word in _checked_words(words)]
            chances = self.chances([masked for masked, _ in read], [chain for _, chain in read])
            texts = [text[:start] + word + text[end:] for word in words]
            rows = zip(words, chances, texts, strict=True)
            filled += sorted((Filled(*row, blank) for row in rows), key=lambda row: -row.probability)
        return filled

    def best_chains(self, masked: Masked, allowed: Sequence[Tensor], beam: int) -> list[tuple[Chain, float]]:
        """Beam search: the best chains with their probabilities; `allowed` has the pieces that may stand at a place."""
        chains: list[tuple[Chain, float]] = [((), 0.0)]
        for pieces in allowed:
            longer: list[tuple[Chain, float]] = []
            for some, scores_CV in self._next([(masked, chain) for chain, _ in chains]):
                before = torch.tensor([score for _, score in chains[some]])[:, None]
                longer += _best_longer(chains[some], scores_CV.masked_fill(~pieces, -torch.inf) + before, beam)
            chains = sorted(longer, key=lambda chain: -chain[1])[:beam]
        return [(chain, float(torch.tensor(score).exp())) for chain, score in chains]

    def chances(self, masked: Sequence[Masked], chains: Sequence[Chain]) -> list[float]:
        """The probability of each chain in its sequence; what several have in common is read once."""
        wanted: dict[tuple[Masked, Chain], dict[int, float]] = {}
        for sequence, chain in zip(masked, chains, strict=True):
            for step, piece in enumerate(chain):
                wanted.setdefault((sequence, chain[:step]), {})[piece] = 0.0
        rows = sorted(wanted, key=lambda row: -len(row[0].ids))
        for some, scores_CV in self._next(rows):
            for row, scores in zip(rows[some], scores_CV, strict=True):
                wanted[row] = {piece: float(scores[piece]) for piece in wanted[row]}
        sums = [
            sum(wanted[sequence, chain[:step]][piece] for step, piece in enumerate(chain))
            for sequence, chain in zip(masked, chains, strict=True)
        ]
        return torch.tensor(sums, dtype=torch.float64).exp().tolist()

    def _next(self, rows: Sequence[tuple[Masked, Chain]]) -> Iterator[tuple[slice, Tensor]]:
        """Log-probabilities of what comes next in each row, C V, for as many rows at a time as make a batch."""
        start = 0
        while start < len(rows):
            some = slice(start, start + max(1, TOKENS_PER_BATCH // len(rows[start][0].ids)))
            passages = [masked.with_chain(chain) for masked, chain in rows[some]]
            with torch.inference_mode():
                batch, hidden_TD = last_layer(self.model.encoder, passages, self.model.device)
                places = [masked.places[len(chain)] for masked, chain in rows[some]]
                at = batch.offsets[:-1].long() + torch.tensor(places, device=self.model.device)
                logits_CV = self.model.read("masked_word", hidden_TD[at], batch)[:, : self.tokenizer.size]
                yield some, logits_CV.float().log_softmax(dim=-1).cpu()
            start = some.stop

    def _blanks(self, text: str) -> Blanks:
        blanks = find_blanks(self.model, self.tokenizer, text, top=1, limit=self.limit, too_long=self.too_long)
        if blanks.report.long:
            warnings.warn(str(blanks.report), BertkitWarning, stacklevel=5)
        return blanks

    def _masked(self, encoding: Encoding, places: Sequence[int]) -> Masked:
        """What the model reads: the whole text, its beginning, or the part around its blanks."""
        if len(encoding.ids) <= self.limit:
            return Masked(encoding.ids, encoding.segments, tuple(places))
        report_lengths([len(encoding.ids)], self.limit, self.too_long)
        room, first, last = self.limit - 2, places[0], places[-1]
        if self.too_long == "truncate":
            passage = truncate(encoding, self.limit)
            if last > room:
                raise RequestError(f"the blank at token {last} is beyond the {self.limit} that are kept; use windows")
            return Masked(tuple(passage.ids), tuple(passage.segments), tuple(places))
        if last - first >= room:
            raise RequestError(
                f"the blanks are {last - first} tokens apart, and the model reads {self.limit}; fill them one by one"
            )
        start = min(max((first + last + 1) // 2 - room // 2, 1), len(encoding.ids) - 1 - room)
        ids, segments = (_part(row, start, room) for row in (encoding.ids, encoding.segments))
        return Masked(ids, segments, tuple(place - start + 1 for place in places))

    def _kinds(self) -> tuple[Tensor, Tensor]:
        """V bool each: the pieces that begin a word, and those that continue one; special tokens are neither."""
        known = self.tokenizer
        starts, continues = torch.zeros(known.size, dtype=torch.bool), torch.zeros(known.size, dtype=torch.bool)
        for piece in set(known.vocab.values()) - self._special:
            (starts if known.starts_word(piece) else continues)[piece] = True
        return starts, continues

    @property
    def _special(self) -> set[int]:
        known = self.tokenizer
        return {known.pad_id, known.unknown_id, known.cls_id, known.sep_id, known.mask_id}

    def _read_candidate(self, text: str, span: tuple[int, int], word: str) -> tuple[Masked, Chain]:
        """The text with the word in it, its pieces made blanks again; and those pieces."""
        start, end = span
        encoding = self.tokenizer.encode(text[:start] + word + text[end:])
        stop = start + len(word)
        found = enumerate(zip(encoding.offsets, encoding.words, strict=True))
        places = [place for place, ((a, b), own) in found if own is not None and a < stop and b > start]
        chain = tuple(encoding.ids[place] for place in places)
        if not chain or self._special & set(chain):
            raise RequestError(f"the candidate {word!r} is not made of pieces that this vocabulary has; leave it out")
        inside = (text[:start] + word + text[end:])[encoding.offsets[places[0]][0] : encoding.offsets[places[-1]][1]]
        if inside.strip() != word.strip():
            raise RequestError(
                f"the candidate {word!r} becomes one with its neighbors, {inside!r}; put spaces around the blank"
            )
        ids = tuple(self.tokenizer.mask_id if place in places else piece for place, piece in enumerate(encoding.ids))
        return self._masked(Encoding(ids, encoding.segments, encoding.offsets, encoding.words), places), chain

    def _word_put_in(self, blanks: Blanks, blank: int, chain: Chain, chance: float) -> Filled:
        start, end = blank_span(blanks, blank)
        word = self.tokenizer.decode(chain).strip() or "".join(self.tokenizer.tokens(chain))
        return Filled(word, chance, blanks.text[:start] + word + blanks.text[end:], blank)

    def _all_put_in(self, blanks: Blanks, chain: Chain, chance: float) -> FilledTogether:
        """From the right to the left, so that what is left to fill stays where it was."""
        text = blanks.text
        words: list[str] = []
        for place, piece in reversed(list(zip(blanks.places, chain, strict=True))):
            filled = put_in(self.tokenizer, text, blanks.encoding.offsets[place], piece, chance, 0)
            text, words = filled.text, [filled.word, *words]
        return FilledTogether(tuple(words), chance, text)


def blank_span(blanks: Blanks, blank: int) -> tuple[int, int]:
    """Where a blank stands in its text; some vocabularies' blanks take the space before them, which stays."""
    start, end = blanks.encoding.offsets[blanks.places[blank]]
    return end - len(blanks.text[start:end].lstrip()), end


def _widened(encoding: Encoding, place: int, count: int) -> Encoding:
    """The blank at `place` as `count` blanks."""
    rows = (encoding.ids, encoding.segments, encoding.offsets, encoding.words)
    return Encoding(*((*row[:place], *[row[place]] * count, *row[place + 1 :]) for row in rows))


def _best_longer(chains: Sequence[tuple[Chain, float]], scores_CV: Tensor, beam: int) -> Iterator[tuple[Chain, float]]:
    """The best `beam` of all chains that are one piece longer."""
    best = scores_CV.flatten().topk(min(beam, scores_CV.numel()))
    for at, score in zip(best.indices.tolist(), best.values.tolist(), strict=True):
        row, piece = divmod(at, scores_CV.shape[1])
        if score > -torch.inf:
            yield (*chains[row][0], piece), score


def _part(row: tuple[int, ...], start: int, room: int) -> tuple[int, ...]:
    """`room` entries from `start`, between the first and the last of all."""
    return (row[0], *islice(row, start, start + room), row[-1])


def _check_top(top: int) -> None:
    if isinstance(top, bool) or not isinstance(top, int) or not 1 <= top <= MOST_CHAINS:
        raise RequestError(f"top={top!r} must be from 1 to {MOST_CHAINS:,}")


def _checked_words(words: Sequence[str]) -> Sequence[str]:
    if isinstance(words, str) or not isinstance(words, Sequence) or not words:
        raise RequestError(f"candidates={words!r:.40} must be a list of words, one at least")
    for number, word in enumerate(words):
        if not isinstance(word, str):
            raise RequestError(f"candidates[{number}] is {type(word).__name__}, not a str")
    return words
