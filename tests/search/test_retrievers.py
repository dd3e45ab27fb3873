"""Retrievers against slow twins: BM25's formula word by word, and all cosines of the vectors as they are stored."""

import math
from collections import Counter

import numpy as np
import pytest

from bertkit.errors import RequestError
from bertkit.predict.search import search_all
from bertkit.search.retrievers.bm25 import Bm25, Bm25Settings, words_of
from bertkit.search.retrievers.dense import DenseSettings, nearest
from bertkit.search.retrievers.formats import FORMATS, VectorsWriter, _ones, _ones_slowly
from bertkit.search.retrievers.postings import Postings, PostingsWriter
from bertkit.search.retrievers.retriever import Segment, best, joined
from bertkit.search.retrievers.table import RETRIEVERS

TEXTS = [
    "The quick brown fox.",
    "A fox and a fox and a dog, and the dog's fox",
    "",
    "Nothing of the kind",
    "Straße, CAFÉ; the fox!",
    "dog",
    "The dog and the quick dog",
]


def segments_of(retriever, folder, parts):
    segments, first = [], 0
    for number, texts in enumerate(parts):
        path = folder / str(number)
        path.mkdir()
        writer = retriever.writer(path)
        for text in texts:
            writer.add([text])
        writer.finish()
        segments.append(Segment(retriever.open(path), first, len(texts)))
        first += len(texts)
    return segments


def bm25_by_hand(texts, query, k1, b):
    documents = [words_of(text) for text in texts]
    mean = sum(map(len, documents)) / len(documents)
    scores = []
    for words in documents:
        score = 0.0
        for word in words_of(query):
            containing = sum(word in each for each in documents)
            idf = math.log(1 + (len(documents) - containing + 0.5) / (containing + 0.5))
            frequency = Counter(words)[word]
            if frequency:
                score += idf * frequency / (frequency + k1 * (1 - b + b * len(words) / mean))
        scores.append(score)
    return scores


@pytest.mark.parametrize("split", [[7], [3, 4], [1, 2, 4]])
@pytest.mark.parametrize(("k1", "b"), [(1.2, 0.75), (0.9, 0.4), (0.0, 0.0)])
def test_bm25_is_its_formula_over_all_segments(tmp_path, split, k1, b):
    ends = np.cumsum(split)
    parts = [TEXTS[end - size : end] for end, size in zip(ends, split, strict=True)]
    retriever = Bm25(Bm25Settings(k1=k1, b=b), None)
    segments = segments_of(retriever, tmp_path, parts)
    for query in ("fox", "the fox and the fox", "quick dog", "cafe strasse café", "unknown"):
        expected = bm25_by_hand(TEXTS, query, k1, b)
        order = [n for n in sorted(range(7), key=lambda n: (-round(expected[n], 9), n)) if expected[n] > 0]
        [(numbers, scores)] = retriever.search(segments, [query], 4)
        assert numbers.tolist() == order[:4]
        np.testing.assert_allclose(scores, [expected[n] for n in order[:4]], rtol=1e-6)


def test_bm25_of_no_documents_and_of_no_words_is_nothing(tmp_path):
    retriever = Bm25(Bm25Settings(), None)
    assert [len(hits[0]) for hits in retriever.search([], ["fox"], 3)] == [0]
    segments = segments_of(retriever, tmp_path, [["?!", "..."]])
    assert [len(hits[0]) for hits in retriever.search(segments, ["fox", "!"], 3)] == [0, 0]


def test_words_of_every_script():
    assert words_of("don't_stop 3.5") == ["don", "t", "stop", "3", "5"]
    assert words_of("ｆｕｌｌ Ångström") == ["full", "ångström"]
    assert words_of("東京 tower") == ["東", "京", "tower"]
    assert words_of("नमस्ते दुनिया") == ["नमस्ते", "दुनिया"]  # vowel signs are marks, not letters


def test_settings_of_bm25_have_ranges():
    with pytest.raises(RequestError, match=r"b=2 must be from 0 to 1"):
        Bm25Settings(b=2)


def test_postings_are_summed_and_found(tmp_path):
    writer = PostingsWriter(tmp_path)
    writer.add(np.array([9, 2**64 - 1, 9, 3], np.uint64), np.array([1, 0, 1, 4]), np.array([1.0, 2.0, 0.5, 1.0]))
    writer.add(np.array([9], np.uint64), np.array([0]), np.array([4.0]))
    writer.finish()
    found = Postings.open(tmp_path).find(np.array([3, 9, 10, 2**64 - 1, 0], np.uint64))
    assert [(documents.tolist(), weights.tolist()) for documents, weights in found] == [
        ([4], [1.0]),
        ([0, 1], [4.0, 1.5]),
        ([], []),
        ([0], [2.0]),
        ([], []),
    ]


