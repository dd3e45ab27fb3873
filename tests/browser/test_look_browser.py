"""The views in a real browser: clicked, typed at, small and large, with hostile text, offline."""

import json
import re

import numpy as np
import pytest
import torch
from accessibility import accessibility_faults

import bertkit
from bertkit.checkpoint.save_load import Checkpoint
from bertkit.config import BertConfig, family_config, override
from bertkit.errors import RequestError
from bertkit.inside.look.data import lens, page_data
from bertkit.inside.look.heads import KIND_NAMES, catalogue
from bertkit.inside.look.look import look, module
from bertkit.inside.look.look import page as look_page
from bertkit.inside.look.reading import read
from bertkit.model.model import new_model
from bertkit.predict.bert import Bert
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.wordpiece import SPECIALS

LETTERS = "abcdefghijklmnopqrstuvwxyz"
PIECES = [
    *SPECIALS,
    *LETTERS,
    *(f"##{letter}" for letter in LETTERS),
    "<",
    ">",
    "/",
    "=",
    "(",
    ")",
    "\u05e9",
    "\U0001f600",
]
TEXT, PAIR = "a cab can back a big bag up a hill", "dogs [MASK] dig"
VIEWS = ["heads", "model", "neurons", "vectors", "fills", "kinds"]


def bert_of(config: BertConfig, heads=("masked_word",)) -> Bert:
    torch.manual_seed(0)
    model = new_model(config, dict.fromkeys(heads)).eval()
    return Bert(Checkpoint(model=model, tokenizer=Tokenizer.from_vocab(PIECES), max_length=config.max_length))


@pytest.fixture(scope="module")
def bert() -> Bert:
    shape = {"vocab_size": len(PIECES), "max_length": 512, "init_std": 0.3, "depth": 3, "heads": 4}
    return bert_of(family_config("bert", "tiny", **shape))


@pytest.fixture(scope="module")
def saved(bert, tmp_path_factory):
    path = tmp_path_factory.mktemp("pages") / "look.html"
    look(bert, TEXT, PAIR).save(path)
    return path


def choose(page, view: str) -> None:
    page.click(f"[role=tab][data-view={view}]")
    page.wait_for_selector(f"#look[data-view={view}]")


def said(page) -> str:
    return page.inner_text(".status")


def show_all(page, layer: int = 1) -> None:
    """All heads of a layer, and no token chosen: the page begins with one of each."""
    if page.locator(".chip").count() > 1:
        page.click(".chip.all")
    page.select_option("select[aria-label=layer]", label=f"{layer}")
    page.focus(".stage")
    page.keyboard.press("Escape")
    page.wait_for_selector(f"#look[data-layer='{layer}']")
    page.wait_for_selector(".cell.chosen", state="detached")


def inked(page, selector: str) -> int:
    """How many points of a canvas are drawn on."""
    count = """canvas => { const context = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d");
        context.drawImage(canvas, 0, 0); const all = context.getImageData(0, 0, canvas.width, canvas.height).data;
        let inked = 0; for (let i = 3; i < all.length; i += 4) inked += all[i] > 0; return inked; }"""
    return page.eval_on_selector(selector, count)


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_every_view_is_drawn_and_fits(open_page, saved, width, dark):
    page = open_page(saved, width=width, dark=dark)
    assert page.locator("[role=tab]").count() == len(VIEWS)
    for view in VIEWS:
        choose(page, view)
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), view
        assert page.locator(".panel").bounding_box()["height"] > 100
        assert said(page)
        assert accessibility_faults(page) == []
        if page.locator(".pane canvas").count() and view != "fills":
            assert inked(page, ".pane canvas") > 100, view
    assert page.locator("table tbody tr").count() == 12


