"""The map of a word's uses as one page: a point for each, and its sentence on hover or focus.

There is no script: each point holds its sentence, and the style sheet shows one of them.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.inside.look.page import frame
from bertkit.inside.senses.uses import Use
from bertkit.report.page import render_page, save_page

COLORS = ("#2563eb", "#d9730d", "#15803d", "#b5338a", "#0e8f9e", "#8a6d00", "#7c4dff", "#c0392b", "#5f6b7a", "#3e7d5a")


@dataclass(frozen=True)
class SenseScores:
    """How often the nearest other use has the same sense, by kind of vector; senses as labeled."""

    contextual: float
    static: float  # one vector for all uses: every neighbor is as near as every other, so this is chance
    neighbors: float | None  # the mean of the static vectors of the words around; None without static vectors
    silhouette: float | None  # of the labeled senses, in contextual vectors


@dataclass(frozen=True, eq=False)
class SenseMap:
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

    def save(self, path: Path | str) -> None:
        """Write the page whole or not at all."""
        save_page(self.html, path)

    def typical(self, cluster: int, count: int = 3) -> list[Use]:
        """The uses nearest to the middle of a cluster's part of the map."""
        own = [number for number, each in enumerate(self.clusters) if each == cluster]
        points = np.array([self.points[number] for number in own])
        order = np.argsort(np.linalg.norm(points - points.mean(axis=0), axis=1), kind="stable")
        return [self.uses[own[place]] for place in order[:count]]

    def plain(self) -> dict[str, Any]:
        """Everything as JSON can write it."""
        return asdict(self)

    def _repr_html_(self) -> str:
        return frame(self.html)

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
