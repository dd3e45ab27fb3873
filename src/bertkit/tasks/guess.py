"""Which task a file is for, where nobody said."""

from pathlib import Path

from bertkit.data.tables import Columns, open_table
from bertkit.errors import RequestError
from bertkit.tasks.table import TASKS


def guess_task(path: Path, columns: Columns | None = None) -> str:
    """A name in TASKS, from the ending, the columns and the labels; rows that are more particular come later there."""
    columns = columns or Columns()
    ordered = list(TASKS.values())[::-1]
    for row in ordered:
        if row.fits_file(path, columns):
            return row.name
    table = open_table(path, columns)
    rows = [row for row in table.sample if not row.fault]
    if not rows:
        raise RequestError(table.sample[0].fault)
    return next(row.name for row in ordered if row.fits_table(table, rows, columns))
