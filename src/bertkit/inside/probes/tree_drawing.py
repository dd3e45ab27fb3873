"""A sentence's trees as SVG text: gold arcs above, predicted ones below; and its words in the probe's space."""

from collections.abc import Iterable, Sequence
from html import escape

from rich.cells import cell_len

from bertkit.inside.probes.structure import DrawnTree
from bertkit.inside.probes.trees import Edge, tree_edges

LETTER, GAP = 7.2, 16  # pixels for a letter of the page's 12, and between words
STEP, TALLEST = 15, 9  # pixels for a level of arcs, and levels drawn; wider arcs share the highest
SPACE_WIDTH, SPACE_HEIGHT, MARGIN = 440, 300, 34
RIGHT, WRONG, MISSED = "third", "second", "main"  # classes of the page's style sheet


def draw_tree(tree: DrawnTree) -> str:
    """One `<svg>`: gold edges above the words, the probe's below them; found, missed and wrong ones differ in color."""
    centers, width = _centers(tree.words)
    gold, predicted = tree_edges(tree.heads, tree.counted), set(tree.predicted)
    above, below = _height(gold), _height(predicted)
    baseline = above + 16
    parts = [_arc(edge, centers, above, -1, RIGHT if edge in predicted else MISSED) for edge in sorted(gold)]
    parts += [_arc(edge, centers, baseline + 8, 1, RIGHT if edge in gold else WRONG) for edge in sorted(predicted)]
    for word, center in zip(tree.words, centers, strict=True):
        parts.append(f'<text class="x" x="{center:.1f}" y="{baseline}">{escape(word)}</text>')
    height = baseline + 12 + below
    return _svg(width, height, f"trees of: {' '.join(tree.words)}", parts)


def draw_space(tree: DrawnTree) -> str:
    """One `<svg>`: the words where the probe puts them, gold edges between them; blue is too long, orange too short."""
    places = _fitted(tree.points)
    parts = [
        _edge(places[word], places[head], length)
        for word, head, length in tree.lengths
        if word in tree.counted and head in tree.counted
    ]
    for number in tree.counted:
        x, y = places[number]
        kind = "second" if tree.heads[number] == -1 else "main"
        parts.append(f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>')
        parts.append(f'<text class="x" x="{x:.1f}" y="{y - 6:.1f}">{escape(tree.words[number])}</text>')
    return _svg(SPACE_WIDTH, SPACE_HEIGHT, f"probe's space of: {' '.join(tree.words)}", parts)


def _centers(words: Sequence[str]) -> tuple[list[float], float]:
    """The middle of each word, and the width of all; wide characters are counted as two."""
    centers, at = [], float(GAP)
    for word in words:
        width = max(cell_len(word), 1) * LETTER
        centers.append(at + width / 2)
        at += width + GAP
    return centers, at


def _height(edges: Iterable[Edge]) -> int:
    return STEP * min(max((b - a for a, b in edges), default=1), TALLEST) + 4


def _arc(edge: Edge, centers: Sequence[float], start: float, direction: int, kind: str) -> str:
    left, right = (centers[word] for word in edge)
    # A cubic with both handles at the same height reaches three quarters of it.
    handle = start + direction * STEP * min(edge[1] - edge[0], TALLEST) * 4 / 3
    curve = f"M{left:.1f} {start}C{left:.1f} {handle:.1f} {right:.1f} {handle:.1f} {right:.1f} {start}"
    return f'<path class="line {kind}" d="{curve}"/>'


def _fitted(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points to pixels, both directions by the same scale."""
    xs, ys = zip(*points, strict=True)
    room = (
        (SPACE_WIDTH - 2 * MARGIN) / max(max(xs) - min(xs), 1e-6),
        (SPACE_HEIGHT - 2 * MARGIN) / max(max(ys) - min(ys), 1e-6),
    )
    scale = min(room)
    middle_x, middle_y = (max(xs) + min(xs)) / 2, (max(ys) + min(ys)) / 2
    return [(SPACE_WIDTH / 2 + (x - middle_x) * scale, SPACE_HEIGHT / 2 - (y - middle_y) * scale) for x, y in points]


def _edge(start: tuple[float, float], end: tuple[float, float], length: float) -> str:
    """Twice as long as it should be, or of no length at all, is the full color; right is a thin gray line."""
    off = max(-1.0, min(1.0, length - 1))
    way = f'd="M{start[0]:.1f} {start[1]:.1f}L{end[0]:.1f} {end[1]:.1f}"'
    color = "main" if off > 0 else "second"
    told = f"<title>squared length {length:.2f}</title>"
    return f'<path class="grid" {way}/><path class="line {color}" stroke-opacity="{abs(off):.2f}" {way}>{told}</path>'


def _svg(width: float, height: float, name: str, parts: Sequence[str]) -> str:
    size = f'viewBox="0 0 {width:.0f} {height:.0f}" style="max-width:{width:.0f}px"'
    return f'<svg {size} role="img" aria-label="{escape(name)}">{"".join(parts)}</svg>'
