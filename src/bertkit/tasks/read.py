"""Labeled files to examples: every format for every task; a guess is reported in one sentence."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from bertkit.data.examples import Example
from bertkit.data.glue import leaves_out
from bertkit.data.tables import Columns, Row, Table, ending, made_examples, open_table
from bertkit.data.texts import beside_names, by_name
from bertkit.errors import RequestError
from bertkit.settings import pick
from bertkit.tasks.row import TaskRow
from bertkit.tasks.table import TASKS


@dataclass(frozen=True)
class ExampleFile:
    """A file that was read: its examples, the columns that were used, one sentence on what was guessed."""

    examples: list[Example]
    columns: Columns
    summary: str
    names: tuple[str, ...] = ()  # of labels.txt, where it named the labels
    header: bool | None = None  # whether a first line named the columns


def read_examples(
    task: str,
    path: Path,
    columns: Columns | None = None,
    *,
    labeled: bool = True,
    names: tuple[str, ...] | None = None,
) -> ExampleFile:
    """Every example of a file; the first row that cannot be used stops with its place and a remedy.

    Without `labeled` the labels need not be there and are not read. `names` are those of numbered labels: of the
    training file's for its dev file; None: of a labels.txt beside the file, where they fit.
    """
    return _read(pick(TASKS, task, "task"), Path(path), columns or Columns(), labeled, None, names)


def scan_examples(
    task: str,
    path: Path,
    columns: Columns | None,
    faults: list[str],
    *,
    labeled: bool = True,
    names: tuple[str, ...] | None = None,
) -> ExampleFile:
    """As `read_examples`, but rows that cannot be used are left out and their sentences put into `faults`."""
    return _read(pick(TASKS, task, "task"), Path(path), columns or Columns(), labeled, faults, names)


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


def columns_for_dev(train: Path, dev: Path, found: ExampleFile, given: Columns | None) -> Columns | None:
    """What was found in the training file holds for a dev file of the same kind; other kinds name things otherwise."""
    return replace(found.columns, header=found.header) if ending(dev) == ending(train) else given


def _read(
    task: TaskRow,
    path: Path,
    columns: Columns,
    labeled: bool,
    faults: list[str] | None,
    names: tuple[str, ...] | None,
) -> ExampleFile:
    table = _open(task, path, columns, labeled)
    if all(row.fault for row in table.sample):
        raise RequestError(table.sample[0].fault)
    used, make = task.maker(table, columns, labeled)
    left_out: list[Row] = []
    examples = made_examples(_kept(table, used.label, left_out), lambda row: _example(row, make), faults)
    notes = [*table.notes]
    notes += [f"{len(left_out)} rows left out as is usual, the first at {left_out[0].place}"] if left_out else []
    if labeled:
        examples, split = task.split_labels(examples, used, faults)
        notes += [f"labels split at '{split.separator}'"] if split is not used else []
        used = split
    if task.labeled and labeled:
        names = beside_names(path, examples) if names is None else names
        examples = by_name(examples, names) if names else examples
        notes += ["named by labels.txt"] if names else []
    if labeled and faults is None:
        task.check(examples)
    if not examples and not faults:
        raise RequestError(f"{path} holds no examples; give a file with at least one")
    counts = ", ".join([*task.counts(examples, labeled), *notes])
    return ExampleFile(examples, used, f"{path}: {used} ({counts})", names or (), table.header)


def _open(task: TaskRow, path: Path, columns: Columns, labeled: bool) -> Table:
    if not path.is_file():
        what = "is a folder, not a file" if path.is_dir() else "does not exist"
        raise RequestError(f"{path} {what}; check the spelling and the working folder")
    return open_table(path, columns, format=task.format(path), labeled=labeled)


def _kept(table: Table, label: str | None, left_out: list[Row]) -> Iterable[Row]:
    for row in table.rows:
        if leaves_out(table, row, label):
            left_out.append(row)
        else:
            yield row


def _example(row: Row, make: Callable[[Row], Example]) -> Example:
    if row.fault:
        raise RequestError(row.fault)
    return make(row)
