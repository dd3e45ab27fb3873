"""Index folders: every document once through kills, appends and bad rows; search, fusion, re-ranking; damage."""

import errno
import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

import bertkit
from bertkit.errors import BertkitError, RequestError
from bertkit.predict.files import rows as rows_module
from bertkit.search import build as build_module
from bertkit.search.build import build_folder
from bertkit.search.index import Index, build_index
from bertkit.search.manifest import Manifest
from bertkit.search.retrievers.bm25 import Bm25Writer
from bertkit.search.sources import HowToRead

WORDS = ["stolen", "wallet", "bank", "bread", "butter", "river", "cat"]
LINES = [f"document {n} about {WORDS[n % 7]} and {WORDS[n % 5]}" for n in range(50)]


class Killed(BaseException):
    """What no handler expects: the nearest thing to a SIGKILL within one process."""


@pytest.fixture
def small(monkeypatch):
    """Blocks of 4 rows, segments of 8 documents."""
    monkeypatch.setattr(rows_module, "ROWS_PER_BLOCK", 4)
    monkeypatch.setattr(build_module, "DOCUMENTS_PER_SEGMENT", 8)


@pytest.fixture
def corpus(tmp_path):
    return write(tmp_path / "corpus.jsonl", [{"id": f"d{n}", "text": line} for n, line in enumerate(LINES)])


def write(path: Path, rows: Iterable[object]) -> Path:
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def built(texts, out, kinds=("bm25",), **reading):
    return build_folder([texts] if isinstance(texts, Path) else texts, out, kinds, {}, (), HowToRead(**reading))


def documents(index: Index):
    return [index.document(number) for number in range(len(index))]


def files_of(folder: Path):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_documents_keep_their_ids_and_order(tmp_path, corpus, small):
    index = build_index(corpus, tmp_path / "index", kinds=["bm25"])
    assert documents(index) == [(f"d{n}", line) for n, line in enumerate(LINES)]
    assert (len(index), index.kinds) == (50, ("bm25",))
    [hit] = index.search("document 17", k=1)
    assert (hit.id, hit.index, hit.text, hit.scores) == ("d17", 17, LINES[17], {"bm25": hit.score})
    assert len(list((tmp_path / "index" / "segments").iterdir())) == 7


def test_segments_change_nothing_in_the_answers(tmp_path, corpus, small, monkeypatch):
    many = build_index(corpus, tmp_path / "many", kinds=["bm25"])
    monkeypatch.setattr(build_module, "DOCUMENTS_PER_SEGMENT", 1000)
    one = build_index(corpus, tmp_path / "one", kinds=["bm25"])
    for query in ("stolen wallet", "document about the river bank", "12 13"):
        assert many.search(query, 20) == one.search(query, 20)


@pytest.mark.parametrize("when", ["in a retriever", "before it counts", "after it counts"])
@pytest.mark.parametrize("segment", [0, 2, 6])
def test_a_killed_build_goes_on_with_every_document_once(tmp_path, corpus, small, monkeypatch, when, segment):
    whole, out, calls = tmp_path / "whole", tmp_path / "index", []
    built(corpus, whole)
    target, name = (Bm25Writer, "finish") if when == "in a retriever" else (Manifest, "save")
    original = getattr(target, name)

    def kill(*arguments):
        calls.append(1)
        stop = len(calls) == segment + 1
        if stop and when != "after it counts":
            raise Killed
        original(*arguments)
        if stop:
            raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(target, name, kill)
        patched.setattr(shutil, "rmtree", lambda *_, **__: None)  # a killed process removes nothing
        built(corpus, out)
    assert built(corpus, out).documents == 50
    assert files_of(out) == files_of(whole)
    assert built(corpus, out).added == 0


