"""Whether a fine-tuning run learned anything, from what evaluation on dev has: a collapsed model only guesses."""

from collections.abc import Sequence

import numpy as np

from bertkit.data.examples import ChoiceExample, Example, QuestionExample, TaggedExample, TextExample
from bertkit.finetuning.evaluate import Outputs
from bertkit.finetuning.fit_decision import calibration_table
from bertkit.finetuning.prepare import Part
from bertkit.finetuning.settings import LearningSettings
from bertkit.tasks.answer import Answered
from bertkit.tasks.calibration import negative_log_likelihood
from bertkit.tasks.choose import Chosen
from bertkit.tasks.classify import Classified, Rated
from bertkit.tasks.decision import Decision
from bertkit.tasks.tag import Tagged
from bertkit.tasks.task import Prediction, Task

LEAST_GAIN = 0.01  # share of the loss of guessing that a model must save
CLEAR_GAIN = 0.5  # the same, if it gives one answer to everything
LEAST_SPREAD = 0.05  # of predicted numbers, in standard deviations of the true ones
SCALES = 2.0 ** np.arange(-6, 7)  # of logits: a model that is too sure, or not sure enough, has learned something


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
    one = _one_answer(dev.examples, predictions, decision)
    found = _no_gain(task, dev, outputs, predictions, CLEAR_GAIN if one else LEAST_GAIN)
    if found is None:
        return None, (f"{one}, although its scores differ: class_weights=balanced may help",) if one else ()
    return (
        f"the model learned nothing: {one or found}; try a lower learning_rate (it was {learning.learning_rate:.3g}), "
        f"a longer warmup ({learning.warmup:g}) or more epochs ({learning.epochs})"
    ), ()


def _one_answer(examples: Sequence[Example], predictions: Sequence[Prediction], decision: Decision) -> str | None:
    """What is said where every example, or every word, gets the same answer and should not."""
    pairs = [pair for each in zip(examples, predictions, strict=True) for pair in _answers(*each, decision)]
    gold, said = {true for true, _ in pairs}, {answer for _, answer in pairs}
    if len(said) != 1 or len(gold) < 2:
        return None
    what = "words" if isinstance(examples[0], TaggedExample) else "examples"
    only = said.pop()
    return f"all {len(pairs):,} dev {what} get " + (f"the same answer, '{only}'" if only else "no answer")


def _answers(example: Example, prediction: Prediction, decision: Decision) -> list[tuple[str, str]]:
    """(truth, prediction) of the example, or of each of its words; nothing where answers are no single names."""
    if isinstance(prediction, Classified) and isinstance(example, TextExample):
        return [(str(example.label), max(prediction.probabilities, key=prediction.probabilities.__getitem__))]
    if isinstance(prediction, Tagged) and isinstance(example, TaggedExample):
        return list(zip(example.tags or (), prediction.tags, strict=True))
    if isinstance(prediction, Chosen) and isinstance(example, ChoiceExample):
        return [(f"choice {example.label}", f"choice {int(np.argmax(prediction.probabilities))}")]
    if isinstance(prediction, Answered) and isinstance(example, QuestionExample):
        text = "" if decision.is_unanswerable(prediction.no_answer) else prediction.text
        return [(example.answers[0].text if example.answers else "", text)]
    return []


def _no_gain(task: Task, dev: Part, outputs: Outputs, predictions: Sequence[Prediction], least: float) -> str | None:
    """What is said where the model's scores save less than the share `least` of the loss of guessing."""
    if task.name == "regress":
        return _no_number(dev.examples, predictions)
    if task.name == "answer":
        guess = float(np.mean([np.log(len(window.ids)) for window in dev.flat]))  # any token, as likely as another
        gain = 1 - outputs.loss / guess if outputs.loss is not None else 1.0
    else:
        table = calibration_table(task, dev, outputs.rows)
        gain = 1.0 if table is None else likelihood_gain(*table)
    return None if gain >= least else "its loss on dev is no better than that of guessing"


def _no_number(examples: Sequence[Example], predictions: Sequence[Rated]) -> str | None:
    gold = np.array([float(each.label) for each in examples if isinstance(each, TextExample)])  # type: ignore[arg-type]
    said = np.array([prediction.value for prediction in predictions])
    if not gold.std():
        return None
    explained = np.corrcoef(gold, said)[0, 1] ** 2 if said.std() else 0.0
    if said.std() < LEAST_SPREAD * gold.std() and explained < 10 * LEAST_GAIN:
        return f"its numbers on dev are all about {said.mean():.4g}"
    return "its numbers on dev are unrelated to the true ones" if explained < LEAST_GAIN else None


def likelihood_gain(logits: np.ndarray, gold: np.ndarray) -> float:
    """Which share of a constant guess's loss the logits save, at the best scale: 0 where they do not vary usefully.

    The guess is each label's share of gold; what the logits add to it is how they differ between examples.
    """
    shares = gold.mean(axis=0) if gold.ndim == 2 else np.bincount(gold, minlength=logits.shape[1]) / len(gold)
    shares = np.clip(shares, 1e-6, 1 - 1e-6)
    guess = np.log(shares / (1 - shares)) if gold.ndim == 2 else np.log(shares)
    varying = logits - logits.mean(axis=0)
    constant = negative_log_likelihood(np.broadcast_to(guess, logits.shape), gold)
    if constant < 1e-3:  # one answer for all is right
        return 1.0
    return 1 - min(negative_log_likelihood(guess + scale * varying, gold) for scale in SCALES) / constant
