"""The web page when things go wrong: hostile texts and links, a busy or lost server, keys, models that cannot."""

import json
import tomllib
from urllib.parse import urlencode

import numpy as np
import pytest
from accessibility import accessibility_faults
from paging import FITS, ROOT, TOOLS, answered, ask, choose_tool, questions, said, turn, until, visit_colors
from serving import running

from bertkit.inside.look.data import unpack
from bertkit.inside.look.look import look
from bertkit.serve.http.auth import Keys
from bertkit.serve.models import Models

HOSTILE = (
    "</textarea><script>window.hacked=1</script><img src=x onerror=window.hacked=1> "
    "\u05e9\u05dc\u05d5\u05dd \u202e\U0001f600\u200d\U0001f525 {{7*7}} ' \" ` & "
)
LONG = (HOSTILE * 100)[:10_000]
KEY = "secret-key-1"
FILES = ROOT / "src" / "bertkit" / "serve" / "page"


def untouched(page) -> bool:
    """Nothing of what was typed became a part of the page."""
    return page.evaluate("window.hacked") is None and page.evaluate(
        "[document.images.length, document.scripts.length]"
    ) == [1, 2]


def test_hostile_text_is_text_in_every_tool(visit, page_server):
    visit.expected += ["413", "422"]  # too long to look inside of; for a pair of texts and a prompt
    page = visit(page_server.url, width=390)
    for tool in TOOLS:
        choose_tool(page, tool)
        fields = [field.get_attribute("name") for field in page.locator("main :is(textarea, input)[name]").all()]
        text = f"{LONG}\n___ {HOSTILE}"
        ask(page, **dict.fromkeys(fields, text))
        assert page.locator("main .result > *").count(), tool
        assert untouched(page), tool
        assert page.evaluate(FITS), tool
    assert "That is too much at once." in page.inner_text(".trouble")
    ask(page, text=HOSTILE[:70], pair="")
    page.wait_for_selector("#look[data-turn]")
    assert untouched(page)


def test_ten_thousand_characters_are_marked_to_the_last(visit, page_server):
    page = visit(page_server.url, tool="tag", text="a")
    text = ("ada \U0001f600 lives in \u05e9\u05dc\u05d5\u05dd. " * 500)[:10_000]
    ask(page, text=text)
    assert page.locator("main mark").count() > 100
    page.evaluate("document.querySelectorAll('main mark small').forEach((label) => label.remove())")
    assert page.text_content("main .passage") == text
    until(page, lambda: "#tool=tag&text=ada" in page.evaluate("location.hash"))
    page.fill("main textarea", "a " * 20_000)  # too long for a link, and to be asked while one types
    until(page, lambda: page.evaluate("location.hash") == "#tool=tag")


def type_at_once(page, text: str) -> None:
    """Key after key, faster than the page's pause however busy the machine is."""
    page.locator("main textarea").evaluate(
        """(area, text) => {
            area.value = "";
            for (const key of text) {
                area.value += key;
                area.dispatchEvent(new InputEvent("input", { bubbles: true }));
            }
        }""",
        text,
    )


def test_typing_asks_seldom_and_shows_the_last(visit, page_server):
    page = visit(page_server.url, tool="fill", text="a ___.")
    held, gone = [], []
    page.route("**/fill", lambda route: held.append(route) if "slow" in route.request.post_data else route.continue_())
    page.on("requestfailed", lambda request: request.url.endswith("/fill") and gone.append(request.failure))
    asked = questions(page)
    type_at_once(page, "slow ___ word")
    until(page, lambda: bool(held) and len(asked) == 2)
    assert [each.get("text") for each in asked if "text" in each] == ["slow [MASK] word"], "one question for all keys"
    assert [each["inputs"] for each in asked if "inputs" in each] == [["slow [MASK] word"]], "and one for the tokens"
    before = turn(page)
    page.fill("main textarea", "a fast ___")
    answered(page, before)
    assert gone == ["net::ERR_ABORTED"], "the first question was given up"
    assert page.inner_text("main .passage").startswith("a fast ")
    assert page.locator("main section[aria-busy]").count() == 0
    page.unroute("**/fill")


