"""What decides a run of `finetune vectors` besides its data: flat keys, checked at the door."""

import typing
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from bertkit.config import cast_setting, pick
from bertkit.data.columns import named_columns
from bertkit.data.tables import Columns
from bertkit.errors import RequestError
from bertkit.finetuning.settings import LARGEST_SEED

Objective = Literal["auto", "twins", "neighbors", "pairs", "scores", "teacher"]


@dataclass(frozen=True, kw_only=True)
class VectorTuning:
    """How vectors are tuned."""

    objective: Objective = "auto"  # auto: by what is given
    temperature: float = 0.05  # cosines are divided by it before a softmax
    epochs: int = 1
    minutes: float | None = None  # stop after so many, if epochs have not ended before
    batch: int = 128  # texts or pairs in a step; each is compared with all others of it
    tokens: int = 65_536  # at most so many go through the model at once; a larger step falls into parts
    max_length: int = 128  # tokens of a text while training; what is longer is cut
    most: int | None = None  # texts to learn from, an equal share from each file; None: all
    learning_rate: float = 1e-4
    warmup: float = 0.1  # share of all steps
    dropout: float | None = None  # None: the model's own, but 0.1 for twins of a model without
    frozen: int = 0  # layers from the bottom that stay as they are, tables with them
    rank: int = 0  # 0: all weights move; else matrices move in so few directions, and tables not at all
    evaluations: int = 4  # in the whole run
    cache: str | None = None  # folder for the teacher's vectors; None: the run's own, until it has finished
    save_minutes: float = 10.0
    log_every: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        pick(dict.fromkeys(typing.get_args(Objective)), self.objective, "objective")
        least = {"epochs": 1, "batch": 2, "tokens": 64, "max_length": 8, "most": 2, "evaluations": 1, "log_every": 1}
        least |= {"frozen": 0, "rank": 0, "seed": 0}
        if self.seed > LARGEST_SEED:
            raise RequestError(f"seed={self.seed} must be from 0 to {LARGEST_SEED}")
        for name, bound in least.items():
            value = getattr(self, name)
            _require(value is None or value >= bound, name, value, f"must be at least {bound}")
        for name in ("temperature", "learning_rate", "minutes"):
            value = getattr(self, name)
            _require(value is None or 0 < value < float("inf"), name, value, "must be over 0")
        _require(0 <= self.warmup <= 1, "warmup", self.warmup, "must be from 0 to 1")
        _require(self.save_minutes >= 0, "save_minutes", self.save_minutes, "must be at least 0")
        _require(self.dropout is None or 0 <= self.dropout < 1, "dropout", self.dropout, "must be from 0 to under 1")

    def flat(self) -> dict[str, Any]:
        """Every key with its value."""
        return asdict(self)


def read_vector_request(*pairs: str) -> tuple[VectorTuning, Columns]:
    """Settings and columns (`text=question`, `pair=answer`) from one list of pairs; unknown keys stop here."""
    kinds, columns = typing.get_type_hints(VectorTuning), [field.name for field in fields(Columns)]
    changes, named = {}, []
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise RequestError(f"'{pair}' is not of the form key=value")
        pick(dict.fromkeys([*kinds, *columns]), name, "setting")
        if name in columns:
            named.append(pair)
        else:
            changes[name] = cast_setting(name, text, kinds[name])
    return replace(VectorTuning(), **changes), named_columns(named)


def read_vector_settings(pairs: Sequence[str]) -> VectorTuning:
    """The settings alone."""
    return read_vector_request(*pairs)[0]


def _require(condition: bool, name: str, value: object, rule: str) -> None:
    if not condition:
        raise RequestError(f"{name}={value} {rule}")
