"""One Chromium for all browser tests; without one they fail, and say what to do."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


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

    def open_(path: Path, width: int = 1280, height: int = 800, dark: bool = False):
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
        page.wait_for_selector("#look[data-turn]")
        return page

    yield open_
    for context in contexts:
        context.close()
    assert not complaints