def opacity(page, selector: str) -> float:
    return float(page.locator(f"main section > {selector}").evaluate("each => getComputedStyle(each).opacity"))


def pending(page) -> str:
    return page.inner_text("main .actions .pending")


@pytest.mark.parametrize("width", [1280, 390])
def test_a_long_text_says_that_it_waits_for_the_button(visit, page_server, width):
    """The old answer must not look like the new text's."""
    page = visit(page_server.url, width=width, tool="classify", text="a fine film")
    until(page, lambda: (opacity(page, ".result"), opacity(page, ".said")) == (1, 1))
    assert pending(page) == ""
    page.fill("main [name=text]", "a dull film. " * 400)
    until(page, lambda: pending(page) == "Long text: press Classify")
    until(page, lambda: opacity(page, ".result") < 0.5 and opacity(page, ".said") < 0.5)
    assert page.get_attribute("main .pending", "role") == "status"
    assert page.locator("main :is(.why, .request):visible").count() == 0, "they belong to the text before"
    assert page.inner_text("main .took") == ""
    button, hint = (page.locator(f"main .actions {each}").bounding_box() for each in (".go", ".pending"))
    assert abs(button["y"] + button["height"] / 2 - hint["y"] - hint["height"] / 2) < 4, "in one line with the button"
    assert page.evaluate(FITS)
    ask(page)
    assert pending(page) == ""
    until(page, lambda: (opacity(page, ".result"), opacity(page, ".said")) == (1, 1))
    page.fill("main [name=text]", "a dull film. " * 500)
    before = turn(page)
    page.fill("main [name=text]", "a dull film")
    answered(page, before)
    assert pending(page) == ""
    until(page, lambda: opacity(page, ".result") == 1)


def test_a_long_text_gives_up_the_question_before_it(visit, page_server):
    page = visit(page_server.url, tool="classify", text="a fine film")
    held, gone = [], []
    page.route("**/classify", lambda route: held.append(route))
    page.on("requestfailed", lambda request: request.url.endswith("/classify") and gone.append(request.failure))
    page.fill("main [name=text]", "a film")
    until(page, lambda: bool(held))
    page.fill("main [name=text]", "a dull film. " * 400)
    until(page, lambda: gone == ["net::ERR_ABORTED"])
    assert page.locator("main section[aria-busy]").count() == 0
    page.unroute("**/classify")


def test_a_tool_that_never_asks_by_itself_says_so(visit, page_server):
    page = visit(page_server.url, tool="inside", text="a b c")
    page.fill("main [name=text]", "a b c d")
    until(page, lambda: pending(page) == "Changed: press Look" and opacity(page, ".result") < 0.5)
    ask(page)
    until(page, lambda: pending(page) == "" and opacity(page, ".result") == 1)


REPLIES = {
    413: ("That is too much at once.", "Too long by far. Shorten the text, or split it."),
    422: ("The server cannot work with this.", "Too long by far. Change it and try again."),
    404: ("Nothing here answers that.", "Too long by far. Choose another tool or model."),
    500: ("The server failed.", "Too long by far. Try again; its log says more."),
    504: ("No answer came in time.", "Shorten the text, or try again when the server has less to do."),
}


def refuse(status: int, body: str, headers: dict[str, str] | None = None):
    return lambda route: route.fulfill(status=status, body=body, headers=headers or {})


