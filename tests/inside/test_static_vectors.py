"""Neighbors, arithmetic, folders and files of static vectors."""

import gzip
import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from bertkit.errors import RequestError
from bertkit.inside.static.files import is_text_vectors, open_vectors, read_word2vec, write_word2vec
from bertkit.inside.static.vectors import StaticVectors, Subwords, load_vectors, ngram_buckets, parse_expression

# Two directions that mean something, sex and rank, and one that keeps the others apart.
ROYAL = {"king": (1, 1, 0), "queen": (-1, 1, 0), "man": (1, -1, 0), "woman": (-1, -1, 0), "bread": (0, 0, 1)}


@pytest.fixture
def royal() -> StaticVectors:
    return StaticVectors(tuple(ROYAL), np.array(list(ROYAL.values()), np.float32), record={"method": "by hand"})


@pytest.fixture
def parted() -> StaticVectors:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(64, 5)).astype(np.float32)
    vectors = np.stack([rows[ngram_buckets(word, 3, 5, 64)].mean(axis=0) for word in ("quickly", "slow")])
    return StaticVectors(("quickly", "slow"), vectors, Subwords(rows, 3, 5))


def test_king_minus_man_plus_woman_is_queen(royal):
    assert royal.arithmetic("king - man + woman", 1)[0].word == "queen"
    assert royal.arithmetic("king - man + woman", 1)[0].cosine == pytest.approx(1)


def test_the_words_of_a_question_are_not_its_answer(royal):
    assert {each.word for each in royal.arithmetic("king - man + woman")} == {"queen", "bread"}
    assert "king" not in {each.word for each in royal.nearest("king")}
    assert royal.nearest("king", 99)[-1].word == "woman"
    assert royal.nearest("king", 2) == royal.nearest("king", 99)[:2]


def test_neighbors_come_in_the_order_of_their_cosines(royal):
    found = royal.nearest("king")
    assert [each.cosine for each in found] == pytest.approx(
        sorted((royal.similarity("king", each.word) for each in found), reverse=True), abs=1e-6
    )


@pytest.mark.parametrize(
    ("question", "terms"),
    [
        ("king - man + woman", [(1, "king"), (-1, "man"), (1, "woman")]),
        ("  - man +woman ", [(-1, "man"), (1, "woman")]),
        ("mother-in-law - law", [(1, "mother-in-law"), (-1, "law")]),
        ("c++ + x", [(1, "c++"), (1, "x")]),
    ],
)
def test_sums_are_read(question, terms):
    assert list(parse_expression(question)) == terms


@pytest.mark.parametrize("question", ["", "   ", "king man", "king - ", "king + - man", "+"])
def test_what_is_no_sum_is_refused(question, royal):
    with pytest.raises(RequestError, match="write words with \\+ or - between them"):
        royal.arithmetic(question)


def test_an_unseen_word_has_a_vector_with_subwords_alone(royal, parted):
    with pytest.raises(RequestError, match="no vector for 'prince'; vectors with subwords"):
        royal.vector("prince")
    with pytest.raises(RequestError, match="no vector for 'King'; it knows 'king'"):
        royal.vector("King")
    assert parted.nearest("quickl", 1)[0].word == "quickly"
    assert "quickl" not in parted
    np.testing.assert_allclose(parted.vector("quickly"), parted.vectors[0])
    with pytest.raises(RequestError, match="'x' is too short for a vector"):
        parted.vector("x")


@pytest.mark.parametrize("name", ["royal", "parted"])
def test_a_saved_folder_loads_equal(name, request, tmp_path):
    vectors = request.getfixturevalue(name)
    vectors.save(tmp_path / "folder")
    again = open_vectors(tmp_path / "folder")
    assert again.words == vectors.words
    assert (again.vectors == vectors.vectors).all()
    assert again.record == vectors.record
    if vectors.subwords is not None:
        assert (again.vector("unseen") == vectors.vector("unseen")).all()
    with pytest.raises(RequestError, match="exists already"):
        vectors.save(tmp_path / "folder")


