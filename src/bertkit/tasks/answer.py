"""Extractive question answering (SQuAD 1.1 and 2.0): the start and the end of a span of the passage, or no answer.

The tokenizer's offsets map characters of the passage to tokens and back, so an answer is a slice of the original text.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from bertkit.data.examples import AnswerSpan, Example, QuestionExample
from bertkit.errors import RequestError
from bertkit.model.batch import Batch
from bertkit.model.model import BertModel
from bertkit.report.tables import html_table
from bertkit.tasks.metrics.squad import squad_scores
from bertkit.tasks.rows.answer import AnswerRow
from bertkit.tasks.shared.calibration import NO_GAIN_MESSAGE
from bertkit.tasks.shared.decision import Decision, FittedDecision, fit_no_answer
from bertkit.tasks.shared.explain import Request, Target, read_at, refuse_windows, refuse_word, text_tokens
from bertkit.tasks.shared.length import Seen, positions_by_part, refuse_too_long, select_tokens, window_spans
from bertkit.tasks.shared.losses import MASKED_LOGIT, choice_loss, choice_losses, divergence
from bertkit.tasks.shared.text_task import pad_to, sequence_weights
from bertkit.tasks.task import Dataset, FixedSize, HeadOutputs, LossSettings, Mistake, Predict, Task, Window
from bertkit.text.characters import whole_words, with_marks

MAX_CANDIDATES = 20  # spans in the softmax of probabilities, and at most in a prediction
NO_SPAN_SCORE = float(np.finfo(np.float32).max)  # no-answer score of an empty passage: finite, for JSON


@dataclass(frozen=True)
class Candidate:
    """A candidate answer: text == passage[start:end]."""

    text: str
    start: int
    end: int
    score: float  # logit of the start plus logit of the end
    probability: float


@dataclass(frozen=True)
class Answered:
    """The answer ("" without start and end if there is none) and all candidates, best first."""

    id: str
    text: str
    start: int | None
    end: int | None
    probability: float  # of this answer, or of "no answer"
    no_answer: float  # score of "no answer" minus the score of the best span
    candidates: tuple[Candidate, ...] = field(repr=False)
    seen: Seen = field(repr=False)

    def _repr_html_(self) -> str:
        rows = [(each.text, each.probability, f"{each.start}:{each.end}") for each in self.candidates]
        return html_table(("candidate", "probability", "characters"), rows)


@dataclass(frozen=True)
class PassageWindow:
    """The part of the passage that is in a window."""

    first: int  # position in the window of the passage's first token
    offsets: tuple[tuple[int, int], ...]  # character spans of the passage's tokens in the window
    seen: Seen


@dataclass(frozen=True, kw_only=True)
class Answer(Task):
    """A start logit and an end logit for every token; the answer [CLS] means "no answer"."""

    row = AnswerRow()
    outputs = 2
    max_answer_tokens: int = 30

    def windows(self, example: Example, number: int) -> list[Window]:
        """The question, cut to half of the room, with each window of the passage."""
        assert isinstance(example, QuestionExample)
        encoding = self.tokenizer.encode(example.question, example.passage)
        special, question, passage = positions_by_part(encoding)
        room = self.limit - len(special)
        cut_question = question[: room // 2]
        spans = window_spans(len(passage), room - len(cut_question), self.length.stride)
        if example.labeled:  # in training, all windows and their activations are in memory
            refuse_too_long(example.location, len(passage), len(spans), self.limit, "split the passage")
        seen = Seen(len(question) + len(passage), len(question) - len(cut_question), len(spans))
        offsets = with_marks([encoding.offsets[position] for position in passage], example.passage)
        gold = [token_span(offsets, answer) for answer in example.answers]
        first = len(cut_question) + len(special) - 1  # all special tokens but the last [SEP] are before the passage
        windows = []
        for start, stop in spans:
            ids, segments = select_tokens(encoding, sorted((*special, *cut_question, *passage[start:stop])))
            target = _target(gold, (start, stop), first) if example.labeled else None
            windows.append(Window(ids, segments, number, target, PassageWindow(first, offsets[start:stop], seen)))
        return windows

    def count_targets(self, windows: Sequence[Window]) -> int:
        """One span or [CLS] for each window."""
        return len(windows)

    def loss_sum(self, logits: Tensor, batch: Batch, windows: Sequence[Window], weights: LossSettings) -> Tensor:
        """The mean of the cross-entropies of start and end over the tokens of a window; logits are T 2."""
        target_N2 = torch.tensor([window.target for window in windows], device=logits.device)
        padded_NL2 = batch.pad(logits, -torch.inf)
        start, end = (
            choice_loss(padded_NL2[..., side], target_N2[:, side], weights.label_smoothing) for side in (0, 1)
        )
        return (start + end) / 2

    def fixed_targets(self, windows: Sequence[Window], size: FixedSize, weights: LossSettings) -> tuple[Tensor, ...]:
        """The start, the end and the weight of each sequence."""
        starts, ends = (pad_to(size.sequences, [window.target[side] for window in windows]) for side in (0, 1))
        return starts, ends, sequence_weights(len(windows), size)

    def fixed_loss(self, logits: Tensor, batch: Batch, targets: Sequence[Tensor], smoothing: float) -> Tensor:
        """The mean of both cross-entropies over the sequences with weight 1."""
        *sides, row_weights = targets
        # Rows of padding become 0: a softmax over -inf alone would be NaN.
        padded_NL2 = batch.pad(logits, -torch.inf).masked_fill(row_weights[:, None, None] == 0, 0.0)
        start, end = (choice_losses(padded_NL2[..., side], target, smoothing) for side, target in enumerate(sides))
        return ((start + end) * row_weights).sum() / 2

    def distillation_loss(
        self, teacher: Task, logits: Tensor, target: Tensor, batch: Batch, windows: Sequence[Window], temperature: float
    ) -> Tensor:
        """The mean of the divergences of starts and ends over the tokens of a window."""
        padded = (batch.pad(values, MASKED_LOGIT) for values in (logits, target))
        student, target = (values_NL2.transpose(1, 2).flatten(0, 1) for values_NL2 in padded)
        return divergence(student, target, temperature) / 2

    def score(self, examples: Sequence[Example], predictions: Sequence[Answered]) -> dict[str, float]:
        """Exact match and F1 by SQuAD's rules."""
        return squad_scores(_gold_texts(examples), [prediction.text for prediction in predictions])

    def fit_decision(self, dev: Dataset, outputs: HeadOutputs, abstain: float | None = None) -> FittedDecision:
        """The no-answer threshold."""
        predictions = self.decode(dev.examples, dev.flat, outputs, Decision())  # an answer to every question
        texts, scores = [answer.text for answer in predictions], [answer.no_answer for answer in predictions]
        threshold = fit_no_answer(_gold_texts(dev.examples), texts, scores)
        if threshold is None:
            return FittedDecision(Decision())
        note = f"no answer is given from a score of {threshold:.3f} on"
        return FittedDecision(Decision(no_answer=threshold), None, (note,))

    def answer_pairs(self, example: Example, prediction: Answered, decision: Decision) -> list[tuple[str, str]]:
        """The first gold answer and the predicted one; "" for no answer."""
        assert isinstance(example, QuestionExample)
        text = "" if decision.is_unanswerable(prediction.no_answer) else prediction.text
        return [(example.answers[0].text if example.answers else "", text)]

    def collapse_message(
        self, dev: Dataset, outputs: HeadOutputs, loss: float | None, predictions: Sequence[Answered], min_gain: float
    ) -> str | None:
        """A message if the loss is hardly better than that of equal probabilities for all tokens, else None."""
        guess_loss = float(np.mean([np.log(len(window.ids)) for window in dev.flat]))
        return NO_GAIN_MESSAGE if loss is not None and 1 - loss / guess_loss < min_gain else None

    def mistake(self, example: Example, prediction: Answered) -> Mistake | None:
        """An answer that is not among the gold answers."""
        assert isinstance(example, QuestionExample)
        gold = [answer.text for answer in example.answers]
        if prediction.text in gold or (not gold and not prediction.text):
            return None
        text = f"{example.question} — {example.passage[:300]}"
        return Mistake(prediction.probability, text, " / ".join(gold) or "(none)", prediction.text or "(none)")

    def explain(self, model: BertModel, request: Request, predict: Predict) -> Target:
        """The sum of the start logit and the end logit of an answer, or of [CLS] if there is no answer."""
        refuse_word(request)
        if request.pair is None:
            raise RequestError("a question needs the passage to answer it from; give it as the pair")
        [example] = self.row.examples(question=[request.text], passage=[request.pair])
        windows = self.windows(example, 0)
        refuse_windows(len(windows))
        window: PassageWindow = windows[0].detail
        answer = _find_answer(request.pair, request.target) if request.target is not None else _span(predict, example)
        span = None if answer is None else token_span(window.offsets, answer)
        first, last = (0, 0) if span is None else (window.first + span[0], window.first + span[1])
        name = "that there is no answer" if answer is None or span is None else f"the answer '{answer.text}'"
        read_start, read_end = read_at(model, self.head, first, 0), read_at(model, self.head, last, 1)
        tokens = text_tokens(model, self.tokenizer, request)
        if list(tokens.ids) != list(windows[0].ids):
            raise RequestError(f"the question is over half of the model's {self.limit} tokens; shorten it")
        units = "logits of start and end"
        return Target(name, units, tokens, lambda hidden, batch: read_start(hidden, batch) + read_end(hidden, batch))

    def decode_one(
        self, example: Example, windows: Sequence[Window], outputs: HeadOutputs, decision: Decision
    ) -> Answered:
        """The best spans over all windows of a question; the answer is the best one, or none."""
        assert isinstance(example, QuestionExample)
        scores: dict[tuple[int, int], float] = {}
        for window, logits in zip(windows, outputs, strict=True):
            for span, score in _span_scores(window.detail, logits, self.max_answer_tokens).items():
                words = whole_words(example.passage, *span)  # "Pharo" is not an answer, "Pharos" is
                scores[words] = max(score, scores.get(words, score))
        ranked = sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:MAX_CANDIDATES]
        # In a window without the answer, [CLS] correctly has a high score, so the minimum over windows is used.
        cls_score = min(float(logits[0, 0] + logits[0, 1]) for logits in outputs)
        no_answer, *probabilities = decision.class_probabilities(
            np.array([cls_score, *(score for _, score in ranked)])
        ).tolist()
        candidates = tuple(
            Candidate(example.passage[start:end], start, end, score, probability)
            for ((start, end), score), probability in zip(ranked, probabilities, strict=True)
        )
        return _best_answer(example.id, candidates, cls_score, no_answer, decision, windows[0].detail.seen)


