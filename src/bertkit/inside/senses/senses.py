"""The senses of a word: a vector for each of its uses, from the words around it, as a map and as scores."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bertkit.errors import RequestError
from bertkit.inside.senses.scores import Vectors, chance, cluster, flat, label_silhouette, neighbor_accuracy, units
from bertkit.inside.senses.uses import Use
from bertkit.inside.static.vectors import StaticVectors
from bertkit.predict.bert import Bert
from bertkit.progress import ShowProgress, silent
from bertkit.report.page import JsonResult, PageResult, render_page
from bertkit.text.vocabulary.word_counts import split_chunk

COLORS = ("#2563eb", "#d9730d", "#15803d", "#b5338a", "#0e8f9e", "#8a6d00", "#7c4dff", "#c0392b", "#5f6b7a", "#3e7d5a")
CONTEXT_WORDS = 5  # on each side, averaged for the static baseline: word2vec's window


@dataclass(frozen=True)
class SenseScores:
    """How often the nearest other use has the same sense, by kind of vector; senses as labeled."""

    contextual: float
    static: float  # one vector for all uses: every neighbor is as near as every other, so this is chance
    neighbors: float | None  # the mean of the static vectors of the words around; None without static vectors
    silhouette: float | None  # of the labeled senses, in contextual vectors


@dataclass(frozen=True, eq=False)
class SenseMap(PageResult, JsonResult):
    """The uses of a word, each with its place on a map, its cluster, and, where they are labeled, scores."""

    word: str
    model: str
    layer: int
    uses: tuple[Use, ...]
    points: tuple[tuple[float, float], ...]
    shown: float  # share of the variance that the map holds
    clusters: tuple[int, ...]
    silhouette: float | None
    scores: SenseScores | None

    @property
    def html(self) -> str:
        """The map as one HTML page."""
        return sense_page(self)

    def typical(self, cluster: int, count: int = 3) -> list[Use]:
        """The uses nearest to the middle of a cluster's part of the map."""
        own = [number for number, each in enumerate(self.clusters) if each == cluster]
        points = np.array([self.points[number] for number in own])
        order = np.argsort(np.linalg.norm(points - points.mean(axis=0), axis=1), kind="stable")
        return [self.uses[own[place]] for place in order[:count]]

    def __repr__(self) -> str:
        count = len(set(self.clusters))
        return f"SenseMap('{self.word}', {len(self.uses)} uses, {count} clusters; save it, or show it in a notebook)"


def sense_page(found: SenseMap) -> str:
    """The whole page as text."""
    groups = _groups(found)
    uses = list(_shown_uses(found, groups))
    return render_page(
        "senses.html",
        title=f"{found.word} — bertkit senses",
        word=found.word,
        notes=list(_facts(found)),
        uses=uses,
        groups=[_legend(name, color, uses) for name, color in _colors(groups).items()],
    )


def _groups(found: SenseMap) -> list[str]:
    """The group that colors each use: its labeled sense, else its cluster."""
    if all(use.sense is not None for use in found.uses):
        return [str(use.sense) for use in found.uses]
    return [f"cluster {number + 1}" for number in found.clusters]


def _facts(found: SenseMap) -> Iterator[str]:
    clear = "" if found.silhouette is None else f", silhouette {found.silhouette:.2f}"
    clusters = f"{len(set(found.clusters))} clusters by k-means{clear}"
    yield f"{len(found.uses):,} uses; {clusters}; {found.model}, layer {found.layer}"
    yield f"The map shows {found.shown:.0%} of the vectors' variance: their first two principal components."
    if found.scores is not None:
        near = found.scores.neighbors
        beside = "" if near is None else f", by the mean of the static vectors of the words around it in {near:.1%}"
        yield (
            f"The nearest other use has the same sense in {found.scores.contextual:.1%} of cases; "
            f"by one vector per word, which is chance, in {found.scores.static:.1%}{beside}."
        )


def _colors(groups: list[str]) -> dict[str, str]:
    names = [name for name, _ in Counter(groups).most_common()]
    return {name: COLORS[number % len(COLORS)] for number, name in enumerate(names)}


def _shown_uses(found: SenseMap, groups: list[str]) -> Iterator[dict[str, str]]:
    """Each use: its place on the map, its group and color, and its sentence in three parts."""
    colors = _colors(groups)
    places = zip(_shares([x for x, _ in found.points]), _shares([-y for _, y in found.points]), strict=True)
    for (x, y), use, group in zip(places, found.uses, groups, strict=True):
        place = {"x": f"{x:.2%}", "y": f"{y:.2%}", "group": group, "color": colors[group]}
        yield place | {"sentence": use.sentence} | _parts(use)