def test_head_view(open_page, saved, bert):
    page = open_page(saved)
    show_all(page)
    weights = torch.stack([layer.weights for layer in read(bert, TEXT, PAIR).trace.layers])
    everything = inked(page, ".pane canvas")
    page.hover(".cell.left[data-row='3']")
    page.wait_for_function("document.querySelector('.status').textContent.includes('(position 3) attends to')")
    row = weights[0].mean(dim=0)[3]
    assert f"{float(row.max()):.3f}" in said(page)
    page.hover(".cell.right[data-row='5']")
    page.wait_for_function("document.querySelector('.status').textContent.includes('(position 5) is attended to by')")
    assert f"{float(weights[0].mean(dim=0)[:, 5].max()):.3f}" in said(page)
    page.mouse.move(2, 2)
    page.select_option("select[aria-label=layer]", label="3")
    page.wait_for_selector("#look[data-layer='3']")
    page.click(".chip >> nth=1")
    assert page.locator(".chip[aria-pressed=true]").count() == 3
    page.click(".chip.all")  # some are off: all on
    assert page.locator(".chip[aria-pressed=true]").count() == 4
    page.dblclick(".chip >> nth=2")
    page.wait_for_function("document.querySelectorAll('.chip[aria-pressed=true]').length === 1")
    assert inked(page, ".pane canvas") < everything
    page.click(".cell.left[data-row='4']")
    page.mouse.move(2, 2)
    page.wait_for_function("document.querySelector('.status').textContent.includes('(position 4) attends to')")
    assert f"{float(weights[2, 2, 4].max()):.3f}" in said(page)


@pytest.fixture(scope="module")
def told(bert, tmp_path_factory):
    """A page whose catalogue says what a random model never does: one head looks at the next word, one at itself."""
    data = look(bert, TEXT + ".").data
    plain = {"kind": "broad", "next": 0.1, "previous": 0.1, "itself": 0.1, "entropy": 3.0, "breadth": 0.9}
    kinds = {(2, 3): {"kind": "next", "next": 0.98}, (3, 1): {"kind": "itself", "itself": 0.9}}
    data["catalogue"] = [row | plain | kinds.get((row["layer"], row["head"]), {}) for row in data["catalogue"]]
    path = tmp_path_factory.mktemp("pages") / "told.html"
    path.write_text(look_page(data), encoding="utf-8")
    return path


def test_the_page_begins_with_the_head_that_was_asked_for(open_page, bert, tmp_path):
    path = tmp_path / "asked.html"
    path.write_text(look_page(page_data(bert, read(bert, TEXT), head=(3, 2))), encoding="utf-8")
    page = open_page(path)
    page.wait_for_selector("#look[data-layer='3']")
    assert page.inner_text(".head-caption").startswith("Layer 3, head 2: ")
    assert page.locator(".chip[aria-pressed=true]").all_inner_texts() == ["2"]
    with pytest.raises(RequestError, match="layer 9, head 1 is not there: layers are 1 to "):
        page_data(bert, read(bert, TEXT), head=(9, 1))