def _gold_texts(examples: Sequence[Example]) -> list[list[str]]:
    return [[answer.text for answer in e.answers] for e in examples if isinstance(e, QuestionExample)]


def _span(predict: Predict, example: Example) -> AnswerSpan | None:
    [prediction] = predict([example])
    return None if prediction.start is None else AnswerSpan(prediction.start, prediction.text)


def _find_answer(passage: str, text: str) -> AnswerSpan:
    start = passage.find(text)
    if start < 0 or not text:
        raise RequestError(f"the passage has no '{text}'; name an answer that is in it")
    return AnswerSpan(start, text)


def token_span(offsets: Sequence[tuple[int, int]], answer: AnswerSpan) -> tuple[int, int] | None:
    """(first, last) token that overlaps the answer; None if no token does."""
    end = answer.start + len(answer.text)
    overlapping = [position for position, (a, b) in enumerate(offsets) if a < b and a < end and b > answer.start]
    return (overlapping[0], overlapping[-1]) if overlapping else None


def best_spans(starts: np.ndarray, ends: np.ndarray, max_tokens: int, top: int) -> list[tuple[float, int, int]]:
    """(score, first, last) of the `top` spans of at most `max_tokens` with the highest start + end, best first."""
    length = len(starts)
    scores = np.full((min(max_tokens, length), length), -np.inf)  # a row for each width, a column for each start
    for width, row in enumerate(scores):
        row[: length - width] = starts[: length - width] + ends[width:]
    if not length:
        return []
    # The `top` best spans start in the `top` columns with the highest maximum, so only those are ranked.
    columns = np.argsort(-scores.max(axis=0), kind="stable")[:top]
    widths, firsts = np.indices((len(scores), len(columns)))
    values, firsts = scores[:, columns].ravel(), columns[firsts.ravel()]
    order = np.lexsort((widths.ravel(), firsts, -values))[:top]
    ranked = zip(values[order].tolist(), firsts[order].tolist(), widths.ravel()[order].tolist(), strict=True)
    return [(score, first, first + width) for score, first, width in ranked if score > -np.inf]


