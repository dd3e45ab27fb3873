"""An index folder, opened: searched by one or several retrievers at once, appended to, fitted."""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, overload

from bertkit.errors import RequestError
from bertkit.files import claimed
from bertkit.predict.search import check_count
from bertkit.search.build import (
    NAMELESS,
    Models,
    Retrievers,
    build_folder,
    check_identity,
    open_retrievers,
)
from bertkit.search.fusion import FUSIONS, fit_weights, fused
from bertkit.search.manifest import SEGMENTS, check_files, read_manifest
from bertkit.search.retrievers.retriever import Hits, Segment
from bertkit.search.sources import NO_ID, HowToRead
from bertkit.search.strings import Strings
from bertkit.settings import pick
from bertkit.text_inputs import listed_texts

CANDIDATES = 100  # of each retriever, for fusion and re-ranking
ModelNames = Path | str | Mapping[str, Path | str]  # one model for all retrievers that need one, or by kind


@dataclass(frozen=True)
class Hit:
    """A document that a search has found."""

    index: int  # its number in the index, from 0
    id: str | int  # from its file; without one there, its number
    score: float  # of the retriever, the fusion or the ranker
    text: str
    scores: Mapping[str, float]  # by retriever, of those that found it


class Ranker(Protocol):
    """A model that ranks texts for a query: a Bert that was fine-tuned for that."""

    def rank(self, query: str, texts: Sequence[str], top: int | None = None) -> Sequence[Any]:
        """The `top` best texts, best first, each with its index and score."""


@dataclass(frozen=True)
class Documents:
    """The ids and texts of one segment."""

    first: int
    ids: Strings
    texts: Strings


