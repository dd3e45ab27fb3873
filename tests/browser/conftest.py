"""One Chromium for all browser tests; without one they fail, and say what to do."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "tests" / "serve")]


@pytest.fixture(scope="session")
def fetch_chromium():
    """The tool, as a module."""
    spec = importlib.util.spec_from_file_location("fetch_chromium", ROOT / "tools" / "fetch_chromium.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def chromium(fetch_chromium):
    from playwright.sync_api import sync_playwright

    path = fetch_chromium.find()
    if path is None:
        pytest.fail("no Chromium is here: run 'python tools/fetch_chromium.py', which finds or installs one")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path)
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium):
    """`open_page(path, width=390)`: the page, ready; at the end nothing was complained of and nothing fetched."""
    complaints, contexts = [], []

    def open_(path: Path, width: int = 1280, height: int = 800, dark: bool = False, ready: str = "#look[data-turn]"):
        context = chromium.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        address = path.as_uri()
        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: request.url == address or complaints.append(f"request: {request.url[:200]}"))
        page.goto(address)
        page.wait_for_selector(ready)
        return page

    yield open_
    for context in contexts:
        context.close()
    assert not complaints


@pytest.fixture(scope="session")
def page_server(tmp_path_factory):
    """A server with a tiny model for every task, one that fills, and one whose layers see only a window."""
    import torch
    from paging import page_models
    from serving import running

    torch.set_num_threads(1)
    with running(page_models(tmp_path_factory.mktemp("page"))) as found:
        yield found


@pytest.fixture
def visit(chromium):
    """`visit(url, width=390)`: the web page, in a context of its own; at the end nobody complained or left the origin.

    What a test expects to be said on the console, it adds to `visit.expected`.
    """
    from paging import Visits

    visits = Visits(chromium)
    yield visits
    visits.close()
    assert not visits.complaints
