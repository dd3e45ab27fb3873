"""Scores of written texts beside their targets; BLEU and chrF are sacrebleu's, if it is installed."""

from collections import Counter
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec

from bertkit.tasks.metrics.correlation import check_lengths

WITHOUT_SACREBLEU = (
    "BLEU and chrF are left out, for sacrebleu is not installed; get it with: pip install 'bertkit[scores]'"
)


def text_scores(gold: Sequence[str], predicted: Sequence[str]) -> dict[str, float]:
    """BLEU and chrF (0 to 100, cased, sacrebleu's tokens), the share of equal texts, and the mean F1 of words."""
    check_lengths(gold, predicted)
    count = max(len(gold), 1)
    scores = {
        "exact_match": sum(a.strip() == b.strip() for a, b in zip(gold, predicted, strict=True)) / count,
        "token_f1": sum(word_f1(a, b) for a, b in zip(gold, predicted, strict=True)) / count,
    }
    return {**_sacrebleu_scores(gold, predicted), **scores}


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


def _sacrebleu_scores(gold: Sequence[str], predicted: Sequence[str]) -> dict[str, float]:
    if not has_sacrebleu():
        return {}
    import sacrebleu

    references = [list(gold)]
    bleu = sacrebleu.corpus_bleu(list(predicted), references).score
    return {"bleu": bleu, "chrf": sacrebleu.corpus_chrf(list(predicted), references).score}
