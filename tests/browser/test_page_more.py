"""What the page offers beside the tools: why, files, requests to copy, models, the map, warnings, /docs and 404."""

import csv
import io
import json
import math
import subprocess
import sys

import httpx
import numpy as np
import pytest
from accessibility import accessibility_faults
from paging import FITS, answered, ask, questions, said, turn, until


def shown(page, selector: str) -> list[str]:
    return page.locator(f"main {selector}").all_inner_texts()


WHY = {
    "classify": {"text": "a fine film"},
    "tag": {"text": "ada lives in london"},
    "answer": {"question": "where?", "passage": "ada lives in london"},
    "fill": {"text": "a ___ sat."},
}


@pytest.mark.parametrize("tool", WHY)
def test_why_shades_the_words_by_what_they_add(visit, page_server, tool):
    page = visit(page_server.url, tool=tool, **WHY[tool])
    page.focus("main .why button")
    asked = questions(page, "/why")
    page.keyboard.press("Enter")
    page.wait_for_selector("main .why .legend")
    [body] = asked
    reply = page_server.post("/why", body).json()
    largest = max(abs(word["share"]) for word in reply["words"])
    strong = [word for word in reply["words"] if abs(word["share"]) >= 0.05 * largest]
    marks = {mark.inner_text(): mark.get_attribute("class") for mark in page.locator("main .why mark").all()}
    assert marks.items() >= {word["word"]: "for" if word["share"] > 0 else "against" for word in strong}.items()
    assert reply["target"] in page.inner_text("main .why .said")
    before = turn(page)
    page.fill("main textarea", page.input_value("main textarea").replace("a", "b", 1))
    answered(page, before)
    until(page, lambda: page.locator("main .why .legend").count() == 1)  # it stays open, for the new text
    page.click("main .why button >> nth=0")
    assert not page.inner_text("main .why div >> nth=-1")


def test_why_can_be_cancelled(visit, page_server):
    page = visit(page_server.url, tool="classify", text="a fine film")
    failed, held = [], []
    page.on("requestfailed", lambda request: failed.append(request.url))
    page.route("**/why", lambda route: held.append(route))  # no answer comes
    page.click("text=Why?")
    page.wait_for_selector("main .why .said")
    page.focus("text=Cancel")
    page.keyboard.press("Enter")
    until(page, lambda: failed == [f"{page_server.url}/why"])
    assert page.get_attribute("main .why button", "aria-expanded") == "false"
    assert page.evaluate("document.activeElement.innerText") == "Why?"
    assert not page.locator("main .why .said, main .why .trouble").count()
    page.unroute("**/why")
    page.keyboard.press("Enter")
    page.wait_for_selector("main .why .legend")
    assert not page.locator("text=Cancel").count()


def test_another_label_can_be_explained(visit, page_server):
    page = visit(page_server.url, tool="classify", text="a fine film")
    page.click("text=Why?")
    page.wait_for_selector("main .why .legend")
    labels = page.locator("main .why option").all_inner_texts()
    page.select_option("main .why select", label=labels[-1])
    until(page, lambda: f"label '{labels[-1]}'" in page.inner_text("main .why"))


def test_a_file_is_predicted_and_downloaded(visit, page_server, tmp_path):
    rows = [["1", 'a "fine", film', "x"], ["2", "a dull\nfilm", "y"], ["3", "", "z"]]
    source = tmp_path / "films.csv"
    with source.open("w", newline="") as file:
        csv.writer(file).writerows([["id", "Text", "prediction"], *rows])
    page = visit(page_server.url, width=390, tool="classify", text="a")
    page.click("text=Predict a file")
    page.set_input_files("input[type=file]", source)
    assert page.input_value("main .file select >> nth=0") == "1", "the column called text"
    page.click("text=Predict 3 rows")
    page.wait_for_selector("main .rows")
    texts = [row[1] for row in rows[:2]]
    results = page_server.post("/classify", {"texts": texts, "model": "classify"}).json()["results"]
    with page.expect_download() as download:
        page.click("text=Download CSV")
    assert download.value.suggested_filename == "films-classify.csv"
    header, *found = csv.reader(io.StringIO(download.value.path().read_bytes().decode(), newline=""))
    assert header == ["id", "Text", "prediction", "predicted prediction", "probability"]
    assert [row[:3] for row in found] == rows, "every cell as it was"
    assert [row[3] for row in found] == [*(each["label"] for each in results), ""]
    assert float(found[0][4]) == pytest.approx(results[0]["probability"], rel=1e-3)
    assert "1 without a text" in page.inner_text("main .file .said")
    assert page.evaluate(FITS)
    for content, told in ((b"text\n", "no rows"), (b'text\n"a', "not closed"), (b"text\n\xfc\n", "not UTF-8")):
        bad = tmp_path / f"{told}.csv"
        bad.write_bytes(content)
        page.set_input_files("input[type=file]", bad)
        until(page, lambda told=told: told in page.inner_text("main .file .said"))
        assert not page.locator("main .rows").count()


