"""Charts and other drawings as SVG: shapes in Python, markup in a template, colors in the style sheet."""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bertkit.report.page import render_fragment

WIDTH, HEIGHT = 440, 220  # of a chart, in pixels
LEFT, RIGHT, TOP, BOTTOM = 52, 24, 12, 40  # its margins
MAX_POINTS = 600  # per line: keeps pages small, and a screen shows no more
MIN_POINTS = 4  # of a line worth drawing; fewer are shown as a table
MAX_MAGNITUDE = 1e30  # larger values are treated as infinite

Point = tuple[float, float]


@dataclass(frozen=True)
class Shape:
    """One SVG element: its attributes (those that are None are left out), text and tooltip."""

    tag: str
    attributes: Mapping[str, object]
    text: str = ""
    tooltip: str = ""


def path(kind: str, data: str, *, opacity: str | None = None, tooltip: str = "") -> Shape:
    """A path; `kind` names its classes in the style sheet."""
    return Shape("path", {"class": kind, "d": data, "stroke-opacity": opacity}, tooltip=tooltip)


def circle(kind: str, x: float, y: float, radius: float) -> Shape:
    """A filled dot."""
    return Shape("circle", {"class": kind, "cx": f"{x:.1f}", "cy": f"{y:.1f}", "r": radius})


def label(kind: str, x: float, y: float, text: str) -> Shape:
    """A text in the drawing."""
    return Shape("text", {"class": kind, "x": f"{x:.1f}", "y": f"{y:.1f}"}, text)


def drawing(name: str, width: float, height: float, shapes: Sequence[Shape]) -> str:
    """One `<svg>`, never shown larger than `width` pixels."""
    size = {"width": f"{width:.0f}", "height": f"{height:.0f}"}
    return render_fragment("drawing.html", name=name, shapes=shapes, natural_size=True, **size)