def _span_scores(window: PassageWindow, logits: np.ndarray, max_tokens: int) -> dict[tuple[int, int], float]:
    """The scores of the best spans of one window, by their characters [start, end) in the passage."""
    passage_logits = logits[window.first : window.first + len(window.offsets)].astype(np.float64)
    # Byte-level pieces of white space alone have no characters: no answer starts or ends there.
    passage_logits[[start == end for start, end in window.offsets]] = -np.inf
    scores: dict[tuple[int, int], float] = {}
    for score, first, last in best_spans(passage_logits[:, 0], passage_logits[:, 1], max_tokens, MAX_CANDIDATES):
        # The bytes of one character are tokens with the same offsets; the first span here has the best score.
        scores.setdefault((window.offsets[first][0], window.offsets[last][1]), score)
    return scores


def _target(gold: Sequence[tuple[int, int] | None], window: tuple[int, int], first: int) -> tuple[int, int]:
    """(start, end) of the first answer that is completely in the window [start, stop), else (0, 0), which is [CLS]."""
    start, stop = window
    for span in gold:
        if span is not None and start <= span[0] and span[1] < stop:
            return first + span[0] - start, first + span[1] - start
    return 0, 0


def _best_answer(
    name: str,
    candidates: tuple[Candidate, ...],
    cls_score: float,
    no_answer_probability: float,
    decision: Decision,
    seen: Seen,
) -> Answered:
    score = cls_score - candidates[0].score if candidates else NO_SPAN_SCORE
    if not candidates or decision.is_unanswerable(score):
        return Answered(name, "", None, None, no_answer_probability, score, candidates, seen)
    best = candidates[0]
    return Answered(name, best.text, best.start, best.end, best.probability, score, candidates, seen)
