"""`bertkit search`: the best documents of an index for a query, or for each query of a file."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertkit.cli.common import print_note
from bertkit.cli.index import named_models
from bertkit.cli.options import AsJson
from bertkit.cli.predict import is_file

if TYPE_CHECKING:
    from bertkit.search.index import Hit

WIDTH = 100  # characters of a text in a line


def search(
    index: Annotated[Path, typer.Argument(help="The folder that bertkit index has made.")],
    query: Annotated[
        str,
        typer.Argument(metavar="QUERY|FILE|-", help="A query; or a file of queries, as lines, JSONL, CSV or Parquet."),
    ],
    k: Annotated[int, typer.Option("-k", "--top", help="How many documents to find.")] = 10,
    kind: Annotated[
        str | None, typer.Option(help="Retrievers of the index, with commas; by default all, fused.")
    ] = None,
    fusion: Annotated[str, typer.Option(help="How several retrievers are joined: scores or ranks.")] = "scores",
    rerank: Annotated[Path | None, typer.Option(help="A model fine-tuned to rank, which orders the best anew.")] = None,
    candidates: Annotated[int, typer.Option(help="Documents of each retriever to fuse, or to re-rank.")] = 100,
    model: Annotated[
        list[str] | None, typer.Option(help="Where a model of the index is now: a folder, or KIND=FOLDER.")
    ] = None,
    fit: Annotated[
        Path | None,
        typer.Option(
            help="Judgements of the queries of the file, as in BEIR: fit the weights of fusion and keep them."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Find the best documents of an index, with their ids, scores and texts.

    Scores of several retrievers are scaled to 0 to 1 and summed with weights: even ones, or those that --fit has fitted
    on judged queries.
    """
    from bertkit.errors import RequestError
    from bertkit.search.index import Index

    opened = Index(index, model=named_models(model or []) or None)
    from_file = bool(query.strip()) and is_file(query)
    queries = file_queries(query) if from_file else [(None, query)]
    if fit is not None:
        if not from_file:
            raise RequestError(f"--fit goes with a file of queries, and {query:.60} is no file")
        from bertkit.search.judged import judged_queries

        weights = opened.fit(*judged_queries(queries, fit))
        return print(json.dumps(weights) if as_json else f"weights of fusion, kept in {index}: {_listed(weights)}")
    kinds = None if kind is None else [part.strip() for part in kind.split(",") if part.strip()]
    ranker: Any = None
    if rerank is not None:
        from bertkit.predict.bert import load

        ranker = load(rerank)
    how = {"kinds": kinds, "fusion": fusion, "rerank": ranker, "candidates": candidates}
    found = opened.search([text for _, text in queries], k, **how)
    for (id, text), hits in zip(queries, found, strict=True):
        if as_json:
            print(json.dumps({"id": id, "query": text, "hits": [asdict(hit) for hit in hits]}, ensure_ascii=False))
        else:
            _print_hits(text, hits, several=len(queries) > 1)


def file_queries(path: str) -> list[tuple[Any, str]]:
    """The ids (or numbers) and texts of the queries in a file, or with `-` of standard input."""
    from bertkit.predict.files.embed import find_row_id
    from bertkit.predict.files.rows import FileSettings, open_source

    source = open_source(None, Path(path), FileSettings().columns)
    print_note(source.note)
    row_id = find_row_id(source.table, None)
    return [(row_id.of(row)["id"], source.make_example(row)) for row in source.table.rows]


def _print_hits(query: str, hits: Sequence["Hit"], *, several: bool) -> None:
    if several:
        print(f"{query:.{WIDTH}}")
    for hit in hits:
        text = " ".join(hit.text.split())
        print(f"{hit.score:8.4f}  {hit.id}  {text[: WIDTH - 1] + '…' if len(text) > WIDTH else text}")
    if not hits:
        print("nothing found")


def _listed(weights: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {weight:g}" for name, weight in weights.items())
