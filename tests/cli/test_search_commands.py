"""`bertkit index` and `bertkit search`: files in, lines or JSON out, wrong requests in one sentence."""

import json
import subprocess
import sys

import pytest

from bertkit.cli.main import run

ROWS = [{"_id": "a", "title": "Lost", "text": "I lost my wallet"}, {"_id": "b", "title": "", "text": "Bread, butter"}]


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.fixture
def index(tmp_path, corpus, capsys):
    folder = tmp_path / "index"
    assert run(["index", str(corpus), "--out", str(folder), "--kind", "bm25", "--quiet"]) == 0
    capsys.readouterr()
    return folder


def test_results_are_lines_or_json(index, capsys):
    assert run(["search", str(index), "my lost wallet", "-k", "1"]) == 0
    _, id, text = capsys.readouterr().out.split(maxsplit=2)
    assert (id, text) == ("a", "Lost I lost my wallet\n")
    assert run(["search", str(index), "butter", "--json"]) == 0
    [line] = capsys.readouterr().out.splitlines()
    result = json.loads(line)
    assert (result["query"], [hit["id"] for hit in result["hits"]]) == ("butter", ["b"])
    assert run(["search", str(index), "unknown"]) == 0
    assert capsys.readouterr().out == "nothing found\n"


def test_queries_of_a_file_keep_their_ids(index, tmp_path, capsys):
    queries = tmp_path / "queries.jsonl"
    queries.write_text('{"_id": "q7", "text": "butter"}\n{"_id": "q8", "text": "wallet"}\n')
    assert run(["search", str(index), str(queries), "--json", "--quiet"]) == 0
    results = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(each["id"], each["hits"][0]["id"]) for each in results] == [("q7", "b"), ("q8", "a")]


def test_settings_and_columns_are_options_or_pairs(tmp_path, corpus, capsys):
    out = tmp_path / "index"
    words = [str(corpus), "--out", str(out), "--kind", "bm25", "--k1", "0.9", "b=0.4", "title=text", "--json"]
    assert run(["index", *words]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary == {"documents": 2, "added": 2, "skipped": 0, "out": str(out)}
    manifest = json.loads((out / "index.json").read_text())
    assert manifest["retrievers"]["bm25"]["settings"] == {"k1": 0.9, "b": 0.4}
    assert run(["search", str(out), "lost", "-k", "1"]) == 0
    assert capsys.readouterr().out.endswith("  a  I lost my wallet\n")  # without its title


def test_rows_that_are_left_out_are_said(tmp_path, capsys):
    (tmp_path / "t.txt").write_text("one\n\ntwo\n")
    assert run(["index", str(tmp_path / "t.txt"), "--out", str(tmp_path / "i"), "--kind", "bm25"]) == 2
    assert "line 2: the document has no text; fill it in or remove the row (--on-error skip" in capsys.readouterr().err
    words = ["index", str(tmp_path / "t.txt"), "--out", str(tmp_path / "i"), "--kind", "bm25", "--on-error", "skip"]
    assert run(words) == 0
    assert "note: 1 row was left out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["index", "CORPUS", "--out", "OUT", "foo=3"], "unknown setting 'foo'; choose from: b, encoding"),
        (["index", "CORPUS", "--out", "OUT", "--foo", "3"], "Unknown option --foo"),
        (["index", "k1=2", "--out", "OUT"], "no file of documents is named; - is standard input"),
        (["index", "CORPUS", "--out", "OUT", "--kind", "b25"], "unknown kind of retriever 'b25'; choose from: bm25"),
        (["index", "CORPUS", "--out", "OUT", "vectors=int9"], "unknown vectors 'int9'; choose from: int8"),
        (["index", "nowhere.txt", "--out", "OUT", "--kind", "bm25"], "nowhere.txt does not exist; check the spelling"),
        (["index", "CORPUS", "--out", "CORPUS", "--kind", "bm25"], "exists already; name another place"),
        (["search", "OUT", "query"], "does not exist; make one with: bertkit index TEXTS"),
        (["search", "INDEX", ""], "query 1 (counted from 1) is empty"),
        (["search", "INDEX", "wallet", "-k", "0"], "k=0 must be a whole number from 1"),
        (["search", "INDEX", "wallet", "--kind", "late"], "'late'; choose from: bm25"),
        (["search", "INDEX", "wallet", "--fit", "CORPUS"], "--fit goes with a file of queries, and wallet is no file"),
        (["search", "INDEX", "CORPUS", "--fit", "QRELS"], "judges none of the 2 queries"),
        (["search", "INDEX", "CORPUS", "--fit", "CORPUS"], "not the ids of a query and a document and a number"),
    ],
)
def test_wrong_requests(index, corpus, tmp_path, capsys, words, message):
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nx\ta\t1\n")
    names = {"CORPUS": corpus, "INDEX": index, "OUT": tmp_path / "out", "QRELS": tmp_path / "qrels.tsv"}
    assert run([str(names.get(word, word)) for word in words]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.fixture
def piped(tmp_path):
    def index(text):
        command = [sys.executable, "-m", "bertkit", "index", "-", "--out", str(tmp_path / "i"), "--kind", "bm25", "-q"]
        return subprocess.run(command, input=text, capture_output=True, text=True)

    return index


def test_pipes_are_appended_but_not_resumed(tmp_path, piped):
    assert piped("one\ntwo\n").stdout.startswith("2 documents added")
    assert piped("three\n").stdout.startswith("1 document added, 3 in")
    manifest = tmp_path / "i" / "index.json"
    content = json.loads(manifest.read_text())
    content["sources"]["-"]["size"] = -1  # as after a kill
    manifest.write_text(json.dumps(content))
    again = piped("four\n")
    assert again.returncode == 2
    assert "a pipe was indexed in part, and cannot be read again; build the index again, from a file" in again.stderr
