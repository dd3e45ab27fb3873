"""BertViz's head view of 512 tokens, beside ours: size of the page, and seconds until its lines are drawn.

    python benchmarks/look_peer.py LAYERS jquery.min.js d3.v5.min.js

Its page loads jQuery, d3 and require.js from a server. Here the first two stand in the page and a line stands in for
the third, so that the drawing is measured and not the network. The weights are random.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

import torch
from bertviz import head_view
from playwright.sync_api import sync_playwright

LOADER = "window.require = {config() {}}; window.requirejs = (names, draw) => draw(jQuery, d3);"
DRAWN = "document.querySelectorAll('svg line').length > 0"


def peer_page(layers: int, scripts: list[Path]) -> str:
    """The page as BertViz gives it, with its libraries inside."""
    weights = [torch.softmax(2 * torch.randn(1, 12, 512, 512), dim=-1) for _ in range(layers)]
    body = head_view(weights, [f"t{place}" for place in range(512)], html_action="return").data
    inside = "".join(f"<script>{script.read_text()}</script>" for script in scripts)
    _, _, rest = body.partition("</script>")  # the first element loads require.js
    return f"<!doctype html><meta charset=utf-8><body>{inside}<script>{LOADER}</script>{rest}"


def main() -> None:
    layers, *scripts = sys.argv[1:]
    torch.manual_seed(0)
    sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
    from fetch_chromium import fetch

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "peer.html"
        path.write_text(peer_page(int(layers), [Path(script) for script in scripts]))
        program = fetch()
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=program)
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            start = time.perf_counter()
            page.goto(path.as_uri(), timeout=300_000)
            page.wait_for_function(DRAWN, timeout=300_000)
            drawn = round(time.perf_counter() - start, 1)
            elements = page.evaluate("document.querySelectorAll('svg *').length")
        megabytes = round(path.stat().st_size / 1e6, 1)
    print(json.dumps({"layers": int(layers), "megabytes": megabytes, "seconds": drawn, "elements": elements}))


if __name__ == "__main__":
    main()
