"""HTML pages from templates, each a self-contained file that loads nothing; and base classes of results."""

import html
from dataclasses import asdict, dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from bertkit._version import __version__
from bertkit.files import whole_file

if TYPE_CHECKING:
    from jinja2 import Environment

REPORT_FILE = "report.html"
FRAME_HEIGHT = 640  # of a page in a notebook, in pixels


@dataclass(frozen=True)
class JsonResult:
    """A result that can be converted to JSON."""

    def to_json(self) -> dict[str, Any]:
        """All fields as plain data."""
        return asdict(self)


@dataclass(frozen=True)
class PageResult:
    """A result with an HTML page, which a notebook shows."""

    _frame_height: ClassVar[int] = FRAME_HEIGHT

    @property
    def html(self) -> str:
        """The page as HTML."""
        raise NotImplementedError

    def save(self, path: Path | str) -> None:
        """Write the page atomically."""
        save_page(self.html, path)

    def _repr_html_(self) -> str:
        return notebook_frame(self.html, self._frame_height)


def render_page(template: str, **values: object) -> str:
    """Render a template of this package; texts are escaped, fragments are not."""
    return _environment().get_template(template).render(values)


def render_fragment(template: str, **values: object) -> str:
    """Render a part of a page as `Markup`, which `render_page` does not escape."""
    from markupsafe import Markup

    return Markup(render_page(template, **values))


def save_page(page: str, path: Path | str) -> None:
    """Write a page atomically; unpaired surrogates become question marks."""
    with whole_file(path) as draft:
        draft.write_text(page, encoding="utf-8", newline="\n", errors="replace")


def notebook_frame(document: str, height: int = FRAME_HEIGHT) -> str:
    """The page in a sandboxed frame for a notebook, so that page and notebook cannot access each other."""
    source = html.escape(document, quote=True)
    return (
        f'<iframe srcdoc="{source}" sandbox="allow-scripts" title="bertkit look" '
        f'style="width:100%;height:{height}px;border:0"></iframe>'
    )


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("bertkit.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.globals |= {"version": __version__, "today": lambda: date.today().isoformat()}
    return environment