@pytest.mark.parametrize(("width", "dark"), [(1280, True), (390, False)])
def test_the_page_begins_with_one_telling_head_and_one_token(open_page, told, bert, width, dark):
    page = open_page(told, width=width, dark=dark)
    assert page.inner_text("h1") == "What the model in memory computes for this text"
    assert page.inner_text("footer").endswith(f"made with bertkit {bertkit.__version__}")
    assert page.inner_text(".head-caption") == "Layer 2, head 3: each word looks at the next one (98 %)"
    assert page.locator(".chip[aria-pressed=true]").all_inner_texts() == ["3"]
    weights = read(bert, TEXT + ".").trace.layers[1].weights[2]
    words = weights[1:-2, 1:-2].clone().fill_diagonal_(0)  # without [CLS], [SEP] and the period
    whole = torch.tensor([not token.startswith("##") for token in read(bert, TEXT + ".").tokens[1:12]])
    token = 1 + int((words[:11].max(dim=1).values * whole).argmax())
    assert page.get_attribute(".cell.left.chosen", "data-token") == str(token)
    assert f"(position {token}) attends to:" in said(page)
    names = page.locator(".worth .link").all_inner_texts()
    assert names == ["next word: layer 2, head 3", "itself: layer 3, head 1", "everything: layer 1, head 1"]
    page.focus(".worth .link >> nth=1")
    page.keyboard.press("Enter")
    page.wait_for_selector("#look[data-layer='3']")
    assert page.inner_text(".head-caption") == "Layer 3, head 1: each word looks at itself (90 %)"
    page.click(".worth .link >> nth=2")
    page.wait_for_selector("#look[data-layer='1']")
    assert page.inner_text(".head-caption").endswith(f"looks at almost everything (about 8 of {len(weights)} tokens)")
    boxes = [page.locator(f".cell.{side}").first.bounding_box() for side in ("left", "right")]
    assert 80 < boxes[1]["x"] - boxes[0]["x"] - boxes[0]["width"] <= 361
    names = [page.locator(f".heading .name >> nth={n}").bounding_box() for n in (0, 1)]
    assert names[0]["x"] + names[0]["width"] == pytest.approx(boxes[0]["x"] + boxes[0]["width"], abs=2)
    assert names[1]["x"] == pytest.approx(boxes[1]["x"], abs=2)
    page.focus("summary")
    page.keyboard.press("Enter")
    assert page.locator(".help dt").all_inner_texts() == ["query", "key", "softmax", "head", "layer"]
    assert page.locator(".help dl").is_visible()
    assert accessibility_faults(page) == []


def test_colors_are_weights_on_an_absolute_scale_with_a_strip_for_each_head(open_page, told, bert):
    page = open_page(told)
    show_all(page, layer=2)
    page.click(".cell.left[data-row='4']")
    page.mouse.move(2, 2)  # what is under the mouse looks chosen, too
    page.wait_for_selector(".cell.left.chosen[data-row='4']")
    weights = read(bert, TEXT + ".").trace.layers[1].weights[:, 4]
    shades = page.eval_on_selector_all(
        ".cell.right", "all => all.map((cell) => +cell.style.getPropertyValue('--shade'))"
    )
    np.testing.assert_allclose(shades, weights.mean(dim=0)[: len(shades)], atol=1e-5)
    assert page.locator(".heading .ramp-key").inner_text().split() == ["weight", "0", "1"]
    strips = """canvas => { const { right } = document.querySelector(".cell.right").getBoundingClientRect();
        const left = Math.round(right - canvas.getBoundingClientRect().left);
        const { data, width } = canvas.getContext("2d").getImageData(left, 0, 40, 88);
        const alpha = (head, row) => data[((22 * row + 11) * width + 8 * head + 3) * 4 + 3] / 255;
        return [0, 1, 2, 3].map((head) => [0, 1, 2, 3].map((row) => alpha(head, row))); }"""
    np.testing.assert_allclose(page.eval_on_selector(".pane canvas", strips), weights[:, :4], atol=0.004)


def test_special_tokens_and_punctuation_can_be_hidden(open_page, told, bert):
    page = open_page(told)
    show_all(page)
    tokens = read(bert, TEXT + ".").tokens
    page.get_by_label("hide [CLS], [SEP], punctuation").check()
    page.wait_for_function(f"document.querySelectorAll('.cell.left').length <= {len(tokens) - 3}")
    assert page.locator(".cell.left").all_inner_texts() == list(tokens[1:-2])[: page.locator(".cell.left").count()]
    page.hover(".cell.left[data-token='1']")
    weights = read(bert, TEXT + ".").trace.layers[0].weights.mean(dim=0)[1]
    page.wait_for_function("document.querySelector('.status').textContent.includes('(position 1) attends to')")
    assert f"{float(weights[1:-2].max()):.3f}" in said(page)
    assert "[CLS]" not in said(page)
    assert "[SEP]" not in said(page)


