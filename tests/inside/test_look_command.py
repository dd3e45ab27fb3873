"""`bertkit look` as a person meets it."""

import json
import subprocess
import sys
from dataclasses import fields

import pytest

from bertkit.checkpoint.save_load import save_checkpoint
from bertkit.cli.main import run
from bertkit.cli.views import BELONGS_TO, VIEWS, ViewRequest


@pytest.fixture(scope="module")
def model(bert, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    save_checkpoint(bert.checkpoint, folder)
    return folder


def test_a_page_and_every_table_at_once(command_here, model, tmp_path):
    (tmp_path / "more.txt").write_text("up a hill\n\ndogs dig\n")
    out = tmp_path / "look.html"
    asked = ["--table", "--head", "2-1", "--word", "cab", "--heads", "--link", "cab,hill", "--prune"]
    done = command_here(
        "look",
        "a cab up a hill",
        "--pair",
        "dogs dig",
        "--model",
        model,
        "--out",
        out,
        *asked,
        "--texts",
        tmp_path / "more.txt",
    )
    assert done.returncode == 0, done.stderr
    page, table, heads, link, prune = done.stdout.strip().split("\n\n")
    assert page.startswith("21 tokens in ")
    assert out.read_text().startswith("<!doctype html>")
    assert table.startswith("layer 2, head 1: what 'c' takes from each token")
    names = [f"layer {layer}, head {head}" for layer in (1, 2) for head in (1, 2)]
    title, *rows = heads.splitlines()
    assert title.split() == [
        "head",
        "looks",
        "at",
        *["next", "previous", "itself", "first", "separator", "same", "spread", "distance"],
    ]
    assert [row[:15] for row in rows[:4]] == names
    assert rows[4].startswith("looks at  "), "the legend"
    assert len(link.splitlines()) == 5
    assert sorted(row[:15] for row in link.splitlines()[1:]) == names
    assert prune.startswith("masked-word loss with every head: ")
    assert prune.count("without layer") == 4


def test_json_holds_the_same(model, tmp_path, capsys):
    out = tmp_path / "look.html"
    asked = ("--table", "--heads", "--link", "cab,a", "--json", "--out", str(out))
    assert run(["look", "a cab", "--model", str(model), *asked]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"page", "table", "heads", "link"}
    assert found["page"] == {"out": str(out), "tokens": 6, "bytes": out.stat().st_size}
    assert sum(step["weight"] for step in found["table"]["steps"]) == pytest.approx(1, abs=1e-5)
    assert len(found["table"]["sum"]) == 64


def test_heads_prints_what_was_asked_for_and_else_the_list(model, capsys):
    assert run(["heads", "a cab", "--model", str(model)]) == 0
    assert [line[:15] for line in capsys.readouterr().out.splitlines()[1:3]] == ["layer 1, head 1", "layer 1, head 2"]
    assert run(["heads", "a cab", "--model", str(model), "--from-to", "cab,a", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"link"}


def test_old_spellings_say_the_new_ones(model, capsys):
    assert run(["look", "a cab", "--model", str(model), "--heads", "--table"]) == 0
    shown = capsys.readouterr()
    assert "note: 'bertkit look --heads' is now 'bertkit heads'; the old spelling goes in 0.3\n" in shown.err
    assert "note: 'bertkit look --table' is now 'bertkit heads --table'" in shown.err
    assert "layer 1, head 2" in shown.out


REFUSED = [
    (["a", "--out", "look.txt"], "look.txt would be an HTML page: name it look.html"),
    (["heads", "a", "--table", "--head", "9"], "--head 9 must be a layer and a head"),
    (["heads", "a", "--table", "--head", "9-1"], "layers are 1 to 2"),
    (["heads", "a", "--table", "--word", "dog"], "the text has no word 'dog'; its words are: a"),
    (["heads", "a", "--from-to", "he"], "--from-to he must be two words"),
    (["a", "--table", "--texts", "x.txt"], "--texts goes with --heads or --prune"),
    (["heads", "a", "--texts", "missing.txt"], "missing.txt"),
    (["a", "--prune", "--pair", "b"], "--pair goes with --out or --table or --heads or --from-to or --why"),
    (["a", "--heads", "--word", "a"], "--word goes with --table or --why"),
    (["a", "--heads", "--head", "2-1"], "--head goes with --table"),
    (["heads", "a", "--table", "--texts", "x.txt"], "--texts goes with --prune or the list of heads"),
    (["heads", "a", "--prune", "--pair", "b"], "--pair goes with --table or --from-to or the list of heads"),
    (["heads", "a", "--word", "a"], "--word goes with --table\n"),
    (["why", "a [MASK]", "--word", "a"], "word=a goes with a model that tags words; leave it out"),
    (["heads", "", "--prune"], "no token that could be masked"),
    (["a", "--out", "."], ". is a folder; name a file in it"),
    (["heads", "a " * 40, "--pair", "b " * 40], "over the limit of 64; shorten one of the texts"),
]


@pytest.mark.parametrize(("words", "sentence"), REFUSED, ids=[sentence[:24] for _, sentence in REFUSED])
def test_what_cannot_be_is_refused_in_one_sentence(words, sentence, model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    verb = [] if words[0] in ("heads", "why") else ["look"]
    assert run([*verb, *words, "--model", str(model)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert sentence in said.err
    assert not list(tmp_path.iterdir())


def test_why_takes_a_blank_as_fill_does(model, capsys):
    shown = []
    for text in ("a [MASK] cab", "a ___ cab"):
        assert run(["why", text, "--model", str(model)]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]


def test_a_text_alone_gets_a_page_with_a_free_name(model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    assert run(["look", "a cab", "--model", str(model)]) == 0
    assert capsys.readouterr().out.startswith("6 tokens in look.html, ")
    assert run(["look", "a cab", "--model", str(model), "--open"]) == 0
    assert capsys.readouterr().out.startswith("6 tokens in look-2.html, ")
    assert opened == [(tmp_path / "look-2.html").as_uri()]


def test_somebodys_file_is_left_alone(model, tmp_path, capsys):
    out = tmp_path / "look.html"
    out.write_text("mine")
    assert run(["look", "a", "--model", str(model), "--out", str(out)]) == 2
    assert "exists already; name another place" in capsys.readouterr().err
    assert out.read_text() == "mine"


def test_what_is_not_asked_for_is_not_traced(model, monkeypatch, capsys):
    from bertkit.model.encoder import Encoder

    monkeypatch.setattr(Encoder, "trace", lambda *_: pytest.fail("traced"))
    assert run(["heads", "a cab", "--model", str(model), "--prune", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["prune"]["alone"]) == 4


def test_every_row_of_the_table_is_asked_for_by_an_option_of_its_own():
    options = [view.option for view in VIEWS.values()]
    assert len(set(options)) == len(VIEWS) >= 8
    assert {*options, *BELONGS_TO} <= {field.name for field in fields(ViewRequest)}
    assert {owner for owners in BELONGS_TO.values() for owner in owners} <= set(options)


def test_the_table_of_views_is_read_without_torch():
    code = "from bertkit.cli.views import VIEWS; import sys; print(*VIEWS, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [*VIEWS, "False"]


def test_no_model_is_refused(capsys):
    assert run(["heads", "a", "--table", "--model", "nowhere"]) == 2
    assert "nowhere is not a folder" in capsys.readouterr().err
