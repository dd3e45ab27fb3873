"""Every tool of the web page, by mouse and by keyboard, narrow and wide, light and dark: it shows what the API says."""

import numpy as np
import pytest
from accessibility import accessibility_faults
from paging import FITS, TOOLS, answered, ask, choose_tool, questions, said, turn, until, visit_colors

PASSAGE = "ada lives in london. alan lives in rome \U0001f600 and bob lives in \u05e9\u05dc\u05d5\u05dd town."
RAIN = "This text is about rain."
LINES = "a cat sat\na dog lay\nrates rose\na cat lay"


def shown(page, selector: str) -> list[str]:
    return page.locator(f"main .result {selector}").all_inner_texts()


UNNAMED = """panel => [...panel.querySelectorAll("input, select, textarea, button")]
    .filter((each) => !each.labels?.length && !each.getAttribute("aria-label") && !each.textContent.trim()).length"""


WIDTHS = "panel => [...panel.querySelectorAll(':scope > :is(form, .result, .more)')].map((each) => each.clientWidth)"


def open_all(page) -> None:
    """Ask why, and open what is closed."""
    if page.locator("main .why:not([hidden])").count():
        page.click("main .why button")
        page.wait_for_selector("main .why .legend")
    page.evaluate("document.querySelectorAll('main .more details').forEach((each) => { each.open = true; })")


# The keyboard's test has the other two: together all four.
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_every_tool_opens_with_an_example_fits_and_is_named(visit, page_server, width, dark):
    page = visit(page_server.url, width=width, dark=dark)
    assert [tab.get_attribute("data-tool") for tab in page.locator("[role=tab][data-tool]").all()] == TOOLS
    assert page.get_attribute("#tools", "role") == "tablist"
    assert page.get_attribute("#tools", "aria-orientation") == ("vertical" if width > 800 else "horizontal")
    for tool in TOOLS:
        choose_tool(page, tool)
        panel = page.locator(f"#panel-{tool}")
        assert panel.locator(".result > *").count(), tool
        assert not page.locator(".trouble").count(), (tool, page.inner_text("main"))
        assert page.evaluate(FITS), tool
        assert page.title() == f"{page.inner_text('main h2')} · bertkit"
        assert panel.get_attribute("role") == "tabpanel"
        assert panel.get_attribute("aria-labelledby") == f"tab-{tool}"
        assert panel.evaluate(UNNAMED) == 0, tool
        assert panel.evaluate("panel => panel.querySelector(':scope > .said').tagName") == "OUTPUT", "a live region"
        assert said(page), tool
        widths = set(panel.evaluate(WIDTHS))
        assert len(widths) == (2 if tool == "inside" and width > 800 else 1), (tool, widths)
        open_all(page)
        assert not accessibility_faults(page), tool
        assert page.evaluate(FITS), tool
    assert page.locator("[role=tab][data-tool][aria-selected=true]").count() == 1
    assert page.locator("#tools [tabindex='0']").count() == 1
    ink, paper = visit_colors(page)
    assert (ink > paper) == dark
    assert not page.locator("#tools .unavailable").count()


def test_fill(visit, page_server):
    page = visit(page_server.url)
    ask(page, text="a ___ and a ___ sat.")
    body = {"text": "a [MASK] and a [MASK] sat.", "top": 8, "model": "fill"}
    found = page_server.post("/fill", body).json()["results"][0]
    first, second = ([each for each in found if each["blank"] == blank] for blank in (0, 1))
    assert shown(page, ".bars .name") == [each["word"] for each in [*first, *second]]
    assert shown(page, ".passage") == [f"a {first[0]['word']} and a {second[0]['word']} sat."]
    page.click(".side section:nth-child(2) .bars li:nth-child(3) button")
    assert shown(page, ".passage") == [f"a {first[0]['word']} and a {second[2]['word']} sat."]
    assert page.evaluate("document.activeElement.innerText").startswith(second[2]["word"])
    ask(page, text="no blank")
    assert said(page) == "Write ___ where a word is missing."
    page.focus("main textarea")
    page.keyboard.press("Home")
    before = turn(page)
    page.click("text=Insert a blank")
    answered(page, before)
    assert page.input_value("main textarea") == "___no blank"
    assert shown(page, ".bars .name")


