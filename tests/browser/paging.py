"""The web page in a browser: tiny models behind it, and visits that notice every complaint."""

import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlencode

import torch
from playwright.sync_api import Browser, Page
from serving import fill_folder, taught, vectors_folder

from bertkit.checkpoint.save_load import Checkpoint, save_checkpoint
from bertkit.config import family_config
from bertkit.model.model import new_model
from bertkit.predict.questions import QUESTIONS
from bertkit.serve.models import Models, load_models
from bertkit.tasks.table import TASKS, routes
from bertkit.text.tokenizer import Tokenizer

ROOT = Path(__file__).parents[2]
TOOLS = ["fill", *QUESTIONS, *routes(), "labels", "compare", "search", "inspect", "inside"]
LENGTH = 128  # tokens, of which each is a letter
FITS = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"


def page_models(base: Path) -> Models:
    folders = {"fill": fill_folder(base / "fill", max_length=LENGTH)}
    folders |= {task: taught.taught_folder(base / task, task, max_length=LENGTH) for task in TASKS}
    folders["modern"] = modern_folder(base / "modern")
    folders["causal"] = fill_folder(base / "causal", max_length=LENGTH, causal=True)
    for family, head in (("bert", "next_sentence"), ("electra", "replaced_token")):
        folders[head] = fill_folder(base / head, max_length=LENGTH, family=family, head=head)
    folders["vectors"] = vectors_folder(base / "vectors", max_length=LENGTH)
    return load_models([f"{name}={folder}" for name, folder in folders.items()], torch.device("cpu"))


def modern_folder(folder: Path) -> Path:
    """Layers that see only a window, without segments."""
    shape = {"vocab_size": len(taught.PIECES), "max_length": 512, "init_std": 0.3, "depth": 2}
    config = family_config("modernbert", "tiny", **shape)
    model = new_model(config, {}, seed=2).eval()
    save_checkpoint(Checkpoint(model=model, tokenizer=Tokenizer.from_vocab(taught.PIECES), max_length=512), folder)
    return folder


class Visits:
    """Pages that were opened, and what they complained of."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser
        self.complaints: list[str] = []
        self.expected: list[str] = []  # parts of console messages that belong to the test
        self.contexts = []

    def __call__(
        self,
        url: str,
        *,
        width: int = 1280,
        dark: bool = False,
        password: str = "",  # typed into the browser's own dialog
        prepare: Callable[[Page], None] | None = None,
        wait: bool = True,
        path: str = "/",
        hash: str = "",
        **state: str,
    ) -> Page:
        """Open the page, with `state` in its link."""
        context = self.browser.new_context(
            viewport={"width": width, "height": 800},
            color_scheme="dark" if dark else "light",
            http_credentials={"username": "", "password": password} if password else None,
        )
        self.contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (self.complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda asked: asked.url.startswith(url) or self.complaints.append(f"went to {asked.url}"))
        if prepare is not None:
            prepare(page)
        page.goto(f"{url}{path}#{hash or urlencode(state)}")
        if wait:
            page.wait_for_selector("main section[data-turn]")
        return page

    def _console(self, message) -> None:
        if not any(part in message.text for part in self.expected):
            self.complaints.append(f"{message.type}: {message.text}")

    def close(self) -> None:
        """Leave every page; a server that stops earlier would be missed by what they still load."""
        while self.contexts:
            self.contexts.pop().close()


def turn(page: Page) -> int:
    """How many answers the open tool has shown."""
    return int(page.get_attribute("main section", "data-turn") or 0)


def answered(page: Page, before: int) -> None:
    """Wait until the open tool has shown a later answer."""
    until(page, lambda: turn(page) > before)
    page.wait_for_selector("main section:not([aria-busy])")


def until(page: Page, true: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait for something; not with wait_for_function, which evaluates strings, and the page's policy forbids that."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, page.inner_text("main")
        page.wait_for_timeout(20)


def choose_tool(page: Page, tool: str) -> None:
    page.click(f"[role=tab][data-tool={tool}]")
    page.wait_for_selector(f"#panel-{tool}[data-turn]")
    page.wait_for_selector(f"#panel-{tool}:not([aria-busy])")


def ask(page: Page, **fields: str) -> None:
    """Fill the open tool's fields at once and press its button."""
    for name, value in fields.items():
        page.fill(f"main [name={name}]", value)
    before = turn(page)
    page.click("main .go")
    answered(page, before)


def said(page: Page) -> str:
    return page.inner_text("main section > .said")


def visit_colors(page: Page) -> tuple[int, int]:
    """How bright the letters and the paper are."""
    styles = page.evaluate(
        "[getComputedStyle(document.body).color, getComputedStyle(document.documentElement).backgroundColor]"
    )
    ink, paper = (sum(int(part) for part in style[4:-1].split(",")) for style in styles)
    return ink, paper


def questions(page: Page, route: str = "") -> list[dict]:
    """What the page asks from now on: at one route, or everywhere, the token counts after a pause included."""
    asked: list[dict] = []

    def note(request) -> None:
        if request.method == "POST" and request.url.endswith(route):
            asked.append(request.post_data_json)

    page.on("request", note)
    return asked
