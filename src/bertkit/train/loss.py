"""Names, titles and weights of losses."""

from dataclasses import dataclass

PERPLEXITY = ("perplexity", "{:,.1f}")  # metric, format


@dataclass(frozen=True)
class Loss:
    """One loss of a training run; `name` is its key in metrics.jsonl."""

    name: str
    title: str  # in reports
    weight: float = 1.0
    shown: tuple[str, str] | None = None  # the held-out metric shown beside the progress bar, and its format

    @property
    def has_perplexity(self) -> bool:
        """Whether the loss is in nats per word."""
        return self.shown == PERPLEXITY
