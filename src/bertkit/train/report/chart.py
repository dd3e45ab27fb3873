"""Line charts as SVG text: round ticks, units, nothing from elsewhere. Colors come from the page's style sheet."""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 440, 220
LEFT, RIGHT, TOP, BOTTOM = 52, 24, 12, 40
MOST_POINTS = 600  # a line has no more: the page stays small, and a screen shows no more
ENDLESS = 1e30

Point = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """One named curve; `kind` is its class in the style sheet: main, faint, dots, second, ..."""

    name: str
    points: Sequence[Point]
    kind: str = "main"


@dataclass(frozen=True, kw_only=True)
class Axis:
    """How values are laid out: from zero, in whole numbers, or by their logarithms."""

    from_zero: bool = False
    whole: bool = False
    logarithmic: bool = False

    def ticks(self, low: float, high: float) -> list[float]:
        """Ticks that enclose the values."""
        if self.logarithmic:
            return log_ticks(low, high)
        return round_ticks(min(low, 0.0) if self.from_zero else low, high, least=1.0 if self.whole else 0.0)

    def texts(self, ticks: Sequence[float]) -> list[str]:
        """The numbers beside the ticks."""
        return [tick_texts([tick])[0] for tick in ticks] if self.logarithmic else tick_texts(ticks)

    def place(self, value: float) -> float:
        """Where on a straight ruler a value stands."""
        return math.log(value) if self.logarithmic else value


PLAIN, FROM_ZERO = Axis(), Axis(from_zero=True)
COUNT, LOGARITHMIC = Axis(from_zero=True, whole=True), Axis(logarithmic=True)


def chart(title: str, lines: Sequence[Line], *, unit: str = "", axis: Axis = PLAIN, along: str = "step") -> str:
    """One `<figure>` over steps, or what `along` names: axes, a legend, curves; what is not finite is left out."""
    shown = [Line(line.name, _thinned(finite(line.points)), line.kind) for line in lines]
    shown = [line for line in shown if line.points]
    name = escape(f"{title}, {unit}" if unit else title)
    if not shown:
        return f'<figure><figcaption>{name}</figcaption><p class="none">nothing recorded</p></figure>'
    frame = Frame.around([point for line in shown for point in line.points], axis, along)
    body = frame.grid() + "".join(_curve(frame, line) for line in shown)
    keys = "".join(f'<span class="key {escape(line.kind)}">{escape(line.name)}</span>' for line in shown if line.name)
    svg = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{name}">{body}</svg>'
    return f'<figure><figcaption>{name}<span class="keys">{keys}</span></figcaption>{svg}</figure>'