def test_every_column_has_its_number_and_the_model_fills_the_width(open_page, told):
    for width in (1280, 390):
        page = open_page(told, width=width)
        choose(page, "model")
        assert page.locator(".number.above").all_inner_texts()[:4] == ["1", "2", "3", "4"]
        panel, last = page.locator(".panel").bounding_box(), page.locator(".grid").last.bounding_box()
        assert last["x"] + last["width"] == pytest.approx(panel["x"] + panel["width"], abs=4)
        assert page.locator(".grid button").first.bounding_box()["width"] < 150
        choose(page, "vectors")
        assert page.locator(".numbers span").all_inner_texts() == ["1", "2", "3"]
        assert "the layers of “" in page.inner_text("figcaption")
        tabs = page.locator(".tabs")
        assert tabs.get_attribute("data-fade") == ("" if width == 1280 else "both")
        selected = page.locator("[aria-selected=true]").bounding_box()
        assert tabs.bounding_box()["x"] <= selected["x"]


def test_a_long_text_can_be_opened(open_page, bert, tmp_path):
    look(bert, TEXT + " and so on" * 40).save(tmp_path / "long.html")
    page = open_page(tmp_path / "long.html")
    closed = page.locator(".text").bounding_box()["height"]
    page.focus(".more")
    page.keyboard.press("Enter")
    assert page.locator(".text").bounding_box()["height"] > closed
    assert page.inner_text(".more") == "less"
    page.click(".more")
    assert page.locator(".text").bounding_box()["height"] == closed


def test_the_pair_filter_hides_the_other_texts(open_page, saved, bert, tmp_path):
    page = open_page(saved)
    show_all(page)
    reading = read(bert, TEXT, PAIR)
    weights = reading.trace.layers[0].weights.mean(dim=0)
    second = torch.tensor(reading.parts) == 1
    page.select_option("select[aria-label='which text attends to which']", label="A → B")
    page.hover(".cell.left[data-row='3']")
    page.wait_for_function("document.querySelector('.status').textContent.includes('(position 3) attends to')")
    assert f"{float(weights[3][second].max()):.3f}" in said(page)
    page.select_option("select[aria-label='which text attends to which']", label="B → A")
    page.hover(".cell.left[data-row='4']")
    page.wait_for_function("document.querySelector('.status').textContent.includes('(position 4) attends to')")
    assert said(page).endswith("attends to:")
    alone = tmp_path / "alone.html"
    look(bert, TEXT).save(alone)
    assert not open_page(alone).locator(".control.filter").is_visible()


def test_a_thumbnail_opens_its_head(open_page, saved):
    page = open_page(saved)
    choose(page, "model")
    assert page.locator(".grid button").count() == 12
    page.click(".grid button[data-layer='1'][data-head='3']")
    page.wait_for_selector("#look[data-view=heads][data-layer='2']")
    assert page.locator(".chip[aria-pressed=true]").all_inner_texts() == ["4"]


def test_neuron_view_shows_the_models_numbers(open_page, saved, bert):
    page = open_page(saved)
    choose(page, "neurons")
    page.select_option("select[aria-label=layer]", label="2")
    page.click(".chip >> nth=3")
    page.click(".cell.left[data-row='2']")
    page.wait_for_selector(".cell.chosen[data-row='2']")
    seen = read(bert, TEXT, PAIR).trace.layers[1]
    shown = [float(text) for text in page.locator(".softmax").all_inner_texts()]
    np.testing.assert_allclose(shown, seen.weights[3, 2, : len(shown)], atol=5.1e-5)
    scores = (seen.keys[:, 3] @ seen.queries[2, 3]) / np.sqrt(seen.queries.shape[-1])
    found = [float(text.replace("−", "-")) for text in page.locator(".score").all_inner_texts()]
    np.testing.assert_allclose(found, scores[: len(found)], atol=5.1e-3)
    page.hover(".softmax[data-row='4']")
    numbers = [float(text.replace("−", "-")) for text in re.findall(r"−?\d+(?:\.\d+)?", said(page))]
    product, inside_root, scaled, weight = numbers
    assert product / np.sqrt(inside_root) == pytest.approx(scaled, abs=1e-4)
    assert weight == pytest.approx(float(seen.weights[3, 2, 4]), abs=2e-6)


