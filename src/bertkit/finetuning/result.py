"""The result of a fine-tuning run."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from bertkit.errors import RequestError


@dataclass(frozen=True, kw_only=True)
class FineTuned:
    """The result of a run, as in its result.json."""

    task: str
    metric: str  # that chose the best step
    scores: Mapping[str, float]  # on dev; each half with the decision layer fitted on the other half
    plain: Mapping[str, float]  # on dev, without a decision layer
    calibration: Mapping[str, float]  # expected calibration error before and after the temperature
    best_step: int
    steps: int
    finished: bool  # False: stopped on request; the model is the best so far
    notes: tuple[str, ...]  # what was guessed, truncated and fitted; "said" in JSON
    collapsed: str | None = None  # a message with a remedy if the model learned nothing

    @property
    def score(self) -> float:
        """The value of `metric` on dev."""
        return self.scores[self.metric]

    def to_json(self) -> dict[str, Any]:
        """The content of result.json."""
        return {"said" if name == "notes" else name: value for name, value in asdict(self).items()}


def result_from_json(content: Mapping[str, Any]) -> FineTuned:
    """The inverse of `FineTuned.to_json`."""
    try:
        fields = {name: value for name, value in content.items() if name != "said"}
        return FineTuned(**fields, notes=tuple(content["said"]))
    except (KeyError, TypeError) as error:
        raise RequestError(f"result.json is not as bertkit writes it ({error}); name another folder") from error
