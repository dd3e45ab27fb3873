"""The result of a fine-tuning run."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from bertkit.errors import RequestError
from bertkit.tasks.metrics.intervals import Interval
from bertkit.tasks.shared.decision import Decision
from bertkit.tasks.task import HeadOutputs


@dataclass(frozen=True)
class DecidedDev:
    """The head's outputs on dev and the decision layer of the saved model, for the report."""

    outputs: HeadOutputs
    decision: Decision


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """The scores of the saved model on test examples, which had no part in any choice."""

    examples: int
    scores: Mapping[str, float]
    intervals: Mapping[str, Interval]


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
    examples: int = 0  # of dev
    intervals: Mapping[str, Interval] = field(default_factory=dict)  # 95 %, of `scores`
    test: HeldOut | None = None
    chosen_on_dev: bool = False  # whether dev also chose the weights, so that its scores are too good
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
        fields = {name: value for name, value in content.items() if name not in ("said", "intervals", "test")}
        intervals, test = _intervals(content.get("intervals")), content.get("test")
        held_out = HeldOut(**{**test, "intervals": _intervals(test["intervals"])}) if test else None
        return FineTuned(**fields, intervals=intervals, test=held_out, notes=tuple(content["said"]))
    except (KeyError, TypeError) as error:
        raise RequestError(f"result.json is not as bertkit writes it ({error}); name another folder") from error


def _intervals(content: Mapping[str, list[float]] | None) -> dict[str, Interval]:
    return {name: (low, high) for name, (low, high) in (content or {}).items()}
