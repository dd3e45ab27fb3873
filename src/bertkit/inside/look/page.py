"""One HTML file that needs nothing else: style, module and data inside it, and no way to the network."""

import base64
import hashlib
import html
import json
import re
from functools import cache
from importlib.resources import files
from typing import Any

# In the order of reading; each file imports only from those before it, so end to end they are one module.
VIEWS = ("head_view", "model_view", "neuron_view", "vector_view", "fill_view", "kinds_view")
MODULES = ("numbers", "drawing", *VIEWS, "look")
IMPORT = re.compile(r'^import \{[^}]*\} from "\./\w+\.js";\n', re.MULTILINE)
START = '\nmount(document.getElementById("look"), JSON.parse(document.getElementById("data").textContent));\n'


@cache
def module() -> str:
    """The whole drawing module, which exports `mount(element, data)`."""
    return "\n".join(IMPORT.sub("", _static(f"{name}.js")) for name in MODULES)


def style() -> str:
    """The style sheet that goes with it."""
    return _static("look.css")


def page(data: dict[str, Any]) -> str:
    """The page for one reading. Text reaches it as JSON alone, with every < written as an escape."""
    script, sheet = module() + START, style()
    title = f"{data['text'][:60]} — bertkit look" if data["text"].strip() else "bertkit look"
    parts = {
        "title": html.escape(title),
        "policy": f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(sheet)}'",
        "style": sheet,
        "script": script,
        "data": json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
    }
    # One pass, so that a text that looks like a slot of the template is not taken for one.
    return re.sub(r"\{\{(\w+)\}\}", lambda slot: parts[slot.group(1)], _static("look.html"))


def frame(document: str, height: int = 640) -> str:
    """The page as a cell of a notebook: in a frame of its own, which can neither reach the notebook nor be reached."""
    source = html.escape(document, quote=True)
    return (
        f'<iframe srcdoc="{source}" sandbox="allow-scripts" title="bertkit look" '
        f'style="width:100%;height:{height}px;border:0"></iframe>'
    )


def _static(name: str) -> str:
    return files("bertkit.inside.look").joinpath("page", name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    """As a content security policy names an inline script: only this very text may run."""
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"
