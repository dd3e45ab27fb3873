"""Whether a fine-tuning run learned anything, from what evaluation on dev has: a collapsed model only guesses."""

from collections.abc import Sequence

from bertkit.data.examples import Example
from bertkit.finetuning.evaluate import Outputs
from bertkit.finetuning.settings import LearningSettings
from bertkit.tasks.calibration import LEAST_GAIN
from bertkit.tasks.decision import Decision
from bertkit.tasks.task import Part, Prediction, Task

CLEAR_GAIN = 0.5  # share of the loss of guessing that a model must save if it gives one answer to everything


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
