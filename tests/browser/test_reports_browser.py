"""The reports in a real browser: they fit wide and narrow windows, dark and light, and can be read by everybody."""

import json
import random
import sys
from pathlib import Path

import pytest
from accessibility import accessibility_faults

from bertkit.checkpoint.save_load import load_checkpoint
from bertkit.finetuning.fine_tuning import fine_tune
from bertkit.finetuning.settings import read_settings
from bertkit.inside.attribution.attribution import why
from bertkit.inside.probes.page import probe_page
from bertkit.inside.probes.structure import DrawnTree, StructureReport, StructureScore
from bertkit.inside.senses.senses import map_senses
from bertkit.inside.senses.uses import Use
from bertkit.inside.through_training import CheckpointView, TrainingHistory
from bertkit.predict.bert import Bert
from bertkit.train.report import write_report

sys.path.append(str(Path(__file__).parents[1] / "finetuning"))
import tiny

FITS = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
LABELS = ("admiration", "disappointment", "embarrassment", "realization of a mistake", "joy", "love", "curiosity")
SENTENCE = "ada who lives in london is very good and it was a great film of paris"


def fine_tuned(folder: Path) -> Path:
    """A run with few evaluations, many mistakes, and seven labels, most of them long words."""
    draw = random.Random(0)
    for name, rows in (("train", 200), ("dev", 60)):
        lines = [f"{tiny.sentence(draw, draw.choice(tiny.NAMES))}\t{LABELS[n % len(LABELS)]}" for n in range(rows)]
        (folder / f"{name}.tsv").write_text("text\tlabel\n" + "\n".join(lines) + "\n")
    settings = read_settings("epochs=1", "learning_rate=1e-4", "log_every=1")
    files = folder / "train.tsv", folder / "dev.tsv"
    fine_tune("classify", settings, tiny.tiny_folder(folder / "tiny"), *files, folder / "run")
    return folder / "run" / "report.html"


def compared(folder: Path) -> Path:
    """A short training as `look --runs` shows it: two checkpoints."""
    heads = ({"mixed": 3, "broad": 1}, {"next": 1, "same_word": 1, "broad": 2})
    filled = ({"text": "Paris is [MASK].", "words": ["the", "of"]},)
    stages = tuple(CheckpointView(100 * n, found, filled, (0.5, 0.6, 0.7)) for n, found in enumerate(heads, start=1))
    TrainingHistory("run", "step", stages, {"mlm_loss": [(100.0, 8.5), (200.0, 7.25)]}).save(folder / "course.html")
    return folder / "course.html"


def pretrained(folder: Path) -> Path:
    lines = [
        {"step": n, "seconds": n * 0.5, "tokens": n * 64, "loss": {"mlm": 9 - n / 9}, "rate": 1e-4} for n in range(1, 9)
    ]
    lines += [{"step": 8, "evaluation": {"mlm_loss": 8.5}}]
    lines += [{"step": n, "filled": [{"text": "Paris is [MASK].", "words": ["the", "of"]}]} for n in (4, 8)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "settings.toml").write_text('shards = "s"\n[model]\nfamily = "bert"\ndepth = 2\nwidth = 32\n')
    return write_report(folder)


def probed(folder: Path) -> Path:
    layers = tuple(StructureScore(layer, 0.3 + layer / 10, 0.5, 0.4, 0.3) for layer in range(4))
    words = tuple(SENTENCE.split())
    draw, size = random.Random(0), len(words)
    heads = (-1, *range(size - 1))
    edges = tuple((n, n + 1) for n in range(size - 1))
    lengths = tuple((n, n - 1, draw.uniform(0, 2)) for n in range(1, size))
    points = tuple((draw.random(), draw.random()) for _ in words)
    drawn = DrawnTree(words, heads, tuple(range(size)), edges, points, lengths)
    report = StructureReport(
        what="structure", rank=8, layers=layers, random=layers, chain=layers[0], drawn=(drawn,), notes=("a note",)
    )
    (folder / "report.html").write_text(probe_page(report, "tiny"), encoding="utf-8")
    return folder / "report.html"


def sensed(folder: Path) -> Path:
    bert = Bert(load_checkpoint(tiny.tiny_folder(folder / "tiny")))
    sentences = [f"the film was {word} and good" for word in (*tiny.GOOD[1:], *tiny.BAD, *tiny.NAMES, *tiny.PLACES)]
    uses = [Use(text, 4, 8, "a file") for text in sentences]
    map_senses(bert, "film", uses).save(folder / "map.html")
    return folder / "map.html"