def test_every_refusal_says_what_happened_and_what_to_do(visit, page_server):
    visit.expected.append("Failed to load resource")
    page = visit(page_server.url, width=390, tool="classify", text="a film")
    for status, words in REPLIES.items():
        page.route("**/classify", refuse(status, json.dumps({"error": "too long by far"})))
        ask(page)
        told = page.inner_text("[role=alert]")
        assert all(sentence in told for sentence in words), (status, told)
        page.unroute("**/classify")
        if status in (500, 504):
            before = turn(page)
            page.click("text=Try again")
            answered(page, before)
            assert page.locator("main .bars").count() == 1
        else:
            assert not page.locator("button:text-is('Try again')").count(), "the same request would be refused again"
    page.route("**/classify", refuse(413, json.dumps({"error": "it has 9 tokens, over 8; shorten it"})))
    ask(page)
    assert page.inner_text("[role=alert]").split() == [
        "That",
        "is",
        "too",
        "much",
        "at",
        "once.",
        "It",
        "has",
        "9",
        "tokens,",
        "over",
        "8;",
        "shorten",
        "it.",
    ]
    page.route("**/classify", refuse(502, "<h1>Bad Gateway</h1>"))
    ask(page)
    assert "The server failed." in page.inner_text("[role=alert]")
    page.route("**/classify", refuse(200, "[1, 2"))
    ask(page)
    assert "cannot be reached" in page.inner_text("[role=alert]")


def test_a_busy_server_is_asked_again(visit, page_server):
    visit.expected.append("429")
    page = visit(page_server.url, tool="classify", text="a film")
    replies = [429]
    refusal = {"status": 429, "headers": {"Retry-After": "1"}, "body": json.dumps({"error": "full"})}
    page.route(
        "**/classify", lambda route: route.fulfill(**refusal) if replies and replies.pop() else route.continue_()
    )
    before = turn(page)
    page.click("main .go")
    until(page, lambda: said(page) == "The server is busy; asking again in 1 s.")
    answered(page, before)
    assert page.locator("main .bars").count() == 1
    assert not page.locator(".trouble").count()


def test_without_a_server_what_was_typed_is_kept(visit, page_server):
    visit.expected.append("ERR_INTERNET_DISCONNECTED")
    page = visit(page_server.url, tool="classify", text="a film")
    page.context.set_offline(True)
    ask(page, text="another film")
    assert "The server cannot be reached." in page.inner_text("[role=alert]")
    assert page.input_value("main [name=text]") == "another film"
    page.context.set_offline(False)
    before = turn(page)
    page.click("text=Try again")
    answered(page, before)
    assert page.locator("main .bars").count() == 1


def with_files(page) -> None:
    """Let in what the browser loads by itself, as after its dialog, but nothing that the page asks for."""
    for files in ("**/*.js", "**/*.css", "**/*.svg", "**/"):
        page.route(files, lambda route: route.continue_(headers={**route.request.headers, "x-api-key": KEY}))


def test_a_key_is_asked_for_only_when_the_server_wants_one(visit, page_server):
    visit.expected.append("401")
    own = Models([page_server.service.models.by_name["fill"]])
    page = visit(page_server.url)
    assert page.evaluate("sessionStorage.length") == 0
    with running(own, keys=Keys([KEY])) as server:
        assert server.http.get("/").status_code == 401, "without a key not even the page is there"
        page = visit(server.url, password=KEY)
        assert page.locator("main .bars").count(), "typed into the browser's own dialog, the key is enough"
        assert page.evaluate("sessionStorage.length") == 0
        page = visit(server.url, wait=False, prepare=with_files, tool="inspect", text="a cat")
        assert "asks for a key" in page.inner_text("[role=alert]")
        page.fill("#key", "wrong-key")
        page.press("#key", "Enter")
        until(page, lambda: "does not take this key" in page.inner_text("[role=alert]"))
        page.fill("#key", KEY)
        page.click("text=Use it")
        page.wait_for_selector(".tokens")
        assert page.evaluate("Object.entries(sessionStorage)") == [["bertkit-key", KEY]]
        assert page.evaluate("localStorage.length") == 0
        assert KEY not in page.evaluate("location.href")
        page.reload()
        page.wait_for_selector(".tokens")
        visit.close()


