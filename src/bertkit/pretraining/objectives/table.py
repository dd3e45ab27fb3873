"""The table of pre-training objectives, importable without torch. A new objective is a file and a line here."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from bertkit.errors import RequestError
from bertkit.pretraining.objectives.bilm import BidirectionalLanguageModel
from bertkit.pretraining.objectives.causal import CausalLanguageModel
from bertkit.pretraining.objectives.fill import Fill
from bertkit.pretraining.objectives.mlm import MaskedLanguageModel
from bertkit.pretraining.objectives.nsp import NextSentence
from bertkit.pretraining.objectives.objective import Objective
from bertkit.pretraining.objectives.rtd import ReplacedTokenDetection
from bertkit.pretraining.objectives.sbo import SpanBoundary
from bertkit.pretraining.objectives.sop import SentenceOrder
from bertkit.train.loss import Loss

ROWS: tuple[Objective, ...] = (
    MaskedLanguageModel(),
    ReplacedTokenDetection(),
    CausalLanguageModel(),
    BidirectionalLanguageModel(),
    Fill(),
    NextSentence(),
    SentenceOrder(),
    SpanBoundary(),
)
OBJECTIVES: Mapping[str, Objective] = MappingProxyType({row.name: row for row in ROWS})
LOSSES: Mapping[str, Loss] = MappingProxyType({loss.name: loss for row in ROWS for loss in row.losses})


def objective_names(kind: str | None = None) -> tuple[str, ...]:
    """The names of all objectives, or of one kind."""
    return tuple(row.name for row in ROWS if kind in (None, row.kind))


def objective_rows(names: Sequence[str]) -> tuple[Objective, ...]:
    """The rows of these names in the order of the table, in which heads are initialized."""
    return tuple(row for row in ROWS if row.name in names)


def token_row(names: Sequence[str]) -> Objective:
    """The objective that predicts tokens."""
    return next(row for row in objective_rows(names) if row.kind == "tokens")


def check_objective(names: Sequence[str]) -> None:
    """Refuse combinations without exactly one token objective, with several on pairs, or with a missing requirement."""
    listed = ", ".join(names)
    for name in names:
        if name not in OBJECTIVES:
            raise RequestError(f"objective={name} is unknown; choose from: {', '.join(OBJECTIVES)}")
    rows = objective_rows(names)
    tokens, pairs = ([row for row in rows if row.kind == kind] for kind in ("tokens", "pair"))
    problems = {
        "names one of them twice": len(set(names)) != len(names),
        f"needs exactly one of: {', '.join(objective_names('tokens'))}": len(tokens) != 1,
        f"asks two questions about each pair; choose {' or '.join(objective_names('pair'))}": len(pairs) > 1,
    }
    problems |= {row.no_pair_reason: bool(pairs) for row in tokens if row.no_pair_reason}
    problems |= {row.needs_reason: row.needs is not None and row.needs not in names for row in rows if row.needs}
    for problem, applies in problems.items():
        if applies:
            raise RequestError(f"objective={listed} {problem}")
