"""HTML pages from templates: each is one file, complete in itself, that runs no script and fetches nothing."""

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from bertkit.files import whole_file

if TYPE_CHECKING:
    from jinja2 import Environment

REPORT = "report.html"


def render_page(template: str, **values: object) -> str:
    """A template of this package with its values; every text is escaped, fragments are not."""
    return _environment().get_template(template).render(values)


def render_fragment(template: str, **values: object) -> str:
    """The same for a part of a page, which `render_page` takes as it is: a `Markup`."""
    from markupsafe import Markup

    return Markup(render_page(template, **values))


def save_page(page: str, path: Path | str) -> None:
    """Write a page whole or not at all; half a surrogate pair becomes a question mark."""
    with whole_file(path) as draft:
        draft.write_text(page, encoding="utf-8", newline="\n", errors="replace")


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("bertkit.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
