"""A yardstick scores a model that was not fine-tuned, on a file that it recognizes by the file's columns."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from bertkit.data.tables import Columns, open_table
from bertkit.errors import RequestError
from bertkit.predict.bert import Bert
from bertkit.settings import pick

# In the order in which files are tried: name -> module and class in this package.
YARDSTICKS = {
    "minimal-pairs": "minimal_pairs:MinimalPairs",
    "blanks": "blanks:BlankTexts",
    "similarity": "similarity:Similarity",
    "retrieval": "retrieval:Retrieval",
    "clustering": "clustering:Clustering",
    "glue": "glue:Glue",
}


@dataclass(frozen=True)
class RowScore:
    """What a model got on one row; rows of a group are averaged first, so that large groups do not count more."""

    values: Mapping[str, Any]  # numbers, unless the yardstick has a `total` of its own
    group: str = ""


class Yardstick(ABC):
    """The protocol of every yardstick."""

    name: ClassVar[str]
    metric: ClassVar[str]  # the main one
    columns: ClassVar[str]  # which columns a file has, in words
    reads_folders: ClassVar[bool] = False
    seeds: int = 0  # how many, where chance decides; 0: nothing is drawn

    @abstractmethod
    def read(self, path: Path, columns: Columns) -> list[Any]:
        """The rows of a file; a file of another kind is refused."""

    @abstractmethod
    def ask(self, bert: Bert, rows: Sequence[Any]) -> list[RowScore]:
        """Ask the model about each row."""

    def note(self, bert: Bert, rows: Sequence[Any]) -> str:
        """How this model is asked, where there are several ways; what of the file was left out."""
        return ""

    def total(self, scores: Sequence[RowScore]) -> dict[str, float]:
        """The metrics: means over rows, then over groups."""
        groups: dict[str, list[RowScore]] = {}
        for score in scores:
            groups.setdefault(score.group, []).append(score)
        return {
            name: _mean([_mean([row.values[name] for row in rows]) for rows in groups.values()])
            for name in scores[0].values
        }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def yardstick(name: str, seeds: int | None = None) -> Yardstick:
    """The yardstick of this name, by default with its own number of seeds."""
    module, _, row = pick(YARDSTICKS, name, "yardstick").partition(":")
    found: Yardstick = getattr(import_module(f"bertkit.evaluation.{module}"), row)()
    if seeds is not None:
        found.seeds = _checked_seeds(found, seeds)
    return found


def _checked_seeds(row: Yardstick, seeds: int) -> int:
    if not row.seeds or seeds < 1:
        raise RequestError(
            f"seeds={seeds}: {f'{row.name} draws nothing; leave it out' if seeds > 0 else 'give one at least'}"
        )
    return seeds


def recognized(path: Path, columns: Columns, seeds: int | None = None) -> tuple[Yardstick, list[Any]]:
    """The first yardstick that can read the file or folder, and its rows."""
    is_folder = path.is_dir()
    names = [] if is_folder else open_table(path, columns).names
    rows = {name: yardstick(name) for name in YARDSTICKS}
    for row in rows.values():
        try:
            if row.reads_folders or not is_folder:
                read = row.read(path, columns)
                return (row if seeds is None else yardstick(row.name, seeds)), read
        except OtherColumns:
            continue
    wanted = "; ".join(f"{name}: {row.columns}" for name, row in rows.items() if row.reads_folders or not is_folder)
    if is_folder:
        raise RequestError(f"{path} is not a folder that a model can be scored on; such folders are: {wanted}")
    raise RequestError(
        f"{path} has the columns {', '.join(names)}, and this model was not fine-tuned for a task; "
        f"such a model is scored on files with these columns: {wanted}"
    )


class OtherColumns(RequestError):
    """The file is not one for this yardstick."""


def texts_of(path: Path, columns: Columns, names: Sequence[str], group: str) -> list[tuple[str, ...]]:
    """The cells of these columns, and last the one of `group`, or ""; an empty cell is refused with its line."""
    table = open_table(path, columns)
    if not set(names) <= set(table.names):
        raise OtherColumns(f"{path} has the columns {', '.join(table.names)}; needed are {', '.join(names)}")
    found = []
    for row in table.rows:
        cells = [row.values.get(name) for name in names]
        if row.fault or any(cell is None or not str(cell).strip() for cell in cells):
            raise RequestError(f"{row.location}: {row.fault or 'a cell is empty; fill it in, or remove the row'}")
        found.append((*map(str, cells), str(row.values.get(group, ""))))
    return found