def test_classify(visit, page_server):
    page = visit(page_server.url, tool="classify", text="a fine film")
    for pair in ("", "bad"):
        ask(page, text="a fine film", pair=pair)
        body = {"texts": ["a fine film"], "model": "classify"} | ({"pairs": [pair]} if pair else {})
        found = page_server.post("/classify", body).json()["results"][0]
        ranked = sorted(found["probabilities"], key=lambda label: -found["probabilities"][label])
        assert shown(page, ".bars .name") == ranked
        assert shown(page, ".chosen .name") == [found["label"]]
        assert f"{found['label']}, {found['probability']:.0%}" in said(page)
    ask(page, text="it's a fine film")
    page.click("text=API request")
    command = page.inner_text("main .request pre")
    assert command.startswith(f"curl -s {page_server.url}/classify")
    assert '"texts":["it\'\\\'\'s a fine film"]' in command, "quoted for a shell"
    ask(page, text="a fine film")
    before = turn(page)
    page.select_option("main .model select", "multilabel")
    answered(page, before)
    found = page_server.post("/classify", {"texts": ["a fine film"], "pairs": ["bad"], "model": "multilabel"}).json()
    assert sorted(shown(page, ".chosen .name")) == sorted(found["results"][0]["labels"])
    before = turn(page)
    page.select_option("main .model select", "regress")
    answered(page, before)
    found = page_server.post("/classify", {"texts": ["a fine film"], "pairs": ["bad"], "model": "regress"}).json()
    [number] = shown(page, ".large")
    assert float(number.replace("−", "-")) == pytest.approx(found["results"][0]["value"], abs=6e-4)


def test_labels_of_the_request(visit, page_server):
    page = visit(page_server.url, tool="labels", text="a cat sat")
    for typed, labels in (("dog\nrain", ["dog", "rain"]), ("dog: it barks\nrain", {"dog": "it barks", "rain": RAIN})):
        for mode in ("one", "each"):
            page.select_option("main select[name=mode]", mode)
            ask(page, text="a cat sat", labels=typed)
            body = {"texts": "a cat sat", "labels": labels, "multi_label": mode == "each"}
            found = page_server.post("/classify", body).json()["results"][0]["probabilities"]
            assert shown(page, ".bars .name") == sorted(found, key=lambda label: -found[label])
            surest = max(found.values()) if mode == "one" else 0.5
            chosen = [label for label in found if found[label] >= surest]
            assert sorted(shown(page, ".chosen .name")) == sorted(chosen)
    ask(page, text="a cat sat", labels="dog")
    page.select_option("main select[name=mode]", "one")
    ask(page, text="a cat", labels="dog")
    assert said(page) == "Type two labels or more, one on each line."


def test_questions_to_the_heads_of_pre_training(visit, page_server):
    page = visit(page_server.url, tool="follows", first="a cat sat", second="it ran")
    [probability] = page_server.post("/follows", {"first": "a cat sat", "second": "it ran"}).json()["results"]
    assert shown(page, ".bars .figure") == [f"{share:.0%}" for share in (probability, 1 - probability)]
    page = visit(page_server.url, tool="replaced", text=PASSAGE)
    [words] = page_server.post("/replaced", {"text": PASSAGE}).json()["results"]
    assert shown(page, "mark") == [f"{each['word']}{each['probability']:.0%}" for each in words]


def test_tag_colors_what_the_model_found_where_it_stands(visit, page_server):
    page = visit(page_server.url, tool="tag", text=PASSAGE)
    spans = page_server.post("/tag", {"texts": [PASSAGE]}).json()["results"][0]["spans"]
    assert spans
    assert shown(page, "mark") == [f"{span['text']}{span['label']}" for span in spans]
    marks = page.locator("main mark").all()
    colors = {
        span["label"]: mark.evaluate("mark => getComputedStyle(mark).backgroundColor")
        for span, mark in zip(spans, marks, strict=True)
    }
    assert len(set(colors.values())) == len(colors)
    page.evaluate("document.querySelectorAll('main mark small').forEach((label) => label.remove())")
    assert page.text_content("main .passage") == PASSAGE, "every character is there, once"


