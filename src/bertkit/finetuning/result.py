"""What came of a fine-tuning run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bertkit.errors import RequestError


@dataclass(frozen=True, kw_only=True)
class FineTuned:
    """What came of a run; the same numbers are in its result.json."""

    task: str
    metric: str  # the one that chose the best step
    scores: Mapping[str, float]  # on dev, each half decided by what the other half fitted
    plain: Mapping[str, float]  # on dev, without a decision layer
    calibration: Mapping[str, float]  # expected calibration error before and after the temperature, as in `scores`
    best_step: int
    steps: int
    finished: bool  # False: somebody asked to stop, and this is the best so far
    said: tuple[str, ...]  # what was guessed, cut and fitted
    collapsed: str | None = None  # a sentence with the remedy where nothing was learned

    @property
    def score(self) -> float:
        """The watched metric on dev."""
        return self.scores[self.metric]


def result_from_json(content: Mapping[str, Any]) -> FineTuned:
    """The result that result.json holds."""
    try:
        return FineTuned(**{**content, "said": tuple(content["said"])})
    except (KeyError, TypeError) as error:
        raise RequestError(f"result.json is not as bertkit writes it ({error}); name another folder") from error
