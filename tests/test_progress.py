"""Work that stops before its end is not shown as done."""

import io
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from bertkit import progress as progress_module
from bertkit.checkpoint.save_load import Checkpoint
from bertkit.config import family_config
from bertkit.model.model import new_model
from bertkit.predict import vectors
from bertkit.predict.bert import Bert
from bertkit.progress import late_progress, progress
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.wordpiece import SPECIALS


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


def test_what_comes_after_the_last_step_is_said():
    for stream in (io.StringIO(), Terminal()):
        with progress("working", 100, stream=stream) as meter:
            meter.update(100, {"loss": 0.5})
            meter.say("saving the model")
            assert "saving the model" in stream.getvalue()
        assert "saving" not in stream.getvalue().splitlines()[-1]


def test_a_stop_with_an_unknown_total():
    for stream in (io.StringIO(), Terminal()):
        with progress("working", 0, stream=stream) as meter:
            meter.update(76)
            meter.stop()
        assert "%" not in stream.getvalue()


def test_a_notebook_gets_a_bar_of_its_own(monkeypatch):
    import sys
    from types import ModuleType

    shown = []

    class Handle:
        def update(self, cell):
            shown.append(cell._repr_html_())

    class ZMQInteractiveShell:
        """What IPython calls the shell of a notebook."""

    ipython, display = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = ZMQInteractiveShell
    display.display = lambda cell, display_id: shown.append(cell._repr_html_()) or Handle()
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    with progress("a <b>", 4) as meter:
        meter.update(3, {"loss": "0.5"})
    assert shown[0].startswith('a &lt;b&gt; <progress value="0.000">')
    assert shown[-1].endswith("</progress> 100%, loss 0.5")
    with progress("work", 4) as meter:
        meter.update(3)
        meter.stop()
    assert shown[-1].endswith("</progress> 75% (stopped)")


def late(monkeypatch, *seconds: float, terminal: bool = True) -> str:
    """What a late bar showed, when a text was done at each of these seconds."""
    stream = Terminal() if terminal else io.StringIO()
    clock = iter([0.0, *seconds])
    monkeypatch.setattr("sys.stderr", stream)
    with monkeypatch.context() as patch:
        patch.setattr(progress_module, "time", SimpleNamespace(monotonic=lambda: next(clock, seconds[-1])))
        with late_progress("embedding", 10) as advance:
            for _ in seconds:
                advance(1)
    return stream.getvalue()


def test_a_late_bar_is_for_long_work_on_a_terminal(monkeypatch):
    assert late(monkeypatch, 0.5, 1.9) == ""
    assert "embedding" in late(monkeypatch, 0.5, 2.5)
    assert late(monkeypatch, 0.5, 2.5, terminal=False) == ""


def test_embedding_tells_how_far_it_is(monkeypatch):
    config = family_config("bert", "tiny", vocab_size=len(SPECIALS) + 1, max_length=32)
    tokenizer = Tokenizer.from_vocab([*SPECIALS, "a"])
    bert = Bert(Checkpoint(model=new_model(config).eval(), tokenizer=tokenizer, max_length=32))
    done = []
    monkeypatch.setattr(vectors, "late_progress", lambda title, total: nullcontext(done.append))
    bert.embed(["a " * (n % 30) for n in range(300)])
    assert sum(done) == 300
    assert len(done) > 2, "after each batch, not only at the end"
    bert.search("a", (text for text in ["a"] * 40))
    assert sum(done) == 340


def test_notes_are_told_on_a_terminal_only():
    terminal, pipe = Terminal(), io.StringIO()
    for stream in (terminal, pipe):
        progress_module.tell(["a.csv: text = request", "no dev file"], stream)
    assert (terminal.getvalue(), pipe.getvalue()) == ("a.csv: text = request\nno dev file\n", "")
