"""What is known of a loss besides its arithmetic."""

from dataclasses import dataclass

PERPLEXITY = ("perplexity", "{:,.1f}")


@dataclass(frozen=True)
class Loss:
    """One loss of a training run, under its name in metrics.jsonl."""

    name: str
    title: str  # in reports
    weight: float = 1.0
    shown: tuple[str, str] | None = None  # the held-out number on the progress line, and its format

    @property
    def has_perplexity(self) -> bool:
        """Whether it is in nats per word."""
        return self.shown == PERPLEXITY
