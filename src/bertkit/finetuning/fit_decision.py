"""The decision layer of a trained model, fitted on dev data: how its numbers become answers, and what that changes.

What is saved is fitted on all of dev. What is reported is not: rows that chose a threshold flatter it, so each half
of dev is judged by what the other half fitted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bertkit.data.examples import QuestionExample, TextExample
from bertkit.finetuning.prepare import Part
from bertkit.tasks.answer import Answer
from bertkit.tasks.calibration import Calibration, calibration_error, confidences, fit_temperature
from bertkit.tasks.choose import Choose
from bertkit.tasks.classify import Classify, Multilabel
from bertkit.tasks.decision import Decision, fit_abstain, fit_no_answer, fit_thresholds
from bertkit.tasks.tag import Tag
from bertkit.tasks.task import Task, by_example

Rows = Sequence[np.ndarray]  # the head's numbers for each window of a part


@dataclass(frozen=True)
class Fitted:
    """A decision, the temperature's story where it has one, and what to say about it."""

    decision: Decision
    calibration: Calibration | None = None
    said: tuple[str, ...] = ()


@dataclass(frozen=True)
class Judged:
    """A decision layer on examples that it was not fitted on; calibration errors where the task has probabilities."""

    scores: Mapping[str, float]
    calibration: Mapping[str, float]  # expected calibration error: before and after the temperature
    said: tuple[str, ...] = ()


def fit_decision(task: Task, dev: Part, rows: Rows, abstain: float | None = None) -> Fitted:
    """Temperature, thresholds or no-answer threshold, as the task has them; the defaults where it has none."""
    if isinstance(task, Answer):
        return _fit_no_answer(task, dev, rows)
    table = calibration_table(task, dev, rows)
    if table is None:
        return Fitted(Decision())
    found = fit_temperature(*table)
    fitted = Fitted(Decision(temperature=found.temperature), found, (found.said,))
    if isinstance(task, Multilabel):
        return _with_thresholds(fitted, task, *table)
    return _with_abstain(fitted, *table, abstain) if isinstance(task, Classify) and abstain is not None else fitted


def judge_decision(task: Task, dev: Part, rows: Rows, saved: Decision | None = None, seed: int = 0) -> Judged:
    """Each half of dev decided by what the other half fitted: scores and calibration error out of sample.

    If the decision that is saved leaves the temperature at 1.0, the calibration error is that of the model itself.
    """
    plain = task.score(dev.examples, task.decode(dev.examples, dev.flat, rows, Decision()))
    if len(dev.examples) < 2:
        return Judged(plain, {})
    halves = halve(len(dev.examples), seed)
    decided: dict[int, object] = {}
    scaled: list[tuple[np.ndarray, np.ndarray, float]] = []
    for own, other in (halves, halves[::-1]):
        decision = fit_decision(task, *take_part(dev, rows, other)).decision
        part, part_rows = take_part(dev, rows, own)
        decided |= dict(zip(own, task.decode(part.examples, part.flat, part_rows, decision), strict=True))
        if (table := calibration_table(task, part, part_rows)) is not None:
            scaled.append((*table, decision.temperature))
    scores = task.score(dev.examples, [decided[number] for number in range(len(dev.examples))])
    stays = saved is not None and saved.temperature == 1.0
    errors = _errors(scaled, stays=stays) if len(scaled) == 2 else {}
    return Judged(scores, errors, _judged_said(task.main, plain, scores, errors, stays=stays))


