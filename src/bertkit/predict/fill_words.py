"""Blanks filled jointly: words of several pieces, several blanks at once, given candidates.

A masked-word head predicts one piece for one blank. Several are filled from left to right: each piece is predicted with
those before it filled in and those after it still masked, and the probability of all is the product. So a word of one
piece has the head's own probability, and a long word gets no credit for later pieces, each of which would be nearly
certain once the others are seen. The number of pieces is given by the number of blanks, and has no cost.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from bertkit.checkpoint.save_load import Checkpoint
from bertkit.engine.batches import TOKENS_PER_BATCH, Passage, last_layer, truncate
from bertkit.errors import RequestError, warn
from bertkit.model.model import BertModel
from bertkit.predict.fill import Blanks, Filled, candidate_tokens, fill, fill_in, find_blanks, word_span
from bertkit.text.length import TooLong, report_lengths
from bertkit.text.tokenizer import Encoding, Tokenizer

BEAM_WIDTH = 32  # chains kept at each step of the beam search, unless `top` is larger
MAX_PIECES = 10  # of one word
MAX_BLANKS_TOGETHER = 50  # of one text
MAX_TOP = 1000
Chain = tuple[int, ...]  # ids of pieces, from left to right


@dataclass(frozen=True)
class FilledTogether:
    """One candidate for all blanks of a text at once."""

    words: tuple[str, ...]
    probability: float  # of all of them together
    text: str


@dataclass(frozen=True)
class Masked:
    """A sequence with blanks at `positions`, which are filled from left to right."""

    ids: tuple[int, ...]
    segments: tuple[int, ...]
    positions: tuple[int, ...]

    def with_chain(self, chain: Chain) -> Passage:
        """The sequence with its first blanks filled."""
        ids = list(self.ids)
        for position, piece in zip(self.positions, chain, strict=False):
            ids[position] = piece
        return Passage(ids, self.segments)


@dataclass(frozen=True, kw_only=True)
class BlankSettings:
    """How blanks are filled: the arguments of `Bert.fill`."""

    top: int
    candidates: Sequence[str] | None
    pieces: int
    together: bool
    whole_words: bool
    too_long: TooLong

    def __post_init__(self) -> None:
        if [self.candidates is not None, self.pieces != 1, self.together].count(True) > 1:
            raise RequestError("candidates, pieces and together are three ways to fill; choose one of them")
        if self.pieces != 1 and not self.whole_words:
            raise RequestError("pieces gives whole words; leave whole_words=False out")


def fill_text(checkpoint: Checkpoint, text: str, how: BlankSettings) -> list[Filled] | list[FilledTogether]:
    """The best words for each blank of a text, or for all of them together."""
    model, tokenizer, limit = checkpoint.model, checkpoint.required_tokenizer, checkpoint.max_length
    chains = ChainFiller(model, tokenizer, limit, how.too_long, how.whole_words)
    if how.candidates is not None:
        return chains.candidates(text, how.candidates)
    if how.together:
        return chains.together(text, how.top)
    if how.pieces != 1:
        return chains.whole_words(text, how.top, how.pieces)
    blanks = find_blanks(
        model, tokenizer, text, top=how.top, limit=limit, too_long=how.too_long, whole_words=how.whole_words
    )
    return fill(model, tokenizer, blanks, how.top)


class ChainFiller:
    """Fills the blanks of a text piece by piece; `limit`, `too_long` and `whole_words` as in `fill`."""

    def __init__(
        self, model: BertModel, tokenizer: Tokenizer, limit: int, too_long: TooLong, whole_words: bool = True
    ) -> None:
        self.model, self.tokenizer, self.limit, self.too_long = model, tokenizer, limit, too_long
        self.only_words = whole_words
        self._tokens = candidate_tokens(tokenizer)

    def together(self, text: str, top: int, beam: int = BEAM_WIDTH) -> list[FilledTogether]:
        """The best fillings of all blanks at once, by beam search; special tokens are never filled in."""
        _check_top(top)
        blanks = self._blanks(text)
        if len(blanks.positions) > MAX_BLANKS_TOGETHER:
            raise RequestError(
                f"the text has {len(blanks.positions)} blanks; at most {MAX_BLANKS_TOGETHER} are filled together"
            )
        masked = self._masked(blanks.encoding, blanks.positions)
        tokens, kinds = self._tokens, blanks.kinds
        allowed = [tokens[kind] for kind in kinds] if kinds else [tokens["any"]] * len(blanks.positions)
        chains = self.best_chains(masked, allowed, max(top, beam))
        return [self._fill_all(blanks, chain, probability) for chain, probability in chains[:top]]

    def whole_words(self, text: str, top: int, pieces: int, beam: int = BEAM_WIDTH) -> list[Filled]:
        """The best whole words of up to `pieces` pieces for each blank by itself, the others left masked."""
        _check_top(top)
        if isinstance(pieces, bool) or not isinstance(pieces, int) or not 1 <= pieces <= MAX_PIECES:
            raise RequestError(f"pieces={pieces!r} must be from 1 to {MAX_PIECES}")
        blanks = self._blanks(text)
        starts, continues = self._tokens["word"], self._tokens["rest"]
        filled: list[Filled] = []
        for blank, position in enumerate(blanks.positions):
            chains: list[tuple[Chain, float]] = []
            for count in range(1, pieces + 1):
                masked = self._masked(_widened(blanks.encoding, position, count), range(position, position + count))
                chains += self.best_chains(masked, [starts] + [continues] * (count - 1), max(top, beam))
            best = sorted(chains, key=lambda chain: -chain[1])[:top]
            filled += [self._fill_word(blanks, blank, chain, probability) for chain, probability in best]
        return filled

    def candidates(self, text: str, words: Sequence[str]) -> list[Filled]:
        """All the given words for each blank by itself, best first, the others left masked."""
        blanks = self._blanks(text)
        filled = []
        for blank in range(len(blanks.positions)):
            start, end = word_span(text, blanks.encoding.offsets[blanks.positions[blank]])
            read = [self._read_candidate(text, (start, end), word) for word in _checked_words(words)]
            probabilities = self.probabilities([masked for masked, _ in read], [chain for _, chain in read])
            texts = [text[:start] + word + text[end:] for word in words]
            rows = zip(words, probabilities, texts, strict=True)
            filled += sorted((Filled(*row, blank) for row in rows), key=lambda row: -row.probability)
        return filled

    def best_chains(self, masked: Masked, allowed: Sequence[Tensor], beam: int) -> list[tuple[Chain, float]]:
        """Beam search: the best chains with their probabilities; `allowed` has for each blank its pieces, V bool."""
        chains: list[tuple[Chain, float]] = [((), 0.0)]
        for pieces in allowed:
            longer: list[tuple[Chain, float]] = []
            for batch, scores_CV in self._next_scores([(masked, chain) for chain, _ in chains]):
                before = torch.tensor([score for _, score in chains[batch]])[:, None]
                longer += _best_longer(chains[batch], scores_CV.masked_fill(~pieces, -torch.inf) + before, beam)
            chains = sorted(longer, key=lambda chain: -chain[1])[:beam]
        return [(chain, float(torch.tensor(score).exp())) for chain, score in chains]

    def probabilities(self, masked: Sequence[Masked], chains: Sequence[Chain]) -> list[float]:
        """The probability of each chain in its sequence; a beginning that several chains share is computed once."""
        scores_after: dict[tuple[Masked, Chain], dict[int, float]] = {}  # log-probabilities of the next pieces
        for sequence, chain in zip(masked, chains, strict=True):
            for step, piece in enumerate(chain):
                scores_after.setdefault((sequence, chain[:step]), {})[piece] = 0.0
        rows = sorted(scores_after, key=lambda row: -len(row[0].ids))
        for batch, scores_CV in self._next_scores(rows):
            for row, scores in zip(rows[batch], scores_CV, strict=True):
                scores_after[row] = {piece: float(scores[piece]) for piece in scores_after[row]}
        sums = [
            sum(scores_after[sequence, chain[:step]][piece] for step, piece in enumerate(chain))
            for sequence, chain in zip(masked, chains, strict=True)
        ]
        return torch.tensor(sums, dtype=torch.float64).exp().tolist()

    def _next_scores(self, rows: Sequence[tuple[Masked, Chain]]) -> Iterator[tuple[slice, Tensor]]:
        """Log-probabilities of the next piece of each row, C V, batch by batch: (which rows, their scores)."""
        start = 0
        while start < len(rows):
            chosen = slice(start, start + max(1, TOKENS_PER_BATCH // len(rows[start][0].ids)))
            passages = [masked.with_chain(chain) for masked, chain in rows[chosen]]
            with torch.inference_mode():
                batch, hidden_TD = last_layer(self.model.encoder, passages, self.model.device)
                positions = [masked.positions[len(chain)] for masked, chain in rows[chosen]]
                indices = batch.offsets[:-1].long() + torch.tensor(positions, device=self.model.device)
                logits_CV = self.model.read("masked_word", hidden_TD[indices], batch)[:, : self.tokenizer.size]
                yield chosen, logits_CV.float().log_softmax(dim=-1).cpu()
            start = chosen.stop

    def _blanks(self, text: str) -> Blanks:
        blanks = find_blanks(
            self.model,
            self.tokenizer,
            text,
            top=1,
            limit=self.limit,
            too_long=self.too_long,
            whole_words=self.only_words,
        )
        if blanks.report.long:
            warn(str(blanks.report))
        return blanks

    def _masked(self, encoding: Encoding, positions: Sequence[int]) -> Masked:
        """The sequence that the model reads: the whole text, its beginning, or the part around its blanks."""
        if len(encoding.ids) <= self.limit:
            return Masked(encoding.ids, encoding.segments, tuple(positions))
        report_lengths([len(encoding.ids)], self.limit, self.too_long)
        room, first, last = self.limit - 2, positions[0], positions[-1]
        if self.too_long == "truncate":
            passage = truncate(encoding, self.limit)
            if last > room:
                raise RequestError(f"the blank at token {last} is beyond the {self.limit} that are kept; use windows")
            return Masked(tuple(passage.ids), tuple(passage.segments), tuple(positions))
        if last - first >= room:
            raise RequestError(
                f"the blanks are {last - first} tokens apart, and the model reads {self.limit}; fill them one by one"
            )
        start = min(max((first + last + 1) // 2 - room // 2, 1), len(encoding.ids) - 1 - room)
        ids, segments = (_part(row, start, room) for row in (encoding.ids, encoding.segments))
        return Masked(ids, segments, tuple(position - start + 1 for position in positions))

    def _read_candidate(self, text: str, span: tuple[int, int], word: str) -> tuple[Masked, Chain]:
        """The text with the word in it and the word's pieces masked; and those pieces."""
        start, end = span
        filled = text[:start] + word + text[end:]
        encoding = self.tokenizer.encode(filled)
        stop = start + len(word)
        tokens = enumerate(zip(encoding.offsets, encoding.words, strict=True))
        positions = [n for n, ((a, b), word_index) in tokens if word_index is not None and a < stop and b > start]
        chain = tuple(encoding.ids[position] for position in positions)
        if not chain or not self._tokens["any"][list(chain)].all():
            raise RequestError(f"the candidate {word!r} is not made of pieces that this vocabulary has; leave it out")
        inside = filled[encoding.offsets[positions[0]][0] : encoding.offsets[positions[-1]][1]]
        if inside.strip() != word.strip():
            raise RequestError(
                f"the candidate {word!r} becomes one with its neighbors, {inside!r}; put spaces around the blank"
            )
        ids = tuple(self.tokenizer.mask_id if n in positions else piece for n, piece in enumerate(encoding.ids))
        return self._masked(Encoding(ids, encoding.segments, encoding.offsets, encoding.words), positions), chain

    def _fill_word(self, blanks: Blanks, blank: int, chain: Chain, probability: float) -> Filled:
        start, end = word_span(blanks.text, blanks.encoding.offsets[blanks.positions[blank]])
        word = self.tokenizer.decode(chain).strip() or "".join(self.tokenizer.tokens(chain))
        return Filled(word, probability, blanks.text[:start] + word + blanks.text[end:], blank)

    def _fill_all(self, blanks: Blanks, chain: Chain, probability: float) -> FilledTogether:
        """Fill from right to left, so that the offsets of the remaining blanks stay valid."""
        text = blanks.text
        words: list[str] = []
        for position, piece in reversed(list(zip(blanks.positions, chain, strict=True))):
            filled = fill_in(self.tokenizer, text, blanks.encoding.offsets[position], piece, probability, 0)
            text, words = filled.text, [filled.word, *words]
        return FilledTogether(tuple(words), probability, text)


