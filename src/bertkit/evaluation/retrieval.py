"""Retrieval (BEIR): how high the documents that people judged relevant stand among all, by cosine with the query.

A folder has corpus.jsonl (_id, title, text), queries.jsonl (_id, text) and judgements: qrels.tsv or qrels/test.tsv
with the columns query-id, corpus-id, score.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertkit.data.tables import Columns, Row, cell, open_table, text_cell
from bertkit.errors import RequestError
from bertkit.evaluation.yardstick import OtherColumns, RowScore, Yardstick
from bertkit.predict.bert import Bert
from bertkit.tasks.metrics.ranking import MAIN_RANKING_METRIC, query_scores
from bertkit.text.corpus import COMPRESSED

TOP = 1000  # documents in a ranking, as in BEIR
JUDGEMENTS = ("query-id", "corpus-id", "score")
SPLIT = "test"  # of several files in qrels/
Texts = Mapping[str, str]  # by id


@dataclass(frozen=True, eq=False)
class Collection:
    """The documents that all queries search, and how many queries nobody has judged documents for."""

    documents: Texts
    unjudged: int


@dataclass(frozen=True)
class Query:
    """A query with the documents that were judged for it: above 0 is relevant."""

    key: str
    text: str
    relevance: Mapping[str, float]
    collection: Collection = field(repr=False)


class Retrieval(Yardstick):
    """Queries, documents and judgements in BEIR's layout."""

    name, metric, reads_folders = "retrieval", MAIN_RANKING_METRIC, True
    columns = "a folder with corpus.jsonl, queries.jsonl and qrels.tsv, or one of its files of judgements"

    def read(self, path: Path, columns: Columns) -> list[Any]:
        """The queries that have judgements, in the order of their file."""
        judged = judgement_file(path) if path.is_dir() else path
        table = open_table(judged, Columns(header=True))
        if not set(JUDGEMENTS) <= set(table.names):
            raise OtherColumns(
                f"{judged} has the columns {', '.join(table.names)}; needed: {', '.join(JUDGEMENTS)}, in its first line"
            )
        folder = next((each for each in (judged.parent, judged.parent.parent) if part(each, "corpus")), judged.parent)
        documents, queries = read_texts(folder, "corpus"), read_texts(folder, "queries")
        relevance: dict[str, dict[str, float]] = {}
        for row in table.rows:
            key, document, score = judgement(row, queries, documents)
            if relevance.setdefault(key, {}).setdefault(document, score) != score:
                raise RequestError(f"{row.location}: query {key} and document {document} were judged otherwise above")
        collection = Collection(documents, len(queries.keys() - relevance.keys()))
        return [Query(key, queries[key], relevance[key], collection) for key in queries if key in relevance]

    def ask(self, bert: Bert, rows: Sequence[Any]) -> list[RowScore]:
        """The metrics of each query. A document that is the query itself (same id and text) is left out, as in BEIR."""
        documents = rows[0].collection.documents
        keys = list(documents)
        found = bert.search([row.text for row in rows], list(documents.values()), k=TOP)
        scores = []
        for row, ranking in zip(rows, found, strict=True):
            ranked = [keys[each.index] for each in ranking]
            others = [key for key in ranked if key != row.key or documents[key] != row.text]
            scores.append(RowScore(query_scores(row.relevance, others)))
        return scores

    def note(self, bert: Bert, rows: Sequence[Any]) -> str:
        """How much was searched, and what was left out."""
        collection = rows[0].collection
        notes = [f"{len(collection.documents):,} documents, {len(rows):,} queries"]
        if collection.unjudged:
            notes.append(f"queries without judgements, left out: {collection.unjudged:,}")
        if empty := sum(not text for text in collection.documents.values()):
            notes.append(f"documents without text: {empty:,}")
        return "; ".join(notes)


def part(folder: Path, stem: str, ending: str = ".jsonl") -> Path | None:
    """The file of this name, perhaps compressed; None if there is none."""
    return next((path for suffix in ("", *COMPRESSED) if (path := folder / f"{stem}{ending}{suffix}").is_file()), None)


def judgement_file(folder: Path) -> Path:
    """qrels.tsv, or the file of the test split in qrels/, or the only one there."""
    for place, stem in ((folder, "qrels"), (folder / "qrels", SPLIT)):
        if found := part(place, stem, ".tsv"):
            return found
    files = sorted(path for path in (folder / "qrels").glob("*.tsv*") if path.is_file())
    if not files:
        raise OtherColumns(f"{folder} has no qrels.tsv and no qrels/{SPLIT}.tsv; needed is {Retrieval.columns}")
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise RequestError(f"{folder / 'qrels'} has several files ({names}) and no {SPLIT}.tsv; name one of them")
    return files[0]


def read_texts(folder: Path, stem: str) -> Texts:
    """The texts of corpus.jsonl or queries.jsonl by id, a title before its text; documents alone may be empty."""
    path = part(folder, stem)
    if path is None:
        raise RequestError(f"{folder} has no {stem}.jsonl (nor {stem}.jsonl.zst); put it there")
    texts: dict[str, str] = {}
    for row in open_table(path, Columns()).rows:
        key = identifier(row, "_id")
        if key in texts:
            raise RequestError(f"{row.location}: the id {key} is there twice; give each text an id of its own")
        title = text_cell(row, "title") if row.values.get("title") else ""
        texts[key] = f"{title} {text_cell(row, 'text')}".strip()
        if stem == "queries" and not texts[key]:
            raise RequestError(f"{row.location}: query {key} has no text; write one, or remove the row")
    return texts


def identifier(row: Row, name: str) -> str:
    """An id as text; a row that cannot be read, and one without this id, is refused."""
    if row.fault:
        raise RequestError(row.fault)
    value = cell(row, name)
    if not isinstance(value, str | int) or value == "":
        raise RequestError(f"{row.location}: '{name}' must be a text or a whole number; repair or remove the row")
    return str(value)


def judgement(row: Row, queries: Texts, documents: Texts) -> tuple[str, str, float]:
    """(query, document, score) of a row of judgements; unknown ids and scores that are no numbers are refused."""
    key, document = (identifier(row, name) for name in JUDGEMENTS[:2])
    for kind, known, found in (("query", queries, key), ("document", documents, document)):
        if found not in known:
            raise RequestError(f"{row.location}: there is no {kind} {found}; add it, or remove the row")
    try:
        score = float(str(row.values.get("score")))
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise RequestError(f"{row.location}: the score of document {document} is no number; repair or remove the row")
    return key, document, score
