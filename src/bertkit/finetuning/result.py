"""The result of a fine-tuning run."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from bertkit.errors import RequestError
from bertkit.tasks.shared.decision import Decision
from bertkit.tasks.task import HeadOutputs


@dataclass(frozen=True)
class DecidedDev:
    """The head's outputs on dev and the decision layer of the saved model, for the report."""

    outputs: HeadOutputs
    decision: Decision


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
    decided: "DecidedDev | None" = field(default=None, repr=False, compare=False)  # not in result.json

    @property
    def score(self) -> float:
        """The value of `metric` on dev."""
        return self.scores[self.metric]

    def to_json(self) -> dict[str, Any]:
        """The content of result.json."""
        fields = asdict(replace(self, decided=None))
        return {"said" if name == "notes" else name: value for name, value in fields.items() if name != "decided"}


def result_from_json(content: Mapping[str, Any]) -> FineTuned:
    """The inverse of `FineTuned.to_json`."""
    try:
        fields = {name: value for name, value in content.items() if name != "said"}
        return FineTuned(**fields, notes=tuple(content["said"]))
    except (KeyError, TypeError) as error:
        raise RequestError(f"result.json is not as bertkit writes it ({error}); name another folder") from error
