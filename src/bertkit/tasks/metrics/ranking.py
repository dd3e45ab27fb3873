"""Metrics of rankings: nDCG@10, MRR@10, MAP and recall, with the definitions of trec_eval.

A ranking is a list of keys, best first; `relevance` has a number for each judged key, and keys that are not judged are
not relevant. Numbers of 0 or below are not relevant either.
"""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence

Relevance = Mapping[Hashable, float]
Ranking = Sequence[Hashable]
RANKING_METRICS = ("ndcg@10", "mrr@10", "map", "recall@10", "recall@100")
MAIN_RANKING_METRIC = "ndcg@10"


def query_scores(relevance: Relevance, ranking: Ranking) -> dict[str, float]:
    """All metrics of one query; 0 if nothing is relevant."""
    gains = [max(0.0, relevance.get(key, 0.0)) for key in ranking]
    ideal = sorted((gain for gain in relevance.values() if gain > 0), reverse=True)
    relevant = max(1, len(ideal))
    ranks = [rank for rank, gain in enumerate(gains, start=1) if gain > 0]
    return {
        "ndcg@10": discounted_gain(gains[:10]) / (discounted_gain(ideal[:10]) or 1.0),
        "mrr@10": 1 / ranks[0] if ranks and ranks[0] <= 10 else 0.0,
        "map": sum(found / rank for found, rank in enumerate(ranks, start=1)) / relevant,
        "recall@10": sum(rank <= 10 for rank in ranks) / relevant,
        "recall@100": sum(rank <= 100 for rank in ranks) / relevant,
    }


def ranking_scores(queries: Iterable[tuple[Relevance, Ranking]]) -> dict[str, float]:
    """The mean of every metric over queries, each given by its relevance and its ranking."""
    scores = [query_scores(relevance, ranking) for relevance, ranking in queries]
    return {name: sum(each[name] for each in scores) / max(1, len(scores)) for name in RANKING_METRICS}


def discounted_gain(gains: Sequence[float]) -> float:
    """The sum of gains, each divided by log2(1 + rank)."""
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, start=1))
