"""What decides a run of `finetune vectors` besides its data: flat keys, checked at the door."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from bertkit.data.tables import Columns
from bertkit.finetuning.settings import LARGEST_SEED
from bertkit.settings import Count, Natural, NotNegative, Positive, Range, Share, check_fields, read_pairs

Objective = Literal["auto", "twins", "neighbors", "pairs", "scores", "teacher"]


@dataclass(frozen=True, kw_only=True)
class VectorTuning:
    """How vectors are tuned."""

    objective: Objective = "auto"  # auto: by what is given
    temperature: Positive = 0.05  # cosines are divided by it before a softmax
    epochs: Count = 1
    minutes: Positive | None = None  # stop after so many, if epochs have not ended before
    batch: Annotated[int, Range(2)] = 128  # texts or pairs in a step; each is compared with all others of it
    tokens: Annotated[int, Range(64)] = 65_536  # at most, in one forward pass; a larger step is split
    max_length: Annotated[int, Range(8)] = 128  # tokens of a text while training; what is longer is cut
    most: Annotated[int, Range(2)] | None = None  # texts to learn from, an equal share from each file; None: all
    learning_rate: Positive = 1e-4
    warmup: Share = 0.1  # share of all steps
    dropout: Annotated[float, Range(0, under=1)] | None = None  # None: the model's; 0.1 for twins without one
    frozen: Natural = 0  # layers from the bottom that stay as they are, tables with them
    rank: Natural = 0  # 0: all weights move; else matrices move in so few directions, and tables not at all
    evaluations: Count = 4  # in the whole run
    cache: str | None = None  # folder for the teacher's vectors; None: the run's own, until it has finished
    save_minutes: NotNegative = 10.0
    log_every: Count = 10
    seed: Annotated[int, Range(0, LARGEST_SEED)] = 0

    def __post_init__(self) -> None:
        check_fields(self)

    def flat(self) -> dict[str, Any]:
        """Every key with its value."""
        return asdict(self)


def read_vector_request(*pairs: str) -> tuple[VectorTuning, Columns]:
    """Settings and columns (`text=question`, `pair=answer`) from one list of pairs; unknown keys stop here."""
    return read_pairs(pairs, VectorTuning(), Columns())


def read_vector_settings(pairs: Sequence[str]) -> VectorTuning:
    """The settings alone."""
    return read_vector_request(*pairs)[0]
