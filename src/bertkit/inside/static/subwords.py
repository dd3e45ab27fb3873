"""fastText's n-grams: parts of a word that it shares with others, so that an unseen word has a vector too."""

from collections.abc import Iterator

FIRST, PRIME = 2166136261, 16777619  # FNV-1a, 32 bits


def ngrams(word: str, shortest: int, longest: int) -> Iterator[str]:
    """Every run of so many characters of <word>, ends marked; <word> itself is no n-gram but a row of its own."""
    marked = f"<{word}>"
    for size in range(shortest, longest + 1):
        for start in range(len(marked) - size + 1):
            if size < len(marked):
                yield marked[start : start + size]


def bucket(ngram: str, buckets: int) -> int:
    """Which of the shared rows an n-gram has: FNV-1a of its UTF-8, the same on every machine."""
    value = FIRST
    for byte in ngram.encode("utf-8", "surrogatepass"):
        value = ((value ^ byte) * PRIME) & 0xFFFFFFFF
    return value % buckets


def ngram_buckets(word: str, shortest: int, longest: int, buckets: int) -> list[int]:
    """The shared rows of a word's n-grams, counted from 0."""
    return [bucket(ngram, buckets) for ngram in ngrams(word, shortest, longest)]
