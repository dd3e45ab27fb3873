"""The row of `rank`: a cross-encoder, which reads a query and a text together and scores how well they fit."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from bertkit.data.columns import ExampleReader
from bertkit.data.examples import Example
from bertkit.data.ranked import RankExample, grouped_by_query, has_ranked_texts, rank_reader
from bertkit.data.tables import Columns, Row, Table
from bertkit.errors import RequestError
from bertkit.settings import pick
from bertkit.tasks.metrics.ranking import MAIN_RANKING_METRIC, RANKING_METRICS
from bertkit.tasks.row import (
    RequestField,
    RequestOption,
    TaskMetrics,
    TaskRow,
    check_same_count,
    check_text_list,
    request_location,
)
from bertkit.tasks.shared.length import TRUNCATING_KINDS

if TYPE_CHECKING:
    from pathlib import Path

    from bertkit.text.tokenizer import Tokenizer

MOST_LISTED = 10_000  # texts of a reply


@dataclass(frozen=True)
class RankObjective:
    """A row of RANK_OBJECTIVES; the loss itself is in `shared/rank_losses.py`."""

    loss: str  # a function of rank_losses
    compares: bool  # the texts of a query with each other, so that a query counts once; else each text counts
    activation: str  # from the head's number to the score: sigmoid or identity


RANK_OBJECTIVES: Mapping[str, RankObjective] = MappingProxyType(
    {
        "pointwise": RankObjective("binary_losses", False, "sigmoid"),
        "squared": RankObjective("squared_losses", False, "identity"),
        "pairwise": RankObjective("pairwise_losses", True, "identity"),
        "margin": RankObjective("margin_losses", True, "identity"),
        "listwise": RankObjective("listwise_losses", True, "identity"),
        "lambda": RankObjective("lambda_losses", True, "identity"),
    }
)
# sentence-transformers' names of activations; of the first it is the one that it takes if a folder names none.
ACTIVATIONS = {"sigmoid": "torch.nn.modules.activation.Sigmoid", "identity": "torch.nn.modules.linear.Identity"}


class RankRow(TaskRow):
    """A score for each text of a query; the texts of a query are one example."""

    name = "rank"
    summary = "how well each text answers a query"
    implementation = "bertkit.tasks.rank:Rank"
    head = "classify"
    route = "rank"
    metrics = TaskMetrics(MAIN_RANKING_METRIC, RANKING_METRICS)
    example_unit = "queries"
    length_kinds = TRUNCATING_KINDS
    settings_part = "ranking"
    ranks = True
    numeric = True
    reports_length = True
    fields = (RequestField("query"), RequestField("texts", "choices"))
    options = (RequestOption("top", MOST_LISTED, MOST_LISTED, "How many texts to list, the best first."),)
    request_summary = "A query and the texts to rank by it, or as many of both."
    request_example: ClassVar[Mapping[str, object]] = {
        "query": "Where does Ada live?",
        "texts": ["Alan lives in Rome.", "Ada lives in London."],
    }
    output = MappingProxyType({"best": int, "best_text": str, "score": float, "scores": [float]})
    shown = ("best_text", "score")
    has_probabilities = False
    missing_from_lines = "texts"

    def fits_table(self, table: Table, rows: Sequence[Row], columns: Columns) -> bool:
        """A column `query`, and texts with numbers, or positives and negatives."""
        return has_ranked_texts(table, rows)

    def reader(self, table: Table, columns: Columns, labeled: bool) -> ExampleReader:
        """Reads the query, its texts and their relevance."""
        return rank_reader(table, columns, labeled)

    def unlabeled_reader(self, table: Table, columns: Columns) -> ExampleReader:
        """Reads the query and its texts."""
        return rank_reader(table, columns, False)

    def grouped(self, examples: list[Example]) -> list[Example]:
        """The rows of a query are one example."""
        return grouped_by_query(examples)

    def prediction_of(self, example: Example, predictions: Mapping[str, Any]) -> Any | None:
        """The scores of all rows of a query as one ranking."""
        assert isinstance(example, RankExample)
        parts = [predictions.get(str(row)) for row in example.rows or (example.location,)]
        return None if None in parts else parts[0].joined(parts[1:])  # type: ignore[union-attr]

    def counts(self, examples: Sequence[Example], labeled: bool) -> list[str]:
        """The numbers of queries and texts."""
        texts = sum(len(example.documents) for example in examples if isinstance(example, RankExample))
        return [*super().counts(examples, labeled), f"{texts} texts"]

    def arguments_from_settings(self, part: Any, examples: Sequence[Example], file: "Path") -> dict[str, Any]:
        """The objective, by default listwise, or pointwise if no query has texts to compare.

        Data that it cannot learn from are refused.
        """
        lists = [example for example in examples if isinstance(example, RankExample)]
        numbers = {number for example in lists for number in example.numbers}
        compares = any(example.compares for example in lists)
        if len(numbers) == 1:
            raise RequestError(f"{file}: every text has the relevance {numbers.pop():g}; there is nothing to learn")
        objective = part.objective or ("listwise" if compares else "pointwise")
        if RANK_OBJECTIVES[objective].compares and not compares:
            raise RequestError(
                f"{file}: no query has texts of different relevance, which objective={objective} compares; "
                "add texts to the queries, or set objective=pointwise"
            )
        if objective == "pointwise" and not all(0 <= number <= 1 for number in numbers):
            objective = "squared"
        return {**asdict(part), "objective": objective}

    def arguments_from_model(self, settings: Mapping[str, Any], tokenizer: "Tokenizer") -> dict[str, Any]:
        """The activation that a cross-encoder's folder names."""
        name = _activation_name(settings)
        if name is None:
            return {}
        ours = {theirs.rpartition(".")[2]: ours for ours, theirs in ACTIVATIONS.items()}
        return {"activation": pick(ours, name.rpartition(".")[2], "activation_fn of config.json")}

    def default_settings(self, start: str) -> tuple[str, ...]:
        """A step of fewer examples than usual, as each has several texts."""
        return ("batch=8",)

    def claims(self, settings: Mapping[str, Any], outputs: int) -> bool:
        """A cross-encoder of sentence-transformers with one output."""
        return outputs == 1 and _activation_name(settings) is not None

    def output_cells(self, example: Example, prediction: Any) -> dict[str, Any]:
        """The index, text and score of the best text, and the scores in the order of the texts."""
        best = prediction[0]
        scores = [ranked.score for ranked in sorted(prediction, key=lambda ranked: ranked.index)]
        return {"best": best.index, "best_text": best.text, "score": best.score, "scores": scores}

    def window_count(self, prediction: Any) -> int:
        """1: the sequences of the texts are not windows of a longer text."""
        return 1

    def examples(self, query: Sequence[str], texts: Sequence[Sequence[str]]) -> list[Example]:  # type: ignore[override]
        """An example for each query and its texts."""
        check_same_count(query, texts, "queries and lists of texts", "give as many")
        lists = [check_text_list(each, f"what query {n} is to rank") for n, each in enumerate(texts, start=1)]
        pairs = enumerate(zip(query, lists, strict=True))
        return [RankExample(text, documents, None, request_location(n)) for n, (text, documents) in pairs]

    def reply(self, prediction: Any, **options: int) -> list[dict[str, Any]]:
        """The `top` best texts, each with its index and score."""
        return [asdict(ranked) for ranked in prediction[: options["top"]]]


def _activation_name(settings: Mapping[str, Any]) -> str | None:
    """The activation of a cross-encoder, where sentence-transformers keeps it, or kept it before version 4."""
    known = settings.get("sentence_transformers")
    name = known.get("activation_fn") if isinstance(known, Mapping) else None
    name = name or settings.get("sbert_ce_default_activation_function")
    return name if isinstance(name, str) else None
