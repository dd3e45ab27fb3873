"""The page as a file: complete, closed to the network, and safe with any text."""

import base64
import hashlib
import html
import json
import re
from pathlib import Path

import pytest

import bertkit
from bertkit.errors import RequestError
from bertkit.inside import look as look_package
from bertkit.inside.look.look import module, page, scripts

STATIC = Path(look_package.__file__).parent / "page"
SCRIPTS = scripts()
VIEW = re.compile(r"^export class (\w+View) ", re.MULTILINE)
HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)> <!-- <script>",
    "{{script}} {{data}} {{title}}",
    "\u202eabc\u202c \u05e9\u05dc\u05d5\u05dd \U0001f600 \u2028 \u2029 \u0000",
    "'\"`\\${a}&lt;&amp;",
]


def data_of(document: str) -> dict:
    [found] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', document, re.DOTALL)
    return json.loads(found)


def test_every_static_file_is_used():
    assert {path.name for path in STATIC.iterdir()} == {*(f"{name}.js" for name in SCRIPTS), "look.css"}


def test_the_joined_module_defines_every_name_once_and_imports_nothing():
    source = module()
    assert not re.search(r"^import ", source, re.MULTILINE)
    names = re.findall(r"^(?:export )?(?:async )?(?:function|class|const|let) (\w+)", source, re.MULTILINE)
    assert len(names) == len(set(names)) > 20
    assert "export function mount(host, data)" in source
    assert "</script" not in source


@pytest.mark.parametrize("name", SCRIPTS)
def test_files_import_only_what_stands_before_them_and_never_write_markup(name):
    source = (STATIC / f"{name}.js").read_text(encoding="utf-8")
    for imported in re.findall(r'from "\./(\w+)\.js"', source):
        assert SCRIPTS.index(imported) < SCRIPTS.index(name)
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|fetch\(|XMLHttp|https?:(?!//www\.w3)", source
    )
    assert len(source.splitlines()) <= 350


def test_every_view_is_in_the_table_and_says_what_it_needs(bert):
    table = re.search(r"^const VIEWS = \{\n(.*?)^\};", (STATIC / "look.js").read_text(encoding="utf-8"), re.M | re.S)
    rows = dict(re.findall(r"(\w+): (\w+View)", table.group(1)))
    sources = [path.read_text(encoding="utf-8") for path in STATIC.glob("*_view.js")]
    assert sorted(rows.values()) == sorted(name for source in sources for name in VIEW.findall(source))
    assert len(rows) == 7
    data = bertkit.look(bert, "a cab").data | {"source": True}  # which an encoder-decoder has
    for source in sources:
        assert re.search(r'^  static title = "[\w ]+";$', source, re.M)
        controls = re.findall(r"^  static controls = (\[.*\]);$", source, re.M)
        assert set(json.loads(controls[0] if controls else "[]")) <= {"layer", "heads", "filter", "hide"}
        assert all(data[name] for name in re.findall(r'^  static needs = "(\w+)";$', source, re.M))


def test_the_page_names_no_address_and_its_policy_allows_its_own_script_only(bert):
    document = bertkit.look(bert, "a cab").html
    outside = [url for url in re.findall(r"https?://[^\s\"'<>]+", document) if "www.w3.org/2000/svg" not in url]
    assert not outside
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]*)"', document)
    [script] = re.findall(r'<script type="module">(.*?)</script>', document, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy.startswith("default-src 'none'; ")
    assert f"script-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_inside_the_data(tiny_bert, text):
    found = bertkit.look(tiny_bert(max_length=128), text, text)
    document = found.html
    assert data_of(document) == json.loads(json.dumps(found.data))
    assert data_of(document)["text"] == text
    assert document.count("<script") == 2
    assert document.count("</script") == 2
    assert document.count("<title>") == 1
    [title] = re.findall(r"<title>(.*?)</title>", document, re.DOTALL)
    assert html.unescape(title).startswith(text[:60])


def test_saving_is_whole_or_not_at_all(bert, tmp_path, monkeypatch):
    found = bertkit.look(bert, "a cab")
    path = tmp_path / "new" / "look.html"
    found.save(path)
    assert path.read_text(encoding="utf-8") == found.html
    monkeypatch.setattr(Path, "write_text", lambda *_, **__: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(bertkit.BertkitError, match="No space left"):
        found.save(path)
    monkeypatch.undo()
    assert path.read_text(encoding="utf-8") == found.html
    assert [each.name for each in path.parent.iterdir()] == ["look.html"]


def test_a_notebook_gets_a_frame_of_its_own(bert):
    found = bertkit.look(bert, '"a" <b>cab</b>')
    shown = found._repr_html_()
    [source] = re.findall(r'srcdoc="([^"]*)"', shown)
    assert html.unescape(source) == found.html
    assert 'sandbox="allow-scripts"' in shown
    assert repr(found).startswith("Look(")
    assert len(repr(found)) < 200


def test_a_text_must_be_a_text(bert):
    with pytest.raises(RequestError, match="the text is 7, a int; give a str"):
        bertkit.look(bert, 7)


def test_other_pages_are_the_same_but_for_title_and_data(bert):
    one, other = (page(bertkit.look(bert, text).data) for text in ("a cab", "a bag"))
    strip = re.compile(r"<title>.*?</title>|id=\"data\">.*?</script>", re.DOTALL)
    assert strip.sub("", one) == strip.sub("", other)