def test_a_full_disk_keeps_what_is_finished(tmp_path, corpus, small, monkeypatch):
    original, calls = Bm25Writer.finish, []

    def full(writer):
        calls.append(1)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        original(writer)

    monkeypatch.setattr(Bm25Writer, "finish", full)
    with pytest.raises(
        BertkitError, match=r"No space left.*16 documents are finished in .*, and the same command goes"
    ):
        built(corpus, tmp_path / "index")
    assert len(Index(tmp_path / "index")) == 16
    assert built(corpus, tmp_path / "index").added == 34


def test_other_files_and_grown_files_are_appended(tmp_path, corpus, small):
    out = tmp_path / "index"
    built(corpus, out)
    more = write(tmp_path / "more.jsonl", [{"id": "x", "title": "A title", "text": "with a text"}])
    assert built([corpus, more], out).added == 1
    with corpus.open("a") as file:
        file.write('{"id": "y", "text": "grown"}\n')
    assert built([corpus, more], out).added == 1
    index = Index(out)
    assert documents(index)[50:] == [("x", "A title with a text"), ("y", "grown")]
    assert index.append(["from Python", {"id": 7, "text": "a dict"}][:1]) == 1
    assert index.document(52) == (52, "from Python")
    assert index.search("from Python", 1)[0].index == 52


def test_a_file_that_changed_is_refused(tmp_path, corpus, small):
    out = tmp_path / "index"
    built(corpus, out)
    corpus.write_text(corpus.read_text().replace("document 3 ", "document three "))
    with pytest.raises(RequestError, match=r"corpus.jsonl has changed in the 50 rows that are in the index; put it"):
        built(corpus, out)
    write(corpus, [{"id": "d0", "text": LINES[0]}])
    with pytest.raises(RequestError, match="has changed in the 50 rows"):
        built(corpus, out)


def test_rows_without_text_are_refused_or_listed(tmp_path, small):
    texts = write(tmp_path / "texts.jsonl", [{"text": "one"}, {"text": " "}, {"text": None}, "{", {"text": "two"}])
    with pytest.raises(RequestError, match=r"texts.jsonl, line 2: the document has no text; fill it in or remove"):
        built(texts, tmp_path / "index")
    assert not (tmp_path / "index").exists()
    result = built(texts, tmp_path / "index", skip=True)
    assert (result.documents, result.skipped) == (2, 3)
    [listed] = (tmp_path / "index").glob("segments/*/skipped.txt")
    assert [line.split(":")[0].rpartition(" ")[2] for line in listed.read_text().splitlines()] == ["2", "3", "4"]
    assert documents(Index(tmp_path / "index")) == [(0, "one"), (1, "two")]


def test_an_index_of_nothing_but_bad_rows_is_empty(tmp_path, small):
    texts = write(tmp_path / "texts.jsonl", [{"text": "fine"}, *([{"text": ""}] * 9)])
    built(texts, tmp_path / "index", skip=True)
    only = write(tmp_path / "only.jsonl", [{"id": 1, "text": ""}])
    assert built(only, tmp_path / "index", skip=True).skipped == 1
    built(write(tmp_path / "bad.jsonl", [{"text": "", "id": 2}]), tmp_path / "empty", skip=True)
    with pytest.raises(RequestError, match=r"empty holds no documents; add some: bertkit index TEXTS --out"):
        Index(tmp_path / "empty").search("anything")


@pytest.mark.parametrize("name", ["texts.npy", "ids.ends.npy", "bm25/keys.npy", "bm25/weights.npy"])
@pytest.mark.parametrize("harm", ["cut", "removed"])
def test_damaged_files_are_refused(tmp_path, corpus, name, harm):
    built(corpus, tmp_path / "index")
    path = tmp_path / "index" / "segments" / "000000" / name
    os.truncate(path, path.stat().st_size - 3) if harm == "cut" else path.unlink()
    with pytest.raises(RequestError, match=rf"{name} is damaged or missing; copy the whole index again, or build"):
        Index(tmp_path / "index").search("stolen")


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"format_version": 1, "retrievers": []}'])
def test_a_damaged_manifest_is_refused(tmp_path, corpus, content):
    built(corpus, tmp_path / "index")
    (tmp_path / "index" / "index.json").write_text(content)
    with pytest.raises(RequestError, match=r"index.json is damaged"):
        Index(tmp_path / "index")


