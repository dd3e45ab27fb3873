"""A browser is found, installed, or missed aloud; never skipped."""

import subprocess

import pytest


def test_one_in_the_path_is_taken_and_nothing_installed(fetch_chromium, monkeypatch):
    monkeypatch.setattr(fetch_chromium.shutil, "which", {"chromium-browser": "/bin/browser"}.get)
    monkeypatch.setattr(fetch_chromium.subprocess, "run", lambda *_, **__: pytest.fail("installed"))
    assert fetch_chromium.fetch() == "/bin/browser"


@pytest.mark.parametrize(("user", "first"), [(0, "apt-get"), (1000, "playwright")])
def test_the_system_installs_where_it_may_else_playwright(fetch_chromium, monkeypatch, user, first):
    here, commands = [], []

    def run(command, **_):
        commands.append(command)
        here.append("/bin/chromium")
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(fetch_chromium.os, "geteuid", lambda: user)
    monkeypatch.setattr(fetch_chromium.shutil, "which", {"apt-get": "/bin/apt-get"}.get)
    monkeypatch.setattr(fetch_chromium.subprocess, "run", run)
    monkeypatch.setattr(fetch_chromium, "find", lambda: here[-1] if here else None)
    assert fetch_chromium.fetch() == "/bin/chromium"
    assert len(commands) == 1
    assert first in commands[0]


def test_none_at_all_is_one_sentence(fetch_chromium, monkeypatch):
    monkeypatch.setattr(fetch_chromium, "find", lambda: None)
    monkeypatch.setattr(fetch_chromium.subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 1))
    with pytest.raises(SystemExit, match="no Chromium for the browser tests: install one"):
        fetch_chromium.fetch()
