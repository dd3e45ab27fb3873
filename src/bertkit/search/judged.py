"""Judgements of queries in files: BEIR's TSV with a header, or TREC's four columns."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertkit.data.tables import lines_of
from bertkit.errors import RequestError


def read_judgements(path: Path) -> dict[str, dict[str, float]]:
    """{query: {document: relevance}} by ids."""
    judged: dict[str, dict[str, float]] = {}
    for number, line in lines_of(path, "utf-8"):
        cells = line.split()
        if len(cells) == 4:  # TREC: query, iteration, document, relevance
            del cells[1]
        try:
            query, document, relevance = cells[0], cells[1], float(cells[2])
            if not math.isfinite(relevance):
                raise ValueError
        except (IndexError, ValueError) as error:
            if number == 1 or not cells:  # a header, an empty line
                continue
            raise RequestError(
                f"{path}, line {number}: not the ids of a query and a document and a number; repair the line"
            ) from error
        judged.setdefault(query, {})[document] = relevance
    return judged


def judged_queries(queries: Sequence[tuple[Any, str]], path: Path) -> tuple[list[str], list[dict[str, float]]]:
    """The queries that are judged, and their judgements."""
    judged = read_judgements(path)
    chosen = [(text, judged[str(id)]) for id, text in queries if str(id) in judged]
    if not chosen:
        raise RequestError(f"{path} judges none of the {len(queries)} queries; give the judgements of these queries")
    return [text for text, _ in chosen], [relevance for _, relevance in chosen]