def _parts(use: Use) -> dict[str, str]:
    sentence = use.sentence
    parts = sentence[: use.start], sentence[use.start : use.end], sentence[use.end :]
    return dict(zip(("before", "word", "after"), parts, strict=True))


def _legend(name: str, color: str, uses: list[dict[str, str]]) -> dict[str, Any]:
    own = [use for use in uses if use["group"] == name]
    return {"name": name, "color": color, "count": f"{len(own):,}", "uses": own}


def _shares(values: list[float]) -> list[float]:
    """Scaled to [0, 1]; equal values become 0.5."""
    low, high = min(values), max(values)
    if high - low < 1e-9:
        return [0.5] * len(values)
    return [(value - low) / (high - low) for value in values]


def map_senses(
    bert: Bert,
    word: str,
    uses: Sequence[Use],
    *,
    layer: int = -1,
    clusters: int | None = None,
    static: StaticVectors | None = None,
    show: ShowProgress = silent,
) -> SenseMap:
    """The contextual vector of each use of a word, as a map. Layer 0 is the embeddings, -1 the last."""
    vectors = use_vectors(bert, uses, layer=layer, show=show)
    points, shown = flat(vectors)
    found = cluster(vectors, clusters)
    config = bert.model.config
    return SenseMap(
        word=word,
        model=f"{config.family}, {config.depth} layers of {config.width}",
        layer=layer if layer >= 0 else config.depth + 1 + layer,
        uses=tuple(uses),
        points=tuple((float(x), float(y)) for x, y in points),
        shown=shown,
        clusters=found.numbers,
        silhouette=found.silhouette,
        scores=sense_scores(vectors, uses, static),
    )


def use_vectors(bert: Bert, uses: Sequence[Use], *, layer: int = -1, show: ShowProgress = silent) -> Vectors:
    """[n, width]: for each use the mean over the pieces of the word; sentences over the limit go through windows."""
    settings = replace(bert.embed_settings(pooling="none", layers=[layer], normalize=False), prefix="")
    encodings = bert.tokenizer.encode_batch([use.sentence for use in uses])
    rows: list[Vectors] = []
    with show("reading", len(uses)) as meter:
        for block in bert.embed_blocks([use.sentence for use in uses], settings, "window"):
            for tokens in block.vectors:
                use, encoding = uses[len(rows)], encodings[len(rows)]
                spans = zip(encoding.offsets, encoding.words, strict=True)
                own = [n for n, ((a, b), w) in enumerate(spans) if w is not None and a < use.end and b > use.start]
                if not own:
                    shown = use.sentence[use.start : use.end]
                    raise RequestError(
                        f"{use.source}: the tokenizer makes nothing of '{shown}'; is it of this language?"
                    )
                rows.append(tokens[own].mean(axis=0))
            meter.update(len(rows))
    return np.stack(rows)


def sense_scores(vectors: Vectors, uses: Sequence[Use], static: StaticVectors | None = None) -> SenseScores | None:
    """Scores against the labeled senses; None where there are none."""
    senses = [use.sense for use in uses if use.sense is not None]
    if len(senses) != len(uses) or len(senses) < 2:
        return None
    around = None if static is None else neighbor_accuracy(around_vectors(static, uses), senses)
    return SenseScores(
        contextual=neighbor_accuracy(vectors, senses),
        static=chance(senses),
        neighbors=around,
        silhouette=label_silhouette(vectors, senses),
    )


def around_vectors(static: StaticVectors, uses: Sequence[Use], window: int = CONTEXT_WORDS) -> Vectors:
    """[n, width]: the mean of the static vectors of the words around each use, at length 1, without the word itself."""
    rows = []
    for use in uses:
        before = [word for word in _words(use.sentence[: use.start]) if word in static][-window:]
        after = [word for word in _words(use.sentence[use.end :]) if word in static][:window]
        own = [static.numbers[word] for word in (*before, *after)]
        empty = np.zeros(static.vectors.shape[1], np.float32)
        rows.append(units(static.vectors[own]).mean(axis=0) if own else empty)
    return np.stack(rows)


def _words(text: str) -> list[str]:
    return split_chunk(text, lowercase=True)
