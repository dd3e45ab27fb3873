"""Helpers that several verbs share; importable without typer and torch."""

import sys
from pathlib import Path

from bertkit.errors import RequestError
from bertkit.progress import is_quiet

INTERRUPTED = 130  # exit code of a command stopped by SIGTERM or Ctrl-C, as a shell reports it


def print_note(text: str) -> None:
    """Print a note on standard error, next to the result; nothing for an empty text, or with --quiet."""
    if text and not is_quiet():
        print(f"bertkit: note: {text}", file=sys.stderr)


def print_skipped(out: Path, count: int) -> None:
    """Print how many rows were skipped, the first of them with their reasons, and which file lists all."""
    from bertkit.predict.files.pipeline import first_skipped, skipped_file

    if count and not is_quiet():
        print_note(f"{count} {'row was' if count == 1 else 'rows were'} left out; all are in {skipped_file(out)}")
        for line in first_skipped(out):
            print(f"  {line}", file=sys.stderr)


def parse_integers(text: str, option: str, example: str) -> list[int]:
    """The numbers of an option such as `--layers -1,-2`."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise RequestError(f"{option} {text} must be whole numbers separated by commas, such as {example}") from error
