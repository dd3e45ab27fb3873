"""TASKS: the tasks by name. A new task is a line here, a row in `rows/` and an implementation."""

from collections.abc import Mapping
from types import MappingProxyType

from bertkit.tasks.row import TaskRow
from bertkit.tasks.rows.answer import AnswerRow
from bertkit.tasks.rows.choose import ChooseRow
from bertkit.tasks.rows.classify import ClassifyRow
from bertkit.tasks.rows.multilabel import MultilabelRow
from bertkit.tasks.rows.rank import RankRow
from bertkit.tasks.rows.rate_words import RateWordsRow
from bertkit.tasks.rows.regress import RegressRow
from bertkit.tasks.rows.tag import TagRow
from bertkit.tasks.rows.write import WriteRow

# In the order of lists for users. If the task of a file is not named, it is the last row here that fits the file.
ROWS: tuple[TaskRow, ...] = (
    ClassifyRow(),
    MultilabelRow(),
    RegressRow(),
    TagRow(),
    AnswerRow(),
    ChooseRow(),
    RankRow(),
    RateWordsRow(),
    WriteRow(),
)
TASKS: Mapping[str, TaskRow] = MappingProxyType({row.name: row for row in ROWS})


def routes() -> dict[str, list[TaskRow]]:
    """The tasks of each route of the server, which is also a method of Bert and Client."""
    tasks: dict[str, list[TaskRow]] = {}
    for row in ROWS:
        tasks.setdefault(row.route, []).append(row)
    return tasks


def task_heads() -> tuple[str, ...]:
    """The heads of all tasks, without repetitions."""
    return tuple(dict.fromkeys(row.head for row in ROWS))