def damage(folder, kind: str) -> None:
    record = json.loads((folder / "vectors.json").read_text())
    changes = {
        "no record": lambda: (folder / "vectors.json").unlink(),
        "torn record": lambda: (folder / "vectors.json").write_text('{"format": '),
        "a list": lambda: (folder / "vectors.json").write_text("[]"),
        "other format": lambda: (folder / "vectors.json").write_text('{"format": "gensim"}'),
        "newer": lambda: (folder / "vectors.json").write_text(json.dumps({**record, "version": 9})),
        "fewer words": lambda: (folder / "words.txt").write_text("king\nqueen\n"),
        "no words": lambda: (folder / "words.txt").unlink(),
        "words no text": lambda: (folder / "words.txt").write_bytes(b"\xff\xfe\x00"),
        "torn rows": lambda: (folder / "vectors.safetensors").write_bytes(b"\x01" * 40),
        "no rows": lambda: (folder / "vectors.safetensors").unlink(),
        "other rows": lambda: save_file({"weight": np.ones((5, 3), np.float32)}, folder / "vectors.safetensors"),
        "float64": lambda: save_file({"vectors": np.ones((5, 3))}, folder / "vectors.safetensors"),
        "one row": lambda: save_file({"vectors": np.ones(5, np.float32)}, folder / "vectors.safetensors"),
        "not finite": lambda: save_file(
            {"vectors": np.full((5, 3), np.nan, np.float32)}, folder / "vectors.safetensors"
        ),
        "twice": lambda: (folder / "words.txt").write_text("king\nqueen\nman\nwoman\nking\n"),
        "subwords without lengths": lambda: save_file(
            {name: np.ones((5, 3), np.float32) for name in ("vectors", "subwords")}, folder / "vectors.safetensors"
        ),
    }
    changes[kind]()


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("no record", "holds no static vectors: it has no vectors.json; make some with 'bertkit word2vec'"),
        ("torn record", "not readable JSON"),
        ("a list", "must hold one JSON object"),
        ("other format", "of another format or version"),
        ("newer", "of another format or version"),
        ("fewer words", "words and vectors do not agree"),
        ("no words", "words.txt cannot be read"),
        ("words no text", "words.txt cannot be read"),
        ("torn rows", "truncated or not a safetensors file"),
        ("no rows", "missing, truncated"),
        ("other rows", "must hold 'vectors' as rows of float32"),
        ("float64", "must hold 'vectors' as rows of float32"),
        ("one row", "must hold 'vectors' as rows of float32"),
        ("not finite", "not finite"),
        ("twice", "the word 'king' has two vectors"),
        ("subwords without lengths", "damaged"),
    ],
)
def test_folders_of_another_kind_or_damaged_say_so(kind, said, royal, tmp_path):
    royal.save(tmp_path / "folder")
    damage(tmp_path / "folder", kind)
    with pytest.raises(RequestError, match=said) as caught:
        load_vectors(tmp_path / "folder")
    assert "\n" not in str(caught.value)


def test_word2vec_text_reads_back_bit_for_bit(tmp_path):
    rng = np.random.default_rng(0)
    values = (rng.normal(size=(50, 7)) * 10.0 ** rng.integers(-8, 8, (50, 7))).astype(np.float32)
    words = (*(f"w{n}" for n in range(47)), "שלום", "\U0001f600", "na\u0308ive")
    write_word2vec(StaticVectors(words, values), tmp_path / "v.vec")
    assert (tmp_path / "v.vec").read_text(encoding="utf-8").startswith("50 7\nw0 ")
    again = open_vectors(tmp_path / "v.vec")
    assert again.words == words
    assert (again.vectors == values).all()
    (tmp_path / "v.vec.gz").write_bytes(gzip.compress((tmp_path / "v.vec").read_bytes()))
    assert (open_vectors(tmp_path / "v.vec.gz").vectors == values).all()


def test_gloves_text_has_no_sizes(tmp_path):
    (tmp_path / "g.vec").write_text("the 0.5 -1\ncat 2e-1 3\n")
    assert read_word2vec(tmp_path / "g.vec").vectors.tolist() == [[0.5, -1], [np.float32(0.2), 3]]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("2 3\n", "holds no vectors"),
        ("1 3\ncat 1 2\n", "line 2: 2 numbers, where 3 belong"),
        ("2 2\ncat 1 2\n", "declares 2 vectors but has 1; copy it again"),
        ("cat 1 2\ndog 1 x\n", "line 2: could not convert"),
        ("cat 1 nan\n", "line 1: a number is not finite"),
        ("cat 1 2\ncat 1 2\n", "line 2: the word 'cat' appears twice"),
        ("just some text\n", "could not convert"),
        ("word\n", "line 1: 0 numbers"),
    ],
)
def test_text_of_another_kind_says_so(content, said, tmp_path):
    (tmp_path / "v.vec").write_text(content)
    with pytest.raises(RequestError, match=said):
        read_word2vec(tmp_path / "v.vec")


def test_words_that_a_format_cannot_hold_are_refused(tmp_path):
    with pytest.raises(RequestError, match="'new york' has a space"):
        write_word2vec(StaticVectors(("new york",), np.ones((1, 2), np.float32)), tmp_path / "v.vec")
    with pytest.raises(RequestError, match="line end"):
        StaticVectors(("a\nb",), np.ones((1, 2), np.float32)).save(tmp_path / "folder")
    with pytest.raises(RequestError, match="0 words do not fit"):
        StaticVectors((), np.ones((0, 2), np.float32))
    assert not list(tmp_path.iterdir())


def test_endings_say_what_is_text():
    assert all(map(is_text_vectors, ("a.vec", "a.VEC", "a.vec.gz", "b/a.w2v")))
    assert not any(map(is_text_vectors, ("a.txt", "vec", "a.gz", "folder")))
