"""Charts: ticks are round and enclose the data, and no data, however odd, breaks the picture."""

import math
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.report.chart import (
    COUNT_AXIS,
    HEIGHT,
    LINEAR_AXIS,
    LOG_AXIS,
    MAX_POINTS,
    MIN_POINTS,
    WIDTH,
    ZERO_AXIS,
    Frame,
    Line,
    chart,
    finite,
    log_ticks,
    round_ticks,
    smoothed,
    tick_texts,
)

numbers = st.floats(-1e15, 1e15, allow_nan=False).filter(lambda x: x == 0 or abs(x) > 1e-12)


def is_round(step: float) -> bool:
    return any(math.isclose(step / 10 ** math.floor(math.log10(step) + 1e-9), f, rel_tol=1e-6) for f in (1, 2, 5))


@given(numbers, numbers)
def test_ticks_are_round_few_and_enclose(one, two):
    low, high = sorted((one, two))
    ticks = round_ticks(low, high)
    slack = (ticks[-1] - ticks[0]) * 1e-6
    assert 2 <= len(ticks) <= 9
    assert ticks[0] <= low + slack
    assert ticks[-1] >= high - slack
    assert is_round(ticks[1] - ticks[0])


@given(st.floats(1e-6, 1e9), st.floats(1e-6, 1e9))
def test_logarithmic_ticks_enclose(one, two):
    low, high = sorted((one, two))
    ticks = log_ticks(low, high)
    assert len(ticks) >= 2
    assert ticks == sorted(set(ticks))
    assert ticks[0] <= low * 1.000001
    assert ticks[-1] >= high * 0.999999


@pytest.mark.parametrize(
    ("low", "high", "texts"),
    [
        (0, 6000, ["0", "2,000", "4,000", "6,000"]),
        (0, 1e-3, ["0", "0.0002", "0.0004", "0.0006", "0.0008", "0.001"]),
        (0, 1e-4, ["0", "2e-5", "4e-5", "6e-5", "8e-5", "1e-4"]),
        (0, 3.6e6, ["0", "1 M", "2 M", "3 M", "4 M"]),
        (0, 40_000, ["0", "10 k", "20 k", "30 k", "40 k"]),
        (2.1, 2.9, ["2", "2.2", "2.4", "2.6", "2.8", "3"]),
        (-1, 1, ["-1", "-0.5", "0", "0.5", "1"]),
    ],
)
def test_the_numbers_beside_an_axis(low, high, texts):
    assert tick_texts(round_ticks(low, high)) == texts


def test_whole_numbers_have_no_halves():
    assert COUNT_AXIS.ticks(0, 2) == [0, 1, 2]
    assert COUNT_AXIS.ticks(0, 0) == [0, 1]
    assert LOG_AXIS.texts(LOG_AXIS.ticks(12, 9000)) == ["10", "100", "1,000", "10 k"]


def parsed(figure: str) -> ElementTree.Element:
    return ElementTree.fromstring(figure)


@pytest.mark.parametrize("axis", [LINEAR_AXIS, ZERO_AXIS, COUNT_AXIS])
@given(st.lists(st.tuples(st.integers(0, 10**7).map(float), st.floats()), max_size=30))
def test_any_curve_gives_well_formed_finite_pictures_within_the_frame(axis, points):
    figure = chart("any", [Line("one", points), Line("two", points[:1], "second")], axis=axis)
    tree = parsed(figure)
    assert "nan" not in figure
    assert "inf" not in figure
    for path in tree.iter("path"):
        if "line" in path.get("class", ""):
            for pair in path.get("d")[1:].split("L"):
                x, y = map(float, pair.split())
                assert 0 <= x <= WIDTH
                assert 0 <= y <= HEIGHT
    drawn, listed = (next(tree.iter(tag), None) is not None for tag in ("svg", "table"))
    assert drawn == (len(finite(points)) >= MIN_POINTS)
    assert listed == (0 < len(finite(points)) < MIN_POINTS)


def test_names_are_escaped():
    figure = chart('a<b>&"', [Line("<script>x</script>", [(0, 1), (1, 2)])], unit="<i>")
    assert "<script>" not in figure
    assert "<i>" not in figure
    parsed(figure)


def test_few_points_are_a_table():
    lines = [Line("one", [(1000.0, 2.5), (2000.0, 0.12345)]), Line("two", [(2000.0, 12345.0)])]
    rows = [["".join(cell.itertext()) for cell in row] for row in parsed(chart("few", lines)).iter("tr")]
    assert rows == [["step", "1,000", "2,000"], ["one", "2.5", "0.1235"], ["two", "–", "12,345"]]


def test_one_point_beside_a_curve_is_a_dot():
    curve = Line("", [(float(x), 1.0) for x in range(9)])
    assert len(list(parsed(chart("one", [curve, Line("", [(5, 2.5)])])).iter("circle"))) == 1


def test_long_curves_are_thinned_but_keep_their_ends():
    points = [(float(x), float(x)) for x in range(100_000)]
    [path] = [p for p in parsed(chart("long", [Line("", points)])).iter("path") if p.get("class") == "line main"]
    places = path.get("d")[1:].split("L")
    frame = Frame.around(points, LINEAR_AXIS)
    assert len(places) == MAX_POINTS
    assert places[0] == f"{frame.x(0):.1f} {frame.y(0):.1f}"
    assert places[-1] == f"{frame.x(99_999):.1f} {frame.y(99_999):.1f}"


def test_smoothing_keeps_constants_and_calms_noise():
    flat = [(float(x), 3.0) for x in range(200)]
    assert [y for _, y in smoothed(flat)] == pytest.approx([3.0] * 200)
    noisy = [(float(x), (-1.0) ** x) for x in range(1000)]
    assert max(abs(y) for _, y in smoothed(noisy)[500:]) < 0.2
    assert smoothed([(0.0, math.nan), (1.0, 2.0), (2.0, math.inf)]) == [(1.0, 2.0)]
    assert smoothed([]) == []
