"""axe-core in an open page: its findings that hinder people, as lines that name the rule and the element."""

from functools import cache
from importlib.resources import files

from playwright.sync_api import Page

GRAVE = ("serious", "critical")
RUN = """async () => (await axe.run(document, { resultTypes: ["violations"] })).violations"""


@cache
def _axe() -> str:
    return files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8")


def accessibility_faults(page: Page) -> list[str]:
    """Serious and critical faults of the page as it is now; the debugger loads the script, past the page's policy."""
    if page.evaluate("typeof axe") == "undefined":
        page.evaluate(_axe())
    return [
        f"{fault['id']}: {fault['help']}: {node['html'][:200]} {node['failureSummary']}"
        for fault in page.evaluate(RUN)
        if fault["impact"] in GRAVE
        for node in fault["nodes"]
    ]
