"""`bertkit.why(bert, text)`: how much each word contributes to a prediction.

Integrated gradients (Sundararajan et al. 2017): the word embeddings are interpolated linearly from a baseline, where
every word is [MASK], to the text; a word's share is its difference times the mean gradient on the line. The shares must
add up to the difference between the scores at both ends; the number of steps is doubled until they do to 1 %.
[CLS], [SEP], positions, segments and [MASK] of the text are equal at both ends, so only words get shares.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from bertkit.errors import RequestError
from bertkit.model.batch import Batch
from bertkit.model.model import BertModel
from bertkit.predict.bert import Bert
from bertkit.predict.fill import best_tokens, blank_kinds
from bertkit.report.why import MAX_GAP, Why, WordShare
from bertkit.settings import pick
from bertkit.tasks.shared.explain import ReadOutput, Request, Target, refuse_word, text_tokens
from bertkit.tasks.table import task_heads

METHODS = {"integrated": "mask", "gradient": "zero"}  # method -> default baseline
BASELINES = ("mask", "pad", "zero")
MAX_STEPS = 1024
TOKENS_AT_ONCE = {"cpu": 512}  # of one batch; a CPU gains nothing from larger ones, and can be stopped between them
MAX_TOKENS_AT_ONCE = 4096  # on other devices
QUICK_TOKENS = 8192  # of one step count of `quick_why`: some seconds for a model of BERT's size on a CPU
MIN_DIFFERENCE = 1e-4  # smaller differences of scores are below the precision of float32 logits


@dataclass(frozen=True, kw_only=True)
class WhySettings:
    """How shares are computed. `gradient` is gradient x input: one gradient at the text, fast but less exact."""

    method: str = "integrated"
    baseline: str | None = None  # the vector of [MASK] or [PAD], or zero; None: the default of the method
    steps: int = 16  # initial number
    max_steps: int = MAX_STEPS  # doubled up to this number

    def __post_init__(self) -> None:
        pick(METHODS, self.method, "method")
        pick({name: name for name in BASELINES}, self.baseline_name, "baseline")
        if not 1 <= self.steps <= MAX_STEPS:
            raise RequestError(f"steps={self.steps} must be from 1 to {MAX_STEPS}")

    @property
    def baseline_name(self) -> str:
        """The baseline, or the default of the method."""
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
    """How much each word adds to a label, number, tag, answer or masked word; by default to the model's prediction.

    `target` is another label, tag, answer or word to explain; `word` is the word whose tag is explained.
    """
    settings = settings or WhySettings()
    request = Request(text, pair, target, word)
    return _explain(bert, request, find_target(bert, request), settings)


def quick_why(
    bert: Bert,
    text: str,
    pair: str | None = None,
    *,
    target: str | None = None,
    word: str | None = None,
    before_batch: Callable[[int], None] | None = None,
) -> Why:
    """`why` for a server: the longer the text, the fewer steps, so that no request takes long; see `Why.complete`.

    `before_batch` is called with the number of tokens of each batch before it is computed; its error ends the work.
    """
    request = Request(text, pair, target, word)
    found = find_target(bert, request)
    settings = WhySettings(max_steps=max(16, QUICK_TOKENS // len(found.tokens.ids)))
    return _explain(bert, request, found, settings, before_batch)


@dataclass(frozen=True)
class InterpolationLine:
    """The straight line from the baseline to the text, both as sums of embeddings L E, and the score to explain."""

    model: BertModel
    batch: Batch  # one sequence
    start: Tensor
    end: Tensor
    read: ReadOutput
    before_batch: Callable[[int], None] | None = None

    def scores(self, points: Sequence[float]) -> list[float]:
        """The score at each point of the line: 0 is the baseline, 1 the text."""
        with torch.no_grad():
            return [float(score) for score in self._run(torch.tensor(points), 1.0)[0]]

    def shares(self, points: Sequence[float], weights: Sequence[float]) -> Tensor:
        """L: each token's difference times the weighted sum of the gradients at these points."""
        total = torch.zeros_like(self.start)
        size = max(1, TOKENS_AT_ONCE.get(self.start.device.type, MAX_TOKENS_AT_ONCE) // len(self.start))
        for first in range(0, len(points), size):
            chunk = slice(first, first + size)
            if self.before_batch is not None:
                self.before_batch(len(points[chunk]) * len(self.start))
            with torch.enable_grad():
                scores, inputs = self._run(torch.tensor(points[chunk]), torch.tensor(weights[chunk]), track=True)
                [gradient] = torch.autograd.grad(scores.sum(), inputs)
            total += gradient.sum(dim=0)
        return ((self.end - self.start) * total).sum(dim=-1)

    def _run(self, points: Tensor, weights: Tensor | float, track: bool = False) -> tuple[Tensor, Tensor]:
        """Weighted scores P at P points, and the inputs P L E there."""
        points, weights = points.to(self.start), weights.to(self.start) if isinstance(weights, Tensor) else weights
        inputs = (self.start + points[:, None, None] * (self.end - self.start)).requires_grad_(track)
        ids, segments, [length] = self.batch.ids, self.batch.segments, self.batch.lengths
        copies = Batch(ids.repeat(len(points)), segments.repeat(len(points)), (length,) * len(points))
        return self.read(from_sums(self.model, inputs.flatten(0, 1), copies), copies) * weights, inputs


def from_sums(model: BertModel, summed_TE: Tensor, batch: Batch) -> Tensor:
    """T D: the forward pass from the sum of the embeddings on; of `embeddings.sum(batch)` it is `model(batch)`."""
    encoder = model.encoder
    return encoder.from_embeddings(encoder.embeddings.from_sum(summed_TE, dtype=encoder.dtype), batch)


def _explain(
    bert: Bert,
    request: Request,
    target: Target,
    settings: WhySettings,
    before_batch: Callable[[int], None] | None = None,
) -> Why:
    training = bert.model.training
    bert.model.eval()
    try:
        line = replace(_interpolation(bert, target, settings.baseline_name), before_batch=before_batch)
        baseline_score, score = line.scores([0.0, 1.0])
        baseline_probability, probability = _probabilities(bert, line, target)
        if settings.method == "gradient":
            shares, steps, gap = line.shares([1.0], [1.0]), 1, None
        else:
            shares, steps, gap = integrate(line, score - baseline_score, settings.steps, settings.max_steps)
    finally:
        bert.model.train(training)
    return Why(
        text=request.text,
        pair=request.pair,
        target=target.name,
        units=target.units,
        method=settings.method,
        baseline=settings.baseline_name,
        steps=steps,
        score=score,
        baseline_score=baseline_score,
        gap=gap,
        cut_from=target.tokens.cut_from,
        words=_by_word(target, shares.tolist()),
        probability=probability,
        baseline_probability=baseline_probability,
        model=bert.checkpoint.name,
    )


def _probabilities(bert: Bert, line: InterpolationLine, target: Target) -> tuple[float | None, float | None]:
    """The probabilities of the target with every word at the baseline and with the text; None if it has none."""
    read = target.probability
    if read is None:
        return None, None
    temperature = bert.answers.decision.temperature if bert.checkpoint.task else 1.0
    hidden, text = replace(line, read=lambda hidden, batch: read(hidden, batch, temperature)).scores([0.0, 1.0])
    return hidden, text


def integrate(
    line: InterpolationLine, difference: float, steps: int, max_steps: int = MAX_STEPS
) -> tuple[Tensor, int, float]:
    """Shares L by Gauss-Legendre quadrature; the steps are doubled while the shares do not add up to the difference."""
    while True:
        points, weights = np.polynomial.legendre.leggauss(steps)  # on -1 to 1
        shares = line.shares(((points + 1) / 2).tolist(), (weights / 2).tolist())
        gap = abs(float(shares.sum()) - difference) / max(abs(difference), MIN_DIFFERENCE)
        if gap < MAX_GAP or 2 * steps > max_steps:
            return shares, steps, gap
        steps *= 2


def _interpolation(bert: Bert, target: Target, baseline: str) -> InterpolationLine:
    tokens, model = target.tokens, bert.model
    batch = Batch.pack([tokens.ids], [tokens.segments]).to(model.device)
    table = model.encoder.embeddings.word
    with torch.no_grad():
        words_LE = table(batch.ids)
        replacement = words_LE.new_zeros(words_LE.shape[-1])
        if baseline != "zero":
            token_id = bert.tokenizer.mask_id if baseline == "mask" else bert.tokenizer.pad_id
            replacement = table(torch.tensor(token_id, device=batch.ids.device))
        kept = [n is None or i == bert.tokenizer.mask_id for n, i in zip(tokens.words, tokens.ids, strict=True)]
        end = model.encoder.embeddings.sum(batch)
        start = torch.where(torch.tensor(kept, device=end.device)[:, None], end, end - words_LE + replacement)
    return InterpolationLine(model, batch, start, end, target.read)


def _by_word(target: Target, shares: Sequence[float]) -> tuple[WordShare, ...]:
    tokens = target.tokens
    pieces: list[list[tuple[str, float]]] = [[] for _ in tokens.text_words]
    for number, piece, share in zip(tokens.words, tokens.shown, shares, strict=True):
        if number is not None:
            pieces[number].append((piece, share))
    return tuple(
        WordShare(word.word, word.part, word.start, word.end, sum(share for _, share in shares), tuple(shares))
        for word, shares in zip(tokens.text_words, pieces, strict=True)
        if shares  # words that were cut off have none
    )


def find_target(bert: Bert, request: Request) -> Target:
    """The prediction to explain: of a [MASK] if there is one, else of the task that the model was fine-tuned for."""
    tokenizer = bert.tokenizer
    fills = bert.model.fills
    if fills and tokenizer.mask_id in tokenizer.encode(request.text, request.pair).ids:
        refuse_word(request)
        return _masked_word(bert, request)
    if fills and not set(task_heads()) & set(bert.model.heads):
        raise RequestError(f"the text has no blank to explain: write {tokenizer.mask_token} where a word is missing")
    return bert.answers.task.explain(bert.model, request, bert.answers.predict)


def _masked_word(bert: Bert, request: Request) -> Target:
    """The log probability of a word at the first [MASK]."""
    tokenizer = bert.tokenizer
    tokens = text_tokens(bert.model, tokenizer, request)
    limit = bert.checkpoint.max_length
    if len(tokens.ids) > limit:
        raise RequestError(f"the text has {len(tokens.ids)} tokens, over the model's {limit}; give a part of it")
    position = list(tokens.ids).index(tokenizer.mask_id)

    def log_probabilities(hidden: Tensor, batch: Batch) -> Tensor:
        rows = hidden[batch.offsets[:-1].long() + position]
        return bert.model.read("masked_word", rows, batch)[:, : tokenizer.size].float().log_softmax(dim=-1)

    if request.target is None:
        batch = Batch.pack([tokens.ids], [tokens.segments]).to(bert.model.device)
        encoding = tokenizer.encode(request.text, request.pair)
        source = request.pair if encoding.part[position] else request.text
        kind = blank_kinds(tokenizer, source or "", encoding, [position])
        with torch.inference_mode():
            chosen = int(best_tokens(log_probabilities(bert.model(batch), batch), tokenizer, kind, 1)[1])
    else:
        [pieces] = tokenizer.encode_ids([request.target])
        if len(pieces) != 1 or pieces[0] == tokenizer.unknown_id:
            raise RequestError(f"'{request.target}' is not one piece of the vocabulary; name a word that is")
        chosen = pieces[0]
    name = f"the word '{tokenizer.written(chosen)}' for the blank"
    return Target(
        name,
        "nats of log probability",
        tokens,
        lambda hidden, batch: log_probabilities(hidden, batch)[:, chosen],
        lambda hidden, batch, _: log_probabilities(hidden, batch)[:, chosen].exp(),
    )
