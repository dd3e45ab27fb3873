"""SQuAD's metrics: answers are compared by their words, without case, punctuation, articles and extra space.

The rules are those of version 2.0, which agree with 1.1 on every answer that has a word. Scores are from 0 to 1. An
unanswerable question has no gold answers, and "" is the correct prediction.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bertkit.errors import RequestError

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def normalize_answer(text: str) -> str:
    """The form in which answers are compared: `The  U.S. Army!` becomes `us army`."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def squad_em(gold: Sequence[str], predicted: str) -> float:
    """Exact match: 1.0 if the prediction is one of the gold answers, else 0.0."""
    return _best(gold, predicted, lambda answer, guess: float(answer == guess))


def squad_f1(gold: Sequence[str], predicted: str) -> float:
    """The highest F1 over words between the prediction and a gold answer."""
    return _best(gold, predicted, _word_f1)


def squad_scores(gold: Sequence[Sequence[str]], predicted: Sequence[str]) -> dict[str, float]:
    """Means over all questions, and over answerable and unanswerable ones if there are both."""
    if len(gold) != len(predicted) or not gold:
        raise RequestError(f"cannot score {len(predicted)} answers to {len(gold)} questions; give one answer for each")
    exact = np.array([squad_em(answers, guess) for answers, guess in zip(gold, predicted, strict=True)])
    f1 = np.array([squad_f1(answers, guess) for answers, guess in zip(gold, predicted, strict=True)])
    answerable = np.array([bool(answers) for answers in gold])
    scores = {"f1": float(f1.mean()), "exact_match": float(exact.mean())}
    if not answerable.all() and answerable.any():
        scores["answerable_f1"] = float(f1[answerable].mean())
        scores["answerable_exact_match"] = float(exact[answerable].mean())
        scores["unanswerable_accuracy"] = float(exact[~answerable].mean())
    return scores


@dataclass(frozen=True)
class NoAnswerThreshold:
    """Questions with a no-answer score over `threshold` are left unanswered; `score` is the mean measure then."""

    threshold: float
    score: float


def best_squad_threshold(
    gold: Sequence[Sequence[str]],
    predicted: Sequence[str],
    no_answer_scores: Sequence[float],
    measure: Callable[[Sequence[str], str], float] = squad_f1,
) -> NoAnswerThreshold:
    """The threshold with the best mean `measure`; the lowest of equally good ones.

    `predicted` are the best answers that are not "". Every distinct score is tried as threshold.
    """
    if not len(gold) == len(predicted) == len(no_answer_scores) or not gold:
        raise RequestError(
            f"cannot choose a no-answer threshold from {len(gold)} questions, {len(predicted)} answers "
            f"and {len(no_answer_scores)} scores; give one of each, for one question or more"
        )
    scores = np.asarray(no_answer_scores, dtype=np.float64)
    if not np.isfinite(scores).all():
        raise RequestError("a no-answer score is not a finite number; look at the dev run's loss")
    unanswered = np.array([measure(answers, "") for answers in gold])
    answered = np.array([measure(answers, guess) for answers, guess in zip(gold, predicted, strict=True)])
    order = np.argsort(scores, kind="stable")
    ranked = scores[order]
    totals = unanswered.sum() + np.concatenate([[0.0], np.cumsum((answered - unanswered)[order])])
    thresholds = np.concatenate([[np.nextafter(ranked[0], -np.inf)], ranked])
    possible = np.append(thresholds[1:] != thresholds[:-1], True)  # the last of equal scores
    best = np.flatnonzero(possible)[np.argmax(np.round(totals[possible], 9))]  # rounded: sums depend on the order
    return NoAnswerThreshold(float(thresholds[best]), float(totals[best] / len(gold)))


def _best(gold: Sequence[str], predicted: str, measure: Callable[[str, str], float]) -> float:
    guess = normalize_answer(predicted)
    # A gold answer of articles and punctuation alone does not count; without gold answers, "" is correct.
    answers = [answer for answer in map(normalize_answer, gold) if answer] or [""]
    return max(measure(answer, guess) for answer in answers)


def _word_f1(answer: str, guess: str) -> float:
    guess_words, answer_words = guess.split(), answer.split()
    if not guess_words or not answer_words:
        return float(guess_words == answer_words)
    shared = sum((Counter(guess_words) & Counter(answer_words)).values())
    return 2 * shared / (len(guess_words) + len(answer_words))