def test_vectors_fills_and_catalogue(open_page, saved, bert):
    page = open_page(saved)
    choose(page, "vectors")
    page.click(".cell.left[data-row='5']")
    assert page.locator("svg rect").count() == 16
    titles = page.locator("svg title").all_text_contents()
    assert titles[0] == "layers 0 and 0: 1.0000"
    choose(page, "fills")
    reading = read(bert, TEXT, PAIR)
    place = reading.tokens.index("[MASK]")
    page.evaluate("document.querySelector('.stage').scrollTop = 1e6")
    page.locator(f".fill[data-row='{place}'] >> nth=3").hover()
    page.wait_for_function("document.querySelector('.status').textContent.includes(') at layer 3')")
    found = lens(bert.model, bert.tokenizer, reading)
    words = [found.words[number] for number in found.ids[place, 3].tolist()]
    shown = [
        f"“{word}” {chance:.3f}" for word, chance in zip(words, found.probabilities[place, 3].tolist(), strict=True)
    ]
    assert re.split(r",\s+", said(page).partition(": ")[2]) == shown
    choose(page, "kinds")
    page.click("th button[data-name=entropy]")
    column = [float(text) for text in page.locator("tbody tr td:nth-child(10)").all_inner_texts()]
    assert column == sorted(column, reverse=True)
    widest = max(catalogue([reading]), key=lambda row: row.entropy)
    first = page.locator("tbody tr:first-child td").all_inner_texts()
    assert first[:3] == [str(widest.layer), str(widest.head), KIND_NAMES[widest.kind]]
    assert first[9:] == [f"{widest.spread:.1f}", f"{widest.distance:.1f}"]
    assert first[3] == f"{widest.next:.0%}".replace("%", " %")
    page.click("tbody tr:first-child button")
    page.wait_for_selector("#look[data-view=heads]")


def test_everything_can_be_done_with_the_keyboard(open_page, saved):
    page = open_page(saved)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.dataset.view") == "heads"
    for view in [*VIEWS[1:], VIEWS[0]]:
        page.keyboard.press("ArrowRight")
        page.wait_for_selector(f"#look[data-view={view}]")
    show_all(page)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.wait_for_selector(".cell.left.chosen[data-row='1']")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("#look[data-layer='2']")
    page.keyboard.press("h")
    page.wait_for_function("document.querySelectorAll('.chip[aria-pressed=true]').length === 1")
    page.keyboard.press("End")
    page.wait_for_selector(".cell.left.chosen")
    page.keyboard.press("Escape")
    page.wait_for_selector(".cell.chosen", state="detached")
    choose(page, "model")
    page.focus(".grid button[tabindex='0']")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.wait_for_selector("#look[data-view=heads][data-layer='3']")


HOSTILE = (
    "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1> \u05e9\u05dc\u05d5\u05dd \U0001f600 "
)


@pytest.mark.filterwarnings("ignore::bertkit.errors.BertkitWarning")
def test_hostile_text_is_text(open_page, bert, tmp_path):
    path = tmp_path / "hostile.html"
    text = (HOSTILE * 200)[:10_000]
    look(bert, text).save(path)
    page = open_page(path, width=390)
    for view in VIEWS:
        choose(page, view)
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), view
    assert page.evaluate("window.hacked") is None
    assert page.evaluate("document.images.length + document.scripts.length") == 2
    assert page.text_content(".text") == text
    assert "512 tokens, the first of" in page.inner_text("footer")