def test_files_for_tags_and_answers(visit, page_server, tmp_path):
    (tmp_path / "a.txt").write_text("ada lives in london\nbob\n")
    (tmp_path / "b.tsv").write_text('question\tcontext\nwhere?\tada "lives in london\n')
    for tool, name, column in (("tag", "a.txt", "spans"), ("answer", "b.tsv", "answer")):
        page = visit(page_server.url, tool=tool)
        page.click("text=Predict a file")
        page.set_input_files("input[type=file]", tmp_path / name)
        page.click("main .file .go")
        page.wait_for_selector("main .rows")
        assert column in shown(page, ".rows th")
        assert any(shown(page, ".rows td.added"))


def test_the_request_runs_as_a_program(visit, page_server):
    page = visit(page_server.url, tool="classify", text='it\'s a "fine" film \U0001f600')
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    wanted = page_server.post("/classify", {"texts": ['it\'s a "fine" film \U0001f600'], "model": "classify"}).json()
    page.click("text=API request")
    page.click("main .segments >> text=Python")
    page.click("main .request >> text=Copy")
    program = page.evaluate("navigator.clipboard.readText()")
    assert program == page.inner_text("main .request pre")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(wanted)
    page.click("main .segments >> text=JavaScript")
    program = page.inner_text("main .request pre").replace("console.log(await reply.json())", "return reply.json()")
    assert page.evaluate(f"async () => {{ {program} }}") == wanted
    page.click("main .segments >> text=Reply")
    assert json.loads(page.inner_text("main .request pre")) == wanted
    page.click("text=Copy link")
    until(page, lambda: page.inner_text("main .more > span").startswith("Copied"))
    assert "&text=it%27s+a" in page.evaluate("navigator.clipboard.readText()")
    before = turn(page)
    page.fill("main [name=text]", "")
    answered(page, before)
    assert page.locator("main .request").is_hidden(), "no request belongs to an empty text"
    assert page.locator("main .why").is_hidden()


def test_a_model_tells_about_itself(visit, page_server):
    card = next(each for each in page_server.http.get("/v1/models").json()["data"] if each["id"] == "classify")
    page = visit(page_server.url, width=390, dark=True)
    page.focus("#models >> text=classify")
    page.keyboard.press("Enter")
    told = page.inner_text("dialog")
    for fact in (
        card["family"],
        card["dtype"],
        f"{card['parameters']:,}",
        f"{card['max_length']} tokens",
        *card["labels"],
    ):
        assert fact in told
    assert not accessibility_faults(page)
    page.keyboard.press("Escape")
    until(page, lambda: not page.locator("dialog").count())
    assert page.evaluate("document.activeElement.innerText") == "classify"
    page.click("#models >> text=classify")
    page.click("dialog >> text=Close")
    until(page, lambda: not page.locator("dialog").count())


def test_tokens_are_counted_and_unknown_ones_told(visit, page_server):
    page = visit(page_server.url, tool="classify", text="a cat", width=390)
    count = lambda: page.inner_text("main .count >> nth=0")  # noqa: E731
    tokens = len(page_server.post("/tokenize", {"inputs": "a cat", "model": "classify"}).json()[0])
    until(page, lambda: count() == f"{tokens} tokens")
    assert page.inner_text("main .took").endswith("ms")
    page.fill("main [name=text]", "b " * 300)
    until(page, lambda: count() == "302 tokens, over the model's 128")
    until(page, lambda: len(shown(page, ".note:not([hidden])")) == 1)
    [note] = shown(page, ".note:not([hidden])")
    assert "tokens were not read" in note, "one notice, not two"
    page.fill("main [name=text]", "\u6771\u4eac \u5927\u962a")
    until(page, lambda: "lacks most of this text" in " ".join(shown(page, ".note:not([hidden])")))
    page.fill("main [name=text]", "a cat")
    until(page, lambda: not shown(page, ".note:not([hidden])"))


def test_a_model_that_is_not_here_is_told(visit, page_server):
    page = visit(page_server.url, tool="classify", text="a cat", model="nobody")
    assert "No model “nobody” here can do this; “classify” answers instead." in page.inner_text("main .note")
    page.select_option("main .model select", "multilabel")
    until(page, lambda: not shown(page, ".note:not([hidden])"))