def test_the_answer_is_marked_in_the_passage(visit, page_server):
    page = visit(page_server.url, tool="answer", question="where does ada live?", passage=PASSAGE)
    body = {"question": "where does ada live?", "passage": PASSAGE, "best": 5}
    found = page_server.post("/answer", body).json()["results"][0]
    assert shown(page, "mark") == [found["text"]]
    assert page.text_content("main .passage") == PASSAGE
    for number, candidate in enumerate(found["candidates"]):
        page.click(f"main .bars li:nth-child({number + 1}) button")
        assert shown(page, "mark") == [candidate["text"]]
        before = page.evaluate("document.querySelector('mark').previousSibling?.textContent ?? ''")
        assert len(before) == candidate["start"], "in code points, as the server counts"


def test_choose(visit, page_server):
    page = visit(page_server.url, tool="choose", question="the film was", choices="a joy\n\n of wood \nseven")
    body = {"question": "the film was", "choices": ["a joy", "of wood", "seven"]}
    found = page_server.post("/choose", body).json()["results"][0]
    assert shown(page, ".bars .name") == body["choices"]
    assert shown(page, ".chosen .name") == [found["text"]]
    ask(page, choices="only one")
    assert "two choices or more" in said(page)


def test_rank(visit, page_server):
    page = visit(page_server.url, tool="rank", query="a film", texts="a joy\n\n of wood \nseven")
    found = page_server.post("/rank", {"query": "a film", "texts": ["a joy", "of wood", "seven"]}).json()["results"][0]
    assert shown(page, ".bars .name") == [row["text"] for row in found]
    assert shown(page, ".chosen .name") == [found[0]["text"]]
    assert said(page) == f"First: {found[0]['text']}"


def test_compare_shows_the_cosines(visit, page_server):
    page = visit(page_server.url, tool="compare", texts=LINES, model="fill")
    vectors = np.array(page_server.post("/embed", {"inputs": LINES.split("\n"), "model": "fill"}).json())
    cells = [float(text.replace("−", "-")) for text in shown(page, "tbody td")]
    np.testing.assert_allclose(np.reshape(cells, (4, 4)), vectors @ vectors.T, atol=5.1e-3)
    page.hover("main tbody tr:nth-child(2) td:nth-child(4)")
    assert "“a dog lay” and “rates rose”" in said(page)
    page.focus(".heat")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert "“rates rose” and “a cat lay”" in said(page)
    ask(page, texts="\n".join(f"line {n}" for n in range(301)))
    assert "the page compares 300" in said(page)


def test_search_reads_each_line_once(visit, page_server):
    page = visit(page_server.url, tool="search", query="cat", texts=LINES, model="fill")
    vectors = np.array(page_server.post("/embed", {"inputs": ["cat", *LINES.split("\n")], "model": "fill"}).json())
    order = np.argsort(-(vectors[1:] @ vectors[0]))
    assert shown(page, ".bars .name") == [LINES.split("\n")[n] for n in order]
    shares = [
        float(bar.evaluate("bar => bar.style.getPropertyValue('--share')")) for bar in page.locator(".bars div").all()
    ]
    assert (shares[0], shares[-1]) == (1, 0), "from the least similar line to the most similar"
    asked = questions(page, "/embed")
    before = turn(page)
    page.fill("main [name=query]", "dog")
    page.press("main [name=query]", "Enter")
    answered(page, before)
    ask(page, texts=f"{LINES}\na new line")
    assert [each["inputs"] for each in asked] == [["dog"], ["a new line"]]


def test_inspect_shows_tokens_and_the_vector(visit, page_server):
    page = visit(page_server.url, tool="inspect", text="a cat?", model="fill")
    [tokens] = page_server.post("/tokenize", {"inputs": "a cat?", "model": "fill"}).json()
    assert shown(page, ".tokens bdi") == [token["text"] for token in tokens]
    for pooling, layer in (("mean", 2), ("cls", 0), ("mean-max", 1)):
        page.select_option("main [name=pooling]", pooling)
        page.select_option("main [name=layer]", str(layer))
        ask(page)
        body = {"inputs": "a cat?", "model": "fill", "pooling": pooling, "layers": [layer], "normalize": False}
        [vector] = page_server.post("/embed", body).json()
        count, length, first = shown(page, "dd")
        assert int(count) == len(vector)
        assert float(length) == pytest.approx(np.linalg.norm(vector), abs=6e-4)
        found = [float(text) for text in first.replace("−", "-").replace("…", "").split()]
        np.testing.assert_allclose(found, vector[:8], atol=5.1e-4)
    page.hover(".tokens li:nth-child(3) button")
    assert said(page).startswith("Token 2: c")


