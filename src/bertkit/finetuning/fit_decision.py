"""The decision layer of a trained model, fitted on dev data: how its numbers become answers, and what that changes.

What is saved is fitted on all of dev. What is reported is not: rows that chose a threshold flatter it, so each half
of dev is judged by what the other half fitted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bertkit.tasks.calibration import calibration_error
from bertkit.tasks.decision import Decision
from bertkit.tasks.task import Part, Rows, Task


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
