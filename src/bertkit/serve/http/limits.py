"""Limits on request bodies: size, JSON values, and memory of all together, from the first byte until the reply."""

from collections.abc import Iterator
from contextlib import contextmanager

from bertkit.serve.refusals import Refusal
from bertkit.serve.settings import LARGE, ServeSettings

VALUE_BYTES = 64  # of memory for a number or a short text: 24 to 56 for the object, 8 for the reference to it
WIDE_BYTES = 4  # that Python takes for each character of a text with one emoji in it
COLLECTION = 16  # values that a list, an object or a key counts as: parsing and freeing one takes as long


class BodyMemory:
    """The memory that all requests in progress take; a request that finds no room is refused with 429."""

    def __init__(self, limits: ServeSettings) -> None:
        self.limits = limits
        self.taken = 0

    @contextmanager
    def body(self) -> Iterator["RequestBody"]:
        """A new body; its memory counts until the block ends."""
        body = RequestBody(self)
        try:
            yield body
        finally:
            self.taken -= body.taken


class RequestBody:
    """One body, part by part; it is refused as soon as it is too large."""

    def __init__(self, memory: BodyMemory) -> None:
        self.taken = 0
        self._memory = memory
        self._data = bytearray()
        self._counted = 0  # bytes whose values are counted
        self._values = ValueCounter()

    def add(self, part: bytes) -> None:
        """The next bytes."""
        limits = self._memory.limits
        self._data += part
        if len(self._data) > limits.max_body:
            raise too_large(limits)
        self._take(len(part))
        if len(self._data) > LARGE:
            self._count_values()

    def end(self) -> None:
        """The body is complete: count what it takes once it is parsed."""
        self._take(VALUE_BYTES * self._values.total + (WIDE_BYTES - 1) * len(self._data) * self._values.wide)

    def whole(self) -> bytes:
        """All bytes; they are no longer kept here."""
        data, self._data = self._data, bytearray()
        return bytes(data)

    def _count_values(self) -> None:
        most = self._memory.limits.max_values
        self._values.add(bytes(self._data[self._counted :]))
        self._counted = len(self._data)
        if self._values.total > most:
            message = f"a request may have {most:,} JSON values, where each list, object or key counts as {COLLECTION}"
            raise Refusal(413, f"{message}; send fewer texts at a time")

    def _take(self, size: int) -> None:
        self.taken += size
        self._memory.taken += size
        if self._memory.taken > self._memory.limits.max_bodies:
            raise Refusal(429, "too much is being sent at once; try again", headers={"Retry-After": "1"})


class ValueCounter:
    """Counts the values of a JSON text that comes in parts, without parsing it; characters inside strings are free."""

    def __init__(self) -> None:
        self.total = 0
        self.wide = False  # whether a character is not ASCII
        self._in_string = False
        self._escape = b""  # a backslash whose character is in the next part

    def add(self, part: bytes) -> None:
        """Count one more part."""
        part = self._escape + part
        odd = (len(part) - len(part.rstrip(b"\\"))) % 2
        self._escape = part[len(part) - odd :]
        part = part[: len(part) - odd]
        if b"\\" in part:
            part = part.replace(b"\\\\", b"").replace(b'\\"', b"")
        self.wide = self.wide or not part.isascii() or b"\\u" in part
        pieces = part.split(b'"')
        outside = b"".join(pieces[self._in_string :: 2])
        self._in_string ^= len(pieces) % 2 == 0
        self.total += outside.count(b",") + COLLECTION * sum(map(outside.count, (b"[", b"{", b":")))


def too_large(limits: ServeSettings) -> Refusal:
    """The error for a body over the limit."""
    return Refusal(413, f"a request may have {limits.max_body:,} bytes; send fewer texts at a time")