def test_a_narrow_lead_is_called_unsure(visit, page_server):
    page = visit(page_server.url, tool="choose")
    result = {"choice": 0, "seen": {"tokens": 3, "cut": 0, "windows": 1}}
    for shares, told in (([0.36, 0.34, 0.3], "Not sure: a, 36%; b, 34%."), ([0.7, 0.2, 0.1], "a, 70%.")):
        reply = json.dumps({"results": [{**result, "probabilities": shares}]})
        page.route("**/choose", lambda route, _, reply=reply: route.fulfill(body=reply))
        ask(page, question="q", choices="a\nb\nc")
        assert said(page) == told


def test_the_page_shows_the_candidates_of_python(visit, page_server):
    page = visit(page_server.url, tool="fill", text="a ___ b", model="fill")
    for text in ("a ___ c", "sing___ c"):
        ask(page, text=text)
        expected = [each.word for each in page_server.service.models.named("fill").bert.fill(text, top=8)]
        assert shown(page, ".bars .name") == expected


SUITS = """async (cards) => {
    const { FOR_SENTENCES: { suits } } = await import("/page/vectors.js");
    return cards.sort((one, other) => suits(other) - suits(one)).map(({ id }) => id);
}"""
PLANE = """async (vectors) => (await import("/page/map.js")).plane(vectors.map((each) => Float32Array.from(each)))"""


def test_the_map_is_the_plane_of_the_largest_differences(visit, page_server):
    page = visit(page_server.url, tool="compare", texts="a cat\na dog\nrates rose\na cat lay\nb", model="fill")
    cards = [("bert", False, False), ("bundled", False, True), ("sentences", True, True), ("minilm", True, False)]
    cards = [{"id": name, "normalize": normalize, "bundled": bundled} for name, normalize, bundled in cards]
    assert page.evaluate(SUITS, cards) == ["minilm", "sentences", "bert", "bundled"], (
        "the user's own before the bundled"
    )
    vectors = np.random.default_rng(0).normal(size=(12, 8))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    found = page.evaluate(PLANE, vectors.tolist())
    left, sizes, _ = np.linalg.svd(vectors - vectors.mean(axis=0), full_matrices=False)
    assert found["kept"] == pytest.approx((sizes[:2] ** 2).sum() / (sizes**2).sum(), abs=1e-3)
    for axis in (0, 1):
        assert abs(np.corrcoef(np.array(found["points"])[:, axis], left[:, axis])[0, 1]) == pytest.approx(1, abs=1e-3)
    assert shown(page, ".map span") == ["1", "2", "3", "4", "5"]
    page.focus("main .map li:nth-child(3) button")
    assert said(page) == "3: rates rose"
    page.hover("main .map li:nth-child(1) button")
    assert said(page) == "1: a cat"
    ask(page, texts="\n".join(f"line {n} {math.sin(n)}" for n in range(60)))
    assert page.locator("main .map li").count() == 60
    assert not page.locator("main .heat").count(), "too many for a heat map"


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_the_reference_sends_its_examples(visit, page_server, width, dark):
    page = visit(page_server.url, width=width, dark=dark, path="/docs", wait=False)
    page.wait_for_selector(".route")
    titles = ["Predictions", "Embeddings", "Tokens", "Looking inside", "Hugging Face", "Server"]
    assert page.locator("#groups a").all_inner_texts() == page.locator("h3").all_inner_texts() == titles
    document = page_server.http.get("/openapi.json").json()
    assert sorted(page.locator(".route > summary code").all_inner_texts()) == sorted(document["paths"])
    for path in ("/classify", "/health"):
        page.focus(f".route:has(code:text-is('{path}')) > summary")
        page.keyboard.press("Enter")
        page.click(f".route:has(code:text-is('{path}')) .go")
    until(page, lambda: '"results"' in page.inner_text(".route:has(code:text-is('/classify')) .inner > pre"))
    until(page, lambda: "200" in page.inner_text(".route:has(code:text-is('/health')) .inner > pre"))
    page.fill(".route:has(code:text-is('/classify')) textarea", "{")
    page.click(".route:has(code:text-is('/classify')) .go")
    assert "This is not JSON" in page.inner_text("[role=alert]")
    assert not accessibility_faults(page)
    assert page.evaluate(FITS)


@pytest.mark.parametrize(("width", "dark"), [(1280, True), (390, False)])
def test_a_browser_gets_a_page_for_an_address_that_does_not_exist(visit, page_server, width, dark):
    visit.expected.append("404")
    for path in ("/nothing/here", "/page/nothing.js"):
        page = visit(page_server.url, width=width, dark=dark, path=path, wait=False)
        assert page.inner_text("h2") == "Page not found"
        assert not accessibility_faults(page)
        assert page.evaluate(FITS)
        reply = page_server.http.get(path)
        assert (reply.status_code, reply.json()["error_type"]) == (404, "NotFound"), "programs get JSON"
    page.click("text=API reference")
    page.wait_for_selector(".route")
    assert httpx.get(f"{page_server.url}/nothing", headers={"accept": "text/html"}).status_code == 404
