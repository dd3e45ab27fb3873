"""Freed memory goes back to the system, and a server does that by itself."""

import asyncio
import gc
import platform
import subprocess
import sys
import weakref

from serving import running, wait_until

from bertkit.errors import RequestError
from bertkit.serve import memory
from bertkit.serve.refusals import Refusal
from bertkit.serve.service import Service
from bertkit.serve.settings import ServeSettings

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
print(memory.trim_heap(), before - resident())
"""


def test_what_is_free_between_what_is_used_is_given_back():
    """In a process of its own: a server of another test would give back between the two looks."""
    found = subprocess.check_output([sys.executable, "-c", ALONE], text=True).split()
    able = platform.libc_ver()[0] == "glibc"
    assert found[0] == str(able)
    assert not able or int(found[1]) > 100_000_000


def test_it_is_done_again_and_again(monkeypatch):
    given = []
    monkeypatch.setattr(memory, "trim_heap", lambda: given.append(1) is None)

    async def three_times() -> None:
        keeping = asyncio.create_task(memory.keep_trimming(every=0.001))
        async with asyncio.timeout(10):
            while len(given) < 3:
                await asyncio.sleep(0.001)
        keeping.cancel()

    asyncio.run(three_times())


def test_where_it_cannot_be_done_it_is_not_tried_again(monkeypatch):
    monkeypatch.setattr(memory, "trim_heap", lambda: False)
    asyncio.run(asyncio.wait_for(memory.keep_trimming(), 5))


def test_a_server_does_it_for_as_long_as_it_runs(models, berts, monkeypatch):
    events = []

    async def recorded() -> None:
        events.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            events.append("ended")

    monkeypatch.setattr(memory, "keep_trimming", recorded)
    with running(models, berts=berts):
        wait_until(lambda: events == ["begun"])
    assert events == ["begun", "ended"], "a server that has stopped leaves the memory alone"


class Texts(list):
    """Somebody's, which can be watched."""


def test_a_refused_request_is_gone_when_it_is_answered(models):
    seen = []

    async def ask(service):
        texts = Texts(["a"])
        seen.append(weakref.ref(texts))

        def plan():
            raise RequestError(f"no {texts}")

        try:
            await service.answer(plan)
        except Refusal as refusal:
            return refusal.message

    async def serve():
        service = Service(models, ServeSettings())
        await service.start()
        gc.disable()
        try:
            assert await ask(service) == "no ['a']"
            for _ in range(200):  # until the planner's thread has left what it did
                if seen[0]() is None:
                    return True
                await asyncio.sleep(0.01)
            return False
        finally:
            gc.enable()
            await service.stop()

    assert asyncio.run(serve()), "no cycle holds its texts until somebody looks for garbage"


def test_what_only_refers_to_itself_is_given_back():
    texts = Texts()
    texts.append(texts)
    left = weakref.ref(texts)
    gc.disable()
    try:
        del texts
        memory.trim_heap()
        assert left() is None
    finally:
        gc.enable()
