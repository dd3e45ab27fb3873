"""The settings of `finetune vectors`, given as flat keys and validated on construction."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from bertkit.data.tables import Columns
from bertkit.errors import RequestError
from bertkit.finetuning.settings import LARGEST_SEED
from bertkit.settings import Count, Natural, NotNegative, Positive, Range, Share, check_fields, read_pairs

TOKENS = {"cuda": 65_536, "cpu": 8_192}  # by device; of 16,384 tokens, MiniLM takes 6 GiB on the CPU
Objective = Literal["auto", "twins", "neighbors", "pairs", "scores", "cosent", "teacher"]


@dataclass(frozen=True, kw_only=True)
class VectorTuning:
    """Settings of a run that tunes embeddings."""

    objective: Objective = "auto"  # auto: by the data and the teacher
    vectors: Literal["dense", "sparse", "late"] = "dense"  # a row of kinds.KINDS
    temperature: Positive | None = None  # scores are divided by it before a softmax; None: 0.05 of cosines, else 1
    flops: NotNegative = 1e-4  # of vectors=sparse: weight of the penalty that makes them sparse
    projection: Count = 128  # of vectors=late: numbers in the vector of a token
    epochs: Count = 1
    minutes: Positive | None = None  # time limit of the run
    batch: Annotated[int, Range(2)] = 128  # texts or pairs in a step; all are compared with each other
    tokens: Annotated[int, Range(64)] | None = None  # at most in one forward pass; None: see TOKENS
    max_length: Annotated[int, Range(8)] = 128  # tokens of a text in training; longer texts are cut
    most: Annotated[int, Range(2)] | None = None  # texts to learn from, an equal share from each file; None: all
    learning_rate: Positive = 1e-4
    warmup: Share = 0.1  # fraction of all steps
    dropout: Annotated[float, Range(0, under=1)] | None = None  # None: the model's; 0.1 for twins without one
    frozen: Natural = 0  # number of lowest layers that are not trained; then the embedding tables are not, either
    rank: Natural = 0  # of low-rank updates; embedding tables are frozen then. 0: all weights are trained
    evaluations: Count = 4  # in the whole run
    dimensions: tuple[int, ...] = ()  # so many leading numbers of a vector are trained as vectors, too (Matryoshka)
    cache: str | None = None  # folder for the teacher's vectors; None: the run's, where they are removed at its end
    save_minutes: NotNegative = 10.0
    log_every: Count = 10
    seed: Annotated[int, Range(0, LARGEST_SEED)] = 0

    def __post_init__(self) -> None:
        check_fields(self)
        if not all(count > 0 for count in self.dimensions):
            raise RequestError(f"dimensions={_listed(self.dimensions)} must be at least 1 each, such as 256,128,64")

    def prefixes(self, width: int) -> tuple[int, ...]:
        """The prefixes that are trained besides vectors of the full `width`, longest first."""
        if any(count > width for count in self.dimensions):
            raise RequestError(f"dimensions={_listed(self.dimensions)} are more than the model's {width}; give fewer")
        return tuple(sorted({count for count in self.dimensions if count < width}, reverse=True))

    def flat(self) -> dict[str, Any]:
        """Every key with its value."""
        return asdict(self)


def _listed(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


def read_vector_request(*pairs: str) -> tuple[VectorTuning, Columns]:
    """Settings and columns (`text=question`, `pair=answer`) from one list of pairs; unknown keys are refused."""
    return read_pairs(pairs, VectorTuning(), Columns())
