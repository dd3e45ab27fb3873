"""HTML pages from templates: each is one file, complete in itself, that fetches nothing; and results that have one."""

import html
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from bertkit.files import whole_file

if TYPE_CHECKING:
    from jinja2 import Environment

REPORT = "report.html"
FRAME_HEIGHT = 640  # pixels of a page in a notebook


@dataclass(frozen=True)
class JsonResult:
    """A result that can be written as JSON."""

    def to_json(self) -> dict[str, Any]:
        """Everything, for a file."""
        return asdict(self)


@dataclass(frozen=True)
class PageResult:
    """A result with a page of its own, which a notebook shows."""

    _frame_height: ClassVar[int] = FRAME_HEIGHT

    @property
    def html(self) -> str:
        """The page, complete."""
        raise NotImplementedError

    def save(self, path: Path | str) -> None:
        """Write the page whole or not at all."""
        save_page(self.html, path)

    def _repr_html_(self) -> str:
        return frame(self.html, self._frame_height)


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


def frame(document: str, height: int = FRAME_HEIGHT) -> str:
    """The page as a cell of a notebook: in a sandboxed frame, so that neither can reach the other."""
    source = html.escape(document, quote=True)
    return (
        f'<iframe srcdoc="{source}" sandbox="allow-scripts" title="bertkit look" '
        f'style="width:100%;height:{height}px;border:0"></iframe>'
    )


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
