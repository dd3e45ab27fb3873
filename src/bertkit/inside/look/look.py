"""`bertkit.look(bert, text)`: all views of one text in one self-contained HTML file."""

import base64
import hashlib
import json
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from bertkit.inside.look.data import page_data
from bertkit.inside.look.reading import read
from bertkit.predict.bert import Bert
from bertkit.report.page import PageResult, render_page

IMPORT_LINE = re.compile(r'^import \{[^}]*\} from "\./(\w+)\.js";\n', re.MULTILINE)
MOUNT_CALL = '\nmount(document.getElementById("look"), JSON.parse(document.getElementById("data").textContent));\n'


@dataclass(frozen=True, repr=False)
class Look(PageResult):
    """The views of one text. A notebook shows them; `save` writes them as an HTML file."""

    data: dict[str, Any]

    @property
    def html(self) -> str:
        """The page as HTML."""
        return page(self.data)

    def __repr__(self) -> str:
        return f"Look({len(self.data['tokens'])} tokens; {self.data['model']}; save it, or show it in a notebook)"


def look(bert: Bert, text: str, pair: str | None = None) -> Look:
    """Attention, neurons, vectors and predicted words of a text or a pair, layer by layer."""
    return Look(page_data(bert, read(bert, text, pair)))


def page(data: dict[str, Any]) -> str:
    """The page for one reading. Text is passed as JSON only, with every < escaped."""
    script, style = module() + MOUNT_CALL, _static("look.css")
    return render_page(
        "look.html",
        title=f"{data['text'][:60]} — bertkit look" if data["text"].strip() else "bertkit look",
        policy=f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'",
        style=style,
        script=script,
        data=json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
    )


@cache
def module() -> str:
    """The scripts of all views as one module, which exports `mount(element, data)`."""
    return "\n".join(IMPORT_LINE.sub("", _static(f"{name}.js")) for name in scripts())


def scripts(name: str = "look") -> list[str]:
    """The names of a script and of all that it imports, dependencies first."""
    imports = IMPORT_LINE.findall(_static(f"{name}.js"))
    return list(dict.fromkeys([*(script for imported in imports for script in scripts(imported)), name]))


def _static(name: str) -> str:
    return files("bertkit.inside.look").joinpath("page", name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    """The hash by which a content security policy allows an inline script or style."""
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"
