"""Shares as a page, as lines and as a command: hostile text is text."""

import json
import re
from dataclasses import replace
from datetime import date
from html.parser import HTMLParser

import pytest
from topic_models import topic_classifier, topic_filler

from bertkit.cli.main import run
from bertkit.inside.attribution.attribution import why
from bertkit.inside.attribution.counterfactuals import FlipSettings, flips
from bertkit.report.why import visible, why_page, why_text

pytestmark = pytest.mark.usefixtures("_one_thread")
HOSTILE = [
    '<script>alert("t0w1")</script> <img src=x onerror=alert(1)>',
    "</title></style></main><b onclick='x'>t0w1 & &lt;",
    "שלום t0w1 עולם \u202etxet\u202c",
    "👩\u200d🚀 t0w1 e\u0301 \ufffd",
    "t0w1 \x1b[31m[red]c2[/red] {{script}} \x07",
    "t0w1 " * 2000,
]


class Reader(HTMLParser):
    """What a browser would see: the tags with their attributes, and the text outside of style and title."""

    def __init__(self) -> None:
        super().__init__()
        self.tags, self.names, self.text, self.paragraphs = set(), set(), [], []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.names |= {name for name, _ in attrs}
        self.inside = tag
        if tag == "p":
            self.paragraphs.append("")

    def handle_data(self, data):
        if self.paragraphs:
            self.paragraphs[-1] += data


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_is_shown_as_text(text):
    found = why(topic_classifier(), text)
    reader = Reader()
    reader.feed(found.html)
    assert reader.tags <= {
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "main",
        "header",
        "h1",
        "p",
        "mark",
        "i",
        "footer",
    } | {
        "table",
        "tr",
        "th",
        "td",
    }
    assert reader.names <= {"lang", "charset", "http-equiv", "content", "name", "class", "style", "title", "scope"}
    assert text.replace("\r", "\n") in [paragraph.rstrip("\n") for paragraph in reader.paragraphs]
    assert "http" not in found.html.replace("http-equiv", "")
    assert "\x1b" not in str(found) + why_text(found).plain
    assert found._repr_html_().startswith("<iframe srcdoc=")


def test_a_page_says_how_it_was_computed():
    found = why(topic_classifier(), "t0w1 c2 t0w3 t1w1")
    assert re.search(r"logit: \d\.\d{3} with the text, −\d\.\d{3} with every word at the mask baseline", found.html)
    assert re.search(
        r"integrated gradients, \d+ steps: the shares add up to the difference \(gap 0\.\d\d%\)", found.html
    )
    strongest = max(found.words, key=lambda word: abs(word.share))
    side = "for" if strongest.share > 0 else "against"
    assert re.findall(r'<mark class="(\w+)" style="--size:1\.000"', found.html) == [side]
    assert set(re.findall(r'<mark class="(\w+)"', found.html)) == {"for", "against"}
    shown = why_text(found)
    assert shown.plain == "t0w1 c2 t0w3 t1w1"
    colors = {str(span.style) for span in shown.spans}
    assert len(colors) >= 2


def test_control_and_direction_marks_are_made_visible():
    assert visible("a\x1b[2J\u202eb\u2066\tc\n") == "a�[2J�b�\tc\n"


def test_flips_are_on_the_page_escaped():
    bert = topic_classifier()
    found = flips(bert, "c1 t0w1 c2", fill=topic_filler(), settings=FlipSettings(least=0.0))
    assert found.found
    spoiled = tuple(replace(flip, text=f"{flip.text}<b>", answer="<b>&") for flip in found.found)
    page = why_page(why(bert, "c1 t0w1 c2"), replace(found, found=spoiled))
    assert page.count("<ins>") == sum(len(flip.changes) for flip in found.found)
    assert "<b>" not in page


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    topic_classifier().save(folder / "topics")
    topic_filler().save(folder / "fill")
    return folder


def test_the_command_tells_and_writes(folders, tmp_path, capsys):
    out = tmp_path / "why.html"
    words = ["why", "t0w1 c2 c3", "--model", str(folders / "topics"), "--flip", "--out", str(out)]
    assert run([*words, "--fill-model", str(folders / "fill")]) == 0
    told = capsys.readouterr().out
    assert told.startswith("Why the label '0'?\n")
    assert "the shares add up to the difference" in told
    assert " → " in told
    assert out.read_text().startswith("<!doctype html>")
    assert "What would change it" in out.read_text()
    assert run(["why", "t0w1 c2", "--model", str(folders / "topics"), "--target", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["why"]
    assert found["target"] == "the label '1'"
    assert {each["word"] for each in found["words"]} == {"t0w1", "c2"}


def test_a_word_may_be_meant_for_the_table_alone(folders, capsys):
    words = ["look", "t0w1 c2", "--model", str(folders / "topics"), "--why", "--table", "--word", "c2", "--json"]
    assert run(words) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"table", "why"}


REFUSED = [
    ([], "give a text to look at, or a run's folder: --runs DIR"),
    (["--why"], "give a text to look at, or a run's folder: --runs DIR"),
    (["a", "--table", "--target", "x"], "--target goes with --why"),
    (["why", "a", "--fill-model", "x"], "--fill-model goes with --flip"),
    (["a", "--flip"], "--flip goes with --why"),
    (["a", "--table", "--flip"], "--flip goes with --why"),
    (["a", "--table", "--probe", "x.conllu"], "--probe goes with --runs"),
    (["--runs", "x", "--why"], "--runs looks at checkpoints; leave out --why"),
    (["--runs", "x", "--pair", "y"], "--runs looks at checkpoints; leave out --pair"),
    (["--runs", "nowhere"], "nowhere is not a folder"),
    (["why", "a", "--word", "a"], "word=a goes with a model that tags words; leave it out"),
    (["why", "a", "--flip"], "this classifier has no masked-word head"),
    (["why", "a", "--target", "9"], "unknown label '9'; choose from: 0, 1, 2"),
]


@pytest.mark.parametrize(("words", "sentence"), REFUSED, ids=[sentence[:30] for _, sentence in REFUSED])
def test_what_cannot_be_is_refused_in_one_sentence(words, sentence, folders, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    verb = [] if words[:1] == ["why"] else ["look"]
    model = [] if "--runs" in words else ["--model", str(folders / "topics")]
    assert run([*verb, *words, *model]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert sentence in said.err
    assert not list(tmp_path.iterdir())


def test_the_probability_is_that_of_the_prediction_and_of_masks():
    bert, text = topic_classifier(), "t0w1 c2 t0w3 t1w1"
    found = why(bert, text, target="0")
    [plain, hidden] = bert.classify([text, "[MASK] [MASK] [MASK] [MASK]"])
    assert found.probability == pytest.approx(plain.probabilities["0"], abs=1e-5)
    assert found.baseline_probability == pytest.approx(hidden.probabilities["0"], abs=1e-5)
    words = f"probability {found.probability:.1%} ({found.baseline_probability:.1%} with all words hidden)"
    assert words in found.html
    assert str(found).splitlines()[1] == words
    assert "-" not in re.sub(r"<style>.*?</style>|<[^>]*>", "", found.html, flags=re.DOTALL).replace(
        f"{date.today()}", ""
    )


def test_a_word_for_a_blank_has_its_probability():
    bert = topic_filler()
    [best] = bert.fill("t0w1 [MASK] t0w3", top=1)
    assert why(bert, "t0w1 [MASK] t0w3").probability == pytest.approx(best.probability, abs=1e-5)
