"""How soon a page of 512 tokens, 12 layers and 12 heads is there, and how quickly it answers.

    python benchmarks/look_browser.py

The page is made from a random BERT-base; times are medians over fresh pages.
"""

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

from bertkit.checkpoint.save_load import Checkpoint
from bertkit.config import family_config
from bertkit.inside.look.look import look
from bertkit.model.model import new_model
from bertkit.predict.bert import Bert
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.wordpiece import SPECIALS

ROUNDS = 5
LETTERS = "abcdefghijklmnopqrstuvwxyz"
HOVER = """async () => { const times = [];
    for (let row = 1; row < 15; row++) {
        const box = document.querySelector(`.cell.left[data-row='${row}']`).getBoundingClientRect();
        const start = performance.now();
        document.querySelector(".stage").dispatchEvent(
            new MouseEvent("mousemove", { clientX: box.x + 9, clientY: box.y + 9, bubbles: true }));
        await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
        times.push(performance.now() - start);
    }
    return times; }"""


def base_page(path: Path) -> dict[str, float]:
    """The page of a random BERT-base over 512 tokens, and what it took to make it."""
    torch.manual_seed(0)
    pieces = [*SPECIALS, *LETTERS, *(f"##{letter}" for letter in LETTERS)]
    model = new_model(family_config("bert", "base", vocab_size=len(pieces), init_std=0.05)).eval()
    bert = Bert(Checkpoint(model=model, tokenizer=Tokenizer.from_vocab(pieces), max_length=512))
    start = time.perf_counter()
    look(bert, "abcd " * 127 + "a b").save(path)
    return {"seconds to make": round(time.perf_counter() - start, 2), "megabytes": round(path.stat().st_size / 1e6, 2)}


def measure(browser, path: Path) -> dict[str, float]:
    """Medians over fresh browsers: first paint, ready, layer change, hover."""
    paints, readies, layers, hovers = [], [], [], []
    for _ in range(ROUNDS):
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        start = time.perf_counter()
        page.goto(path.absolute().as_uri())
        page.wait_for_selector("#look[data-turn]")
        readies.append(1000 * (time.perf_counter() - start))
        paints.append(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
        for layer in (4, 8, 12):
            page.select_option("select[aria-label=layer]", label=str(layer))
            page.wait_for_selector(f"#look[data-layer='{layer}']")
            layers.append(int(page.get_attribute("#look", "data-milliseconds")))
        hovers += page.evaluate(HOVER)
        page.close()
    named = {"first paint": paints, "ready": readies, "unseen layer": layers, "hover": hovers}
    return {f"{name}, ms (median)": round(statistics.median(times), 1) for name, times in named.items()}


def main() -> None:
    from playwright.sync_api import sync_playwright

    sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
    from fetch_chromium import fetch

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder) / "look.html"
        made = base_page(path)
        browser = playwright.chromium.launch(executable_path=fetch())
        result = {
            "input": "512 tokens, 12 layers, 12 heads",
            **made,
            **measure(browser, path),
            "chromium": browser.version,
        }
        browser.close()
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
