"""Ranking: a query and a text are read together, and one number says how well they fit (a cross-encoder)."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertkit.data.examples import Example
from bertkit.data.ranked import RankExample
from bertkit.errors import BertkitError, RequestError
from bertkit.model.batch import Batch
from bertkit.model.model import BertModel
from bertkit.report.tables import html_table
from bertkit.settings import pick
from bertkit.tasks.metrics.ranking import RANKING_METRICS, query_scores, ranking_scores
from bertkit.tasks.rows.rank import ACTIVATIONS, RANK_OBJECTIVES, RankObjective, RankRow
from bertkit.tasks.shared import rank_losses
from bertkit.tasks.shared.calibration import number_collapse
from bertkit.tasks.shared.decision import Decision
from bertkit.tasks.shared.explain import Request, Target, read_pooled, refuse_target, refuse_word, text_tokens
from bertkit.tasks.shared.length import Seen, count_seen, select_tokens, sequence_positions
from bertkit.tasks.shared.text_task import pad_to
from bertkit.tasks.task import Dataset, FixedSize, HeadOutputs, LossSettings, Mistake, Predict, Task, Window

ALL_READ = Seen(0)  # a text that was not cut
MAX_PAIRS_CHECKED = 200  # texts of a list that are compared with each other to see whether anything was learned


@dataclass(frozen=True)
class Ranked:
    """One of the texts of a query: its index among them, its score and itself."""

    index: int
    score: float  # a probability from 0 to 1, or a number of any size: as the model was trained
    text: str
    seen: Seen = field(default=ALL_READ, repr=False)


class Ranking(list[Ranked]):
    """The texts of a query, best first, equal ones in input order; `logits` are the head's numbers in input order."""

    def __init__(
        self, documents: Sequence[str], logits: Sequence[float], seen: Sequence[Seen], activation: str
    ) -> None:
        order = sorted(range(len(documents)), key=lambda n: -logits[n])
        scores = [logistic(x) for x in logits] if activation == "sigmoid" else list(logits)
        super().__init__(Ranked(n, scores[n], documents[n], seen[n]) for n in order)
        self.logits, self.activation = tuple(logits), activation

    @property
    def seen(self) -> Seen:
        """How much of all texts together the model read; `windows` is their number."""
        return Seen(sum(each.seen.tokens for each in self), sum(each.seen.cut for each in self), len(self))

    @property
    def in_order(self) -> list[Ranked]:
        """The texts in input order."""
        return sorted(self, key=lambda ranked: ranked.index)

    def joined(self, others: Iterable["Ranking"]) -> "Ranking":
        """With the texts of others after its own, all ranked together."""
        parts = [self, *others]
        texts = [ranked for part in parts for ranked in part.in_order]
        logits = [number for part in parts for number in part.logits]
        return Ranking([each.text for each in texts], logits, [each.seen for each in texts], self.activation)

    def _repr_html_(self) -> str:
        return html_table(("index", "score", "text"), [(each.index, each.score, each.text) for each in self])


