"""How a text becomes sequences of tokens, and a sequence one vector."""

from dataclasses import dataclass
from typing import Annotated, Literal

from bertkit.poolings import HeadPooling
from bertkit.settings import Natural, Range, check_fields


@dataclass(frozen=True, kw_only=True)
class ReadingSettings:
    """How a text becomes sequences, and a sequence one vector."""

    max_length: Annotated[int, Range(8)] | None = None  # tokens in a sequence; None: the model's, 512 at most
    length: str | None = None  # of texts over it: head, tail, head-tail, windows, hierarchical; None: the task's own
    stride: Natural | None = None  # tokens that neighboring windows share; None: the policy's own
    window_pool: Literal["mean", "max"] = "mean"  # of the logits of a text's windows
    pooling: Literal["model", HeadPooling] = "model"  # model: as its family does it

    def __post_init__(self) -> None:
        check_fields(self)
