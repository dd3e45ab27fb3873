"""The progress of long work: a bar on a terminal and in a notebook, elsewhere a line every few seconds."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from html import escape
from typing import Any, Protocol, TextIO

NO_FACTS: Mapping[str, object] = {}
# How much a command says: -1 (--quiet) results and errors only, 1 (--verbose) also what helps to find a fault.
VERBOSITY: ContextVar[int] = ContextVar("verbosity", default=0)


class Meter(Protocol):
    """Progress of one piece of work. `update` may be called often: it draws only a few times a second."""

    def update(self, done: float, facts: Mapping[str, object] = NO_FACTS) -> None:
        """`done` of the total is done; facts, like {"tokens/s": "61,000"}, are shown as they are."""

    def say(self, now: str) -> None:
        """Show at once what is being done, such as "saving the model", until the next update or the end."""

    def stop(self) -> None:
        """The work ends before its total: it is shown as stopped, not as done."""


# A function of a title and a total that starts a meter; `progress` and `silent` are two of them.
ShowProgress = Callable[[str, float], AbstractContextManager[Meter]]


@contextmanager
def progress(title: str, total: float, *, every: float = 10.0, stream: TextIO | None = None) -> Iterator[Meter]:
    """Show progress on `stream` (stderr): a bar on a terminal and in a notebook, else a line every `every` seconds."""
    if is_quiet():
        yield _Silent()
        return
    if stream is None and (display := _notebook_display()):
        cell = _Cell(title, total, display)
        yield cell
        cell.finish()
        return
    stream = stream or sys.stderr
    if stream.isatty():
        with _bar(title, total, stream) as meter:
            yield meter
    else:
        lines = _Lines(title, total, every, stream)
        yield lines
        lines.finish()


def is_quiet() -> bool:
    """Whether only results and errors are wanted."""
    return VERBOSITY.get() < 0


def tell(notes: Iterable[str], stream: TextIO | None = None) -> None:
    """Print notes on a terminal (stderr) before long work; elsewhere they stand in the result alone."""
    stream = stream or sys.stderr
    if stream is not None and stream.isatty() and not is_quiet():
        print(*notes, sep="\n", file=stream, flush=True)


@contextmanager
def silent(title: str, total: float) -> Iterator[Meter]:
    """Show nothing: for callers from Python."""
    yield _Silent()


@contextmanager
def late_progress(title: str, total: float, *, after: float = 2.0) -> Iterator[Callable[[int], None]]:
    """A function to call with how much more is done: shows a bar, once that has taken `after` seconds.

    It is shown only on a terminal and in a notebook: for calls from Python, which others print nothing.
    """
    with ExitStack() as stack:
        done, meter, began = 0, None, time.monotonic()
        can_show = _notebook_display() is not None or (sys.stderr is not None and sys.stderr.isatty())

        def advance(count: int) -> None:
            nonlocal done, meter
            done += count
            if meter is None and can_show and time.monotonic() - began >= after and done != total:
                meter = stack.enter_context(progress(title, total))
            if meter is not None:
                meter.update(done)

        yield advance


class _Silent:
    def update(self, done: float, facts: Mapping[str, object] = NO_FACTS) -> None:
        pass

    def say(self, now: str) -> None:
        pass

    def stop(self) -> None:
        pass


class _Lines:
    def __init__(self, title: str, total: float, every: float, stream: TextIO) -> None:
        self.title, self.total, self.every, self.stream = title, total, every, stream
        self.began = self.last = time.monotonic()
        self.done, self.stopped = 0.0, False

    def update(self, done: float, facts: Mapping[str, object] = NO_FACTS) -> None:
        now, self.done = time.monotonic(), done
        if now - self.last >= self.every:
            self.last = now
            self._print(self._state(done, now), facts)

    def say(self, now: str) -> None:
        self._print(now, NO_FACTS)

    def stop(self) -> None:
        self.stopped = True

    def finish(self) -> None:
        share = f" at {100 * self.done / self.total:.0f} %" if self.total > 0 else ""
        ending = f"stopped{share} after" if self.stopped else "done in"
        self._print(f"{ending} {time.monotonic() - self.began:.1f} s", NO_FACTS)

    def _state(self, done: float, now: float) -> str:
        if self.total <= 0 or done <= 0:
            return f"{now - self.began:.0f} s so far"
        left = (now - self.began) * (self.total - done) / done
        return f"{100 * done / self.total:.0f} %, {max(left, 0):.0f} s left"

    def _print(self, state: str, facts: Mapping[str, object]) -> None:
        print(f"{self.title}: {', '.join([state, *_fact_texts(facts)])}", file=self.stream, flush=True)


@contextmanager
def _bar(title: str, total: float, stream: TextIO) -> Iterator[Meter]:
    # Imported here because rich takes 0.1 s to import.
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = [
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[facts]}", markup=False),
    ]
    with Progress(*columns, console=Console(file=stream)) as bar:
        task = bar.add_task(title, total=total if total > 0 else None, facts="")
        meter = _Bar(bar, task)
        yield meter
        if meter.stopped:
            bar.update(task, completed=meter.done, facts=meter.facts)
        else:
            bar.update(task, total=total, completed=total, facts=meter.facts)


class _Bar:
    def __init__(self, bar: Any, task: Any) -> None:
        self.bar, self.task, self.last = bar, task, 0.0
        self.done, self.stopped, self.facts = 0.0, False, ""

    def update(self, done: float, facts: Mapping[str, object] = NO_FACTS) -> None:
        self.done, self.facts = done, ", ".join(_fact_texts(facts))
        # rich takes a lock and computes speeds at every call; ten a second are enough.
        if time.monotonic() - self.last >= 0.1:
            self.last = time.monotonic()
            self.bar.update(self.task, completed=done, facts=self.facts)

    def say(self, now: str) -> None:
        self.bar.update(self.task, completed=self.done, facts=now, refresh=True)

    def stop(self) -> None:
        self.stopped = True


class _Cell:
    """A bar in the output of a notebook's cell, drawn again twice a second."""

    def __init__(self, title: str, total: float, display: Any) -> None:
        self.title, self.total, self.last, self.done, self.stopped = title, total, time.monotonic(), 0.0, False
        self.facts: Mapping[str, object] = NO_FACTS
        self.handle = display(self, display_id=True)

    def update(self, done: float, facts: Mapping[str, object] = NO_FACTS) -> None:
        self.done, self.facts = done, facts
        if time.monotonic() - self.last >= 0.5:
            self.last = time.monotonic()
            self.handle.update(self)

    def say(self, now: str) -> None:
        before, self.facts = self.facts, {"now": now}
        self.handle.update(self)
        self.facts = before

    def stop(self) -> None:
        self.stopped = True

    def finish(self) -> None:
        self.done = self.done if self.stopped else self.total
        self.handle.update(self)

    def _repr_html_(self) -> str:
        share = min(self.done / self.total, 1.0) if self.total > 0 else 0.0
        state = f"{share:.0%}{' (stopped)' if self.stopped else ''}"
        facts = escape(", ".join([state, *_fact_texts(self.facts)]))
        return f'{escape(self.title)} <progress value="{share:.3f}"></progress> {facts}'


def _notebook_display() -> Any:
    """IPython's `display` inside a notebook, else None; IPython is not imported if it is not in use."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython and hasattr(ipython, "get_ipython") else None
    if shell is None or type(shell).__name__ != "ZMQInteractiveShell":
        return None
    from importlib import import_module

    return import_module("IPython.display").display


def _fact_texts(facts: Mapping[str, object]) -> list[str]:
    return [f"{name} {value}" for name, value in facts.items()]
