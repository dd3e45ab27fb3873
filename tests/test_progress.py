"""Work that stops before its end is not shown as done."""

import io

import pytest

from bertkit.progress import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")


def shown(*done: float, stops: bool) -> str:
    """The bar as it stands at the end."""
    stream = Terminal()
    with progress("working", 100, stream=stream) as meter:
        for each in done:
            meter.update(each)
        if stops:
            meter.stop()
    return stream.getvalue().rpartition("working")[2]


def test_a_bar_stays_where_the_work_was_stopped():
    assert " 76%" in shown(10, 40, 76, stops=True), "the last number, though it came too soon to be drawn"
    assert "100%" not in shown(10, 76, stops=True)
    assert "100%" in shown(10, 76, stops=False), "not every reader counts up to its last byte"


def test_a_bar_stays_where_an_error_came():
    stream = Terminal()
    with pytest.raises(KeyboardInterrupt), progress("working", 100, stream=stream) as meter:
        meter.update(76)
        raise KeyboardInterrupt
    assert "76%" in stream.getvalue()
    assert "100%" not in stream.getvalue()


def test_lines_say_that_work_was_stopped():
    stream = io.StringIO()
    with progress("working", 100, stream=stream) as meter:
        meter.update(76)
        meter.stop()
    assert stream.getvalue().startswith("working: stopped at 76 % after ")


def test_a_stop_with_an_unknown_total():
    for stream in (io.StringIO(), Terminal()):
        with progress("working", 0, stream=stream) as meter:
            meter.update(76)
            meter.stop()
        assert "%" not in stream.getvalue()
