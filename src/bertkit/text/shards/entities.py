"""Names → their spans in a tokenized text, which entity masking masks as one unit.

A name matches where its pieces are whole words within one sentence; the longest match is taken, from left to right,
and spans do not overlap. With an uncased vocabulary, names match in any case.
"""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bertkit.errors import RequestError
from bertkit.text.corpus import CorpusReport, read_lines
from bertkit.text.shards.sentence_ids import EncodedTexts, Integers, LibraryIds


def read_names(path: Path | str) -> list[str]:
    """The distinct names in a file, one per line; the file may be compressed."""
    lines = (line.strip() for _, line in read_lines(Path(path), report=CorpusReport()))
    names = list(dict.fromkeys(line for line in lines if line))
    if not names:
        raise RequestError(f"{path} holds no names; write one per line")
    return names


def names_hash(names: Sequence[str]) -> str:
    """SHA-256 of the names, in their order."""
    return hashlib.sha256("\n".join(names).encode()).hexdigest()


class EntityFinder:
    """Finds names by their pieces; a name with an unknown piece is never found."""

    def __init__(self, names: Sequence[str], encoder: LibraryIds) -> None:
        self._names: set[bytes] = set()
        lengths: defaultdict[int, set[int]] = defaultdict(set)
        # Byte-level pieces differ after a space; for other tokenizers both forms are equal.
        encoded = encoder.encode([form for name in names for form in (name, f" {name}")])
        for ids in np.split(encoded.ids, np.cumsum(encoded.lengths)[:-1]):
            if len(ids) and encoder.unknown not in ids:
                self._names.add(ids.tobytes())
                lengths[int(ids[0])].add(len(ids))
        self._lengths = {first: sorted(sizes, reverse=True) for first, sizes in lengths.items()}
        self._size = encoder.size
        self._first = np.zeros(self._size, bool)
        self._first[list(lengths)] = True
        self._pairs = self._first_pairs(encoder.dtype)

    def find(self, texts: EncodedTexts) -> Integers:
        """[spans, 2]: start and end token of each name found, in order; each text is a sentence."""
        ends = np.cumsum(texts.lengths)
        candidates = self._candidates(texts)
        limits = ends[np.searchsorted(ends, candidates, "right")]
        raw, words, width = texts.ids.tobytes(), texts.words.tobytes(), texts.ids.itemsize
        spans, last_stop = [], 0
        for start, limit in zip(candidates.tolist(), limits.tolist(), strict=True):
            if start < last_stop:
                continue
            for length in self._lengths[int(texts.ids[start])]:
                stop = start + length
                ends_word = stop == limit or (stop < limit and words[stop])
                if ends_word and raw[start * width : stop * width] in self._names:
                    spans.append((start, stop))
                    last_stop = stop
                    break
        return np.array(spans, np.int64).reshape(-1, 2)

    def _candidates(self, texts: EncodedTexts) -> Integers:
        """Word starts with the first piece of a name, followed by its second one unless the name may have only one."""
        starts = np.flatnonzero(self._first[texts.ids] & (texts.words == 1))
        following = np.minimum(starts + 1, len(texts.ids) - 1)
        keys = texts.ids[starts].astype(np.int64) * self._size + texts.ids[following]
        single = np.array([first for first, lengths in self._lengths.items() if 1 in lengths], np.int64)
        return starts[np.isin(keys, self._pairs) | np.isin(texts.ids[starts], single)]

    def _first_pairs(self, dtype: np.dtype[np.unsignedinteger]) -> Integers:
        longer = [np.frombuffer(name, dtype)[:2] for name in self._names if len(name) > dtype.itemsize]
        return np.array([int(first) * self._size + int(second) for first, second in longer], np.int64)
