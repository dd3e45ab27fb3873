"""Limits on requests: bytes, JSON values and memory of bodies; number and length of texts; size of replies."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from bertkit.errors import RequestError
from bertkit.serve.refusals import Refusal
from bertkit.serve.settings import LARGE, ServeSettings
from bertkit.text.length import LengthReport, TooLong, report_lengths

VALUE_BYTES = 64  # of memory for a number or a short text: 24 to 56 for the object, 8 for the reference to it
WIDE_BYTES = 4  # that Python takes for each character of a text with one emoji in it
SIZED = (str, list, tuple)
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


def check_count(texts: Sequence[object], field: str, settings: ServeSettings) -> None:
    """Refuse more texts than one request may have."""
    if len(texts) > settings.max_texts:
        raise Refusal(413, f"{field} has {len(texts):,} texts; at most {settings.max_texts:,} go in a request", field)


def check_texts(texts: Sequence[object], field: str, settings: ServeSettings) -> None:
    """Refuse more, or longer, texts than one request may have."""
    if not texts:
        raise Refusal(422, f"{field} is empty; give one text at least", field)
    check_count(texts, field, settings)
    for number, text in enumerate(texts):
        size = len(text) if isinstance(text, SIZED) else 0
        if size > settings.max_characters:
            limit = settings.max_characters
            raise Refusal(
                413, f"{field}[{number}] has {size:,} characters, over the {limit:,} of one text; split it", field
            )


def check_size(numbers: int, remedy: str, settings: ServeSettings) -> None:
    """Refuse a reply that would fill the memory."""
    if numbers > settings.max_numbers:
        raise Refusal(413, f"the reply would have {numbers:,} numbers, over {settings.max_numbers:,}; {remedy}")


def check_held(numbers: int, settings: ServeSettings) -> None:
    """Refuse a request whose long texts would fill the memory before their vectors are pooled."""
    if numbers > settings.max_held:
        raise Refusal(
            413,
            f"long texts through windows would keep {numbers:,} numbers, over {settings.max_held:,}; send fewer or "
            "shorter texts at a time, or ask for fewer layers",
        )


def reported(
    lengths: Sequence[int], limit: int, too_long: TooLong, field: str, where: Callable[[int], str]
) -> LengthReport:
    """Which texts are over the limit; refused where that is the policy."""
    try:
        return report_lengths(lengths, limit, too_long, where=where)
    except RequestError as error:
        raise Refusal(413, str(error), field) from error


def length_policy(asked: TooLong | None, truncate: bool | None, limits: ServeSettings) -> TooLong:
    """The request's policy; truncate=true and false are text-embeddings-inference's words for two of them."""
    if asked is not None:
        return asked
    if truncate is not None:
        return "truncate" if truncate else "refuse"
    return limits.too_long


def fill_policy(asked: TooLong | None, limits: ServeSettings) -> TooLong:
    """The same for texts with blanks, which are read through windows rather than cut, for a blank may be anywhere."""
    return asked or ("refuse" if limits.too_long == "refuse" else "window")


def size_of(texts: Iterable[object]) -> int:
    """About how much there is to read, counted until it is a lot: a million short texts are counted on the loop."""
    size = 0
    for text in texts:
        size += max(1, len(text)) if isinstance(text, SIZED) else 1
        if size > LARGE:
            break
    return size
