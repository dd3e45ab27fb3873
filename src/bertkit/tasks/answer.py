"""An answer that stands in a passage (SQuAD 1.1 and 2.0): the start and the end of a span, or none.

Characters of the original passage lead to tokens and back through the tokenizer's offsets; nothing is joined again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bertkit.data.examples import AnswerSpan, Example, QuestionExample
from bertkit.errors import RequestError
from bertkit.model.batch import Batch
from bertkit.model.model import BertModel
from bertkit.tasks.metrics.squad import squad_scores
from bertkit.tasks.rows.answer import AnswerRow
from bertkit.tasks.shared.calibration import NO_GAIN
from bertkit.tasks.shared.decision import Decision, Fitted, fit_no_answer
from bertkit.tasks.shared.explain import Request, Target, read_at, refuse_windows, refuse_word, text_tokens
from bertkit.tasks.shared.length import Seen, layout, refuse_too_long, spread, take
from bertkit.tasks.shared.losses import LOWEST, choice_loss, choice_losses, divergence
from bertkit.tasks.shared.text_task import counting_rows, filled
from bertkit.tasks.task import LossSettings, Mistake, Part, Predict, Rows, Size, Task, Window
from bertkit.text.characters import whole_words, with_marks

CANDIDATES = 20  # spans that share the probability, and the most that are listed
NO_SPAN = float(np.finfo(np.float32).max)  # the no-answer score of an empty passage: finite, so that JSON can hold it


@dataclass(frozen=True)
class Candidate:
    """One possible answer: text == passage[start:end]."""

    text: str
    start: int
    end: int
    score: float  # logit of the start plus logit of the end
    probability: float


@dataclass(frozen=True)
class Answered:
    """The answer, "" without a position if there is none, and every candidate, best first."""

    id: str
    text: str
    start: int | None
    end: int | None
    probability: float  # of this answer, or of there being none
    no_answer: float  # score of having none, minus the best span's: the higher, the less there is an answer
    candidates: tuple[Candidate, ...]
    seen: Seen


@dataclass(frozen=True)
class Shown:
    """Which part of the passage a window shows."""

    first: int  # position of its first token in the window
    offsets: tuple[tuple[int, int], ...]  # characters of each of its tokens
    seen: Seen


@dataclass(frozen=True, kw_only=True)
class Answer(Task):
    """The task: two numbers at every token, the start's and the end's; [CLS] stands for no answer here."""

    row = AnswerRow()
    outputs = 2
    longest: int = 30  # tokens of an answer

    def windows(self, example: Example, number: int) -> list[Window]:
        """The question, at most with its first half window, before each part of the passage."""
        assert isinstance(example, QuestionExample)
        encoding = self.tokenizer.encode(example.question, example.passage)
        special, question, passage = layout(encoding)
        room = self.limit - len(special)
        asked = question[: room // 2]
        spans = spread(len(passage), room - len(asked), self.length.stride)
        if example.labeled:  # to train on: with what the backward needs, all windows are in memory
            refuse_too_long(example.place, len(passage), len(spans), self.limit, "split the passage")
        seen = Seen(len(question) + len(passage), len(question) - len(asked), len(spans))
        offsets = with_marks([encoding.offsets[position] for position in passage], example.passage)
        gold = [token_span(offsets, answer) for answer in example.answers]
        first = len(asked) + len(special) - 1  # all special tokens but the last [SEP] stand before the passage
        made = []
        for start, stop in spans:
            ids, segments = take(encoding, sorted((*special, *asked, *passage[start:stop])))
            target = _target(gold, (start, stop), first) if example.labeled else None
            made.append(Window(ids, segments, number, target, Shown(first, offsets[start:stop], seen)))
        return made

    def targets(self, windows: Sequence[Window]) -> int:
        """One for each window: its span, or [CLS]."""
        return len(windows)

    def loss_sum(self, logits: Tensor, batch: Batch, windows: Sequence[Window], weights: LossSettings) -> Tensor:
        """Mean of the start's and the end's cross entropy over the tokens of a window; T 2 in."""
        target_N2 = torch.tensor([window.target for window in windows], device=logits.device)
        padded_NL2 = batch.pad(logits, -torch.inf)
        start, end = (
            choice_loss(padded_NL2[..., side], target_N2[:, side], weights.label_smoothing) for side in (0, 1)
        )
        return (start + end) / 2

    def fixed_targets(self, windows: Sequence[Window], size: Size, weights: LossSettings) -> tuple[Tensor, ...]:
        """Start and end for each sequence, and whether it counts."""
        starts, ends = (filled([window.target[side] for window in windows], size.sequences, 0) for side in (0, 1))
        return starts, ends, counting_rows(len(windows), size)

    def fixed_loss(self, logits: Tensor, batch: Batch, targets: Sequence[Tensor], smoothing: float) -> Tensor:
        """Mean of both cross entropies, over the sequences that count."""
        *sides, shares = targets
        padded_NL2 = batch.pad(logits, -torch.inf).masked_fill(shares[:, None, None] == 0, 0.0)  # an empty row: no sum
        halves = [choice_losses(padded_NL2[..., side], target, smoothing) for side, target in enumerate(sides)]
        return ((halves[0] + halves[1]) * shares).sum() / 2

    def distance(
        self, teacher: Task, ours: Tensor, theirs: Tensor, batch: Batch, windows: Sequence[Window], temperature: float
    ) -> Tensor:
        """Mean of the divergences of starts and ends over the tokens of a window."""
        rows = [batch.pad(each, LOWEST).transpose(1, 2).flatten(0, 1) for each in (ours, theirs)]
        return divergence(rows[0], rows[1], temperature) / 2

    def score(self, examples: Sequence[Example], predictions: Sequence[Answered]) -> dict[str, float]:
        """SQuAD's exact match and F1."""
        gold = [[answer.text for answer in e.answers] for e in examples if isinstance(e, QuestionExample)]
        return squad_scores(gold, [prediction.text for prediction in predictions])

    def fit_decision(self, dev: Part, outputs: Rows, abstain: float | None = None) -> Fitted:
        """The score from which on no answer is given."""
        always = self.decode(dev.examples, dev.flat, outputs, Decision())
        gold = [[span.text for span in each.answers] for each in dev.examples if isinstance(each, QuestionExample)]
        threshold = fit_no_answer(gold, [each.text for each in always], [each.no_answer for each in always])
        if threshold is None:
            return Fitted(Decision())
        return Fitted(Decision(no_answer=threshold), None, (f"no answer is given from a score of {threshold:.3f} on",))

    def answers(self, example: Example, prediction: Answered, decision: Decision) -> list[tuple[str, str]]:
        """The first answer and the predicted one; "" where there is none."""
        assert isinstance(example, QuestionExample)
        text = "" if decision.is_unanswerable(prediction.no_answer) else prediction.text
        return [(example.answers[0].text if example.answers else "", text)]

    def guessing(
        self, dev: Part, outputs: Rows, loss: float | None, predictions: Sequence[Answered], least: float
    ) -> str | None:
        """By the loss: a guess takes any token, as likely as another."""
        guess = float(np.mean([np.log(len(window.ids)) for window in dev.flat]))
        return NO_GAIN if loss is not None and 1 - loss / guess < least else None

    def mistake(self, example: Example, prediction: Answered) -> Mistake | None:
        """An answer that is none of the gold answers."""
        assert isinstance(example, QuestionExample)
        gold = [answer.text for answer in example.answers]
        if prediction.text in gold or (not gold and not prediction.text):
            return None
        shown = f"{example.question} — {example.passage[:300]}"
        return Mistake(prediction.probability, shown, " / ".join(gold) or "(none)", prediction.text or "(none)")

    def explain(self, model: BertModel, request: Request, predict: Predict) -> Target:
        """The logits of an answer's start and end, added; of [CLS] where there is no answer."""
        refuse_word(request)
        if request.pair is None:
            raise RequestError("a question needs the passage to answer it from; give it as the pair")
        [example] = self.row.examples(question=[request.text], passage=[request.pair])
        windows = self.windows(example, 0)
        refuse_windows(len(windows))
        shown = windows[0].detail
        answer = _wanted_answer(request.pair, request.target) if request.target is not None else _span(predict, example)
        found = None if answer is None else token_span(shown.offsets, answer)
        first, last = (0, 0) if found is None else (shown.first + found[0], shown.first + found[1])
        name = "that there is no answer" if answer is None or found is None else f"the answer '{answer.text}'"
        read_start, read_end = (read_at(model, self.head, at, side) for side, at in enumerate((first, last)))
        tokens = text_tokens(model, self.tokenizer, request)
        if list(tokens.ids) != list(windows[0].ids):
            raise RequestError(f"the question is over half of the model's {self.limit} tokens; shorten it")
        return Target(name, "logits of start and end", tokens, lambda *given: read_start(*given) + read_end(*given))

    def decode_one(self, example: Example, windows: Sequence[Window], outputs: Rows, decision: Decision) -> Answered:
        """The best spans over all windows of a question, and whether they beat having no answer."""
        assert isinstance(example, QuestionExample)
        scores: dict[tuple[int, int], float] = {}
        for window, logits in zip(windows, outputs, strict=True):
            for span, score in _window_spans(window.detail, logits, self.longest).items():
                words = whole_words(example.passage, *span)  # "Pharo" is no answer, "Pharos" is
                scores[words] = max(score, scores.get(words, score))
        ranked = sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:CANDIDATES]
        # Windows without the answer point at [CLS], which is correct; the lowest of their scores is the passage's.
        nothing = min(float(logits[0, 0] + logits[0, 1]) for logits in outputs)
        chances = decision.class_probabilities(np.array([nothing, *(score for _, score in ranked)]))
        candidates = tuple(
            Candidate(example.passage[start:end], start, end, score, float(chance))
            for ((start, end), score), chance in zip(ranked, chances[1:], strict=True)
        )
        return _chosen(example.id, candidates, nothing, float(chances[0]), decision, windows[0].detail.seen)


