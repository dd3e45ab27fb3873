"""A sentence's trees as SVG: gold arcs above, predicted ones below; and its words in the probe's space."""

from collections.abc import Iterable, Sequence

from rich.cells import cell_len

from bertkit.inside.probes.structure import DrawnTree
from bertkit.inside.probes.trees import Edge, tree_edges
from bertkit.report.chart import Shape, circle, drawing, label, path

LETTER, GAP = 7.2, 16  # pixels for a letter of the page's 12, and between words
STEP, MAX_LEVELS = 15, 9  # pixels for a level of arcs, and levels drawn; wider arcs share the highest
SPACE_WIDTH, SPACE_HEIGHT, MARGIN = 440, 300, 34
CORRECT, WRONG, MISSED = "third", "second", "main"  # classes of the style sheet


def draw_tree(tree: DrawnTree) -> str:
    """One `<svg>`: gold edges above the words, the probe's below them; found, missed and wrong ones differ in color."""
    centers, width = _centers(tree.words)
    gold, predicted = tree_edges(tree.heads, tree.counted), set(tree.predicted)
    above, below = _height(gold), _height(predicted)
    baseline = above + 16
    parts = [_arc(edge, centers, above, -1, CORRECT if edge in predicted else MISSED) for edge in sorted(gold)]
    parts += [_arc(edge, centers, baseline + 8, 1, CORRECT if edge in gold else WRONG) for edge in sorted(predicted)]
    for word, center in zip(tree.words, centers, strict=True):
        parts.append(label("x", center, baseline, word))
    return drawing(f"trees of: {' '.join(tree.words)}", width, baseline + 12 + below, parts)


def draw_space(tree: DrawnTree) -> str:
    """One `<svg>`: the words where the probe puts them, gold edges between them; blue is too long, orange too short."""
    places = _fitted(tree.points)
    edges = [edge for edge in tree.lengths if edge[0] in tree.counted and edge[1] in tree.counted]
    parts = [shape for word, head, length in edges for shape in _edge(places[word], places[head], length)]
    for number in tree.counted:
        x, y = places[number]
        kind = "second" if tree.heads[number] == -1 else "main"
        parts += [circle(kind, x, y, radius=3), label("x", x, y - 6, tree.words[number])]
    return drawing(f"probe's space of: {' '.join(tree.words)}", SPACE_WIDTH, SPACE_HEIGHT, parts)


def _centers(words: Sequence[str]) -> tuple[list[float], float]:
    """The middle of each word, and the width of all; wide characters are counted as two."""
    centers, at = [], float(GAP)
    for word in words:
        width = max(cell_len(word), 1) * LETTER
        centers.append(at + width / 2)
        at += width + GAP
    return centers, at


def _height(edges: Iterable[Edge]) -> int:
    return STEP * min(max((b - a for a, b in edges), default=1), MAX_LEVELS) + 4


def _arc(edge: Edge, centers: Sequence[float], start: float, direction: int, kind: str) -> Shape:
    left, right = (centers[word] for word in edge)
    # A cubic with both handles at the same height reaches three quarters of it.
    handle = start + direction * STEP * min(edge[1] - edge[0], MAX_LEVELS) * 4 / 3
    curve = f"M{left:.1f} {start}C{left:.1f} {handle:.1f} {right:.1f} {handle:.1f} {right:.1f} {start}"
    return path(f"line {kind}", curve)


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


def _edge(start: tuple[float, float], end: tuple[float, float], length: float) -> tuple[Shape, Shape]:
    """A gray line, and over it the error: full color at twice the correct length or at none, clear if correct."""
    error = max(-1.0, min(1.0, length - 1))
    way = f"M{start[0]:.1f} {start[1]:.1f}L{end[0]:.1f} {end[1]:.1f}"
    color, tooltip = "main" if error > 0 else "second", f"squared length {length:.2f}"
    return path("grid", way), path(f"line {color}", way, opacity=f"{abs(error):.2f}", tooltip=tooltip)