def test_no_postings_at_all(tmp_path):
    PostingsWriter(tmp_path).finish()
    [(documents, _)] = Postings.open(tmp_path).find(np.array([1], np.uint64))
    assert documents.tolist() == []


def stored(folder, name, vectors, sizes):
    segments, first = [], 0
    for number, size in enumerate(sizes):
        path = folder / f"{name}{number}"
        path.mkdir()
        writer = VectorsWriter(path, FORMATS[name])
        for start in range(first, first + size, 50):
            writer.append(vectors[start : min(start + 50, first + size)])
        writer.close()
        segments.append(Segment(FORMATS[name].open(path), first, size))
        first += size
    return segments


@pytest.fixture(scope="module")
def clustered():
    """Vectors in tight groups, so that the best differ by less than int8 resolves; some twice, one zero."""
    draw = np.random.default_rng(0)
    centers = draw.standard_normal((12, 70))
    vectors = np.repeat(centers, 30, axis=0) + 0.02 * draw.standard_normal((360, 70))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors[100], vectors[200] = vectors[7], 0
    return vectors.astype(np.float32), centers + 0.01 * draw.standard_normal(centers.shape)


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "binary"])
@pytest.mark.parametrize("sizes", [[360], [100, 1, 259]])
def test_the_nearest_are_those_of_all_cosines(tmp_path, clustered, name, sizes):
    vectors, queries = clustered
    segments = stored(tmp_path, name, vectors, sizes)
    kept = np.concatenate([segment.part["vectors"] for segment in segments]).astype(np.float64)
    for k in (1, 10, 400):
        expected = search_all(queries, kept, k)
        for query, row in zip(queries, expected, strict=True):
            numbers, scores = nearest(segments, FORMATS[name], query, k)
            assert list(zip(numbers.tolist(), scores.tolist(), strict=True)) == row


def test_bits_find_most_and_score_exactly(tmp_path, clustered):
    vectors, queries = clustered
    segments = stored(tmp_path, "binary", vectors, [200, 160])
    kept = np.concatenate([segment.part["vectors"] for segment in segments]).astype(np.float64)
    for query, row in zip(queries, search_all(queries, kept, 10), strict=True):
        numbers, scores = nearest(segments, FORMATS["binary"], query, 10)
        assert dict(zip(numbers.tolist(), scores.tolist(), strict=True)) == dict(row)  # 500 candidates are all of them
    assert segments[0].part["bits"].shape == (200, 2)


def test_bits_are_counted_alike_in_numpy_1_and_2():
    words = np.random.default_rng(0).integers(2**63, size=(20, 3), dtype=np.uint64)
    assert _ones(words[:, 1]).tolist() == _ones_slowly(words[:, 1]).tolist()


def test_candidates_of_bits_are_limited(tmp_path, monkeypatch):
    draw = np.random.default_rng(1)
    vectors = draw.standard_normal((900, 64)).astype(np.float32)
    segments = stored(tmp_path, "binary", vectors, [900])
    scored = []
    from bertkit.search.retrievers import dense

    exact = dense.exact_scores
    monkeypatch.setattr(dense, "exact_scores", lambda query, rows: scored.append(len(rows)) or exact(query, rows))
    numbers, _ = nearest(segments, FORMATS["binary"], vectors[5].astype(np.float64), 3)
    assert numbers[0] == 5
    assert 500 <= scored[0] < 900


def test_int8_is_near_the_vectors(clustered):
    vectors, _ = clustered
    encoded = FORMATS["int8"].encode(vectors)
    decoded = encoded["vectors"] * encoded["scales"][:, None]
    assert np.abs(decoded - vectors).max() < 0.003
    assert (decoded[200] == 0).all()


def test_a_zero_query_finds_something_without_warnings(tmp_path, clustered):
    segments = stored(tmp_path, "int8", clustered[0], [360])
    numbers, scores = nearest(segments, FORMATS["int8"], np.zeros(70), 2)
    assert (numbers.tolist(), scores.tolist()) == ([0, 1], [0.0, 0.0])


def test_best_takes_the_earlier_of_equal_scores():
    numbers, scores = best(np.array([3, 5, 8, 9]), np.array([1.0, 2.0, 1.0, 1.0]), 3)
    assert (numbers.tolist(), scores.tolist()) == ([5, 3, 8], [2.0, 1.0, 1.0])
    one, other = best(np.array([1, 2]), np.array([1.0, 3.0]), 2), best(np.array([7]), np.array([3.0]), 2)
    assert joined([one, other], 2)[0].tolist() == [2, 7]


def test_every_row_has_settings_and_names_an_implementation():
    for name, row in RETRIEVERS.items():
        assert row.name == name
        assert row.load().settings_type()
    with pytest.raises(RequestError, match="unknown vectors 'int4'; choose from: int8"):
        DenseSettings(vectors="int4")
