"""`bertkit.why(bert, text)`: how much each word adds to what a model says.

Integrated gradients (Sundararajan et al. 2017): the words' vectors are moved on a straight line from a baseline, where
every word is a blank, to the text; each word's share is its way times the mean gradient on the line. All shares add up
to the difference between the scores at both ends: that is checked, and steps are doubled until it holds to 1 %.
[CLS], [SEP], positions, segments and blanks of the text itself are the same at both ends, so words alone get shares.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bertkit.errors import RequestError
from bertkit.inside.attribution.page import ENOUGH, Why, WordShare
from bertkit.model.batch import Batch
from bertkit.model.model import BertModel
from bertkit.predict.bert import Bert
from bertkit.settings import pick
from bertkit.tasks.shared.explain import ReadOutput, Request, Target, refuse_word, text_tokens
from bertkit.tasks.table import task_heads

METHODS = {"integrated": "mask", "gradient": "zero"}  # and the baseline that each is usually taken from
BASELINES = ("mask", "pad", "zero")
MOST_STEPS = 1024
TOKENS_AT_ONCE = 4096
LEAST = 1e-4  # a difference of scores below this is none: float32 knows a logit no better


@dataclass(frozen=True, kw_only=True)
class WhySettings:
    """How shares are computed. `gradient` is one gradient at the text times the words' vectors: quick, and a guess."""

    method: str = "integrated"
    baseline: str | None = None  # of each word: the vector of [MASK] or [PAD], or zero
    steps: int = 16  # at first

    def __post_init__(self) -> None:
        pick(METHODS, self.method, "method")
        pick({name: name for name in BASELINES}, self.start, "baseline")
        if not 1 <= self.steps <= MOST_STEPS:
            raise RequestError(f"steps={self.steps} must be from 1 to {MOST_STEPS}")

    @property
    def start(self) -> str:
        """The baseline that is meant."""
        return METHODS[self.method] if self.baseline is None else self.baseline


def why(
    bert: Bert,
    text: str,
    pair: str | None = None,
    *,
    target: str | None = None,
    word: str | None = None,
    settings: WhySettings | None = None,
) -> Why:
    """How much each word adds to a label, number, tag, answer or filled blank; by default to what the model says.

    `target` names another label, tag, answer or word; `word` the word whose tag is meant.
    """
    settings = settings or WhySettings()
    request = Request(text, pair, target, word)
    return _explain(bert, request, find_target(bert, request), settings)


