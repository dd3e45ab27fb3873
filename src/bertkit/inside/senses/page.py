"""The map of a word's uses as one page: a point for each, and its sentence on hover or focus.

There is no script: each point holds its sentence, and the style sheet shows one of them.
"""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from bertkit.report.page import render_page

if TYPE_CHECKING:
    from bertkit.inside.senses.senses import SenseMap
    from bertkit.inside.senses.uses import Use

COLORS = ("#2563eb", "#d9730d", "#15803d", "#b5338a", "#0e8f9e", "#8a6d00", "#7c4dff", "#c0392b", "#5f6b7a", "#3e7d5a")


def sense_page(found: "SenseMap") -> str:
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


def _groups(found: "SenseMap") -> list[str]:
    """The group that colors each use: its labeled sense, else its cluster."""
    if all(use.sense is not None for use in found.uses):
        return [str(use.sense) for use in found.uses]
    return [f"cluster {number + 1}" for number in found.clusters]


def _facts(found: "SenseMap") -> Iterator[str]:
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


def _shown_uses(found: "SenseMap", groups: list[str]) -> Iterator[dict[str, str]]:
    """Each use: its place on the map, its group and color, and its sentence in three parts."""
    colors = _colors(groups)
    places = zip(_shares([x for x, _ in found.points]), _shares([-y for _, y in found.points]), strict=True)
    for (x, y), use, group in zip(places, found.uses, groups, strict=True):
        place = {"x": f"{x:.2%}", "y": f"{y:.2%}", "group": group, "color": colors[group]}
        yield place | {"sentence": use.sentence} | _parts(use)


def _parts(use: "Use") -> dict[str, str]:
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