class Index:
    """An index folder that `build_index` or `bertkit index` has made.

    `model`: where the models are now, if not where they were: a folder, or a mapping of kinds to folders.
    """

    def __init__(self, path: Path | str, *, model: ModelNames | None = None) -> None:
        self.path = Path(path)
        self._models = models_of(model)
        self._manifest = read_manifest(self.path)
        self._checked: set[str] = set()

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of retrievers."""
        return tuple(self._manifest.retrievers)

    @property
    def weights(self) -> dict[str, float]:
        """The weights of fusion that were fitted on judged queries; empty without them."""
        return dict(self._manifest.fusion)

    def __len__(self) -> int:
        return self._manifest.documents

    def __repr__(self) -> str:
        return f"Index('{self.path}', {len(self):,} documents, kinds: {', '.join(self.kinds)})"

    @overload
    def search(  # type: ignore[overload-overlap]
        self,
        query: str,
        k: int = 10,
        *,
        kinds: Sequence[str] | None = None,
        fusion: str = "scores",
        rerank: Ranker | None = None,
        candidates: int = CANDIDATES,
    ) -> list[Hit]: ...
    @overload
    def search(
        self,
        query: Sequence[str],
        k: int = 10,
        *,
        kinds: Sequence[str] | None = None,
        fusion: str = "scores",
        rerank: Ranker | None = None,
        candidates: int = CANDIDATES,
    ) -> list[list[Hit]]: ...
    def search(
        self,
        query: str | Sequence[str],
        k: int = 10,
        *,
        kinds: Sequence[str] | None = None,
        fusion: str = "scores",
        rerank: Ranker | None = None,
        candidates: int = CANDIDATES,
    ) -> list[Hit] | list[list[Hit]]:
        """The `k` best documents for a query, best first; for several queries a list of such lists.

        `kinds`: which retrievers, by default all. The best `candidates` of each are joined by `fusion`: "scores", with
        the weights that were fitted or even ones, or "ranks". `rerank`: a model with a method `rank`, which then scores
        so many anew.
        """
        queries, k, candidates = _queries(query), check_count(k), check_count(candidates)
        depth = max(k, candidates) if rerank is not None or len(kinds or self.kinds) > 1 else k
        found = self._found(queries, kinds, depth)
        weights = pick(FUSIONS, fusion, "fusion")(self._weights(found))
        answers = []
        for number, each in enumerate(queries):
            own = {kind: hits[number] for kind, hits in found.items()}
            hits = self._hits(fused(own, weights, k if rerank is None else candidates), own)
            answers.append(hits if rerank is None else _ranked(rerank, each, hits, k))
        return answers[0] if isinstance(query, str) else answers

    def append(self, texts: Iterable[Any] | Path | str) -> int:
        """Add documents, as in `build_index`; returns how many."""
        built = build_folder(_sources(texts), self.path, None, self._models, (), HowToRead())
        self._manifest = read_manifest(self.path)
        for name in ("_segments", "_documents"):
            self.__dict__.pop(name, None)
        return built.added

    def fit(self, queries: Sequence[str], relevance: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """Fit the weights of fusion on judged queries, and keep them in the index: {id: relevance} for each query."""
        if len(queries) != len(relevance):
            raise RequestError(f"{len(queries)} queries came with {len(relevance)} judgements; give as many of both")
        found = self._found(_queries(queries), None, CANDIDATES)
        each = [{kind: hits[number] for kind, hits in found.items()} for number in range(len(queries))]
        ids = [{n: str(self.document(n)[0]) for hits in own.values() for n in hits[0].tolist()} for own in each]
        weights = fit_weights(each, relevance, ids)
        with claimed(self.path):
            self._manifest = replace(read_manifest(self.path), fusion=weights)
            self._manifest.save(self.path)
        return weights

    def document(self, number: int) -> tuple[str | int, str]:
        """The id and the text of a document."""
        if not 0 <= number < len(self):
            raise RequestError(f"{self.path} has no document {number}; it has {len(self):,}, numbered from 0")
        owner = next(each for each in reversed(self._documents) if each.first <= number)
        written = owner.ids[number - owner.first]
        return (number if written == NO_ID else json.loads(written)), owner.texts[number - owner.first]

    @cached_property
    def _retrievers(self) -> Retrievers:
        return open_retrievers(self._manifest, self._models)

    @cached_property
    def _documents(self) -> list[Documents]:
        return self._opened(
            lambda path, first, _: Documents(first, Strings.open(path, "ids"), Strings.open(path, "texts"))
        )

    @cached_property
    def _segments(self) -> dict[str, list[Segment[Any]]]:
        """The open segments of each retriever that was used so far."""
        return {}

    def _opened(self, make: Callable[[Path, int, int], Any]) -> list[Any]:
        """What `make` gives for the folder, first document and number of documents of each segment that has some."""
        opened, first = [], 0
        for record in self._manifest.segments:
            check_files(self.path, record)
            if record.documents:
                opened.append(make(self.path / SEGMENTS / record.name, first, record.documents))
            first += record.documents
        return opened

    def _found(self, queries: list[str], kinds: Sequence[str] | None, depth: int) -> dict[str, list[Hits]]:
        """The best documents of each retriever for each query."""
        if not len(self):
            raise RequestError(f"{self.path} holds no documents; add some: bertkit index TEXTS --out {self.path}")
        found = {}
        for kind in dict.fromkeys(self.kinds if kinds is None else kinds):
            retriever = pick(self._retrievers, kind, f"kind of retriever in {self.path}:")
            if kind not in self._checked:
                check_identity(self.path, kind, retriever, self._manifest.retrievers[kind])
                self._checked.add(kind)
            found[kind] = retriever.search(self._open(kind), queries, depth)
        return found

    def _open(self, kind: str) -> list[Segment[Any]]:
        if kind not in self._segments:
            make = self._retrievers[kind].open
            opened = self._opened(lambda path, first, count: Segment(make(path / kind), first, count))
            self._segments[kind] = opened
        return self._segments[kind]

    def _weights(self, kinds: Collection[str]) -> Mapping[str, float]:
        """The fitted weights, if they are for all of these kinds; else even ones."""
        fitted = self._manifest.fusion
        return fitted if set(kinds) <= set(fitted) else dict.fromkeys(kinds, 1 / len(kinds))

    def _hits(self, chosen: Hits, found: Mapping[str, Hits]) -> list[Hit]:
        by_kind = {kind: dict(zip(*(each.tolist() for each in hits), strict=True)) for kind, hits in found.items()}
        hits = []
        for number, score in zip(*(each.tolist() for each in chosen), strict=True):
            own = {kind: scores[number] for kind, scores in by_kind.items() if number in scores}
            id, text = self.document(number)
            hits.append(Hit(number, id, score, text, own))
        return hits


def build_index(
    texts: Iterable[Any] | Path | str,
    out: Path | str,
    *,
    kinds: Sequence[str] | None = None,
    model: ModelNames | None = None,
    **settings: str | float,
) -> Index:
    """Index documents in the folder `out`, or append to the index there, in bounded memory.

    `texts`: a file, a list of Paths, or any iterable of str or of dicts with a text and perhaps an id and a title.
    `settings` are those of the retrievers, such as vectors="int8"; `model`, for those that need one, is by default the
    bundled one.
    """
    pairs = [f"{name}={value}" for name, value in settings.items()]
    build_folder(_sources(texts), Path(out), kinds, models_of(model), pairs, HowToRead())
    return Index(out, model=model)


def models_of(model: ModelNames | None) -> Models:
    """Models by the kind of retriever; one for all is the nameless."""
    return {} if model is None else dict(model) if isinstance(model, Mapping) else {NAMELESS: model}


def _sources(texts: Iterable[Any] | Path | str) -> Iterable[Any]:
    return [Path(texts)] if isinstance(texts, str | Path) else texts


def _queries(query: str | Sequence[str]) -> list[str]:
    queries = listed_texts(query)
    if empty := [number for number, each in enumerate(queries, start=1) if not each.strip()]:
        raise RequestError(f"query {empty[0]} (counted from 1) is empty; give it some words")
    return queries


def _ranked(ranker: Ranker, query: str, hits: list[Hit], k: int) -> list[Hit]:
    """The best `k` hits with the ranker's scores."""
    ranked = ranker.rank(query, [hit.text for hit in hits], top=k) if hits else []
    return [replace(hits[each.index], score=float(each.score)) for each in ranked]