def test_the_module_is_the_models_arithmetic(chromium, bert):
    """As the web page would use it: imported, mounted, asked for rows and columns; float16 too; and a window."""
    modern = bert_of(
        family_config("modernbert", "tiny", vocab_size=len(PIECES), max_length=512, init_std=0.3, depth=2), ()
    )
    page = chromium.new_page()
    ask = """async ({ source, data }) => {
        const address = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
        const { Layer, mount } = await import(address);
        const host = document.body.appendChild(document.createElement("div"));
        mount(host, data);
        const layer = await Layer.read(data.layers[1]);
        const places = [...data.tokens.keys()];
        return { rows: places.map((i) => [...layer.row(1, i)]), columns: places.map((i) => [...layer.column(1, i)]) };
    }"""
    causal = bert_of(override(bert.model.config, "causal=true"), ())
    for model, text in ((bert, TEXT), (causal, TEXT), (modern, "a cab " * 40)):
        data = json.loads(json.dumps(look(model, text).data))
        found = page.evaluate(ask, {"source": module(), "data": data})
        weights = read(model, text).trace.layers[1].weights[1].numpy()
        np.testing.assert_allclose(found["rows"], weights, atol=1e-5)
        np.testing.assert_allclose(np.array(found["columns"]).T, weights, atol=1e-5)
    assert (weights == 0).any(), "the last model must have a window"
    page.close()


def test_a_notebook_cell_works_in_its_frame(open_page, bert, tmp_path, chromium):
    path = tmp_path / "cell.html"
    path.write_text(f"<!doctype html><p>notebook</p>{bertkit.look(bert, TEXT)._repr_html_()}", encoding="utf-8")
    page = chromium.new_page()
    page.goto(path.as_uri())
    frame = page.frame_locator("iframe")
    frame.locator("[role=tab][data-view=neurons]").click()
    frame.locator("#look[data-view=neurons]").wait_for()
    assert frame.locator(".softmax").count() > 5
    page.close()


