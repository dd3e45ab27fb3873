"""Evaluation of a trained model on dev: the effect of its decision layer, and whether the model learned anything.

The decision layer that is saved is fitted on all of dev. Its reported scores are out of sample: each half of dev is
decided by a layer that was fitted on the other half.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertkit.data.examples import Example
from bertkit.finetuning.evaluate import Outputs
from bertkit.finetuning.settings import LearningSettings
from bertkit.tasks.metrics.table import is_better
from bertkit.tasks.shared.calibration import MIN_GAIN, calibration_error
from bertkit.tasks.shared.decision import Decision
from bertkit.tasks.task import Dataset, HeadOutputs, Prediction, Task
from bertkit.train.records import number

MAX_LISTED_LABELS = 5
MIN_LOSS_DROP = 0.02  # between the last two evaluations, relative, from which on more training probably helps
MIN_LOSS_DROP_ALONE = 0.05  # the same, where the metric is not the best at the end
MIN_GAIN_OF_CONSTANT = 0.5  # as MIN_GAIN, for a model that gives the same answer to everything


@dataclass(frozen=True)
class DecisionScores:
    """The scores of a decision layer on examples that it was not fitted on."""

    scores: Mapping[str, float]
    calibration: Mapping[str, float]  # expected calibration error before and after the temperature, or empty
    notes: tuple[str, ...] = ()


def cross_validate_decision(
    task: Task, dev: Dataset, outputs: HeadOutputs, saved: Decision | None = None, seed: int = 0
) -> DecisionScores:
    """Scores and calibration error on dev, each half decided by a decision layer fitted on the other half.

    If the saved decision leaves the temperature at 1.0, the calibration error after it is that of the model itself.
    """
    plain = task.score(dev.examples, task.decode(dev.examples, dev.flat, outputs, Decision()))
    if len(dev.examples) < 2:
        return DecisionScores(plain, {})
    halves = random_halves(len(dev.examples), seed)
    predictions: dict[int, object] = {}
    tables: list[tuple[np.ndarray, np.ndarray, float]] = []  # logits, gold, temperature
    for held_out, fitted in (halves, halves[::-1]):
        decision = task.fit_decision(*subset(dev, outputs, fitted)).decision
        half, half_outputs = subset(dev, outputs, held_out)
        predictions |= dict(zip(held_out, task.decode(half.examples, half.flat, half_outputs, decision), strict=True))
        if (table := task.calibration_table(half, half_outputs)) is not None:
            tables.append((*table, decision.temperature))
    scores = task.score(dev.examples, [predictions[number] for number in range(len(dev.examples))])
    unscaled = saved is not None and saved.temperature == 1.0
    errors = _calibration_errors(tables, unscaled=unscaled) if len(tables) == 2 else {}
    return DecisionScores(scores, errors, _notes(task.main_metric, plain, scores, errors, unscaled=unscaled))


def describe_collapse(
    task: Task,
    dev: Dataset,
    outputs: Outputs,
    predictions: Sequence[Prediction],
    decision: Decision,
    learning: LearningSettings,
) -> tuple[str | None, tuple[str, ...]]:
    """(message with a remedy if the model only guesses on dev, else None; notes on labels that it never predicts).

    A model of rare labels may always give the same answer and still rank the examples well; it has not collapsed.
    """
    constant = _constant_answer(task, dev.examples, predictions, decision)
    min_gain = MIN_GAIN_OF_CONSTANT if constant else MIN_GAIN
    message = task.collapse_message(dev, outputs.rows, outputs.loss, predictions, min_gain)
    if message is None and constant:
        return None, (f"{constant}, although its scores differ: class_weights=balanced may help",)
    if message is None:
        return None, _never_predicted(task, dev, predictions)
    return (
        f"the model learned nothing: {constant or message}; "
        f"try a lower learning_rate (it was {learning.learning_rate:.3g}), "
        f"a longer warmup ({learning.warmup:g}) or more epochs ({learning.epochs})"
    ), ()


def _never_predicted(task: Task, dev: Dataset, predictions: Sequence[Prediction]) -> tuple[str, ...]:
    scores = task.label_scores(dev, predictions)
    labels = [str(label) for label, score in scores.items() if score.gold and not score.predicted]
    if not labels:
        return ()
    more = f" and {len(labels) - MAX_LISTED_LABELS} more" if len(labels) > MAX_LISTED_LABELS else ""
    listed = ", ".join(labels[:MAX_LISTED_LABELS])
    return (f"never predicted on dev: {listed}{more}; more epochs, or more examples of them, may help",)


def still_improving(evaluations: Sequence[Mapping[str, Any]], metric: str) -> bool:
    """Whether the last evaluation is the best by the metric with a loss that fell, or has a loss that fell much.

    A metric of few examples moves in steps, and may stand still while the model still learns.
    """
    if len(evaluations) < 2:
        return False
    *_, before, last = evaluations
    best = all(is_better(metric, number(last.get(metric)), number(each.get(metric))) for each in evaluations[:-1])
    losses = number(before.get("loss")), number(last.get("loss"))
    if not all(map(math.isfinite, losses)) or not math.isfinite(number(last.get(metric))):
        return best
    min_drop = MIN_LOSS_DROP if best else MIN_LOSS_DROP_ALONE
    lowest = min(number(each.get("loss")) for each in evaluations)
    return losses[1] < (1 - min_drop) * losses[0] and losses[1] <= lowest


def random_halves(count: int, seed: int) -> tuple[list[int], list[int]]:
    """The indices 0..count in two random halves, sorted; the same for the same seed."""
    order = np.random.Generator(np.random.Philox(key=seed)).permutation(count).tolist()
    return sorted(order[: count // 2]), sorted(order[count // 2 :])


def subset(dev: Dataset, outputs: HeadOutputs, indices: Sequence[int]) -> tuple[Dataset, list[np.ndarray]]:
    """The examples with these indices and their windows, and the outputs of these windows."""
    ends = np.cumsum([len(windows) for windows in dev.windows])
    part = Dataset([dev.examples[n] for n in indices], [dev.windows[n] for n in indices])
    return part, [outputs[window] for n in indices for window in range(ends[n] - len(dev.windows[n]), ends[n])]


def _calibration_errors(tables: Sequence[tuple[np.ndarray, np.ndarray, float]], *, unscaled: bool) -> dict[str, float]:
    """Over both halves: without a temperature, and with the temperature of the other half unless `unscaled`."""
    gold = np.concatenate([labels for _, labels, _ in tables])
    before = calibration_error(np.concatenate([logits for logits, _, _ in tables]), gold)
    if unscaled:
        return {"before": before, "after": before}
    after = np.concatenate([logits / temperature for logits, _, temperature in tables])
    return {"before": before, "after": calibration_error(after, gold)}


def _notes(
    metric: str, plain: Mapping[str, float], scores: Mapping[str, float], errors: Mapping[str, float], *, unscaled: bool
) -> tuple[str, ...]:
    error = "calibration error (mean gap between confidence and accuracy)"
    notes = [f"{error} {errors['before']:.4f}, unchanged"] if errors and unscaled else []
    parts = []
    if errors and not unscaled:
        parts.append(f"{error} {errors['before']:.4f} before, {errors['after']:.4f} after")
    if plain[metric] != scores[metric]:
        parts.append(f"{metric} {plain[metric]:.4f} without thresholds, {scores[metric]:.4f} with them")
    if parts:
        notes.append(f"{'; '.join(parts)} (each half of dev judged by what the other half fitted)")
    return tuple(notes)


def _constant_answer(
    task: Task, examples: Sequence[Example], predictions: Sequence[Prediction], decision: Decision
) -> str | None:
    """A message if every example or word has the same answer although their labels differ, else None."""
    rows = zip(examples, predictions, strict=True)
    pairs = [pair for row in rows for pair in task.answer_pairs(*row, decision)]
    gold, predicted = {label for label, _ in pairs}, {answer for _, answer in pairs}
    if len(predicted) != 1 or len(gold) < 2:
        return None
    [only] = predicted
    answer = f"the same answer, '{only}'" if only else "no answer"
    return f"all {len(pairs):,} dev {task.answer_unit} get {answer}"