def _widened(encoding: Encoding, position: int, count: int) -> Encoding:
    """The encoding with the blank at `position` repeated `count` times."""
    rows = (encoding.ids, encoding.segments, encoding.offsets, encoding.words)
    return Encoding(*((*row[:position], *[row[position]] * count, *row[position + 1 :]) for row in rows))


def _best_longer(chains: Sequence[tuple[Chain, float]], scores_CV: Tensor, beam: int) -> Iterator[tuple[Chain, float]]:
    """The best `beam` of all chains that are one piece longer."""
    best = scores_CV.flatten().topk(min(beam, scores_CV.numel()))
    for index, score in zip(best.indices.tolist(), best.values.tolist(), strict=True):
        row, piece = divmod(index, scores_CV.shape[1])
        if score > -torch.inf:
            yield (*chains[row][0], piece), score


def _part(row: tuple[int, ...], start: int, room: int) -> tuple[int, ...]:
    """The first entry, `room` entries from `start`, and the last entry."""
    return (row[0], *islice(row, start, start + room), row[-1])


def _check_top(top: int) -> None:
    if isinstance(top, bool) or not isinstance(top, int) or not 1 <= top <= MAX_TOP:
        raise RequestError(f"top={top!r} must be from 1 to {MAX_TOP:,}")


def _checked_words(words: Sequence[str]) -> Sequence[str]:
    if isinstance(words, str) or not isinstance(words, Sequence) or not words:
        raise RequestError(f"candidates={words!r:.40} must be a list of words, one at least")
    for number, word in enumerate(words):
        if not isinstance(word, str):
            raise RequestError(f"candidates[{number}] is {type(word).__name__}, not a str")
    return words