def halve(count: int, seed: int) -> tuple[list[int], list[int]]:
    """Two halves of 0..count at random, the same ones for the same seed."""
    order = np.random.Generator(np.random.Philox(key=seed)).permutation(count).tolist()
    return sorted(order[: count // 2]), sorted(order[count // 2 :])


def take_part(dev: Part, rows: Rows, numbers: Sequence[int]) -> tuple[Part, list[np.ndarray]]:
    """Some examples with their windows, and the rows of these windows."""
    ends = np.cumsum([len(own) for own in dev.windows])
    part = Part([dev.examples[number] for number in numbers], [dev.windows[number] for number in numbers])
    return part, [rows[at] for n in numbers for at in range(ends[n] - len(dev.windows[n]), ends[n])]


def calibration_table(task: Task, dev: Part, rows: Rows) -> tuple[np.ndarray, np.ndarray] | None:
    """(logits, gold) as `calibration` takes them: of texts, of words, or of choices; None where there are none."""
    if isinstance(task, Multilabel):
        gold = task.matrix([example.label for example in dev.examples if isinstance(example, TextExample)])
        return text_logits(task, dev, rows), gold
    if isinstance(task, Classify):
        return text_logits(task, dev, rows), np.array([own[0].target for own in dev.windows])
    if isinstance(task, Tag):
        return _tag_table(dev, rows)
    return _choice_table(dev, rows) if isinstance(task, Choose) else None


def text_logits(task: Classify | Multilabel, dev: Part, rows: Rows) -> np.ndarray:
    """[texts, labels]: each text's logits, pooled over its windows."""
    return np.stack([task.pooled(own) for _, _, own in by_example(dev.examples, dev.flat, rows)])


def _tag_table(dev: Part, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """The logits at the first piece of each word, and the number of its tag."""
    places = [list(window.detail.places) for window in dev.flat]
    gold = [[window.target[place] for place in own] for window, own in zip(dev.flat, places, strict=True)]
    return np.concatenate([row[own] for row, own in zip(rows, places, strict=True)]), np.concatenate(gold)


def _choice_table(dev: Part, rows: Rows) -> tuple[np.ndarray, np.ndarray] | None:
    """A row for each question; where they offer different numbers of choices there is no one table."""
    groups = [np.concatenate([np.ravel(row) for row in own]) for _, _, own in by_example(dev.examples, dev.flat, rows)]
    if len({len(group) for group in groups}) > 1:
        return None
    return np.stack(groups), np.array([own[0].target for own in dev.windows])


def _with_abstain(fitted: Fitted, logits: np.ndarray, gold: np.ndarray, abstain: float) -> Fitted:
    decision = fitted.decision
    sure = fit_abstain(*confidences(decision.class_probabilities(logits), gold), abstain)
    if sure is None:
        note = f"no sureness makes {abstain:.1%} of the answers right: all are given"
        return replace(fitted, said=(*fitted.said, note))
    note = f"answers are given from a probability of {sure:.3f} on, to be right {abstain:.1%} of the time"
    return replace(fitted, decision=replace(decision, abstain=sure), said=(*fitted.said, note))


def _with_thresholds(fitted: Fitted, task: Multilabel, logits: np.ndarray, gold: np.ndarray) -> Fitted:
    thresholds = fit_thresholds(fitted.decision.label_probabilities(logits), gold, task.labels)
    return replace(fitted, decision=replace(fitted.decision, thresholds=thresholds))


def _fit_no_answer(task: Answer, dev: Part, rows: Rows) -> Fitted:
    always = task.decode(dev.examples, dev.flat, rows, Decision())
    gold = [[span.text for span in each.answers] for each in dev.examples if isinstance(each, QuestionExample)]
    threshold = fit_no_answer(gold, [each.text for each in always], [each.no_answer for each in always])
    if threshold is None:
        return Fitted(Decision())
    return Fitted(Decision(no_answer=threshold), None, (f"no answer is given from a score of {threshold:.3f} on",))


def _errors(scaled: Sequence[tuple[np.ndarray, np.ndarray, float]], *, stays: bool) -> dict[str, float]:
    """Over both halves: as the logits are, and each half at the temperature of the other unless it stays 1.0."""
    gold = np.concatenate([own for _, own, _ in scaled])
    before = calibration_error(np.concatenate([logits for logits, _, _ in scaled]), gold)
    if stays:
        return {"before": before, "after": before}
    after = np.concatenate([logits / temperature for logits, _, temperature in scaled])
    return {"before": before, "after": calibration_error(after, gold)}


def _judged_said(
    main: str, plain: Mapping[str, float], scores: Mapping[str, float], errors: Mapping[str, float], *, stays: bool
) -> tuple[str, ...]:
    said = [f"calibration error {errors['before']:.4f}, unchanged"] if errors and stays else []
    parts = []
    if errors and not stays:
        parts.append(f"calibration error {errors['before']:.4f} before, {errors['after']:.4f} after")
    if plain[main] != scores[main]:
        parts.append(f"{main} {plain[main]:.4f} without thresholds, {scores[main]:.4f} with them")
    if parts:
        said.append(f"{'; '.join(parts)} (each half of dev judged by what the other half fitted)")
    return tuple(said)
