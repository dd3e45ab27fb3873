"""The tasks by name. A new task is a row here, and a file or two of its own."""

from collections.abc import Mapping
from types import MappingProxyType

from bertkit.tasks.row import TaskRow
from bertkit.tasks.rows.answer import AnswerRow
from bertkit.tasks.rows.choose import ChooseRow
from bertkit.tasks.rows.classify import ClassifyRow
from bertkit.tasks.rows.multilabel import MultilabelRow
from bertkit.tasks.rows.rate_words import RateWordsRow
from bertkit.tasks.rows.regress import RegressRow
from bertkit.tasks.rows.tag import TagRow

# In the order in which they are listed. A file whose task nobody named is for the last row that it fits.
ROWS: tuple[TaskRow, ...] = (
    ClassifyRow(),
    MultilabelRow(),
    RegressRow(),
    TagRow(),
    AnswerRow(),
    ChooseRow(),
    RateWordsRow(),
)
TASKS: Mapping[str, TaskRow] = MappingProxyType({row.name: row for row in ROWS})


def routes() -> dict[str, list[TaskRow]]:
    """The routes of the server, which are the methods of Bert and Client, with the tasks that answer there."""
    found: dict[str, list[TaskRow]] = {}
    for row in ROWS:
        found.setdefault(row.route, []).append(row)
    return found


def task_heads() -> tuple[str, ...]:
    """The heads that tasks have, each once."""
    return tuple(dict.fromkeys(row.head for row in ROWS))
