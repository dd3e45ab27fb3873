"""Fusion by hand: reciprocal ranks, weighted scores from 0 to 1, and weights that are fitted."""

import numpy as np
import pytest

from bertkit.errors import RequestError
from bertkit.search.fusion import fit_weights, fused
from bertkit.search.judged import judged_queries, read_judgements


def hits(**scores):
    numbers = np.array([int(name[1:]) for name in scores], np.int64)
    return numbers, np.array(list(scores.values()), np.float32)


FOUND = {"bm25": hits(d4=9.0, d2=5.0, d7=1.0), "dense": hits(d2=0.9, d5=0.1)}


def test_reciprocal_ranks_by_hand():
    numbers, scores = fused(FOUND, None, 3)
    assert numbers.tolist() == [2, 4, 5]
    assert scores.tolist() == pytest.approx([1 / 62 + 1 / 61, 1 / 61, 1 / 62])


def test_weighted_scores_by_hand():
    numbers, scores = fused(FOUND, {"bm25": 0.75, "dense": 0.25}, 10)
    assert numbers.tolist() == [4, 2, 5, 7]
    assert scores.tolist() == pytest.approx([0.75, 0.75 * 0.5 + 0.25, 0, 0])


def test_one_list_keeps_its_scores_and_lists_may_be_empty():
    numbers, scores = fused({"bm25": FOUND["bm25"]}, None, 2)
    assert (numbers.tolist(), scores.tolist()) == ([4, 2], [9.0, 5.0])
    assert fused({"bm25": hits(), "dense": hits()}, None, 3)[0].tolist() == []
    assert fused({"bm25": hits(), "dense": hits(d3=0.2)}, {"bm25": 0.5, "dense": 0.5}, 3)[1].tolist() == [0.5]


def test_fitted_weights_are_the_most_even_of_the_best():
    ids = [{4: "x", 2: "y", 7: "z", 5: "w"}]
    assert fit_weights([FOUND], [{"x": 1}], ids) == pytest.approx({"bm25": 0.7, "dense": 0.3})  # over 2/3, by hand
    assert fit_weights([FOUND], [{"unknown": 1}], ids) == {"bm25": 0.5, "dense": 0.5}
    with pytest.raises(RequestError, match="weights are fitted for several retrievers"):
        fit_weights([{"bm25": hits()}], [{}], [{}])


def test_judgements_of_beir_and_of_trec(tmp_path):
    (tmp_path / "beir.tsv").write_text("query-id\tcorpus-id\tscore\nq1\ta\t2\nq1\tb\t0\nq2\ta\t1\n")
    (tmp_path / "trec.txt").write_text("q1 0 a 2\nq1 0 b 0\nq2 0 a 1\n")
    expected = {"q1": {"a": 2.0, "b": 0.0}, "q2": {"a": 1.0}}
    assert read_judgements(tmp_path / "beir.tsv") == read_judgements(tmp_path / "trec.txt") == expected
    assert judged_queries([("q2", "two"), ("q3", "three")], tmp_path / "trec.txt") == (["two"], [{"a": 1.0}])


@pytest.mark.parametrize("score", ["nan", "inf", "high"])
def test_a_judgement_that_is_no_number_is_refused_with_its_line(tmp_path, score):
    path = tmp_path / "qrels.tsv"
    path.write_text(f"query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\td2\t{score}\n")
    with pytest.raises(RequestError, match=r"qrels.tsv, line 3: not the ids of a query and a document and a number"):
        read_judgements(path)