def explained(run: Path) -> Path:
    bert = Bert(load_checkpoint(run))
    why(bert, "the film was very good and it is a bad film").save(run / "why.html")
    return run / "why.html"


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    makers = {"finetune": fine_tuned, "pretrain": pretrained, "probe": probed, "senses": sensed}
    makers |= {"through training": compared}
    made = {name: make(tmp_path_factory.mktemp(name)) for name, make in makers.items()}
    return {**made, "why": explained(made["finetune"].parent)}


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_every_report_fits_and_has_no_grave_fault(open_page, pages, width, dark):
    for name, path in pages.items():
        page = open_page(path, width=width, dark=dark, ready="main footer")
        assert page.evaluate(FITS), name
        for details in page.locator("summary").all():  # what is closed can be reached and opened by the keyboard
            details.focus()
            page.keyboard.press("Enter")
        assert page.evaluate(FITS), name
        assert page.locator("details:not([open])").count() == 0
        assert accessibility_faults(page) == [], name
        assert page.inner_text("main > footer").startswith("Made with bertkit")


def test_what_a_narrow_window_shows_of_fine_tuning(open_page, pages):
    page = open_page(pages["finetune"], width=390, ready="main footer")
    assert page.inner_text("h1") == "classify: tiny on train.tsv"
    assert page.inner_text(".watched .badge >> nth=0") == "main metric"
    [_, score, interval, baseline] = page.locator(".scores .watched").locator("th, td").all_inner_texts()
    low, high = map(float, interval.split("–"))
    assert low < float(score) < high
    assert 0.1 < float(baseline) < 0.3
    scores = page.locator(".scores").bounding_box()
    assert scores["x"] + scores["width"] <= 390, "no score is out of sight"
    text = page.locator(".texts td[data-name=text]").first.bounding_box()
    assert text["width"] > 300
    colors = page.eval_on_selector_all(
        ".matrix tbody td", "all => all.map((cell) => getComputedStyle(cell).backgroundColor)"
    )
    assert len(set(colors)) > 1


@pytest.mark.parametrize("width", [1280, 390])
def test_a_matrix_of_seven_labels_needs_no_scroll_bar(open_page, pages, width):
    page = open_page(pages["finetune"], width=width, ready="main footer")
    matrix = page.locator(".matrix")
    assert matrix.evaluate("table => table.parentElement.scrollWidth <= table.parentElement.clientWidth")
    for scope in ("col", "row"):
        heads = matrix.locator(f"th[scope={scope}]").all()
        assert sorted(head.get_attribute("title") for head in heads) == sorted(LABELS)
        for head in heads:  # the text, which may end in an ellipsis, is inside its cell, and large enough to read
            cell, text = head.bounding_box(), head.locator("span").bounding_box()
            assert cell["x"] - 1 <= text["x"]
            assert text["x"] + text["width"] <= cell["x"] + cell["width"] + 1
            assert cell["y"] - 1 <= text["y"]
            assert text["y"] + text["height"] <= cell["y"] + cell["height"] + 1
            assert float(head.evaluate("head => parseFloat(getComputedStyle(head).fontSize)")) >= 12
    cells = matrix.locator("tbody td").all()
    assert len(cells) == 49
    assert all(cell.bounding_box()["width"] >= 26 for cell in cells)
    assert sum(int(cell.inner_text()) for cell in cells) == 60


def test_two_checkpoints_are_tables_and_no_charts(open_page, pages):
    page = open_page(pages["through training"], width=390, ready="main footer")
    assert page.locator("svg").count() == 0
    table = page.locator("figure", has_text="Number of heads that look at")
    rows = [row.locator("th, td").all_inner_texts() for row in table.locator("tr").all()]
    assert rows[0] == ["step", "100", "200"]
    assert ["everything", "1", "2"] in rows
    assert ["mixed", "3", "0"] in rows
    assert page.locator("figure", has_text="mlm loss").locator("td").all_inner_texts() == ["8.5", "7.25"]


def test_trees_are_large_enough_to_read(open_page, pages):
    page = open_page(pages["probe"], ready="main footer")
    word = page.locator(".tree .wide text", has_text="london").bounding_box()
    assert word["height"] > 12
    assert page.locator(".tree .wide svg").bounding_box()["width"] > 700
    narrow = open_page(pages["probe"], width=390, ready="main footer")
    assert narrow.locator(".tree .wide text", has_text="london").bounding_box()["height"] > 12


def test_a_use_is_read_by_mouse_and_keyboard(open_page, pages):
    page = open_page(pages["senses"], ready="main footer")
    page.hover(".use >> nth=0")
    assert page.locator(".use >> nth=0").locator(".popup").is_visible()
    page.mouse.move(2, 2)
    page.focus(".use >> nth=1")
    assert page.locator(".use >> nth=1").locator(".popup").is_visible()
    assert page.locator(".groups li").first.is_visible()
