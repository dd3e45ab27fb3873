"""Write the docstrings of the standard library as a corpus: text that every Python installation carries.

    python tools/docstrings.py corpus.txt [--modules 100]

One document per module, one paragraph per line, a blank line between documents. It differs a little between versions
of Python, and not at all between two runs of one.
"""

import argparse
import ast
import inspect
import re
import sysconfig
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

LEFT_OUT = {"site-packages", "test", "tests", "lib2to3", "idlelib", "turtledemo", "__pycache__"}
SHORTEST = 40  # characters; a module that says less says nothing


def modules() -> Iterator[Path]:
    """The standard library's own files, in the order of their names."""
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.rglob("*.py")):
        if not LEFT_OUT & set(path.relative_to(library).parts):
            yield path


def paragraphs(source: str) -> Iterator[str]:
    """Each paragraph of each docstring on one line; examples with >>> are code, and left out."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for block in re.split(r"\n\s*\n", inspect.cleandoc(ast.get_docstring(node) or "")):
            if block.strip() and ">>>" not in block:
                yield " ".join(block.split())


def documents() -> Iterator[str]:
    """One document per module that has something to say, each paragraph once."""
    for path in modules():
        try:
            lines = dict.fromkeys(paragraphs(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, SyntaxError):  # a file for another encoding, or for a parser's tests
            continue
        document = "\n".join(lines)
        if len(document) >= SHORTEST:
            yield document


def write_corpus(path: Path, most: int | None = None) -> int:
    """Write the first `most` documents, or all; how many there were."""
    found = list(islice(documents(), most))
    path.write_text("\n\n".join(found) + "\n", encoding="utf-8")
    return len(found)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Write the docstrings of the standard library as a corpus.")
    parser.add_argument("out", type=Path, help="the file to write")
    parser.add_argument("--modules", type=int, help="stop after this many modules")
    arguments = parser.parse_args()
    count = write_corpus(arguments.out, arguments.modules)
    print(f"{count} documents, {arguments.out.stat().st_size:,} bytes in {arguments.out}")


if __name__ == "__main__":
    main()
