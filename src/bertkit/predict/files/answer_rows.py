"""Predictions as columns: what each task says about a row, by name, for JSONL, CSV and Parquet."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from bertkit.predict.files.settings import Telling
from bertkit.tasks.answer import Answered
from bertkit.tasks.choose import Chosen
from bertkit.tasks.classify import Classified, Labelled, Rated
from bertkit.tasks.tag import Tagged

Characters = Sequence[tuple[int, int]]


def answer_columns(task: str, labels: Sequence[str], telling: Telling) -> dict[str, Any]:
    """The columns that a task's predictions have, with their Arrow types."""
    import pyarrow as pa

    text, number, whole = pa.string(), pa.float64(), pa.int64()
    shares = pa.struct([(label, number) for label in labels])
    span = {"label": text, "text": text, "start": whole, "end": whole}
    span |= {"first_word": whole, "end_word": whole, "probability": number}
    candidate = {"text": text, "start": whole, "end": whole, "score": number, "probability": number}
    lists = {"tag": pa.list_(number), "choose": pa.list_(number)}
    columns = {
        "classify": {"label": text, "probability": number},
        "multilabel": {"labels": pa.list_(text)},
        "regress": {"value": number},
        "tag": {"words": pa.list_(text), "characters": pa.list_(pa.list_(whole)), "tags": pa.list_(text)}
        | {"spans": pa.list_(pa.struct(list(span.items())))},
        "answer": {"answer": text, "start": whole, "end": whole, "score": number, "probability": number}
        | {"no_answer": number},
        "choose": {"choice": whole, "chosen": text, "probability": number},
    }[task]
    columns |= {"probabilities": lists.get(task, shares)} if telling.probabilities else {}
    columns |= {"candidates": pa.list_(pa.struct(list(candidate.items())))} if telling.best else {}
    return columns | {"windows": whole, "cut": whole}


def answer_cells(prediction: Any, characters: Characters | None, telling: Telling) -> dict[str, Any]:
    """One prediction by column; `characters` are where the words of a plain text stand."""
    cells = CELLS[type(prediction)](prediction, characters)
    if telling.probabilities:
        found = prediction.probabilities
        cells["probabilities"] = dict(found) if isinstance(found, Mapping) else list(found)
    if telling.best:
        cells["candidates"] = [asdict(candidate) for candidate in prediction.candidates[: telling.best]]
    # Each choice is a sequence of its own, not a window of a longer one.
    windows = 1 if isinstance(prediction, Chosen) else prediction.seen.windows
    return cells | {"windows": windows, "cut": prediction.seen.cut}


def _classified(found: Classified, _: Characters | None) -> dict[str, Any]:
    return {"label": found.label, "probability": found.probability}


def _labelled(found: Labelled, _: Characters | None) -> dict[str, Any]:
    return {"labels": list(found.labels)}


def _rated(found: Rated, _: Characters | None) -> dict[str, Any]:
    return {"value": found.value}


def _tagged(found: Tagged, characters: Characters | None) -> dict[str, Any]:
    spans = []
    for span in found.spans:
        start, end = span.characters or (None, None)
        cells: dict[str, Any] = {"label": span.label, "text": span.text, "start": start, "end": end}
        cells |= {"first_word": span.words[0], "end_word": span.words[1], "probability": span.probability}
        spans.append(cells)
    places = None if characters is None else [list(place) for place in characters]
    return {"words": list(found.words), "characters": places, "tags": list(found.tags), "spans": spans}


def _answered(found: Answered, _: Characters | None) -> dict[str, Any]:
    score = found.candidates[0].score if found.candidates else None
    cells = {"answer": found.text, "start": found.start, "end": found.end, "score": score}
    return cells | {"probability": found.probability, "no_answer": found.no_answer}


def _chosen(found: Chosen, _: Characters | None) -> dict[str, Any]:
    return {"choice": found.choice, "chosen": found.text, "probability": found.probability}


CELLS: dict[type, Callable[[Any, Characters | None], dict[str, Any]]] = {
    Classified: _classified,
    Labelled: _labelled,
    Rated: _rated,
    Tagged: _tagged,
    Answered: _answered,
    Chosen: _chosen,
}
