"""The index of a TensorFlow checkpoint: a sorted table in LevelDB's format, one protocol buffer for each variable.

The table has blocks of prefix-compressed (key, value) pairs. Nothing in it is trusted.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bertkit.checkpoint.crc32c import crc32c, masked

MAGIC = 0xDB4775248B80FB57
FOOTER_BYTES = 48
TRAILER_BYTES = 5  # after each block: one byte of compression type, four of checksum
# A real index is far smaller (SimBERT's has 3 kB); these limits keep a hostile one from filling memory.
MAX_NAME_BYTES = 1024
MAX_SHARDS = 10_000
MAX_ELEMENTS = 1 << 40
MAX_DIMENSIONS = 32

# TensorFlow's number of a dtype -> numpy's dtype. numpy has no bfloat16: `google._decode` widens its bits.
STRING, BFLOAT16 = 7, 14
STORED_DTYPES = {1: "<f4", 2: "<f8", 3: "<i4", 4: "u1", 5: "<i2", 6: "i1", 9: "<i8", 10: "?"}
STORED_DTYPES |= {BFLOAT16: "<u2", 17: "<u2", 19: "<f2", 22: "<u4", 23: "<u8"}

COPY_AGAIN = "copy or download the checkpoint again"
SAVE_AGAIN = "load it in TensorFlow and save it again with tf.compat.v1.train.Saver()"


class Unreadable(Exception):
    """A problem in the index, and its remedy; `google._read_variables` adds the file's name."""

    def __init__(self, problem: str, remedy: str = COPY_AGAIN) -> None:
        super().__init__(f"{problem}; {remedy}")


@dataclass(frozen=True)
class Entry:
    """A variable: `size` bytes at `offset` of data file number `shard`."""

    name: str
    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int


def parse_index(table: bytes) -> tuple[int, list[Entry]]:
    """The number of data files, and the entry of every variable."""
    pairs = _pairs(table)
    key, value = next(pairs, (b"no header", b""))
    numbers, _ = _fields(value)
    shards = numbers.get(1, 0)
    if key or not 1 <= shards <= MAX_SHARDS:
        raise Unreadable("is damaged: its header is wrong")
    if numbers.get(2, 0):
        raise Unreadable("is big-endian, and bertkit reads only little-endian checkpoints", SAVE_AGAIN)
    return shards, [_parse_entry(key, value, shards) for key, value in pairs]