def _span(predict: Predict, example: Example) -> AnswerSpan | None:
    [found] = predict([example])
    return None if found.start is None else AnswerSpan(found.start, found.text)


def _wanted_answer(passage: str, wanted: str) -> AnswerSpan:
    start = passage.find(wanted)
    if start < 0 or not wanted:
        raise RequestError(f"the passage has no '{wanted}'; name an answer that stands in it")
    return AnswerSpan(start, wanted)


def token_span(offsets: Sequence[tuple[int, int]], answer: AnswerSpan) -> tuple[int, int] | None:
    """First and last token that share a character with the answer; None where the tokenizer kept none of it."""
    end = answer.start + len(answer.text)
    touched = [position for position, (a, b) in enumerate(offsets) if a < b and a < end and b > answer.start]
    return (touched[0], touched[-1]) if touched else None


def best_spans(starts: np.ndarray, ends: np.ndarray, longest: int, top: int) -> list[tuple[float, int, int]]:
    """The `top` spans of at most `longest` tokens with the highest start + end: (score, first, last), best first."""
    length = len(starts)
    scores = np.full((min(longest, length), length), -np.inf)  # a row for each width, a column for each start
    for width, row in enumerate(scores):
        row[: length - width] = starts[: length - width] + ends[width:]
    if not length:
        return []
    # Each of the best spans starts where one of the `top` best starts is, so only those columns are ranked.
    columns = np.argsort(-scores.max(axis=0), kind="stable")[:top]
    widths, firsts = np.indices((len(scores), len(columns)))
    found, firsts = scores[:, columns].ravel(), columns[firsts.ravel()]
    order = np.lexsort((widths.ravel(), firsts, -found))[:top]
    ranked = zip(found[order].tolist(), firsts[order].tolist(), widths.ravel()[order].tolist(), strict=True)
    return [(score, first, first + width) for score, first, width in ranked if score > -np.inf]