@dataclass(frozen=True, kw_only=True)
class Rank(Task):
    """One number for each (query, text); the texts of a query are compared with each other."""

    row = RankRow()
    outputs = 1
    independent_windows = True
    objective: str | None = None  # None: not in training
    activation: str = "sigmoid"  # without an objective, which says it otherwise
    list_size: int = 16  # texts of a query in a training example

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.objective is not None:
            chosen = pick(RANK_OBJECTIVES, self.objective, "objective")
            object.__setattr__(self, "activation", chosen.activation)

    @property
    def config_fields(self) -> dict[str, Any]:
        """The activation, where sentence-transformers' CrossEncoder reads it."""
        return {"sentence_transformers": {"activation_fn": ACTIVATIONS[self.activation]}}

    @cached_property
    def _objective(self) -> RankObjective:
        usual = "pointwise" if self.activation == "sigmoid" else "listwise"
        return RANK_OBJECTIVES[self.objective or usual]

    def training_examples(self, examples: Sequence[Example]) -> list[Example]:
        """Long lists in parts of `list_size` texts."""
        lists = [example for example in examples if isinstance(example, RankExample)]
        return [part for example in lists for part in split_list(example, self.list_size)]

    def windows(self, example: Example, number: int) -> list[Window]:
        """A sequence for each text; the longer of query and text is cut."""
        assert isinstance(example, RankExample)
        count = len(example.documents)
        if not count:
            raise RequestError(f"{example.location}: the query has no texts; give one or more")
        relevance = (None,) * count if example.relevance is None else example.relevance
        encodings = self.tokenizer.encode_batch([example.query] * count, example.documents)
        windows = []
        for encoding, target in zip(encodings, relevance, strict=True):
            [positions] = sequence_positions(encoding, self.limit, self.length)
            tokens = select_tokens(encoding, positions)
            windows.append(Window(*tokens, number, target, count_seen(encoding, [positions])))
        return windows

    def count_targets(self, windows: Sequence[Window]) -> int:
        """The number of texts, or of queries with texts to compare."""
        if not self._objective.compares:
            return len(windows)
        return sum(len({windows[n].target for n in group}) > 1 for group in _groups(windows))

    def loss_sum(self, logits: Tensor, batch: Batch, windows: Sequence[Window], weights: LossSettings) -> Tensor:
        """Sum over the queries; logits are N 1. All texts of a query must be in the batch."""
        targets = [target.to(logits.device) for target in _targets(windows, len(_groups(windows)))]
        return self.fixed_loss(logits, batch, targets, 0.0)

    def fixed_targets(self, windows: Sequence[Window], size: FixedSize, weights: LossSettings) -> tuple[Tensor, ...]:
        """For each query the indices of its sequences (-1 is padding), their relevance, and the query's weight."""
        return _targets(windows, size.examples)

    def fixed_loss(self, logits: Tensor, batch: Batch, targets: Sequence[Tensor], smoothing: float) -> Tensor:
        """Sum over the queries with weight 1."""
        indices_NC, relevance_NC, row_weights = targets
        scores_NC = logits.flatten().index_select(0, indices_NC.flatten().clamp_min(0)).view_as(indices_NC)
        losses = getattr(rank_losses, self._objective.loss)
        total: Tensor = (losses(scores_NC, relevance_NC, indices_NC >= 0) * row_weights).sum()
        return total

    def distillation_loss(
        self, teacher: Task, logits: Tensor, target: Tensor, batch: Batch, windows: Sequence[Window], temperature: float
    ) -> Tensor:
        """MarginMSE with the teacher's numbers as relevance."""
        indices_NC, _, row_weights = (each.to(logits.device) for each in _targets(windows, len(_groups(windows))))
        chosen = indices_NC.flatten().clamp_min(0)
        student, wanted = (rows.flatten()[chosen].view_as(indices_NC) for rows in (logits, target))
        return (rank_losses.margin_losses(student, wanted, indices_NC >= 0) * row_weights).sum()

    def decode_one(
        self, example: Example, windows: Sequence[Window], outputs: HeadOutputs, decision: Decision
    ) -> Ranking:
        """The texts by score."""
        assert isinstance(example, RankExample)
        logits = [float(row[0]) for row in outputs]
        return Ranking(example.documents, logits, [window.detail for window in windows], self.activation)

    def score(self, examples: Sequence[Example], predictions: Sequence[Ranking]) -> dict[str, float]:
        """The mean of each metric over the queries."""
        return ranking_scores(map(_judged, examples, predictions))

    def scorer(
        self, examples: Sequence[Example], predictions: Sequence[Ranking]
    ) -> Callable[[Sequence[int]], Mapping[str, float]]:
        """Each query is scored once."""
        rows = [query_scores(*_judged(*pair)) for pair in zip(examples, predictions, strict=True)]
        table = np.array([[row[name] for name in RANKING_METRICS] for row in rows])
        return lambda chosen: dict(zip(RANKING_METRICS, table[list(chosen)].mean(axis=0).tolist(), strict=True))

    def collapse_message(
        self, dev: Dataset, outputs: HeadOutputs, loss: float | None, predictions: Sequence[Ranking], min_gain: float
    ) -> str | None:
        """A message if at most half of the pairs of texts are in the right order, or the numbers are unrelated."""
        lists = [(list(e.numbers), p.logits) for e, p in zip(dev.examples, predictions, strict=True) if e.numbers]
        right, pairs = 0.0, 0
        for gold, found in lists:
            more = np.subtract.outer(gold[:MAX_PAIRS_CHECKED], gold[:MAX_PAIRS_CHECKED]) > 0
            margins = np.subtract.outer(found[:MAX_PAIRS_CHECKED], found[:MAX_PAIRS_CHECKED])[more]
            right, pairs = right + float((margins > 0).sum()), pairs + int(more.sum())
        if not pairs:
            return number_collapse(*([number for each in side for number in each] for side in zip(*lists, strict=True)))
        in_order = f"{right / pairs:.1%} of the pairs of texts on dev are in the right order"
        return in_order if right <= pairs / 2 else None

    def mistake(self, example: Example, prediction: Ranking) -> Mistake | None:
        """A first text that is not the most relevant one, weighted by what nDCG@10 lacks."""
        assert isinstance(example, RankExample)
        wanted = max(range(len(example.numbers)), key=lambda n: example.numbers[n])
        first = prediction[0]
        if example.numbers[first.index] == example.numbers[wanted] or example.documents[wanted] == first.text:
            return None
        weight = 1 - query_scores(*_judged(example, prediction))["ndcg@10"]
        return Mistake(max(0.0, weight), example.query, example.documents[wanted], first.text)

    def explain(self, model: BertModel, request: Request, predict: Predict) -> Target:
        """The head's number for a query and a text."""
        refuse_target(request)
        refuse_word(request)
        if request.pair is None:
            raise RequestError("a score is of a query and a text; give the text as the second one (--pair)")
        encoding = self.tokenizer.encode(request.text, request.pair)
        [positions] = sequence_positions(encoding, self.limit, self.length)
        tokens = text_tokens(model, self.tokenizer, request, positions)
        return Target("the relevance", "logit", tokens, read_pooled(model, self.head, 0))