@dataclass(frozen=True)
class Line:
    """One named curve; `kind` is its class in the style sheet: main, second, third, faint or dashed."""

    name: str
    points: Sequence[Point]
    kind: str = "main"

    def shape(self, frame: "Frame") -> Shape:
        """A path through the points, or a dot for a single point."""
        pixels = [(frame.x(x), frame.y(y)) for x, y in self.points]
        if len(pixels) == 1:
            return circle(self.kind, *pixels[0], radius=4)
        return path(f"line {self.kind}", "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in pixels))


@dataclass(frozen=True)
class Bar:
    """A bar from `low` to `high` on the horizontal axis, from zero up to `value`."""

    low: float
    high: float
    value: float
    tooltip: str = ""

    def shape(self, frame: "Frame") -> Shape:
        """A rectangle that stands on the horizontal axis."""
        left, right, top, floor = frame.x(self.low), frame.x(self.high), frame.y(self.value), HEIGHT - BOTTOM
        size = {"x": f"{left:.1f}", "y": f"{top:.1f}", "width": f"{right - left:.1f}", "height": f"{floor - top:.1f}"}
        return Shape("rect", {"class": "bar", **size}, tooltip=self.tooltip)


@dataclass(frozen=True, kw_only=True)
class Axis:
    """The scale of an axis: linear, from zero, of whole numbers, or logarithmic."""

    from_zero: bool = False
    whole: bool = False
    logarithmic: bool = False

    def ticks(self, low: float, high: float) -> list[float]:
        """Ticks that enclose the values from `low` to `high`."""
        if self.logarithmic:
            return log_ticks(low, high)
        return round_ticks(min(low, 0.0) if self.from_zero else low, high, min_step=1.0 if self.whole else 0.0)

    def texts(self, ticks: Sequence[float]) -> list[str]:
        """The labels of the ticks."""
        return [tick_texts([tick])[0] for tick in ticks] if self.logarithmic else tick_texts(ticks)

    def transform(self, value: float) -> float:
        """A value on the linear scale of the picture."""
        return math.log(value) if self.logarithmic else value


LINEAR_AXIS, ZERO_AXIS = Axis(), Axis(from_zero=True)
COUNT_AXIS, LOG_AXIS = Axis(from_zero=True, whole=True), Axis(logarithmic=True)


def chart(
    title: str,
    lines: Sequence[Line],
    *,
    unit: str = "",
    axis: Axis = LINEAR_AXIS,
    along: str = "step",
    bars: Sequence[Bar] = (),
) -> str:
    """One `<figure>` with axes, a legend and curves of finite values; `along` labels the horizontal axis."""
    shown = [Line(line.name, _thinned(finite(line.points)), line.kind) for line in lines]
    shown = [line for line in shown if line.points]
    points = [point for line in shown for point in line.points] + [(bar.high, bar.value) for bar in bars]
    shapes: list[Shape] = []
    few = not bars and max((len(line.points) for line in shown), default=0) < MIN_POINTS
    if points and not few:
        frame = Frame.around(points, axis, along)
        shapes = [*frame.grid(), *(bar.shape(frame) for bar in bars), *(line.shape(frame) for line in shown)]
    keys = [(line.kind, line.name) for line in shown if line.name and shapes]
    name = f"{title}, {unit}" if unit else title
    size = {"width": WIDTH, "height": HEIGHT, "natural_size": False}
    values = _values(shown, along) if few else None
    return render_fragment("chart.html", name=name, keys=keys, shapes=shapes, values=values, **size)


def _values(lines: Sequence[Line], along: str) -> tuple[list[str], list[list[str]]]:
    """Few points as a table: a row for each line, a column for each place on the horizontal axis."""
    places = sorted({x for line in lines for x, _ in line.points})
    rows = [[line.name or "value", *(_value(dict(line.points).get(x)) for x in places)] for line in lines]
    return [along, *(f"{x:,.6g}" for x in places)], rows


def _value(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def curves(title: str, lines: Sequence[Line], **options: Any) -> Iterator[str]:
    """The chart, unless it would show a few points, which another table of the page lists."""
    if not 0 < max((len(finite(line.points)) for line in lines), default=0) < MIN_POINTS:
        yield chart(title, lines, **options)


@dataclass(frozen=True)
class Frame:
    """The drawing area of a chart: maps data to pixels."""

    x_ticks: Sequence[float]
    y_ticks: Sequence[float]
    x_range: Point
    axis: Axis
    along: str = "step"  # label of the horizontal axis

    @classmethod
    def around(cls, points: Sequence[Point], axis: Axis, along: str = "step") -> "Frame":
        """The frame around all points: from x = 0 to the last, and vertically between two ticks."""
        ys = [y for _, y in points]
        last = max(1.0, *(x for x, _ in points))
        x_ticks = [tick for tick in round_ticks(0.0, last, 6, min_step=1.0) if tick <= last]
        return cls(x_ticks, axis.ticks(min(ys), max(ys)), (0.0, last), axis, along)

    def x(self, value: float) -> float:
        """Pixels from the left edge."""
        low, high = self.x_range
        return LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """Pixels from the top edge."""
        low, high = self.axis.transform(self.y_ticks[0]), self.axis.transform(self.y_ticks[-1])
        return HEIGHT - BOTTOM - (self.axis.transform(value) - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    def grid(self) -> Iterator[Shape]:
        """Grid lines and labels of both axes."""
        right, floor = WIDTH - RIGHT, HEIGHT - BOTTOM
        for tick, text in zip(self.y_ticks, self.axis.texts(self.y_ticks), strict=True):
            yield path("grid", f"M{LEFT} {self.y(tick):.1f}H{right}")
            yield label("y", LEFT - 7, self.y(tick) + 4, text)
        for tick, text in zip(self.x_ticks, tick_texts(self.x_ticks), strict=True):
            yield path("grid", f"M{self.x(tick):.1f} {floor}v5")
            yield label("x", self.x(tick), floor + 18, text)
        yield path("axis", f"M{LEFT} {floor}H{right}")
        yield label("x", (LEFT + right) / 2, HEIGHT - 4, self.along)


def round_ticks(low: float, high: float, count: int = 5, *, min_step: float = 0.0) -> list[float]:
    """About `count` ticks that enclose [low, high]; their distance is 1, 2 or 5 times a power of ten, or `min_step`."""
    if not high - low > abs(high) * 1e-9:  # a single value gets some room on both sides
        low, high = (low - abs(low) * 0.1, high + abs(high) * 0.1) if high else (0.0, 1.0)
    rough = max((high - low) / count, min_step, sys.float_info.min)
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(factor for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, max(last, first + 1) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Ticks at 1, 2, 5, 10, ... that enclose [low, high]; over more than two powers of ten, at these only."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high) + 1e-9)
    factors = (1, 2, 5) if last - first <= 2 else (1,)
    ticks = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
    start = max(index for index, tick in enumerate(ticks) if tick <= low * (1 + 1e-9))
    stop = min(index for index, tick in enumerate(ticks) if tick >= high * (1 - 1e-9) and index > start)
    return ticks[start : stop + 1]


def tick_texts(ticks: Sequence[float]) -> list[str]:
    """The labels of ticks: 0, 20 k, 40 k; very small ones as 2e-5."""
    largest = max(map(abs, ticks))
    if 0 < largest < 1e-3:
        texts = (f"{tick:.1e}".replace(".0e", "e").replace("e-0", "e-") for tick in ticks)
        return ["0" if abs(tick) < largest * 1e-9 else text for tick, text in zip(ticks, texts, strict=True)]
    bounds = ((1e12, 1e12, " T"), (1e9, 1e9, " G"), (1e6, 1e6, " M"), (1e4, 1e3, " k"))
    scale, suffix = next(((scale, unit) for bound, scale, unit in bounds if largest >= bound), (1.0, ""))
    # Ticks are round, so six digits are enough: 0.25, 1,000, -3.
    digits = (f"{float(f'{tick / scale:.6g}'):,.6f}".rstrip("0").rstrip(".") for tick in ticks)
    return [f"{text}{suffix}" if tick else "0" for tick, text in zip(ticks, digits, strict=True)]


def smoothed(points: Sequence[Point], share: float = 0.02) -> list[Point]:
    """An exponential running mean over about `share` of the points, at least 8; over fewer at the steep start."""
    total = weight = 0.0
    means = []
    for index, (x, y) in enumerate(finite(points)):
        decay = 1 - 1 / min(max(8.0, share * len(points)), 1 + index / 10)
        total, weight = decay * total + y, decay * weight + 1
        means.append((x, total / weight))
    return means


def finite(points: Sequence[Point]) -> list[Point]:
    """The points without NaN, infinities and values over `MAX_MAGNITUDE`."""
    return [(x, y) for x, y in points if abs(x) < MAX_MAGNITUDE and abs(y) < MAX_MAGNITUDE]


def _thinned(points: Sequence[Point]) -> list[Point]:
    """At most `MAX_POINTS` points at even distances, including both ends."""
    if len(points) <= MAX_POINTS:
        return list(points)
    gap = (len(points) - 1) / (MAX_POINTS - 1)
    return [points[round(number * gap)] for number in range(MAX_POINTS)]