@dataclass(frozen=True)
class Frame:
    """The rectangle that a chart is drawn in: data to picture."""

    x_ticks: Sequence[float]
    y_ticks: Sequence[float]
    x_range: Point
    axis: Axis
    along: str = "step"  # what the horizontal axis counts

    @classmethod
    def around(cls, points: Sequence[Point], axis: Axis, along: str = "step") -> "Frame":
        """The frame that holds all points: from step 0 to the last, its vertical ends on ticks."""
        ys = [y for _, y in points]
        last = max(1.0, *(x for x, _ in points))
        x_ticks = [tick for tick in round_ticks(0.0, last, 6, least=1.0) if tick <= last]
        return cls(x_ticks, axis.ticks(min(ys), max(ys)), (0.0, last), axis, along)

    def x(self, value: float) -> float:
        """From the left edge of the picture."""
        low, high = self.x_range
        return LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        """From the top edge of the picture."""
        low, high = self.axis.place(self.y_ticks[0]), self.axis.place(self.y_ticks[-1])
        return HEIGHT - BOTTOM - (self.axis.place(value) - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    def grid(self) -> str:
        """Lines and numbers of both axes."""
        right, floor = WIDTH - RIGHT, HEIGHT - BOTTOM
        parts = []
        for tick, text in zip(self.y_ticks, self.axis.texts(self.y_ticks), strict=True):
            at = self.y(tick)
            parts.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{right}"/>')
            parts.append(f'<text class="y" x="{LEFT - 7}" y="{at + 4:.1f}">{text}</text>')
        for tick, text in zip(self.x_ticks, tick_texts(self.x_ticks), strict=True):
            at = self.x(tick)
            parts.append(f'<path class="grid" d="M{at:.1f} {floor}v5"/>')
            parts.append(f'<text class="x" x="{at:.1f}" y="{floor + 18}">{text}</text>')
        middle = (LEFT + right) / 2
        parts.append(f'<path class="axis" d="M{LEFT} {floor}H{right}"/>')
        return "".join(parts) + f'<text class="x name" x="{middle:.0f}" y="{HEIGHT - 4}">{escape(self.along)}</text>'


def round_ticks(low: float, high: float, about: int = 5, *, least: float = 0.0) -> list[float]:
    """Ticks 1, 2 or 5 times a power of ten apart, and `least` or more, that enclose [low, high]: about `about`."""
    if not high - low > abs(high) * 1e-9:  # one value: a little room on both sides of it
        low, high = (low - abs(low) * 0.1, high + abs(high) * 0.1) if high else (0.0, 1.0)
    rough = max((high - low) / about, least, sys.float_info.min)
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(factor for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, max(last, first + 1) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Ticks at 1, 2, 5, 10, ... that enclose [low, high], or at the powers of ten alone when there are many."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high) + 1e-9)
    factors = (1, 2, 5) if last - first <= 2 else (1,)
    every = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
    start = max(index for index, tick in enumerate(every) if tick <= low * (1 + 1e-9))
    stop = min(index for index, tick in enumerate(every) if tick >= high * (1 - 1e-9) and index > start)
    return every[start : stop + 1]


def tick_texts(ticks: Sequence[float]) -> list[str]:
    """The numbers beside an axis: 0, 20 k, 40 k; the very small as 2e-5."""
    largest = max(map(abs, ticks))
    if 0 < largest < 1e-3:
        return ["0" if abs(tick) < largest * 1e-9 else f"{tick:.0e}".replace("e-0", "e-") for tick in ticks]
    bounds = ((1e12, 1e12, " T"), (1e9, 1e9, " G"), (1e6, 1e6, " M"), (1e4, 1e3, " k"))
    scale, suffix = next(((scale, unit) for bound, scale, unit in bounds if largest >= bound), (1.0, ""))
    return [f"{_digits(tick / scale)}{suffix}" if tick else "0" for tick in ticks]


def smoothed(points: Sequence[Point], share: float = 0.02) -> list[Point]:
    """A running mean that looks back over `share` of the points, or 8; over fewer at first, where curves are steep."""
    total = weight = 0.0
    out = []
    for index, (x, y) in enumerate(finite(points)):
        keep = 1 - 1 / min(max(8.0, share * len(points)), 1 + index / 10)
        total, weight = keep * total + y, keep * weight + 1
        out.append((x, total / weight))
    return out


def _digits(value: float) -> str:
    """Ticks are round, so six digits tell them apart: 0.25, 1,000, -3."""
    return f"{float(f'{value:.6g}'):,.6f}".rstrip("0").rstrip(".")


def finite(points: Sequence[Point]) -> list[Point]:
    """The points without NaN, infinities, and what is as good as infinite."""
    return [(x, y) for x, y in points if abs(x) < ENDLESS and abs(y) < ENDLESS]


def _thinned(points: Sequence[Point]) -> list[Point]:
    """At most `MOST_POINTS`, evenly spread, with both ends."""
    if len(points) <= MOST_POINTS:
        return list(points)
    gap = (len(points) - 1) / (MOST_POINTS - 1)
    return [points[round(number * gap)] for number in range(MOST_POINTS)]


def _curve(frame: Frame, line: Line) -> str:
    places = [f"{frame.x(x):.1f} {frame.y(y):.1f}" for x, y in line.points]
    kind = escape(line.kind)
    if len(places) == 1:
        x, y = places[0].split()
        return f'<circle class="{kind}" cx="{x}" cy="{y}" r="4"/>'
    return f'<path class="line {kind}" d="M{"L".join(places)}"/>'
