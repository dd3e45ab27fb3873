"""Freed memory goes back to the system, and a server does that by itself."""

import platform
import time
from pathlib import Path

from serving import running, wait_until

from bertkit.serve import memory


def resident() -> int:
    """Bytes of this process in memory."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) * 1024


def test_what_is_free_between_what_is_used_is_given_back():
    large, small = [], []
    for _ in range(2000):  # small ones between the large keep the heap from shrinking
        large.append(bytearray(100_000))
        small.append(bytearray(2_000))
    large.clear()
    able, before = platform.libc_ver()[0] == "glibc", resident()
    assert memory.give_back() is able
    assert not able or before - resident() > 100_000_000
    assert len(small) == 2000


def test_a_server_gives_back_by_itself(models, berts, monkeypatch):
    given = []
    monkeypatch.setattr(memory, "SECONDS", 0.01)
    monkeypatch.setattr(memory, "give_back", lambda: given.append(1) is None)
    with running(models, berts=berts):
        wait_until(lambda: len(given) > 2)
    after = len(given)
    time.sleep(0.1)
    assert len(given) == after, "a server that has stopped leaves the memory alone"
