"""Special cases of published files: layouts without a header line, rows that are excluded by convention."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from bertkit.data.tables import Row, Table

# GLUE's copy of QQP_COLUMNS has rows that were broken at a line end inside a question; everyone leaves them out.
QQP_COLUMNS = ("id", "qid1", "qid2", "question1", "question2", "is_duplicate")
NO_AGREEMENT = ("gold_label", "-")  # column and value in SNLI and MNLI where the annotators did not agree

LabelKind = Literal["name", "names", "number"]  # one of several names, any number of names, or a number


@dataclass(frozen=True)
class ColumnLayout:
    """Column numbers of a published file without a header line, and a test that recognizes its rows."""

    name: str
    kind: LabelKind  # of its labels
    text: str
    pair: str | None
    label: str
    fits: Callable[[Sequence[Row]], bool]


def is_excluded(table: Table, row: Row, label: str | None) -> bool:
    """Whether this row is left out by convention; `label` is the label column, None if labels are not read."""
    if row.fault:
        return tuple(name.casefold() for name in table.names) == QQP_COLUMNS
    name, value = NO_AGREEMENT
    return label == name and bool(row.values.get(name) == value)


def _every(rows: Sequence[Row], test: Callable[[dict[str, Any]], bool]) -> bool:
    return bool(rows) and all(test(dict(row.values)) for row in rows)


def _cola(rows: Sequence[Row]) -> bool:
    return _every(rows, lambda v: v.get("2") in ("0", "1") and v.get("3") in ("", "*") and "4" in v and "5" not in v)


def _sts_benchmark(rows: Sequence[Row]) -> bool:
    return _every(rows, lambda v: "7" in v and v["1"].startswith("main-") and _score(v["5"]))


def _scored_pairs(rows: Sequence[Row]) -> bool:
    return _every(rows, lambda v: len(v) == 3 and _score(v["1"]) and not _score(v["2"]))


def _numbered_labels(rows: Sequence[Row]) -> bool:
    return _every(rows, lambda v: len(v) == 3 and re.fullmatch(r"\d+(,\d+)*", v["2"]) is not None)


def _score(cell: str) -> bool:
    return re.fullmatch(r"\d+(\.\d+)?", cell) is not None


LAYOUTS = (
    ColumnLayout("CoLA", "name", text="4", pair=None, label="2", fits=_cola),
    ColumnLayout("STS benchmark", "number", text="6", pair="7", label="5", fits=_sts_benchmark),
    ColumnLayout("SemEval STS", "number", text="2", pair="3", label="1", fits=_scored_pairs),
    ColumnLayout("GoEmotions", "names", text="1", pair=None, label="2", fits=_numbered_labels),
)
