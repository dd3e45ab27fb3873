"""Search by blocks is the full sort: whatever the blocks, the ties, the queries and the k."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from taught import PIECES

from bertkit.checkpoint.save_load import Checkpoint
from bertkit.cli.main import run
from bertkit.config import family_config
from bertkit.errors import BertkitWarning, RequestError
from bertkit.model.model import new_model
from bertkit.model.pooling import EmbedSettings
from bertkit.predict import search as searching
from bertkit.predict.bert import Bert
from bertkit.predict.search import Found, VectorBlock, search_all, search_blocks, vector_blocks
from bertkit.text.tokenizer import Tokenizer

pytestmark = pytest.mark.usefixtures("_one_thread")
TEXTS = ["a cat", "a dog", "", "the cat sat", "a cat", "zz zz", "ünïcode 🙂", "one two"]


@pytest.fixture(scope="module")
def bert() -> Bert:
    shape = {"depth": 1, "width": 16, "heads": 2, "inner": 32, "max_length": 16, "init_std": 0.3}
    model = new_model(family_config("bert", "tiny", vocab_size=len(PIECES), **shape)).eval()
    return Bert(Checkpoint(model=model, tokenizer=Tokenizer.from_vocab(PIECES), max_length=16))


def blocks_of(vectors, size):
    return [VectorBlock(vectors[start : start + size]) for start in range(0, len(vectors), size)]


@given(seed=st.integers(0, 10**6), rows=st.integers(0, 40), k=st.integers(1, 50), size=st.integers(1, 12))
def test_blocks_are_the_full_sort(seed, rows, k, size):
    """Few distinct vectors, so that most scores are tied; some are of length 0."""
    random = np.random.default_rng(seed)
    kinds = random.normal(size=(4, 5)).astype(np.float32) * [[1], [0], [7], [1e-3]]
    vectors, queries = kinds[random.integers(4, size=rows)].reshape(rows, 5), random.normal(size=(3, 5))
    got = [[(each.index, each.score) for each in row] for row in search_blocks(queries, blocks_of(vectors, size), k)]
    assert got == search_all(queries, vectors, k)
    assert all(len(row) == min(k, rows) for row in got)


def test_a_score_is_the_cosine_whatever_the_lengths():
    random = np.random.default_rng(1)
    vectors, query = random.normal(size=(50, 8)), random.normal(size=8)
    [found] = search_blocks(query[None], blocks_of(vectors * random.uniform(0.1, 9, (50, 1)), 7), 50)
    expected = vectors @ query / np.linalg.norm(vectors, axis=1) / np.linalg.norm(query)
    assert [each.index for each in found] == np.argsort(-expected).tolist()
    np.testing.assert_allclose([each.score for each in found], np.sort(expected)[::-1], atol=1e-6)


@pytest.mark.parametrize("stretch", [1, 1e-3])
def test_equal_vectors_tie_wherever_they_stand(stretch):
    """A matrix product rounds its last rows otherwise than its first; scores are rounded after that."""
    random = np.random.default_rng(2)
    vectors = (np.tile(random.normal(size=(1, 384)), (1003, 1)) * stretch).astype(np.float32)
    [found] = search_blocks(random.normal(size=(1, 384)), blocks_of(vectors, 17), 1003)
    assert [each.index for each in found] == list(range(1003))


def test_texts_are_found_with_their_vectors(bert):
    found = bert.search("a cat", TEXTS, 3)
    assert [type(each) for each in found] == [Found] * 3
    assert [(each.index, each.text) for each in found[:2]] == [(0, "a cat"), (4, "a cat")]
    assert found[0].score == pytest.approx(1, abs=1e-6)
    expected = bert.similarity(["a cat"], TEXTS)[0]
    assert found[2].score == pytest.approx(np.sort(expected)[-3], abs=1e-6)


def test_a_text_without_words_is_near_to_nothing(bert):
    found = bert.search("a b", ["", "c d", " \n"], k=3)
    assert [(each.index, each.score) for each in found if each.index != 1] == [(0, 0.0), (2, 0.0)]
    assert [each.score for each in found if each.index == 1] == pytest.approx([bert.search("a b", ["c d"])[0].score])


def test_several_queries_and_any_iterable(bert):
    queries = ["a dog", "", "zz"]
    together = bert.search(queries, iter(TEXTS), 4)
    assert len(together) == 3
    for query, row in zip(queries, together, strict=True):
        alone = bert.search(query, (text for text in TEXTS), 4)
        assert [(each.index, each.text) for each in row] == [(each.index, each.text) for each in alone]
        np.testing.assert_allclose([each.score for each in row], [each.score for each in alone], atol=1e-6)
    assert bert.search([], TEXTS) == []


def test_texts_come_back_from_any_block(bert, monkeypatch):
    from bertkit.engine import embed

    whole = bert.search(["a cat", "one"], TEXTS, 5)
    monkeypatch.setattr(embed, "TEXTS_PER_BLOCK", 3)
    parts = bert.search(["a cat", "one"], TEXTS, 5)
    for one, two in zip(whole, parts, strict=True):
        assert [(each.index, each.text) for each in one] == [(each.index, each.text) for each in two]


def test_no_texts_and_more_than_there_are(bert):
    assert bert.search("a", []) == []
    assert bert.search(["a", "b"], []) == [[], []]
    assert len(bert.search("a", TEXTS, 1000)) == len(TEXTS)
    assert sorted(each.index for each in bert.search("a", TEXTS, np.int64(8))) == list(range(8))


@pytest.mark.parametrize("k", [0, -1, True, 2.0, "3", None])
def test_a_wrong_k(bert, k):
    with pytest.raises(RequestError, match="must be a whole number from 1"):
        bert.search("a", TEXTS, k)


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        ("a text", "a list of texts to search belongs here, not one text"),
        (b"bytes", "not one text"),
        (7, "texts must be a list or another iterable of str, not int"),
        (None, "nothing to search"),
        (["a", None], r"texts\[1\] is a missing value \(None\); leave such rows out"),
        (["a"] * 5000 + [5], r"texts\[5000\] is int, not a str"),
    ],
)
def test_texts_that_are_none(bert, texts, sentence):
    with pytest.raises(RequestError, match=sentence):
        bert.search("a", texts)


def test_long_texts_are_told_once(bert):
    with pytest.warns(BertkitWarning, match="1 text was cut to 16 tokens; the longest, text 2 "):
        assert len(bert.search("a", ["b", "c " * 50])) == 2


def test_vectors_in_the_place_of_texts(bert, tmp_path):
    vectors = bert.embed(TEXTS)
    np.save(tmp_path / "vectors.npy", vectors)
    expected = [(each.index, each.score) for each in bert.search("a dog", TEXTS, 5)]
    for given_texts, given_vectors in [
        (vectors, None),
        (tmp_path / "vectors.npy", None),
        (None, str(tmp_path / "vectors.npy")),
    ]:
        found = bert.search("a dog", given_texts, 5, vectors=given_vectors)
        assert [each.index for each in found] == [index for index, _ in expected]
        np.testing.assert_allclose([each.score for each in found], [score for _, score in expected], atol=1e-6)
        assert {each.text for each in found} == {None}
    both = bert.search("a dog", iter(TEXTS), 5, vectors=vectors)
    assert [each.text for each in both] == [TEXTS[each.index] for each in both]
    with pytest.raises(RequestError, match="vectors came twice"):
        bert.search("a", vectors, vectors=vectors)


def test_as_many_texts_as_vectors(bert, monkeypatch):
    monkeypatch.setattr(searching, "ROWS_PER_BLOCK", 3)
    vectors = bert.embed(TEXTS)
    with pytest.raises(RequestError, match="7 texts came with 8 vectors"):
        bert.search("a", TEXTS[:-1], vectors=vectors)
    with pytest.raises(RequestError, match="more than 8 texts came with 8 vectors"):
        bert.search("a", [*TEXTS, "one more"], vectors=vectors)
    assert bert.search("a", [], vectors=vectors[:0]) == []


def test_the_file_of_bertkit_embed(bert, tmp_path):
    bert.save(tmp_path / "model")
    lines = [text for text in TEXTS if text]
    (tmp_path / "texts.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    out = tmp_path / "vectors.npy"
    command = ["embed", tmp_path / "texts.txt", "--model", tmp_path / "model", "--out", out]
    assert run(list(map(str, command))) == 0
    with (tmp_path / "texts.txt").open(encoding="utf-8") as texts:
        found = bert.search("the cat sat", map(str.strip, texts), 2, vectors=out)
    assert found[0].text == "the cat sat"


def test_files_that_hold_no_vectors(bert, tmp_path):
    good = bert.embed(TEXTS)
    files = {
        "narrow.npy": (good[:, :5], "5 numbers in a row, but this model's vectors have 16"),
        "whole.npy": (np.ones((3, 16), dtype=np.int64), "3x16 numbers of type int64; rows of floats"),
        "flat.npy": (good[0], "holds 16 numbers of type float32"),
        "nan.npy": (np.where(np.arange(8)[:, None] == 5, np.nan, good), r"vector 6 \(counted from 1\) has numbers"),
    }
    for name, (array, sentence) in files.items():
        np.save(tmp_path / name, array)
        with pytest.raises(RequestError, match=sentence):
            bert.search("a", vectors=tmp_path / name)
    (tmp_path / "text.npy").write_text("not an array")
    (tmp_path / "empty.npy").write_bytes(b"")
    np.save(tmp_path / "pickled.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    np.save(tmp_path / "torn.npy", good)
    (tmp_path / "torn.npy").write_bytes((tmp_path / "torn.npy").read_bytes()[:200])
    for name in ("text.npy", "empty.npy", "pickled.npy", "torn.npy"):
        with pytest.raises(RequestError, match=f"{name} is not a whole .npy file of numbers"):
            bert.search("a", vectors=tmp_path / name)
    with pytest.raises(RequestError, match="the lines of a text file are given as open"):
        bert.search("a", tmp_path / "text.npy")
    with pytest.raises(RequestError, match="must be a NumPy array or the path of a .npy file, not list"):
        bert.search("a", vectors=[[1.0] * 16])
    with pytest.raises(RequestError, match="missing.npy cannot be read: No such file"):
        bert.search("a", vectors=tmp_path / "missing.npy")
    np.savez(tmp_path / "many.npz", good)
    with pytest.raises(RequestError, match="an archive of arrays"):
        bert.search("a", vectors=tmp_path / "many.npz")


def test_a_folder_that_pools_nothing(bert):
    tokens = Bert(Checkpoint(model=bert.model, tokenizer=bert.tokenizer, embed=EmbedSettings(pooling="none")))
    with pytest.raises(RequestError, match="unknown pooling of one vector per text 'none'"):
        tokens.search("a", TEXTS)


def test_memory_does_not_grow_with_the_vectors(tmp_path):
    """100 MB of vectors in a file, four blocks: no more than a block or two is held."""
    path = tmp_path / "large.npy"
    vectors = np.lib.format.open_memmap(path, mode="w+", dtype=np.float16, shape=(4 * 8192, 1536))
    vectors[:, :4] = np.random.default_rng(0).normal(size=(len(vectors), 4))
    del vectors
    mapped = np.load(path, mmap_mode="r")
    tracemalloc.start()
    [found] = search_blocks(np.eye(1, 1536), vector_blocks(mapped), 5)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(found) == 5
    assert most < 3.2 * 8192 * 1536 * 8, f"{most / 1e6:.0f} MB"