def _pairs(table: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Every (key, value) of the table; blocks and keys must ascend, so that no hostile handle repeats a block."""
    if len(table) < FOOTER_BYTES or int.from_bytes(table[-8:], "little") != MAGIC:
        raise Unreadable("is not a checkpoint index, or its end is missing")
    _, index = _handles(table[-FOOTER_BYTES:-8], 2)  # the first is the meta-index, which is empty
    end, last = 0, None
    for _, handle in _block_pairs(_block(table, *index)):
        [(offset, size)] = _handles(handle, 1)
        if offset < end:
            raise Unreadable("is damaged: its blocks overlap")
        end = offset + size
        for key, value in _block_pairs(_block(table, offset, size)):
            if last is not None and key <= last:
                raise Unreadable("is damaged: its names are out of order")
            last = key
            yield key, value


def _handles(data: bytes, count: int) -> list[tuple[int, int]]:
    """(offset, size) of `count` blocks."""
    cursor = _Cursor(data)
    return [(cursor.varint(), cursor.varint()) for _ in range(count)]


def _block(table: bytes, offset: int, size: int) -> bytes:
    """One block's contents, its checksum verified."""
    block, trailer = table[offset : offset + size], table[offset + size : offset + size + TRAILER_BYTES]
    if len(trailer) < TRAILER_BYTES:
        raise Unreadable("is damaged: a block lies outside the file")
    if masked(crc32c(np.frombuffer(block + trailer[:1], np.uint8))) != int.from_bytes(trailer[1:], "little"):
        raise Unreadable("is damaged: the checksum of a block is wrong")
    if trailer[0]:
        raise Unreadable("is compressed (snappy), and bertkit reads only plain checkpoints", SAVE_AGAIN)
    return block


def _block_pairs(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The pairs of one block: each key is a prefix of the one before plus its own bytes."""
    restarts = int.from_bytes(block[-4:], "little")  # entries of the array for binary search after the pairs
    if len(block) < 4 + 4 * restarts:
        raise Unreadable("is damaged: a block is too short")
    cursor = _Cursor(block[: len(block) - 4 - 4 * restarts])
    key = b""
    while cursor.more():
        shared, rest, size = cursor.varint(), cursor.varint(), cursor.varint()
        if shared > len(key) or shared + rest > MAX_NAME_BYTES:
            raise Unreadable("is damaged: a name has a wrong length")
        key = key[:shared] + cursor.take(rest)
        yield key, cursor.take(size)


def _parse_entry(key: bytes, value: bytes, shards: int) -> Entry:
    numbers, parts = _fields(value)
    # Slices of a partitioned variable come first in the table, under binary keys that start with a zero.
    if key.startswith(b"\0") or 7 in parts:
        raise Unreadable("holds a partitioned variable, and bertkit reads only whole ones", SAVE_AGAIN)
    name = _text(key)
    dtype, shape = numbers.get(1, 0), _shape(parts.get(2, []))
    if dtype == STRING:  # TensorFlow 2 stores its object graph so
        raise Unreadable(f"holds text in {name!r}, and bertkit reads only numbers", SAVE_AGAIN)
    if dtype not in STORED_DTYPES:
        raise Unreadable(f"gives {name!r} dtype number {dtype}, which bertkit does not read", SAVE_AGAIN)
    entry = Entry(name, dtype, shape, *(numbers.get(field, 0) for field in (3, 4, 5, 6)))
    needed = math.prod(shape) * np.dtype(STORED_DTYPES[dtype]).itemsize
    if entry.size != needed or entry.offset < 0 or not 0 <= entry.shard < shards:
        raise Unreadable(f"is damaged: size or offset of {name!r} is wrong")
    return entry


def _text(key: bytes) -> str:
    try:
        return key.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Unreadable("is damaged: a name is not UTF-8") from error


def _shape(parts: list[bytes]) -> tuple[int, ...]:
    """The dimensions of a TensorShapeProto; negative ones and those too many or too large for numpy are refused."""
    dimensions = [part for shape in parts for part in _fields(shape)[1].get(2, [])]
    shape = tuple(_fields(dimension)[0].get(1, 0) for dimension in dimensions)
    largest = math.prod(max(size, 1) for size in shape[:MAX_DIMENSIONS])  # numpy has this limit for empty arrays, too
    if min(shape, default=0) < 0 or len(shape) > MAX_DIMENSIONS or largest > MAX_ELEMENTS:
        raise Unreadable("is damaged: a shape is impossible")
    return shape


def _fields(message: bytes) -> tuple[dict[int, int], dict[int, list[bytes]]]:
    """A protocol buffer's fields by number: integers (the last of each), and nested messages."""
    numbers: dict[int, int] = {}
    parts: dict[int, list[bytes]] = {}
    cursor = _Cursor(message)
    while cursor.more():
        field, wire = divmod(cursor.varint(), 8)
        if wire == 0:
            value = cursor.varint()
            numbers[field] = value - (value >> 63 << 64)  # 64-bit two's complement
        elif wire == 2:
            parts.setdefault(field, []).append(cursor.take(cursor.varint()))
        elif wire in (1, 5):
            numbers[field] = int.from_bytes(cursor.take(8 if wire == 1 else 4), "little")
        else:
            raise Unreadable("is damaged: a field is of no known kind")
    return numbers, parts


class _Cursor:
    """Reads bytes in order, and refuses to read past their end."""

    def __init__(self, data: bytes) -> None:
        self.data, self.position = data, 0

    def more(self) -> bool:
        return self.position < len(self.data)

    def take(self, size: int) -> bytes:
        self.position += size
        if self.position > len(self.data):
            raise Unreadable("is damaged: an entry is cut off")
        return self.data[self.position - size : self.position]

    def varint(self) -> int:
        """A number in groups of seven bits, the lowest first, the eighth bit set on all but the last."""
        value = 0
        for shift in range(0, 70, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & (1 << 64) - 1
        raise Unreadable("is damaged: a number does not end")
