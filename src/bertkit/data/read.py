"""Labeled files to examples: every format for every task, with what was guessed said in one sentence."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from bertkit.data.choices import choice_maker
from bertkit.data.conll import open_conll, open_conllu
from bertkit.data.examples import LABELED, TASKS, Example, QuestionExample, TaggedExample
from bertkit.data.glue import leaves_out
from bertkit.data.schemes import check_tags, recognize
from bertkit.data.squad import open_squad, question_maker
from bertkit.data.tables import Columns, NoLabels, Row, Table, ending, open_table
from bertkit.data.tagged import tagged_maker
from bertkit.data.texts import beside_names, label_names, rename, separator_of, split_label, text_maker
from bertkit.errors import RequestError
from bertkit.settings import pick

__all__ = ["Columns", "ExampleFile", "NoLabels", "columns_for_dev", "read_examples", "scan_examples"]

TABLES_OF_SENTENCES = (".jsonl", ".ndjson", ".parquet")  # other endings are CoNLL columns when the task is tag
Item = TypeVar("Item")


@dataclass(frozen=True)
class ExampleFile:
    """A file that was read: its examples, the columns that were used, one sentence on what was guessed."""

    examples: list[Example]
    columns: Columns
    said: str
    names: tuple[str, ...] = ()  # of labels.txt, where it named the labels
    header: bool | None = None  # whether a first line named the columns


def read_examples(
    task: str,
    path: Path,
    columns: Columns | None = None,
    *,
    labelled: bool = True,
    names: tuple[str, ...] | None = None,
) -> ExampleFile:
    """Every example of a file; the first row that cannot be used stops with its place and a remedy.

    Without `labelled` the labels need not be there and are not read. `names` are those of numbered labels: of the
    training file's for its dev file; None: of a labels.txt beside the file, where they fit.
    """
    return _read(task, Path(path), columns or Columns(), labelled, None, names)


def scan_examples(
    task: str,
    path: Path,
    columns: Columns | None,
    faults: list[str],
    *,
    labelled: bool = True,
    names: tuple[str, ...] | None = None,
) -> ExampleFile:
    """As `read_examples`, but rows that cannot be used are left out and their sentences put into `faults`."""
    return _read(task, Path(path), columns or Columns(), labelled, faults, names)


def columns_for_dev(train: Path, dev: Path, found: ExampleFile, given: Columns | None) -> Columns | None:
    """What was found in the training file holds for a dev file of the same kind; other kinds name things otherwise."""
    return replace(found.columns, header=found.header) if ending(dev) == ending(train) else given


def _read(
    task: str,
    path: Path,
    columns: Columns,
    labelled: bool,
    faults: list[str] | None,
    names: tuple[str, ...] | None,
) -> ExampleFile:
    pick(dict.fromkeys(TASKS), task, "task")
    table = _open(task, path, columns, labelled)
    if all(row.fault for row in table.sample):
        raise RequestError(table.sample[0].fault)
    used, make = _maker(task, table, columns, labelled)
    left_out: list[Row] = []
    examples = _made(_kept(table, used.label, left_out), lambda row: _example(row, make), faults)
    notes = [*table.said]
    notes += [f"{len(left_out)} rows left out as is usual, the first at {left_out[0].place}"] if left_out else []
    if task in ("classify", "multilabel") and labelled:
        examples, used = _split_labels(task, examples, used, faults)
        notes += [f"labels split at '{used.separator}'"] if used.separator and task == "multilabel" else []
    if task in LABELED and labelled:
        names = beside_names(path, examples) if names is None else names
        examples = [rename(example, names) for example in examples] if names else examples
        notes += ["named by labels.txt"] if names else []
    if task == "tag" and labelled and faults is None:
        _refuse_broken_tags(examples)
    if not examples and not faults:
        raise RequestError(f"{path} holds no examples; give a file with at least one")
    counts = ", ".join([*_counts(task, examples, labelled), *notes])
    return ExampleFile(examples, used, f"{path}: {used} ({counts})", names or (), table.header)


def _open(task: str, path: Path, columns: Columns, labelled: bool) -> Table:
    if not path.is_file():
        what = "is a folder, not a file" if path.is_dir() else "does not exist"
        raise RequestError(f"{path} {what}; check the spelling and the working folder")
    if task == "tag" and ending(path) == ".conllu":
        return open_conllu(path, columns, labelled)
    if task == "tag" and ending(path) not in TABLES_OF_SENTENCES:
        return open_conll(path, columns, labelled)
    if task == "answer" and ending(path) == ".json":
        return open_squad(path, columns)
    return open_table(path, columns)


def _maker(task: str, table: Table, columns: Columns, labelled: bool) -> tuple[Columns, Callable[[Row], Example]]:
    if task == "tag":
        if ending(table.path) not in TABLES_OF_SENTENCES:  # CoNLL: its columns were picked while opening
            columns = replace(columns, text=table.names[0], label=table.names[-1] if labelled else None)
        return tagged_maker(table, columns, labelled)
    if task == "answer":
        return question_maker(table, columns, labelled)
    if task == "choose":
        return choice_maker(table, columns, labelled)
    return text_maker(task, table, columns, labelled)


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


def _made(items: Iterable[Item], make: Callable[[Item], Example], faults: list[str] | None) -> list[Example]:
    examples = []
    for item in items:
        try:
            examples.append(make(item))
        except RequestError as error:
            if faults is None:
                raise
            faults.append(str(error))
    return examples


def _split_labels(
    task: str, examples: list[Example], used: Columns, faults: list[str] | None
) -> tuple[list[Example], Columns]:
    """Several labels that came as one string are split."""
    separator = used.separator or separator_of(examples)
    if task != "multilabel" or not separator:
        return examples, used
    return _made(examples, partial(split_label, separator=separator), faults), replace(used, separator=separator)


def _refuse_broken_tags(examples: Sequence[Example]) -> None:
    """Stop at the first tag that the file's own scheme forbids."""
    tagged = [(e.tags, e.place) for e in examples if isinstance(e, TaggedExample) and e.tags]
    check_tags([tags for tags, _ in tagged], recognize(tags for tags, _ in tagged), [place for _, place in tagged])


def _counts(task: str, examples: list[Example], labelled: bool) -> list[str]:
    if task == "answer":
        unanswerable = sum(isinstance(e, QuestionExample) and e.labelled and not e.answers for e in examples)
        return [f"{len(examples)} questions", *([f"{unanswerable} without an answer"] if unanswerable else [])]
    if task == "tag":
        tags = Counter(tag for e in examples if isinstance(e, TaggedExample) for tag in e.tags or ())
        return [*([f"{len(tags)} tags"] if labelled else []), f"{len(examples)} sentences"]
    if task in ("classify", "multilabel") and labelled:
        return [f"{len(set(label_names(examples)))} labels", f"{len(examples)} rows"]
    return [f"{len(examples)} rows"]