def logistic(x: float) -> float:
    """1 / (1 + exp(-x)), without overflow."""
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


def split_list(example: RankExample, size: int) -> list[RankExample]:
    """Parts of at most `size` texts, which together have all; each has one that is more relevant than others."""
    numbers, count = example.numbers, len(example.documents)
    if count <= size:
        return [example]
    order = sorted(range(count), key=lambda n: -numbers[n])
    best = [n for n in order if numbers[n] > numbers[order[-1]]]
    parts = -(-count // (size - 1))
    dealt = [order[start::parts] for start in range(parts)]
    alike = [len({numbers[n] for n in part}) == 1 for part in dealt]
    more = [[best[at % len(best)]] if best and same else [] for at, same in enumerate(alike)]
    return [example.part([*first, *part]) for first, part in zip(more, dealt, strict=True)]


def _groups(windows: Sequence[Window]) -> list[list[int]]:
    """The indices of the windows of each example."""
    numbered = groupby(enumerate(windows), key=lambda pair: pair[1].example)
    return [[index for index, _ in group] for _, group in numbered]


def _targets(windows: Sequence[Window], rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Indices N C of the sequences of each query (-1 is padding), their relevance N C, and the weight N of each query.

    N is `rows`; those after the last query are padding.
    """
    groups = _groups(windows)
    if len({windows[group[0]].example for group in groups}) < len(groups):
        raise BertkitError("the texts of a query are apart in a batch; put them side by side")
    most = max(map(len, groups))
    padding = [[-1] * most] * (rows - len(groups))
    indices = [*(group + [-1] * (most - len(group)) for group in groups), *padding]
    numbers = [[float(windows[n].target or 0.0) if n >= 0 else 0.0 for n in row] for row in indices]
    return torch.tensor(indices), torch.tensor(numbers), pad_to(rows, [1.0] * len(groups))


def _judged(example: Example, prediction: Ranking) -> tuple[dict[Any, float], list[int]]:
    """(relevance by index, indices by score).

    Of equal scores the less relevant is first, so that a model gains nothing from the order of the file.
    """
    relevance = dict(enumerate(example.numbers))
    order = sorted(relevance, key=lambda n: (-prediction.logits[n], relevance[n]))
    return relevance, order