def test_bytes_that_are_not_numpys_are_refused(tmp_path, corpus):
    built(corpus, tmp_path / "index")
    path = tmp_path / "index" / "segments" / "000000" / "bm25" / "keys.npy"
    path.write_bytes(b"x" * path.stat().st_size)
    with pytest.raises(RequestError, match=r"keys.npy is damaged"):
        Index(tmp_path / "index").search("stolen")


def test_what_is_no_index_or_of_another_version_is_refused(tmp_path, corpus):
    with pytest.raises(RequestError, match="nowhere does not exist; make one with: bertkit index TEXTS --out"):
        Index(tmp_path / "nowhere")
    with pytest.raises(RequestError, match="is no index; make one with"):
        Index(tmp_path)
    with pytest.raises(RequestError, match="exists already; name another place"):
        built(corpus, tmp_path)
    built(corpus, tmp_path / "index")
    path = tmp_path / "index" / "index.json"
    path.write_text(path.read_text().replace('"format_version": 1', '"format_version": 2'))
    with pytest.raises(RequestError, match="is of format 2, and this bertkit reads up to 1; update bertkit"):
        Index(tmp_path / "index")


def test_an_index_of_another_analyzer_is_refused(tmp_path, corpus):
    built(corpus, tmp_path / "index")
    path = tmp_path / "index" / "index.json"
    path.write_text(path.read_text().replace("nfkc-casefold-words-1", "words-0"))
    with pytest.raises(RequestError, match=r"'bm25' was made with analyzer words-0, and this is nfkc-casefold-words-1"):
        Index(tmp_path / "index").search("stolen")


def test_other_settings_and_kinds_than_those_of_the_index_are_refused(tmp_path, corpus):
    built(corpus, tmp_path / "index")
    with pytest.raises(RequestError, match="was made with the kinds bm25, and these are bm25, dense; leave --kind out"):
        built(corpus, tmp_path / "index", kinds=("bm25", "dense"))
    with pytest.raises(RequestError, match=r"was made with other settings than k1=2; leave them out"):
        build_folder([corpus], tmp_path / "index", None, {}, ["k1=2"], HowToRead())
    with pytest.raises(RequestError, match="unknown kind of retriever 'bm52'; choose from: bm25"):
        built(corpus, tmp_path / "other", kinds=("bm52",))
    with pytest.raises(RequestError, match="there is no model for 'bm25' in this index; name one of: none"):
        build_index(corpus, tmp_path / "other", kinds=["bm25"], model={"bm25": "x"})
    with pytest.raises(RequestError, match=r"unknown kind of retriever in .*index: 'dense'; choose from: bm25"):
        Index(tmp_path / "index").search("a", kinds=["dense"])


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([3], "texts, row 1 is int; give str, or dicts with 'text'"),
        (["a", ""], "texts, row 2: the document has no text"),
        ([], "texts holds no rows"),
        ({"text": "a"}, "texts is a dict, whose keys would be read"),
        ([{"text": "a", "id": "x"}, {"text": "b"}], r"texts, row 2: no column 'id' \(the row has: text\)"),
    ],
)
def test_bad_documents_from_python(tmp_path, texts, message):
    with pytest.raises(RequestError, match=message):
        build_index(texts, tmp_path / "index", kinds=["bm25"])


@pytest.mark.parametrize(
    ("query", "message"), [("  ", "query 1 .* is empty"), (["a", ""], "query 2 .* is empty"), ({"a": 1}, "a dict")]
)
def test_bad_queries(tmp_path, corpus, query, message):
    index = build_index(corpus, tmp_path / "index", kinds=["bm25"])
    with pytest.raises(RequestError, match=message):
        index.search(query)


