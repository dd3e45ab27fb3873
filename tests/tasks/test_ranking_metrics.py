"""Metrics of rankings: cases by hand, and the same numbers as trec_eval's."""

import math
import random

import pytest
import pytrec_eval

from bertkit.tasks.metrics.ranking import query_scores, ranking_scores

TREC_NAMES = {"ndcg@10": "ndcg_cut_10", "map": "map", "recall@10": "recall_10", "recall@100": "recall_100"}


def test_one_query_by_hand():
    scores = query_scores({"a": 2, "b": 1, "c": 0}, ["c", "b", "x", "a"])
    ideal = 2 + 1 / math.log2(3)
    assert scores["ndcg@10"] == pytest.approx((1 / math.log2(3) + 2 / math.log2(5)) / ideal)
    assert (scores["mrr@10"], scores["recall@10"]) == (1 / 2, 1.0)
    assert scores["map"] == pytest.approx((1 / 2 + 2 / 4) / 2)


def test_nothing_relevant_or_nothing_found_is_zero():
    for relevance, ranking in (({"a": 0, "b": -1}, ["a", "b"]), ({"a": 1}, []), ({}, ["a"])):
        assert set(query_scores(relevance, ranking).values()) == {0.0}
    assert set(ranking_scores([]).values()) == {0.0}


def test_the_numbers_are_those_of_trec_eval():
    draw = random.Random(5)
    queries, judged, run = [], {}, {}
    for number in range(60):
        documents = [f"d{n}" for n in range(draw.randint(1, 150))]
        relevance = {d: draw.choice((0, 0, 1, 2, 3)) for d in draw.sample(documents, draw.randint(1, len(documents)))}
        ranking = draw.sample(documents, draw.randint(1, len(documents)))
        queries.append((relevance, ranking))
        judged[f"q{number}"] = relevance
        run[f"q{number}"] = {document: -float(rank) for rank, document in enumerate(ranking)}
    names = {"ndcg_cut.10", "map", "recall.10,100", "recip_rank"}
    theirs = pytrec_eval.RelevanceEvaluator(judged, names).evaluate(run)
    for number, (relevance, ranking) in enumerate(queries):
        ours, expected = query_scores(relevance, ranking), theirs[f"q{number}"]
        assert {ours_name: ours[ours_name] for ours_name in TREC_NAMES} == pytest.approx(
            {ours_name: expected[name] for ours_name, name in TREC_NAMES.items()}, abs=1e-6
        )
        first = expected["recip_rank"]
        assert ours["mrr@10"] == pytest.approx(first if first >= 1 / 10 else 0.0, abs=1e-6)
    mean = sum(expected["map"] for expected in theirs.values()) / len(theirs)
    assert ranking_scores(queries)["map"] == pytest.approx(mean, abs=1e-6)
