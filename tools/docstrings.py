"""Write the docstrings of the standard library as a corpus, which every Python installation has.

    python tools/docstrings.py corpus.txt [--modules 100]

One document per module, one paragraph per line, a blank line between documents. The corpus differs slightly between
versions of Python.
"""

import argparse
import ast
import inspect
import re
import sysconfig
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

IGNORED_FOLDERS = {"site-packages", "test", "tests", "lib2to3", "idlelib", "turtledemo", "__pycache__"}
MIN_CHARACTERS = 40  # of a document


def modules() -> Iterator[Path]:
    """The files of the standard library, sorted by name."""
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.rglob("*.py")):
        if not IGNORED_FOLDERS & set(path.relative_to(library).parts):
            yield path


def paragraphs(source: str) -> Iterator[str]:
    """Each paragraph of each docstring as one line, without examples (>>>)."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for block in re.split(r"\n\s*\n", inspect.cleandoc(ast.get_docstring(node) or "")):
            if block.strip() and ">>>" not in block:
                yield " ".join(block.split())


def documents() -> Iterator[str]:
    """One document per module with docstrings, each paragraph once."""
    for path in modules():
        try:
            lines = dict.fromkeys(paragraphs(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, SyntaxError):  # a test file with another encoding or invalid syntax
            continue
        document = "\n".join(lines)
        if len(document) >= MIN_CHARACTERS:
            yield document


def write_corpus(path: Path, most: int | None = None) -> int:
    """Write the first `most` documents, or all; return their number."""
    corpus = list(islice(documents(), most))
    path.write_text("\n\n".join(corpus) + "\n", encoding="utf-8")
    return len(corpus)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description="Write the docstrings of the standard library as a corpus.")
    parser.add_argument("out", type=Path, help="the file to write")
    parser.add_argument("--modules", type=int, help="stop after this many modules")
    arguments = parser.parse_args()
    count = write_corpus(arguments.out, arguments.modules)
    print(f"{count} documents, {arguments.out.stat().st_size:,} bytes in {arguments.out}")


if __name__ == "__main__":
    main()
