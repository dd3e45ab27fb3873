"""Write docs/benchmarks.md and the README's bar chart from the files in benchmarks/results/; no figure is typed.

    python tools/benchmark_page.py

The templates are in tools/pages/: `r("NAME.json", "key", ...)` is a value of a result file.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = {"benchmarks.md": ROOT / "docs" / "benchmarks.md", "speed.svg": ROOT / "docs" / "speed.svg"}


@cache
def result_file(name: str) -> Any:
    """The content of a result file."""
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def r(name: str, *keys: str | int) -> Any:
    """The value at these keys of a result file."""
    value = result_file(name)
    for key in keys:
        value = value[key]
    return value


def written(name: str) -> str:
    """A page from its template."""
    loader = FileSystemLoader(ROOT / "tools" / "pages")
    environment = Environment(
        loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters["thousands"] = lambda number: f"{number:,.0f}"
    return environment.get_template(f"{name}.jinja").render(r=r)


def main() -> None:
    """Write all pages."""
    for name, path in PAGES.items():
        path.write_text(written(name), encoding="utf-8")
        print(f"written: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