def test_512_tokens_of_12_by_12_heads_open_at_once(open_page, tmp_path):
    path = tmp_path / "large.html"
    base = bert_of(family_config("bert", "base", vocab_size=len(PIECES), inner=64, init_std=0.05), ())
    look(base, "abcd " * 127 + "a b").save(path)
    assert path.stat().st_size < 25_000_000
    paints = []
    for _ in range(2):  # the machine is shared: the better of two
        page = open_page(path)
        paints.append(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
        ready = page.evaluate("performance.now()")
    assert min(paints) < 2000
    assert ready < 4000
    assert "512 tokens" in page.inner_text("footer")
    assert page.locator(".cell").count() < 200, "only what is in sight is drawn"
    changes = []
    for layer in (4, 8, 12):
        page.select_option("select[aria-label=layer]", label=str(layer))
        page.wait_for_selector(f"#look[data-layer='{layer}']")
        changes.append(int(page.get_attribute("#look", "data-milliseconds")))
    assert min(changes) < 100
    hover = """async () => { const times = [];
        for (const row of [3, 5, 7]) for (const side of ["left", "right"]) {
            const box = document.querySelector(`.cell.${side}[data-row='${row}']`).getBoundingClientRect();
            const start = performance.now();
            document.querySelector(".stage").dispatchEvent(
                new MouseEvent("mousemove", { clientX: box.x + 9, clientY: box.y + 9, bubbles: true }));
            await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
            times.push(performance.now() - start);
        }
        return times.sort((a, b) => a - b); }"""
    assert page.evaluate(hover)[2] < 100
    page.evaluate("document.querySelector('.stage').scrollTop = 1e6")
    page.wait_for_selector(".cell.left[data-row='511']")


def test_source_and_target_side_by_side(open_page, tmp_path):
    """An encoder-decoder: causal rows in one view, and the source beside the written tokens in another."""
    shape = {"vocab_size": len(PIECES), "max_length": 64, "init_std": 0.3, "depth": 2, "heads": 4, "decoder_depth": 2}
    config = family_config("encoder-decoder", "tiny", **shape)
    bert = bert_of(config, ("decoder",))
    look(bert, TEXT, "dogs dig").save(tmp_path / "look.html")
    page = open_page(tmp_path / "look.html")
    reading = read(bert, TEXT, "dogs dig")
    assert [tab.get_attribute("data-view") for tab in page.locator("[role=tab]").all()] == [
        "heads",
        "source",
        "model",
        "neurons",
        "vectors",
        "kinds",
    ]
    show_all(page)
    page.hover(".cell.left[data-row='0']")
    page.wait_for_function("document.querySelector('.status').textContent.includes('(position 0) attends to')")
    assert "“[CLS]” 1.000" in said(page), "the first token of the target sees itself alone"
    choose(page, "source")
    assert page.locator(".cell.left").count() == len(reading.tokens)
    right = page.locator(".cell.right").all_inner_texts()  # the rows that are visible
    assert len(right) > len(reading.tokens)
    assert right == list(reading.source.tokens[: len(right)])
    for layer in (0, 1):
        page.select_option("select[aria-label=layer]", label=f"{layer + 1}")
        page.wait_for_selector(f"#look[data-layer='{layer + 1}']")
        weights = reading.trace.layers[layer].cross_weights.mean(dim=0)
        page.hover(".cell.left[data-row='2']")
        page.wait_for_function("document.querySelector('.status').textContent.includes('(position 2) attends to')")
        assert said(page).startswith(f"“{reading.tokens[3]}”"), "the token that this row leads to"
        assert f"{float(weights[2].max()):.3f}" in said(page)
        page.hover(".cell.right[data-row='11']")
        page.wait_for_function(
            "document.querySelector('.status').textContent.includes('(position 11) is attended to by')"
        )
        assert f"{float(weights[:, 11].max()):.3f}" in said(page)
        page.mouse.move(2, 2)


def test_a_decoders_rows_end_at_the_diagonal(open_page, tmp_path):
    shape = {"vocab_size": len(PIECES), "max_length": 64, "init_std": 0.3, "depth": 2, "heads": 4}
    bert = bert_of(family_config("gpt2", "tiny", **shape))
    look(bert, "a cab can back").save(tmp_path / "look.html")
    page = open_page(tmp_path / "look.html")
    show_all(page)
    weights = read(bert, "a cab can back").trace.layers[0].weights.mean(dim=0)
    page.hover(".cell.right[data-row='6']")
    page.wait_for_function("document.querySelector('.status').textContent.includes('(position 6) is attended to by')")
    assert f"{float(weights[6:, 6].max()):.3f}" in said(page)
    page.hover(".cell.left[data-row='1']")
    page.wait_for_function("document.querySelector('.status').textContent.includes('(position 1) attends to')")
    assert said(page).count(",") == 1, "itself and the one before"


def test_a_recurrent_model_shows_its_alignment_and_its_vectors(open_page, tmp_path):
    """The same view as cross-attention's; views of heads are not there."""
    config = family_config("rnn", "tiny", vocab_size=len(PIECES), max_length=64, init_std=0.3)
    bert = bert_of(config, ("decoder",))
    look(bert, TEXT, "dogs dig").save(tmp_path / "look.html")
    page = open_page(tmp_path / "look.html")
    assert [tab.get_attribute("data-view") for tab in page.locator("[role=tab]").all()] == ["source", "vectors"]
    assert "what each written word looks at in the source" in page.inner_text(".head-caption")
    weights = bert.trace(TEXT, "dogs dig").layers[0].cross_weights[0]
    page.hover(".cell.left[data-row='2']")
    page.wait_for_function("document.querySelector('.status').textContent.includes('(position 2) attends to')")
    assert f"{float(weights[2].max()):.3f}" in said(page)
    choose(page, "vectors")
    encoder = bert_of(family_config("elmo", "tiny", vocab_size=len(PIECES), max_length=64, init_std=0.3), ())
    look(encoder, TEXT).save(tmp_path / "elmo.html")
    page = open_page(tmp_path / "elmo.html")
    assert [tab.get_attribute("data-view") for tab in page.locator("[role=tab]").all()] == ["vectors"]
