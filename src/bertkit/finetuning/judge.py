"""A trained model judged on dev: whether it learned anything, and what its decision layer changes.

What is saved is fitted on all of dev. What is reported is not: rows that chose a threshold flatter it, so each half
of dev is judged by what the other half fitted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bertkit.data.examples import Example
from bertkit.finetuning.evaluate import Outputs
from bertkit.finetuning.settings import LearningSettings
from bertkit.tasks.shared.calibration import LEAST_GAIN, calibration_error
from bertkit.tasks.shared.decision import Decision
from bertkit.tasks.task import Part, Prediction, Rows, Task

CLEAR_GAIN = 0.5  # share of the loss of guessing that a model must save if it gives one answer to everything


@dataclass(frozen=True)
class Judged:
    """A decision layer on examples that it was not fitted on; calibration errors where the task has probabilities."""

    scores: Mapping[str, float]
    calibration: Mapping[str, float]  # expected calibration error: before and after the temperature
    said: tuple[str, ...] = ()


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
        decision = task.fit_decision(*take_part(dev, rows, other)).decision
        part, part_rows = take_part(dev, rows, own)
        decided |= dict(zip(own, task.decode(part.examples, part.flat, part_rows, decision), strict=True))
        if (table := task.calibration_table(part, part_rows)) is not None:
            scaled.append((*table, decision.temperature))
    scores = task.score(dev.examples, [decided[number] for number in range(len(dev.examples))])
    stays = saved is not None and saved.temperature == 1.0
    errors = _errors(scaled, stays=stays) if len(scaled) == 2 else {}
    return Judged(scores, errors, _judged_notes(task.main, plain, scores, errors, stays=stays))


def describe_collapse(
    task: Task,
    dev: Part,
    outputs: Outputs,
    predictions: Sequence[Prediction],
    decision: Decision,
    learning: LearningSettings,
) -> tuple[str | None, tuple[str, ...]]:
    """A sentence with the remedy if the model only guesses on dev, else None; and a note if it gives a single answer.

    A model of rare labels may give one answer to all and still rank the examples well: that one has not collapsed.
    """
    one = _one_answer(task, dev.examples, predictions, decision)
    found = task.guessing(dev, outputs.rows, outputs.loss, predictions, CLEAR_GAIN if one else LEAST_GAIN)
    if found is None:
        return None, (f"{one}, although its scores differ: class_weights=balanced may help",) if one else ()
    return (
        f"the model learned nothing: {one or found}; try a lower learning_rate (it was {learning.learning_rate:.3g}), "
        f"a longer warmup ({learning.warmup:g}) or more epochs ({learning.epochs})"
    ), ()


def halve(count: int, seed: int) -> tuple[list[int], list[int]]:
    """Two halves of 0..count at random, the same ones for the same seed."""
    order = np.random.Generator(np.random.Philox(key=seed)).permutation(count).tolist()
    return sorted(order[: count // 2]), sorted(order[count // 2 :])


def take_part(dev: Part, rows: Rows, numbers: Sequence[int]) -> tuple[Part, list[np.ndarray]]:
    """Some examples with their windows, and the rows of these windows."""
    ends = np.cumsum([len(own) for own in dev.windows])
    part = Part([dev.examples[number] for number in numbers], [dev.windows[number] for number in numbers])
    return part, [rows[at] for n in numbers for at in range(ends[n] - len(dev.windows[n]), ends[n])]


def _errors(scaled: Sequence[tuple[np.ndarray, np.ndarray, float]], *, stays: bool) -> dict[str, float]:
    """Over both halves: as the logits are, and each half at the temperature of the other unless it stays 1.0."""
    gold = np.concatenate([own for _, own, _ in scaled])
    before = calibration_error(np.concatenate([logits for logits, _, _ in scaled]), gold)
    if stays:
        return {"before": before, "after": before}
    after = np.concatenate([logits / temperature for logits, _, temperature in scaled])
    return {"before": before, "after": calibration_error(after, gold)}


def _judged_notes(
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


def _one_answer(
    task: Task, examples: Sequence[Example], predictions: Sequence[Prediction], decision: Decision
) -> str | None:
    """What is said where every example, or every word, gets the same answer and should not."""
    pairs = [pair for each in zip(examples, predictions, strict=True) for pair in task.answers(*each, decision)]
    gold, said = {true for true, _ in pairs}, {answer for _, answer in pairs}
    if len(said) != 1 or len(gold) < 2:
        return None
    only = said.pop()
    answer = f"the same answer, '{only}'" if only else "no answer"
    return f"all {len(pairs):,} dev {task.answer_unit} get {answer}"