def test_the_views_of_look_open_here(visit, page_server):
    page = visit(page_server.url, tool="inside", text="a cab can back up", pair="dogs dig", model="fill")
    page.wait_for_selector("#look[data-turn]")
    views = page.locator("#look [role=tab]")
    assert views.all_inner_texts() == ["Heads", "Model", "Neurons", "Vectors", "Predictions", "All heads"]
    body = {"text": "a cab can back up", "pair": "dogs dig", "layer": 2, "model": "fill"}
    reply = page_server.post("/attention", body).json()
    page.click("#look .chip.all")
    page.select_option("#look select[aria-label=layer]", label="2")
    page.wait_for_selector("#look[data-layer='2']")
    page.hover("#look .cell.left[data-row='3']")
    until(page, lambda: "(position 3) attends to" in page.inner_text("#look .status"))
    weights = np.mean(reply["layers"][0]["weights"], axis=0)[3]
    assert f"{weights.max():.3f}" in page.inner_text("#look .status")
    for view in ("model", "neurons", "vectors", "fills", "kinds"):
        page.click(f"#look [role=tab][data-view={view}]")
        page.wait_for_selector(f"#look[data-view={view}]")
        assert page.locator("#look .panel").bounding_box()["height"] > 50, view
        assert page.evaluate(FITS)


KEYED = {
    "fill": {"text": "a ___ sat."},
    "follows": {"first": "a cat sat", "second": "it ran"},
    "replaced": {"text": "a cat barked"},
    "classify": {"text": "a fine film"},
    "tag": {"text": "ada lives in london"},
    "answer": {"question": "where?", "passage": "ada lives in london"},
    "choose": {"question": "it was", "choices": "red\nblue"},
    "rank": {"query": "it was", "texts": "red\nblue"},
    "rate-words": {"text": "a long committee"},
    "write": {"text": "a cat"},
    "labels": {"text": "the film falls", "labels": "film\nriver"},
    "compare": {"texts": "a cat\na dog"},
    "search": {"query": "a cat", "texts": "a dog\ncats"},
    "inspect": {"text": "a cat"},
    "inside": {"text": "a cat sat"},
}


@pytest.mark.parametrize(("width", "dark"), [(1280, True), (390, False)])
def test_everything_can_be_done_with_the_keyboard(visit, page_server, width, dark):
    page = visit(page_server.url, width=width, dark=dark)
    focused = "document.activeElement.dataset.tool ?? document.activeElement.name ?? document.activeElement.className"
    for _ in range(30):  # a button for each model comes first
        page.keyboard.press("Tab")
        if page.evaluate(focused) == "fill":
            break
    for tool, fields in KEYED.items():
        page.wait_for_selector(f"[data-tool={tool}][aria-selected=true]")
        assert page.evaluate("document.activeElement.id") == f"tab-{tool}"
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        for name, value in fields.items():
            for _ in range(10):
                page.keyboard.press("Tab")
                if page.evaluate(focused) == name:
                    break
            assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
            page.keyboard.press("ControlOrMeta+a")
            page.keyboard.insert_text(value)
        before = turn(page)
        page.keyboard.press("Control+Enter")
        answered(page, before)
        assert page.locator("main .result > *").count(), tool
        assert not page.locator(".trouble").count(), tool
        page.focus(f"#tab-{tool}")
        page.keyboard.press("ArrowDown" if width > 800 else "ArrowRight")
    page.wait_for_selector("[data-tool=fill][aria-selected=true]")  # round it goes
    page.keyboard.press("End")
    page.wait_for_selector("[data-tool=inside][aria-selected=true]")
    page.keyboard.press("Home")
    page.wait_for_selector("[data-tool=fill][aria-selected=true]")
