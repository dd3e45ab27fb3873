"""How a text becomes sequences of tokens, and a sequence one vector."""

from dataclasses import dataclass
from typing import Literal

from bertkit.config import check_at_least, check_choice
from bertkit.poolings import HeadPooling


@dataclass(frozen=True, kw_only=True)
class ReadingSettings:
    """How a text becomes sequences, and a sequence one vector."""

    max_length: int | None = None  # tokens in a sequence; None: as many as the model takes, 512 at most
    length: str | None = None  # of texts over it: head, tail, head-tail, windows, hierarchical; None: the task's own
    stride: int | None = None  # tokens that neighboring windows share; None: the policy's own
    window_pool: Literal["mean", "max"] = "mean"  # of the logits of a text's windows
    pooling: Literal["model", HeadPooling] = "model"  # model: as its family does it

    def __post_init__(self) -> None:
        check_choice(self, "pooling")
        check_choice(self, "window_pool")
        check_at_least(self, "max_length", 8)
        check_at_least(self, "stride", 0)
