"""`bertkit.look(bert, text)`: all views of one text in one HTML file, with style, script and data inside it."""

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

IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+)\.js";\n', re.MULTILINE)
START = '\nmount(document.getElementById("look"), JSON.parse(document.getElementById("data").textContent));\n'


@dataclass(frozen=True, repr=False)
class Look(PageResult):
    """The views of one text. A notebook shows it; `save` writes it as a file that opens anywhere."""

    data: dict[str, Any]

    @property
    def html(self) -> str:
        """The page, complete."""
        return page(self.data)

    def __repr__(self) -> str:
        return f"Look({len(self.data['tokens'])} tokens; {self.data['model']}; save it, or show it in a notebook)"


def look(bert: Bert, text: str, pair: str | None = None) -> Look:
    """Attention, neurons, vectors and fills of a text, or a pair, layer by layer, from the model itself."""
    return Look(page_data(bert, read(bert, text, pair)))


def page(data: dict[str, Any]) -> str:
    """The page for one reading. Text reaches it as JSON alone, with every < written as an escape."""
    script, style = module() + START, _static("look.css")
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
    return "\n".join(IMPORT.sub("", _static(f"{name}.js")) for name in scripts())


def scripts(name: str = "look") -> list[str]:
    """A script with all that it imports, each after those that it needs itself."""
    needed = [each for imported in IMPORT.findall(_static(f"{name}.js")) for each in scripts(imported)]
    return list(dict.fromkeys([*needed, name]))


def _static(name: str) -> str:
    return files("bertkit.inside.look").joinpath("page", name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    """As a content security policy names an inline script: only this very text may run."""
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"