@dataclass(frozen=True)
class Ranked:
    index: int
    score: float
    text: str


class LongestFirst:
    def rank(self, query, texts, top=None):
        order = sorted(range(len(texts)), key=lambda n: -len(texts[n]))[:top]
        return [Ranked(n, len(texts[n]), texts[n]) for n in order]


def test_a_ranker_orders_the_candidates_anew(tmp_path):
    index = build_index(["cat", "cat dog", "cat dog mouse", "mouse"], tmp_path / "index", kinds=["bm25"])
    hits = index.search("cat", 2, rerank=LongestFirst())
    assert [(hit.text, hit.score) for hit in hits] == [("cat dog mouse", 13.0), ("cat dog", 7.0)]
    assert [hit.text for hit in index.search("cat", 2, rerank=LongestFirst(), candidates=2)] == ["cat dog", "cat"]
    assert index.search("unknown", rerank=LongestFirst()) == []


@pytest.fixture(scope="module")
def fused_index(tmp_path_factory):
    texts = ["I lost my wallet", "Bread and butter", "My purse was stolen", "The card of the museum", "A cat sat down"]
    return build_index(texts, tmp_path_factory.mktemp("fused") / "index", vectors="float16")


def test_dense_and_words_are_fused(fused_index):
    assert fused_index.kinds == ("bm25", "dense")
    hits = fused_index.search("someone stole my purse", 3)
    assert hits[0].text == "My purse was stolen"
    assert hits[0].score == 1.0
    assert fused_index.search("someone stole my purse", 1, fusion="ranks")[0].score == pytest.approx(2 / 61)
    with pytest.raises(RequestError, match="unknown fusion 'rank'; choose from: ranks, scores"):
        fused_index.search("a", fusion="rank")
    assert set(hits[0].scores) == {"bm25", "dense"}
    dense = fused_index.search(["stole my purse", "the cat is sitting"], 1, kinds=["dense"])
    bert = bertkit.load()
    assert [hits[0].text for hits in dense] == ["My purse was stolen", "A cat sat down"]
    found = bert.search("the cat is sitting", [fused_index.document(n)[1] for n in range(5)], k=1)
    assert dense[1][0].score == pytest.approx(found[0].score, abs=1e-3)


def test_weights_are_fitted_kept_and_used(fused_index):
    index = Index(fused_index.path)
    weights = index.fit(["the cat is sitting", "the museum card"], [{"4": 1}, {"3": 1}])
    assert set(weights) == {"bm25", "dense"}
    assert sum(weights.values()) == pytest.approx(1)
    assert Index(index.path).weights == weights
    assert Index(index.path).search("the cat is sitting", 1)[0].id == 4
    with pytest.raises(RequestError, match="1 queries came with 0 judgements"):
        index.fit(["a"], [])


def test_a_model_is_found_from_another_folder(tmp_path, minilm, monkeypatch):
    (tmp_path / "minilm").symlink_to(minilm)
    monkeypatch.chdir(tmp_path)
    build_index(["a cat", "a dog"], "index", kinds=["dense"], model="minilm")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert Index("../index").search("dog", 1)[0].text == "a dog"
    (tmp_path / "minilm").unlink()
    with pytest.raises(RequestError, match=r"minilm is not a folder"):
        Index("../index").search("dog")
    assert Index("../index", model=minilm).search("dog", 1)[0].text == "a dog"


def test_another_model_is_refused(fused_index, minilm):
    with pytest.raises(RequestError, match=r"'dense' was made with model \w+, and this is \w+; name the model that it"):
        Index(fused_index.path, model=minilm).search("a cat")
    with pytest.raises(RequestError, match=r"'dense' was made with model"):
        Index(fused_index.path, model={"dense": minilm}).append(["more"])