def _window_spans(shown: Shown, logits: np.ndarray, longest: int) -> dict[tuple[int, int], float]:
    """The best spans of one window as characters of the passage, with their scores."""
    inside = logits[shown.first : shown.first + len(shown.offsets)].astype(np.float64)
    # Byte-level pieces of nothing but space show no character: no answer begins or ends there.
    inside[[start == end for start, end in shown.offsets]] = -np.inf
    found: dict[tuple[int, int], float] = {}
    for score, first, last in best_spans(inside[:, 0], inside[:, 1], longest, CANDIDATES):
        # Bytes of one character are tokens with the same offsets; the best span comes first and stays.
        found.setdefault((shown.offsets[first][0], shown.offsets[last][1]), score)
    return found


def _target(gold: Sequence[tuple[int, int] | None], window: tuple[int, int], first: int) -> tuple[int, int]:
    """Start and end of the first answer that is whole in the window [start, stop), or [CLS] twice."""
    start, stop = window
    for span in gold:
        if span is not None and start <= span[0] and span[1] < stop:
            return first + span[0] - start, first + span[1] - start
    return 0, 0


def _chosen(
    name: str, candidates: tuple[Candidate, ...], nothing: float, chance: float, decision: Decision, seen: Seen
) -> Answered:
    no_answer = nothing - candidates[0].score if candidates else NO_SPAN
    if not candidates or decision.is_unanswerable(no_answer):
        return Answered(name, "", None, None, chance, no_answer, candidates, seen)
    best = candidates[0]
    return Answered(name, best.text, best.start, best.end, best.probability, no_answer, candidates, seen)