@dataclass(frozen=True)
class InterpolationLine:
    """The straight way from the baseline to the text, as sums of embeddings L E, and what is read at its points."""

    model: BertModel
    batch: Batch  # one sequence
    start: Tensor
    end: Tensor
    read: ReadOutput

    def scores(self, points: Sequence[float]) -> list[float]:
        """The score at each point of the way: 0 is the baseline, 1 the text."""
        with torch.no_grad():
            return [float(each) for each in self._run(torch.tensor(points), 1.0)[0]]

    def shares(self, points: Sequence[float], weights: Sequence[float]) -> Tensor:
        """L: each token's way times the weighted sum of the gradients at these points."""
        total = torch.zeros_like(self.start)
        size = max(1, TOKENS_AT_ONCE // len(self.start))
        for at in range(0, len(points), size):
            chunk, own = torch.tensor(points[at : at + size]), torch.tensor(weights[at : at + size])
            with torch.enable_grad():
                scores, places = self._run(chunk, own, track=True)
                [gradient] = torch.autograd.grad(scores.sum(), places)
            total += gradient.sum(dim=0)
        return ((self.end - self.start) * total).sum(dim=-1)

    def _run(self, points: Tensor, weights: Tensor | float, track: bool = False) -> tuple[Tensor, Tensor]:
        """Weighted scores P, and the places P L E where they were taken."""
        points, weights = points.to(self.start), weights.to(self.start) if isinstance(weights, Tensor) else weights
        places = (self.start + points[:, None, None] * (self.end - self.start)).requires_grad_(track)
        ids, segments, [length] = self.batch.ids, self.batch.segments, self.batch.lengths
        copies = Batch(ids.repeat(len(points)), segments.repeat(len(points)), (length,) * len(points))
        return self.read(from_sums(self.model, places.flatten(0, 1), copies), copies) * weights, places


def from_sums(model: BertModel, summed_TE: Tensor, batch: Batch) -> Tensor:
    """T D: the model's forward from the embeddings' sum on; from `embeddings.sum(batch)` it is `model(batch)`."""
    encoder = model.encoder
    return encoder.from_embeddings(encoder.embeddings.from_sum(summed_TE, dtype=encoder.dtype), batch)


def _explain(bert: Bert, request: Request, target: Target, settings: WhySettings) -> Why:
    training = bert.model.training
    bert.model.eval()
    try:
        line = _line(bert, target, settings.start)
        below, score = line.scores([0.0, 1.0])
        if settings.method == "gradient":
            shares, steps, gap = line.shares([1.0], [1.0]), 1, None
        else:
            shares, steps, gap = integrate(line, score - below, settings.steps)
    finally:
        bert.model.train(training)
    return Why(
        text=request.text,
        pair=request.pair,
        target=target.name,
        units=target.units,
        method=settings.method,
        baseline=settings.start,
        steps=steps,
        score=score,
        baseline_score=below,
        gap=gap,
        cut_from=target.tokens.cut_from,
        words=_by_word(target, shares.tolist()),
    )


def integrate(line: InterpolationLine, difference: float, steps: int) -> tuple[Tensor, int, float]:
    """Shares L by Gauss and Legendre's rule, with twice the steps as long as they do not add up to the difference."""
    while True:
        points, weights = np.polynomial.legendre.leggauss(steps)  # on -1 to 1
        shares = line.shares(((points + 1) / 2).tolist(), (weights / 2).tolist())
        gap = abs(float(shares.sum()) - difference) / max(abs(difference), LEAST)
        if gap < ENOUGH or 2 * steps > MOST_STEPS:
            return shares, steps, gap
        steps *= 2


def _line(bert: Bert, target: Target, baseline: str) -> InterpolationLine:
    tokens, model = target.tokens, bert.model
    batch = Batch.pack([tokens.ids], [tokens.segments]).to(model.device)
    table = model.encoder.embeddings.word
    with torch.no_grad():
        words_LE = table(batch.ids)
        blank = words_LE.new_zeros(words_LE.shape[-1])
        if baseline != "zero":
            number = bert.tokenizer.mask_id if baseline == "mask" else bert.tokenizer.pad_id
            blank = table(torch.tensor(number, device=batch.ids.device))
        kept = [n is None or i == bert.tokenizer.mask_id for n, i in zip(tokens.words, tokens.ids, strict=True)]
        end = model.encoder.embeddings.sum(batch)
        start = torch.where(torch.tensor(kept, device=end.device)[:, None], end, end - words_LE + blank)
    return InterpolationLine(model, batch, start, end, target.read)


def _by_word(target: Target, shares: Sequence[float]) -> tuple[WordShare, ...]:
    tokens = target.tokens
    pieces: list[list[tuple[str, float]]] = [[] for _ in tokens.text_words]
    for number, piece, share in zip(tokens.words, tokens.shown, shares, strict=True):
        if number is not None:
            pieces[number].append((piece, share))
    return tuple(
        WordShare(each.word, each.part, each.start, each.end, sum(share for _, share in own), tuple(own))
        for each, own in zip(tokens.text_words, pieces, strict=True)
        if own  # words beyond a cut have none
    )


def find_target(bert: Bert, request: Request) -> Target:
    """A blank of a model that fills, else what the model was fine-tuned for."""
    tokenizer = bert.tokenizer
    fills = bert.model.fills
    if fills and tokenizer.mask_id in tokenizer.encode(request.text, request.pair).ids:
        refuse_word(request)
        return _blank(bert, request)
    if fills and not set(task_heads()) & set(bert.model.heads):
        raise RequestError(f"the text has no blank to explain: write {tokenizer.mask_token} where a word is missing")
    return bert.answers.task.explain(bert.model, request, bert.answers.predict)


def _blank(bert: Bert, request: Request) -> Target:
    """The log probability of a word for the first blank."""
    tokenizer = bert.tokenizer
    tokens = text_tokens(bert.model, tokenizer, request)
    _refuse_longer(len(tokens.ids), bert.checkpoint.max_length)
    place, known = list(tokens.ids).index(tokenizer.mask_id), tokenizer.size

    def chances(hidden: Tensor, batch: Batch) -> Tensor:
        rows = hidden[batch.offsets[:-1].long() + place]
        return bert.model.read("masked_word", rows, batch)[:, :known].float().log_softmax(dim=-1)

    if request.target is None:
        batch = Batch.pack([tokens.ids], [tokens.segments]).to(bert.model.device)
        with torch.inference_mode():
            chosen = int(chances(bert.model(batch), batch)[0].argmax())
    else:
        [pieces] = tokenizer.encode_ids([request.target])
        if len(pieces) != 1 or pieces[0] == tokenizer.unknown_id:
            raise RequestError(f"'{request.target}' is not one piece of the vocabulary; name a word that is")
        chosen = pieces[0]
    name = f"the word '{tokenizer.written(chosen)}' for the blank"
    return Target(name, "nats of log probability", tokens, lambda hidden, batch: chances(hidden, batch)[:, chosen])


def _refuse_longer(tokens: int, limit: int) -> None:
    if tokens > limit:
        raise RequestError(f"the text has {tokens} tokens, over the model's {limit}; give a part of it")
