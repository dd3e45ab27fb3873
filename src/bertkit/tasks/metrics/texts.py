"""Scores of written texts beside their targets; BLEU and chrF are sacrebleu's, if it is installed."""

from collections import Counter
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from bertkit.tasks.metrics.correlation import check_lengths

WITHOUT_SACREBLEU = (
    "BLEU and chrF are left out, for sacrebleu is not installed; get it with: pip install 'bertkit[scores]'"
)


def text_scores(gold: Sequence[str], predicted: Sequence[str]) -> dict[str, float]:
    """BLEU and chrF (0 to 100, cased, sacrebleu's tokens), the share of equal texts, and the mean F1 of words."""
    return TextScores(gold, predicted)(range(len(gold)))


class TextScores:
    """Counts of each text, from which the scores of any selection of the texts are computed at once."""

    def __init__(self, gold: Sequence[str], predicted: Sequence[str]) -> None:
        check_lengths(gold, predicted)
        pairs = list(zip(gold, predicted, strict=True))
        self._means = {
            "exact_match": np.array([a.strip() == b.strip() for a, b in pairs], float),
            "token_f1": np.array([word_f1(a, b) for a, b in pairs], float),
        }
        self._corpus = {
            name: (metric, np.array(metric._extract_corpus_statistics(list(predicted), [list(gold)])))
            for name, metric in (_sacrebleu_metrics().items() if pairs else ())
        }

    def __call__(self, chosen: Sequence[int]) -> dict[str, float]:
        """The scores of the texts with these indices; one may be there several times."""
        rows = np.array(chosen, int)
        corpus = {
            name: metric._compute_score_from_stats(counts[rows].sum(axis=0).tolist()).score
            for name, (metric, counts) in self._corpus.items()
        }
        return corpus | {name: float(values[rows].sum() / max(len(rows), 1)) for name, values in self._means.items()}


def word_f1(gold: str, predicted: str) -> float:
    """The F1 of the words of two texts, split at spaces, in any order.

    >>> word_f1("a red ball", "a ball")
    0.8
    """
    one, other = Counter(gold.split()), Counter(predicted.split())
    total = one.total() + other.total()
    return 2 * (one & other).total() / total if total else 1.0


@cache
def has_sacrebleu() -> bool:
    """Whether BLEU and chrF can be computed."""
    spec = find_spec("sacrebleu")
    return spec is not None and spec.origin is not None  # a folder of this name is no package


def _sacrebleu_metrics() -> dict[str, Any]:
    if not has_sacrebleu():
        return {}
    import sacrebleu

    return {"bleu": sacrebleu.BLEU(), "chrf": sacrebleu.CHRF()}
