"""Search strategies over a model's next-token scores: greedy, sampling (temperature, top-k, top-p), beam search.

A strategy knows only `NextScores`, two functions that give scores; so it is tested with tables of numbers and no model.
Beam search follows transformers' `generate` (early_stopping=False), so that both find the same tokens.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple, Protocol

import torch
from torch import Tensor

from bertkit.errors import RequestError
from bertkit.settings import Count, Natural, Positive, Range, check_fields

MINUS_INFINITY = -1e9  # finite, so that differences and means of scores stay finite


class NextScores(Protocol):
    """A model that reads its prompts once, then one token more of each sequence at a time."""

    def start(self) -> Tensor:
        """N V: the scores (logits, float32) of the token after each prompt."""

    def step(self, ids_N: Tensor, rows_N: Tensor | None = None) -> Tensor:
        """N V: the scores after these tokens; `rows_N` says which earlier row each continues, None: its own."""


@dataclass(frozen=True, kw_only=True)
class WriteSettings:
    """How text is generated. Greedy unless a temperature, top_k or top_p is given, which sample."""

    tokens: Count = 100  # new tokens at most
    beams: Annotated[int, Range(1, 1000)] = 1
    length_penalty: float = 1.0  # beam search divides scores by length ** length_penalty
    temperature: Positive | None = None
    top_k: Natural = 0  # sample from the k likeliest tokens; 0: from all
    top_p: Annotated[float, Range(over=0, most=1)] = 1.0  # sample from the likeliest tokens with this probability
    seed: Natural = 0  # of the samples
    stop: tuple[str, ...] = ()  # texts that end the generation

    def __post_init__(self) -> None:
        check_fields(self)
        if not math.isfinite(self.length_penalty):
            raise RequestError(f"length_penalty={self.length_penalty} must be a finite number")
        if self.samples and self.beams > 1:
            raise RequestError(
                "beams and sampling (temperature, top_k, top_p) exclude each other; leave one of them out"
            )
        if "" in self.stop:
            raise RequestError("stop= holds an empty text, which would end every generation at once; remove it")

    @property
    def samples(self) -> bool:
        """Whether tokens are drawn at random."""
        return self.temperature is not None or self.top_k > 0 or self.top_p < 1


class NextTokens(NamedTuple):
    """One step of a batch: new tokens and the sequences that they belong to."""

    sequences: list[int]
    ids: list[int]


def next_tokens(
    decoder: NextScores, count: int, settings: WriteSettings, end_ids: Collection[int]
) -> Iterator[NextTokens]:
    """Greedy search or sampling for `count` sequences, a step at a time; a sequence ends with one of `end_ids`.

    Sequences that have ended leave the batch once they are half of it: a smaller batch is a new shape.
    """
    generators = [torch.Generator().manual_seed(settings.seed + number) for number in range(count)]
    rows = list(range(count))  # the sequence in each row of the decoder's batch
    running = set(rows)
    scores_NV = decoder.start()
    for step in range(settings.tokens):
        ids_N = choose(scores_NV, settings, [generators[row] for row in rows])
        ids = ids_N.tolist()
        pairs = [(row, token) for row, token in zip(rows, ids, strict=True) if row in running]
        yield NextTokens([row for row, _ in pairs], [token for _, token in pairs])
        running -= {row for row, token in pairs if token in end_ids}
        if not running or step + 1 == settings.tokens:
            return
        kept = None
        if 2 * len(running) <= len(rows):
            kept = torch.tensor([at for at, row in enumerate(rows) if row in running], device=ids_N.device)
            rows, ids_N = [row for row in rows if row in running], ids_N[kept]
        scores_NV = decoder.step(ids_N, kept)


def search(decoder: NextScores, count: int, settings: WriteSettings, end_ids: Sequence[int]) -> list[list[int]]:
    """The new tokens of each of `count` sequences, an end token included: greedy, sampled, or by beam search."""
    if settings.beams > 1:
        return beam_search(decoder, count, settings, end_ids)
    found: list[list[int]] = [[] for _ in range(count)]
    for step in next_tokens(decoder, count, settings, end_ids):
        for sequence, token in zip(step.sequences, step.ids, strict=True):
            found[sequence].append(token)
    return found


def choose(scores_NV: Tensor, settings: WriteSettings, generators: Sequence[torch.Generator]) -> Tensor:
    """N: the likeliest token of each row, or one drawn as the settings say; row n draws from generators[n]."""
    if not settings.samples:
        return scores_NV.argmax(dim=-1)
    probabilities_NV = allowed_scores(scores_NV, settings).softmax(dim=-1).cpu()
    rows = zip(probabilities_NV, generators, strict=True)
    drawn = [torch.multinomial(row_V, 1, generator=generator) for row_V, generator in rows]
    return torch.cat(drawn).to(scores_NV.device)


def allowed_scores(scores_NV: Tensor, settings: WriteSettings) -> Tensor:
    """N V: scores divided by the temperature, minus infinity for tokens outside top_k and top_p."""
    scores_NV = scores_NV / (1.0 if settings.temperature is None else settings.temperature)
    if 0 < settings.top_k < scores_NV.shape[-1]:
        least_N1 = scores_NV.topk(settings.top_k).values[:, -1:]
        scores_NV = scores_NV.masked_fill(scores_NV < least_N1, -math.inf)
    if settings.top_p < 1:
        sorted_NV, order_NV = scores_NV.sort(dim=-1, descending=True)
        likelier_NV = sorted_NV.softmax(dim=-1).cumsum(dim=-1) - sorted_NV.softmax(dim=-1)  # than each token
        outside_NV = torch.zeros_like(scores_NV, dtype=torch.bool)
        outside_NV.scatter_(1, order_NV, likelier_NV >= settings.top_p)
        scores_NV = scores_NV.masked_fill(outside_NV, -math.inf)
    return scores_NV


@dataclass
class _Beams:
    """Sequences of new tokens: N B each; those that run, or the best that have ended."""

    tokens: Tensor  # N B L
    scores: Tensor  # N B: the sum of log probabilities, or divided by the length for ended ones
    ended: Tensor  # N B bool

    @classmethod
    def empty(cls, count: int, beams: int, device: torch.device) -> "_Beams":
        """No tokens; only the first beam counts, for all are equal."""
        scores = torch.full((count, beams), MINUS_INFINITY, device=device)
        nothing = torch.zeros(count, beams, 0, dtype=torch.int64, device=device)
        return cls(nothing, scores, torch.zeros(count, beams, dtype=torch.bool, device=device))

    def pick(self, index_NB: Tensor) -> "_Beams":
        """The beams of these numbers, of each of the N."""
        tokens = self.tokens.gather(1, index_NB[:, :, None].expand(-1, -1, self.tokens.shape[-1]))
        return _Beams(tokens, self.scores.gather(1, index_NB), self.ended.gather(1, index_NB))


def beam_search(decoder: NextScores, count: int, settings: WriteSettings, end_ids: Sequence[int]) -> list[list[int]]:
    """The new tokens of the best of `beams` sequences for each of `count` prompts, an end token included.

    Scores are log probabilities over length ** length_penalty. A prompt is done when its best running beam, divided by
    the present length, is no better than the worst ended one.
    """
    beams, penalty = settings.beams, settings.length_penalty
    scores_NV = decoder.start()
    device, kept = scores_NV.device, max(2, 1 + len(end_ids)) * beams
    running, best = _Beams.empty(count, beams, device), _Beams.empty(count, beams, device)
    running.scores[:, 0] = 0.0
    improving_N1 = torch.ones(count, 1, dtype=torch.bool, device=device)
    scores_NV = scores_NV.repeat_interleave(beams, dim=0)
    rows_N = torch.arange(count, device=device).repeat_interleave(beams)  # of the decoder's batch, at its first step
    ends = torch.tensor(list(end_ids), device=device)
    for length in range(1, settings.tokens + 1):
        sums = scores_NV.log_softmax(dim=-1).view(count, beams, -1) + running.scores[:, :, None]
        vocabulary = sums.shape[-1]
        top, index = sums.flatten(1).topk(min(kept, beams * vocabulary))
        beam_NK, token_NK = index // vocabulary, index % vocabulary
        ended = torch.isin(token_NK, ends) | (length == settings.tokens)
        candidates = running.pick(beam_NK)
        candidates = _Beams(torch.cat((candidates.tokens, token_NK[:, :, None]), dim=-1), top, ended)

        best = _merged(best, candidates, beams, length, penalty, improving_N1)
        going = (top + ended * MINUS_INFINITY).topk(beams).indices
        running = candidates.pick(going)
        running.scores = running.scores + running.ended * MINUS_INFINITY
        worst_ended = torch.where(best.ended, best.scores.min(dim=1, keepdim=True).values, MINUS_INFINITY)
        improving_N1 = improving_N1 & (running.scores[:, :1] / length**penalty > worst_ended).any(dim=1, keepdim=True)
        if ended.all() or not improving_N1.any():
            break
        rows = (torch.arange(count, device=device)[:, None] * beams + beam_NK.gather(1, going)).flatten()
        scores_NV = decoder.step(running.tokens[:, :, -1].flatten(), rows_N if length == 1 else rows)
    return [_until_end(row, end_ids) for row in best.tokens[:, 0].tolist()]


def _merged(best: _Beams, candidates: _Beams, beams: int, length: int, penalty: float, improving_N1: Tensor) -> _Beams:
    """The best ended sequences, with those among the first `beams` candidates that have just ended."""
    just_ended = candidates.ended.clone()
    just_ended[:, beams:] = False
    scores = candidates.scores / length**penalty
    scores = scores + ~just_ended * MINUS_INFINITY + ~improving_N1 * MINUS_INFINITY
    longer = torch.nn.functional.pad(best.tokens, (0, candidates.tokens.shape[-1] - best.tokens.shape[-1]), value=-1)
    every = _Beams(
        torch.cat((longer, candidates.tokens), dim=1),
        torch.cat((best.scores, scores), dim=1),
        torch.cat((best.ended, just_ended), dim=1),
    )
    return every.pick(every.scores.topk(beams).indices)


def _until_end(tokens: list[int], end_ids: Collection[int]) -> list[int]:
    """Up to the first end token, that included; -1 stands for no token."""
    sequence = []
    for token in tokens:
        if token < 0:
            break
        sequence.append(token)
        if token in end_ids:
            break
    return sequence
