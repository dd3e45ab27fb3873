"""Names in a tokenized text: found as a slow search finds them."""

from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shard_helpers import Sentence, unpacked

from bertkit.text.shards.entities import EntityFinder, read_names
from bertkit.text.shards.maker import tokenize_block
from bertkit.text.shards.sentence_ids import LibraryIds
from bertkit.text.shards.table_ids import load_encoder
from bertkit.text.wordpiece import SPECIALS

PIECES = ["the", "un", "##aff", "##able", "cat", ".", ",", "paris", "new", "york", "city", "##s"]
NAMES = ["New York", "new york city", "Paris", "the cat", "cats", "unaffable", "", "unknown Paris"]


@cache
def encoder_in(folder: Path) -> LibraryIds:
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in [*SPECIALS, *PIECES]))
    return load_encoder(folder)


def found_slowly(documents: list[list[Sentence]], names: set[tuple[int, ...]]) -> list[list[int]]:
    """Every place tried in turn with every name, the longest first."""
    spans, base = [], 0
    for ids, starts in (sentence for document in documents for sentence in document):
        at = 0
        while at < len(ids):
            for name in sorted(names, key=len, reverse=True):
                end = at + len(name)
                whole = starts[at] and (end == len(ids) or (end < len(ids) and starts[end]))
                if whole and tuple(ids[at:end]) == name:
                    spans.append([base + at, base + end])
                    at = end - 1
                    break
            at += 1
        base += len(ids)
    return spans


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("names")


@given(
    st.lists(st.sampled_from([*NAMES, "the", "cat", "city", "new", "zebra", ".", "york.", "unaffables"]), max_size=20)
)
def test_names_are_found_as_a_slow_search_finds_them(folder, words):
    encoder = encoder_in(folder)
    finder = EntityFinder(NAMES, encoder)
    content = tokenize_block(" ".join(words).encode(), encoder, finder)
    forms = [encoder.encode([name]).ids.tolist() for name in NAMES]
    names = {tuple(form) for form in forms if form and encoder.unknown not in form}
    assert len(names) == 6
    assert content.arrays["entities"].tolist() == found_slowly(unpacked(content.arrays), names)


def test_names_are_read_once_each(tmp_path):
    (tmp_path / "names.txt").write_text("\ufeffParis \r\n\r\nNew York\nParis\n", encoding="utf-8")
    assert read_names(tmp_path / "names.txt") == ["Paris", "New York"]