def test_links_carry_the_state(visit, page_server):
    state = {"tool": "answer", "question": "wo & wie?", "passage": "eins\nzwei #drei \U0001f600 +1 100%"}
    page = visit(page_server.url, **state)
    assert page.input_value("main [name=passage]") == state["passage"]
    page.fill("main [name=question]", "what?")
    wanted = urlencode(state | {"question": "what?"})
    until(page, lambda: page.evaluate("location.hash") == f"#{wanted}")
    page.fill("main [name=question]", "what else?")
    choose_tool(page, "compare")
    page.go_back()
    page.wait_for_selector("#panel-answer")
    assert page.input_value("main [name=question]") == "what else?"
    page.go_forward()
    page.wait_for_selector("#panel-compare")
    page.evaluate("location.hash = '#tool=classify&text=red&model=multilabel'")
    page.wait_for_selector("#panel-classify .bars")
    assert page.input_value("main .model select") == "multilabel"
    assert page.input_value("main [name=text]") == "red"


LINKS = [
    urlencode({"tool": HOSTILE, "text": "a"}),
    "tool=__proto__&constructor=1&__proto__=2&text=%E0%A4%A&toString=x",
    "%%%&&&===#?<script>window.hacked=1</script>",
    "javascript:window.hacked=1",
]


def test_a_hostile_link_is_text(visit, page_server):
    page = visit(page_server.url, tool="tag", text=HOSTILE, model=HOSTILE)
    assert page.input_value("main [name=text]") == HOSTILE
    for hash in LINKS:
        page.evaluate("hash => { location.hash = hash; }", hash)
        page.wait_for_selector("#panel-fill[data-turn]")
        assert not page.locator(".trouble").count()
        assert untouched(page)
    assert said(visit(page_server.url, hash=LINKS[1])) == "Write ___ where a word is missing."


def test_what_the_models_cannot_do_is_explained(visit, page_server):
    with running(Models([page_server.service.models.by_name["modern"]])) as server:
        page = visit(server.url, tool="tag", text="a")
        tabs = [tab.get_attribute("data-tool") for tab in page.locator("#tools button").all()]
        able = TOOLS[TOOLS.index("compare") :]
        assert tabs == [*able, *TOOLS[: -len(able)]]
        assert page.inner_text("#tab-tag small") == "needs a tagging model – how?"
        assert "it needs a tagging model." in page.inner_text("main")
        assert page.inner_text("main pre").split("\n")[1] == "bertkit serve my-tags"
        for tool in TOOLS[: -len(able)]:
            choose_tool(page, tool)
            assert "bertkit serve" in page.inner_text("main pre"), tool
            assert not accessibility_faults(page), tool
        choose_tool(page, "search")
        assert not page.locator("main .model").count(), "one model needs no choice"
        visit.close()


def test_the_colors_can_be_chosen_and_are_remembered(visit, page_server):
    page = visit(page_server.url, tool="inside", text="a cab", dark=True)
    page.wait_for_selector("#look[data-turn]")
    ink, paper = visit_colors(page)
    assert ink > paper
    page.click("#theme")
    assert page.inner_text("#theme") == "Dark mode"
    page.reload()
    page.wait_for_selector("#look[data-turn]")
    ink, paper = visit_colors(page)
    assert ink < paper
    brightness = "look => getComputedStyle(look).color"
    assert page.eval_on_selector("#look", brightness) == page.eval_on_selector("body", brightness)


ASK = """async ({ text, pair, model }) => {
    const { reading } = await import("/page/reading.js");
    const headers = { "content-type": "application/json" };
    const send = async (path, body) => (await fetch(path, {
        method: "POST", headers, body: JSON.stringify({ ...body, model: model.id }),
    })).json();
    const plain = (packed) => ({ shape: packed.shape, values: Array.from(packed.values) });
    const data = await reading(text, pair, model, send, () => null);
    const layers = data.layers.map(({ queriesKeys, normalizers, ...sight }) =>
        ({ ...sight, queriesKeys: plain(queriesKeys), normalizers: plain(normalizers) }));
    const cosines = plain(data.movement.cosines);
    const { words, best, probabilities } = data.lens ?? {};
    const lens = words ? { words, best: plain(best), probabilities: plain(probabilities) } : null;
    return { ...data, lens, layers, thumbnails: plain(data.thumbnails), movement: { ...data.movement, cosines } };
}"""


