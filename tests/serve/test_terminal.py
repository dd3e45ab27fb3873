"""What a person sees who starts a server: models while they load, the address, short lines of the log."""

import io
import itertools
import json
import logging
from types import SimpleNamespace

import pytest

from bertkit.checkpoint.bundled import bundled_folder
from bertkit.cli import serve, serve_screen
from bertkit.cli.serve_screen import print_frame, shown_load
from bertkit.serve.http import logs


@pytest.fixture
def log():
    """Starts logs of a form on a stream; returns the stream and a function that logs a request."""
    logger = logging.getLogger("bertkit.serve")
    before = logger.handlers
    stream = io.StringIO()

    def start(form):
        logs.start_logs(stream, form)
        return stream, lambda **fields: logger.info("request", extra={"fields": fields})

    yield start
    logger.handlers = before


REQUEST = {"id": "x", "method": "POST", "route": "/classify", "status": 200, "seconds": 0.0124}


def test_a_terminal_gets_short_lines(log):
    stream, request = log("text")
    request(**REQUEST)
    request(**REQUEST | {"route": "/page/{name:path}", "method": "GET"})
    request(**REQUEST | {"route": "/page/{name:path}", "method": "GET", "status": 404})
    first, second = stream.getvalue().splitlines()
    assert first.split()[1:] == ["\x1b[32m200\x1b[0m", "POST", "/classify", "12", "ms"]
    assert "\x1b[33m404" in second
    logging.getLogger("bertkit.serve").error("failure", exc_info=ValueError("broken"), extra={"fields": {"id": "x"}})
    assert "failure  id=x\nValueError: broken" in stream.getvalue()


def test_a_file_gets_json_lines(log):
    stream, request = log("json")
    request(**REQUEST)
    assert json.loads(stream.getvalue()).items() >= REQUEST.items()


def test_the_address_is_in_a_frame(capsys):
    print_frame("http://127.0.0.1:8000", ["a", "b"], "only this machine reaches it")
    lines = capsys.readouterr().out.splitlines()
    assert "http://127.0.0.1:8000  open it in a browser" in lines[1]
    assert "models: a, b" in lines[3]
    assert {len(line) for line in lines} == {len(lines[0])}


def test_each_model_is_named_while_it_loads(capsys, monkeypatch):
    seconds = itertools.count(step=2.5)
    monkeypatch.setattr(serve_screen, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    assert shown_load(lambda path: f"loaded {path}")("run") == "loaded run"
    assert "✓ run 2.5 s" in capsys.readouterr().err
    shown_load(lambda path: None)(None)
    assert "✓ the bundled model 2.5 s" in capsys.readouterr().err
    shown_load(lambda path: None)(str(bundled_folder() / "sentences"))
    assert "✓ the bundled model sentences 2.5 s" in capsys.readouterr().err


def test_the_page_is_opened_when_the_server_listens(monkeypatch, command_here):
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr(serve, "_load_app", lambda *_, **__: (None, ["a"]))
    monkeypatch.setattr("bertkit.serve.http.server.serve", lambda app, listener, started: started())
    done = command_here("serve", "--port", "0", "--open")
    assert done.stdout.startswith("a at http://127.0.0.1:")
    assert [done.stdout.split()[2]] == opened


def test_a_log_of_another_form_is_refused(command_here):
    done = command_here("serve", "--log", "xml")
    assert (done.returncode, done.stderr) == (2, "bertkit: unknown form of the log 'xml'; choose from: json, text\n")
