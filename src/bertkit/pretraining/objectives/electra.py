"""ELECTRA's numbers: the loss of its discriminator, the size of its generator, the scores of detection."""

from dataclasses import replace

from bertkit.config import BertConfig
from bertkit.pretraining.objectives.objective import Loss

JUDGED = Loss("rtd", "replaced tokens", weight=50.0, shown=("f1", "{:.3f}"))  # Google's weight


def generator_config(config: BertConfig, share: float) -> BertConfig:
    """ELECTRA's generator: narrower by `share` in all but depth, and on the same embedding tables."""
    heads = max(1, round(config.heads * share))
    width = heads * config.head_width
    inner = max(1, round(config.inner * share))
    return replace(config, width=width, heads=heads, inner=inner, embedding_width=config.table_width)


def detection(found: float, called: float, replaced: float) -> dict[str, float]:
    """Precision, recall and F1: replaced tokens are rare, so accuracy says little."""
    return {
        "rtd_precision": found / max(called, 1),
        "rtd_recall": found / max(replaced, 1),
        "rtd_f1": 2 * found / max(called + replaced, 1),
    }
