"""The map of a word's uses as one page: a point for each, its sentence when it is pointed at or reached by Tab.

There is no script: each point holds its sentence, and the style sheet shows the one that is asked for.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.files import whole_file
from bertkit.inside.senses.uses import Use
from bertkit.train.report.page import POLICY, STYLE

COLORS = ("#2563eb", "#d9730d", "#15803d", "#b5338a", "#0e8f9e", "#8a6d00", "#7c4dff", "#c0392b", "#5f6b7a", "#3e7d5a")
OWN_STYLE = """
.uses{position:relative;height:min(62vh,620px);margin:14px 0;background:var(--card);border:22px solid var(--card);
border-radius:8px}
.use{position:absolute;width:13px;height:13px;margin:-6px 0 0 -6px;border-radius:50%;border:1.5px solid var(--paper);
cursor:pointer;opacity:.85}
.use:hover,.use:focus{outline:3px solid var(--ink);opacity:1;z-index:1}
.said{display:none;position:fixed;left:0;right:0;bottom:0;z-index:2;max-height:40vh;overflow:hidden;margin:0;
padding:12px 20px;background:var(--paper);border-top:1px solid var(--rule);pointer-events:none}
.uses:not(:hover) .use:focus .said,.use:hover .said{display:block}
.said,.sentences li{unicode-bidi:plaintext;overflow-wrap:anywhere}
mark{background:none;color:inherit;font-weight:700;text-decoration:underline}
.groups span{margin-right:6px}.groups bdi{margin-right:16px}.dot{display:inline-block;width:12px;height:12px;
border-radius:50%;vertical-align:-1px}
.sentences li{margin:4px 0}details{margin:8px 0}summary{cursor:pointer}
"""


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
        """The map as one page that needs nothing else and runs no script."""
        return sense_page(self)

    def save(self, path: Path | str) -> None:
        """Write the page whole or not at all."""
        with whole_file(path) as draft:
            draft.write_text(self.html, encoding="utf-8", newline="\n", errors="replace")

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
        from bertkit.inside.look.page import frame

        return frame(self.html)

    def __repr__(self) -> str:
        count = len(set(self.clusters))
        return f"SenseMap('{self.word}', {len(self.uses)} uses, {count} clusters; save it, or show it in a notebook)"


def sense_page(found: SenseMap) -> str:
    """The whole page as text; whatever stands in a sentence is shown and never obeyed."""
    groups = _groups(found)
    sections = [
        f"<h1>The senses of <bdi>{escape(found.word)}</bdi></h1>",
        *(f'<p class="soft">{escape(line)}</p>' for line in _facts(found)),
        _key(groups),
        _drawing(found, groups),
        '<p class="soft">Point at a use, or go through them with Tab.</p>',
        "<h2>Sentences</h2>",
        *_lists(found, groups),
    ]
    head = f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">'
    head += '<meta name="viewport" content="width=device-width,initial-scale=1">'
    head += f"<title>{escape(found.word)} — bertkit senses</title><style>{STYLE}{OWN_STYLE}</style>"
    body = "\n".join(sections)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def _groups(found: SenseMap) -> list[str]:
    """What colors each use: its labeled sense, else its cluster."""
    if all(use.sense is not None for use in found.uses):
        return [str(use.sense) for use in found.uses]
    return [f"cluster {number + 1}" for number in found.clusters]


def _facts(found: SenseMap) -> Iterator[str]:
    clear = "" if found.silhouette is None else f", silhouette {found.silhouette:.2f}"
    clusters = f"{len(set(found.clusters))} clusters by k-means{clear}"
    yield f"{len(found.uses):,} uses; {clusters}; {found.model}, layer {found.layer}"
    yield f"The map shows {found.shown:.0%} of how the vectors differ: the two directions in which they differ most."
    if found.scores is not None:
        near = found.scores.neighbors
        beside = "" if near is None else f", by the mean of static vectors around {near:.1%}"
        yield (
            f"The nearest other use has the same sense in {found.scores.contextual:.1%} of cases; "
            f"by one vector per word, which is chance, in {found.scores.static:.1%}{beside}."
        )


def _colors(groups: list[str]) -> dict[str, str]:
    names = [name for name, _ in Counter(groups).most_common()]
    return {name: COLORS[number % len(COLORS)] for number, name in enumerate(names)}


def _key(groups: list[str]) -> str:
    counts = Counter(groups)
    parts = (
        f'<span class="dot" style="background:{color}"></span><bdi>{escape(name)} ({counts[name]:,})</bdi>'
        for name, color in _colors(groups).items()
    )
    return f'<p class="groups">{"".join(parts)}</p>'


def _drawing(found: SenseMap, groups: list[str]) -> str:
    colors = _colors(groups)
    places = zip(_shares([x for x, _ in found.points]), _shares([-y for _, y in found.points]), strict=True)
    points = (
        f'<div class="use" tabindex="0" role="img" aria-label="{escape(use.sentence)}" '
        f'style="left:{x:.2%};top:{y:.2%};background:{colors[group]}"><p class="said">{marked(use)}</p></div>'
        for (x, y), use, group in zip(places, found.uses, groups, strict=True)
    )
    return f'<div class="uses">{"".join(points)}</div>'


def _shares(values: list[float]) -> list[float]:
    """From 0 to 1; what does not differ stands in the middle."""
    low, high = min(values), max(values)
    if high - low < 1e-9:
        return [0.5] * len(values)
    return [(value - low) / (high - low) for value in values]


def _lists(found: SenseMap, groups: list[str]) -> Iterator[str]:
    for name in _colors(groups):
        own = [use for use, group in zip(found.uses, groups, strict=True) if group == name]
        lines = "".join(f"<li>{marked(use)}</li>" for use in own)
        title = f"<summary><bdi>{escape(name)}</bdi> ({len(own):,})</summary>"
        yield f'<details>{title}<ol class="sentences">{lines}</ol></details>'


def marked(use: Use) -> str:
    """The sentence as HTML, with the word marked."""
    before, word, after = use.sentence[: use.start], use.sentence[use.start : use.end], use.sentence[use.end :]
    return f"{escape(before)}<mark>{escape(word)}</mark>{escape(after)}"