READINGS = [
    ("fill", "a cab can a cab", None),
    ("fill", "a cab can back up", "dogs dig"),
    ("causal", "a cab can back up", "dogs dig"),
    ("modern", "a cab " * 40, None),
]


def test_the_page_computes_what_look_does(visit, page_server):
    """Two roads to the same views: `bertkit look` in Python, the page from the server's replies."""
    page = visit(page_server.url)
    cards = {each["id"]: each for each in page_server.http.get("/v1/models").json()["data"]}
    for model, text, pair in READINGS:
        found = page.evaluate(ASK, {"text": text, "pair": pair, "model": cards[model]})
        wanted = look(page_server.service.models.by_name[model].bert, text, pair).data
        same_views(found, wanted)
    assert any(layer["radius"] for layer in wanted["layers"]), "one model sees only a window"


def same_views(found: dict, wanted: dict) -> None:
    for name in ("text", "pair", "tokens", "parts", "heads"):
        assert found[name] == wanted[name], name
    for name in ("radius", "causal"):
        assert [layer[name] for layer in found["layers"]] == [layer[name] for layer in wanted["layers"]]
    for ours, theirs in zip(found["layers"], wanted["layers"], strict=True):
        for name in ("queriesKeys", "normalizers"):
            assert ours[name]["shape"] == theirs[name]["shape"]
            np.testing.assert_allclose(ours[name]["values"], unpack(theirs[name]).reshape(-1), atol=1e-4)
    thumbnails = unpack(wanted["thumbnails"]).reshape(-1).astype(int)
    np.testing.assert_allclose(found["thumbnails"]["values"], thumbnails, atol=1)
    cosines = unpack(wanted["movement"]["cosines"]).reshape(-1)
    np.testing.assert_allclose(found["movement"]["cosines"]["values"], cosines, atol=1e-3)
    np.testing.assert_allclose(found["movement"]["likeness"], wanted["movement"]["likeness"], atol=2e-4)
    assert (found["lens"] is None) == (wanted["lens"] is None)
    if found["lens"]:
        best, likely = (unpack(wanted["lens"][name]) for name in ("best", "probabilities"))
        assert found["lens"]["best"]["shape"] == list(best.shape)
        ours = [found["lens"]["words"][n] for n in found["lens"]["best"]["values"]]
        assert ours == [wanted["lens"]["words"][n] for n in best.reshape(-1)]
        np.testing.assert_allclose(found["lens"]["probabilities"]["values"], likely.reshape(-1), atol=1e-4)
    for ours, theirs in zip(found["catalogue"], wanted["catalogue"], strict=True):
        assert ours.keys() == theirs.keys()
        assert ours.pop("kind") == theirs.pop("kind")
        assert ours == pytest.approx(theirs, abs=2e-4)


def test_no_file_makes_markup_or_code_of_a_text():
    files = sorted(FILES.glob("*.js"))
    assert len(files) > 15
    for path in files:
        source = path.read_text(encoding="utf-8")
        for way in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "http://",
            "https://",
        ):
            assert way not in source, (path.name, way)
    assert "<script>" not in (FILES / "index.html").read_text(encoding="utf-8")
    assert "style=" not in (FILES / "index.html").read_text(encoding="utf-8")


def test_every_file_is_served_and_goes_into_the_wheel(page_server):
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["bertkit"]
    package = ROOT / "src" / "bertkit"
    packed = {path for pattern in patterns for path in package.glob(pattern)}
    for folder, address in (("serve/page", "/page"), ("inside/look/page", "/inside")):
        files = [path for path in (package / folder).iterdir() if path.is_file()]
        assert len(files) >= 10
        for path in files:
            assert path in packed, path
            reply = page_server.http.get(f"{address}/{path.name}")
            assert reply.status_code == 200
            assert reply.content == path.read_bytes()
            assert "script-src 'self'" in reply.headers["content-security-policy"]
