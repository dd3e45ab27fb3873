"""Request bodies: how much memory they may take together, counted from the first byte until the answer is sent."""

from collections.abc import Iterator
from contextlib import contextmanager

from bertkit.serve.refusals import Refusal
from bertkit.serve.settings import LARGE, ServeSettings

VALUE_BYTES = 64  # of memory for a number or a short text: 24 to 56 for the object, 8 for the reference to it
WIDEST = 4  # bytes that Python takes for each character of a text with one emoji in it
COLLECTION = 16  # values that a list, an object or a key counts as: parsing and freeing one takes as long


class Bodies:
    """The memory that all requests inside take; one that has no room left is refused with 429."""

    def __init__(self, limits: ServeSettings) -> None:
        self.limits = limits
        self.taken = 0

    @contextmanager
    def body(self) -> Iterator["Body"]:
        """A new body, which counts until the block ends."""
        body = Body(self)
        try:
            yield body
        finally:
            self.taken -= body.taken


class Body:
    """One body as it comes in, part by part; it is refused as soon as it is too large."""

    def __init__(self, bodies: Bodies) -> None:
        self.taken = 0
        self._bodies = bodies
        self._data = bytearray()
        self._counted = 0  # bytes whose values are counted
        self._values = ValueCounter()

    def add(self, part: bytes) -> None:
        """The next bytes."""
        limits = self._bodies.limits
        self._data += part
        if len(self._data) > limits.max_body:
            raise too_large(limits)
        self._take(len(part))
        if len(self._data) > LARGE:
            self._count_values()

    def end(self) -> None:
        """All has come: count what it takes once it is parsed."""
        self._take(VALUE_BYTES * self._values.total + (WIDEST - 1) * len(self._data) * self._values.wide)

    def whole(self) -> bytes:
        """All bytes, which are not kept here any longer."""
        data, self._data = self._data, bytearray()
        return bytes(data)

    def _count_values(self) -> None:
        most = self._bodies.limits.max_values
        self._values.add(bytes(self._data[self._counted :]))
        self._counted = len(self._data)
        if self._values.total > most:
            said = f"a request may have {most:,} JSON values, where each list, object or key counts as {COLLECTION}"
            raise Refusal(413, f"{said}; send fewer texts at a time")

    def _take(self, size: int) -> None:
        self.taken += size
        self._bodies.taken += size
        if self._bodies.taken > self._bodies.limits.max_bodies:
            raise Refusal(429, "too much is being sent at once; try again", headers={"Retry-After": "1"})


class ValueCounter:
    """The cost of the values of a JSON text that comes in parts, without parsing it; what is inside strings is free."""

    def __init__(self) -> None:
        self.total = 0
        self.wide = False  # whether there is a character that is not ASCII
        self._inside = False  # a string
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
        outside = b"".join(pieces[self._inside :: 2])
        self._inside ^= len(pieces) % 2 == 0
        self.total += outside.count(b",") + COLLECTION * sum(map(outside.count, (b"[", b"{", b":")))


def too_large(limits: ServeSettings) -> Refusal:
    """What a client with too large a body is told."""
    return Refusal(413, f"a request may have {limits.max_body:,} bytes; send fewer texts at a time")
