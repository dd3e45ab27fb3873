"""Files to examples, for every task and format; what was guessed about a file is reported in its summary."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from bertkit.data.columns import MakeExample, with_trained
from bertkit.data.examples import Example
from bertkit.data.glue import is_excluded
from bertkit.data.parallel import parallel_files
from bertkit.data.tables import COLUMN_ROLES, Columns, Row, Table, ending, made_examples, open_table
from bertkit.data.texts import names_from_labels_txt, replace_label_numbers
from bertkit.errors import RequestError
from bertkit.settings import pick
from bertkit.tasks.row import TaskRow
from bertkit.tasks.table import TASKS


@dataclass(frozen=True)
class ExampleFile:
    """The examples of a file, the columns that were read, and a summary with what was guessed."""

    examples: list[Example]
    columns: Columns
    summary: str
    names: tuple[str, ...] = ()  # label names from labels.txt, if the labels are numbers
    header: bool | None = None  # whether the file has a header line

    @property
    def roles(self) -> dict[str, str]:
        """The names of the columns by their role; empty where columns have no names."""
        roles = {role: getattr(self.columns, role) for role in COLUMN_ROLES}
        return {role: name for role, name in roles.items() if name} if self.header else {}


def read_examples(
    task: str,
    path: Path,
    columns: Columns | None = None,
    *,
    labeled: bool = True,
    names: tuple[str, ...] | None = None,
    trained: Mapping[str, str] = MappingProxyType({}),
) -> ExampleFile:
    """All examples of a file; an invalid row raises RequestError with its location and a remedy.

    Labels are not read unless `labeled`. `names` are the names of numbered labels (for a dev file those of the training
    file); None: from a labels.txt beside the file, if it fits. `trained` are the columns of the training file by role.
    """
    return _read(pick(TASKS, task, "task"), Path(path), columns or Columns(), labeled, None, names, trained)


def scan_examples(
    task: str,
    path: Path,
    columns: Columns | None,
    faults: list[str],
    *,
    labeled: bool = True,
    names: tuple[str, ...] | None = None,
) -> ExampleFile:
    """As `read_examples`, but invalid rows are left out, and their messages are appended to `faults`."""
    return _read(pick(TASKS, task, "task"), Path(path), columns or Columns(), labeled, faults, names)


def guess_task(path: Path, columns: Columns | None = None) -> str:
    """The task of a file, guessed from its ending, columns and labels: the last of TASKS that fits."""
    columns = columns or Columns()
    tasks = list(TASKS.values())[::-1]
    for task in tasks:
        if task.fits_file(path, columns):
            return task.name
    table = open_table(path, columns)
    rows = [row for row in table.sample if not row.fault]
    if not rows:
        raise RequestError(table.sample[0].fault)
    return next(task.name for task in tasks if task.fits_table(table, rows, columns))


def columns_for_dev(train: Path, dev: Path, train_file: ExampleFile, columns: Columns | None) -> Columns | None:
    """The columns of a dev file: those recognized in the training file if both have the same ending, else as named."""
    return replace(train_file.columns, header=train_file.header) if ending(dev) == ending(train) else columns


def data_checksum(path: Path) -> str:
    """The SHA-256 of a file of examples, or of both files of a pair such as captions.{en,de}."""
    digest = hashlib.sha256()
    for file in parallel_files(path) or (path,):
        with file.open("rb") as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    return digest.hexdigest()


def _read(
    task: TaskRow,
    path: Path,
    columns: Columns,
    labeled: bool,
    faults: list[str] | None,
    names: tuple[str, ...] | None,
    trained: Mapping[str, str] = MappingProxyType({}),
) -> ExampleFile:
    table = _open(task, path, columns, labeled)
    if all(row.fault for row in table.sample):
        raise RequestError(table.sample[0].fault)
    used, make = task.reader(table, with_trained(table, columns, trained), labeled)
    left_out: list[Row] = []
    examples = made_examples(_without_excluded(table, used.label, left_out), lambda row: _example(row, make), faults)
    examples = task.grouped(examples)
    notes = [*table.notes]
    notes += [f"{len(left_out)} rows left out as is usual, the first at {left_out[0].location}"] if left_out else []
    if labeled:
        examples, split = task.split_labels(examples, used, faults)
        notes += [f"labels split at '{split.separator}'"] if split is not used else []
        used = split
    if task.labeled and labeled:
        names = names_from_labels_txt(path, examples) if names is None else names
        examples = replace_label_numbers(examples, names) if names else examples
        notes += ["named by labels.txt"] if names else []
    if labeled and faults is None:
        task.check(examples)
    if not examples and not faults:
        raise RequestError(f"{path} holds no examples; give a file with at least one")
    counts = ", ".join([*task.counts(examples, labeled), *notes])
    return ExampleFile(examples, used, f"{path}: {used} ({counts})", names or (), table.header)


def _open(task: TaskRow, path: Path, columns: Columns, labeled: bool) -> Table:
    for each in (path,) if path.exists() else parallel_files(path) or (path,):
        if not each.is_file():
            what = "is a folder, not a file" if each.is_dir() else "does not exist"
            raise RequestError(f"{each} {what}; check the spelling and the working folder")
    return open_table(path, columns, format=task.format(path), labeled=labeled)


def _without_excluded(table: Table, label: str | None, left_out: list[Row]) -> Iterable[Row]:
    """The rows that are not excluded by convention; excluded ones are appended to `left_out`."""
    for row in table.rows:
        if is_excluded(table, row, label):
            left_out.append(row)
        else:
            yield row


def _example(row: Row, make: MakeExample) -> Example:
    if row.fault:
        raise RequestError(row.fault)
    return make(row)
