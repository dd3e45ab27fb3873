"""Freed memory goes back to the system, and a server does that by itself."""

import platform
import subprocess
import sys
import time

from serving import running, wait_until

from bertkit.serve import memory

ALONE = """
from pathlib import Path
from bertkit.serve import memory

def resident():
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) * 1024

large, small = [], []
for _ in range(2000):  # small ones between the large keep the heap from shrinking
    large.append(bytearray(100_000))
    small.append(bytearray(2_000))
large.clear()
before = resident()
print(memory.give_back(), before - resident())
"""


def test_what_is_free_between_what_is_used_is_given_back():
    """In a process of its own: a server of another test would give back between the two looks."""
    found = subprocess.check_output([sys.executable, "-c", ALONE], text=True).split()
    able = platform.libc_ver()[0] == "glibc"
    assert found[0] == str(able)
    assert not able or int(found[1]) > 100_000_000


def test_a_server_gives_back_by_itself(models, berts, monkeypatch):
    given = []
    monkeypatch.setattr(memory, "SECONDS", 0.01)
    monkeypatch.setattr(memory, "give_back", lambda: given.append(1) is None)
    with running(models, berts=berts):
        wait_until(lambda: len(given) > 2)
    after = len(given)
    time.sleep(0.1)
    assert len(given) == after, "a server that has stopped leaves the memory alone"
