"""axe-core in an open page: its findings that hinder people, as lines that name the rule and the element."""

from functools import cache
from importlib.resources import files

from playwright.sync_api import Page

GRAVE = ("serious", "critical")
RUN = """async (rules) => (await axe.run(document, { resultTypes: ["violations"], ...rules })).violations"""
CONTRAST = {"runOnly": ["color-contrast"]}  # the only rule whose outcome depends on the colors
DARK = "matchMedia('(prefers-color-scheme: dark)').matches"


@cache
def _axe() -> str:
    return files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8")


def accessibility_faults(page: Page) -> list[str]:
    """Serious and critical faults of the page as it is now, and those of its contrast in the other color scheme.

    The debugger loads the script, past the page's policy.
    """
    if page.evaluate("typeof axe") == "undefined":
        page.evaluate(_axe())
    now, other = ("dark", "light") if page.evaluate(DARK) else ("light", "dark")
    found = _faults(page, now, {})
    page.emulate_media(color_scheme=other)
    found += _faults(page, other, CONTRAST)
    page.emulate_media(color_scheme=now)
    return found


def _faults(page: Page, scheme: str, rules: dict) -> list[str]:
    return [
        f"{fault['id']}: {fault['help']}: {scheme}: {node['html'][:200]} {node['failureSummary']}"
        for fault in page.evaluate(RUN, rules)
        if fault["impact"] in GRAVE
        for node in fault["nodes"]
    ]
