"""The fast tokenizer: what comes out of it, from threads and forks too, and the texts it refuses."""

import os
import pickle
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from bertkit.errors import RequestError
from bertkit.text.tokenizer import Encoding, Tokenizer
from bertkit.text.wordpiece import SPECIALS

PIECES = [*SPECIALS, "the", "un", "##aff", "##able", "cat", ",", "A", "中"]


@pytest.fixture
def small() -> Tokenizer:
    return Tokenizer.from_vocab(PIECES)


def test_one_text(small):
    encoding = small.encode("The unaffable cat, [MASK]!")
    assert encoding == Encoding(
        ids=(2, 5, 6, 7, 8, 9, 10, 4, 1, 3),
        segments=(0,) * 10,
        offsets=((0, 0), (0, 3), (4, 6), (6, 9), (9, 13), (14, 17), (17, 18), (19, 25), (25, 26), (0, 0)),
        words=(None, 0, 1, 1, 1, 2, 3, 4, 5, None),
    )
    assert len(encoding) == 10
    assert encoding.special == (True, *[False] * 8, True)
    assert small.tokens(encoding.ids)[1:-1] == ["the", "un", "##aff", "##able", "cat", ",", "[MASK]", "[UNK]"]


def test_the_last_separator_of_a_pair_is_in_segment_one(small):
    pair = small.encode("the cat", "cat")
    assert pair.ids == (2, 5, 9, 3, 9, 3)
    assert pair.segments == (0, 0, 0, 0, 1, 1)
    assert pair.part == (None, 0, 0, None, 1, None)


@pytest.mark.parametrize("pair", [("", "the"), ("the", ""), ("", "")])
def test_pairs_with_nothing_in_them(small, pair):
    encoding = small.encode(*pair)
    middle = [5] if pair[0] else []
    assert list(encoding.ids) == [2, *middle, 3, *([5] if pair[1] else []), 3]
    assert [part for part in encoding.part if part is not None] == [i for i, text in enumerate(pair) if text]


def test_empty_strings_and_empty_batches(small):
    assert small.encode("").ids == small.encode(" \n").ids == (2, 3)
    assert small.encode_batch([]) == small.encode_ids([]) == small.count([]) == []
    assert small.encode_words([]).ids == (2, 3)


def test_properties(small):
    assert (small.pad_id, small.unknown_id, small.cls_id, small.sep_id, small.mask_id) == (0, 1, 2, 3, 4)
    assert (small.size, small.mask_token, small.lowercase) == (len(PIECES), "[MASK]", True)
    assert small.vocab["##aff"] == 7
    with pytest.raises(TypeError):
        small.vocab["new"] = 99
    assert not Tokenizer.from_vocab(PIECES, lowercase=False).lowercase


def test_encodings_are_frozen_and_light(small):
    encoding = small.encode("the")
    with pytest.raises(AttributeError):
        encoding.ids = ()
    assert not hasattr(encoding, "__dict__")


def test_words_given_apart(small):
    encoding = small.encode_words(["unaffable", "the,", "", "cat"])
    assert encoding.words == (None, 0, 0, 0, 1, 1, 3, None)
    assert encoding.offsets[1:-1] == ((0, 2), (2, 5), (5, 9), (0, 3), (3, 4), (0, 3))


def test_decoding(small):
    ids = small.encode("The unaffable cat, [MASK]").ids
    assert small.decode(ids) == "the unaffable cat,"
    assert small.decode(np.array(ids), skip_special=False) == "[CLS] the unaffable cat, [MASK] [SEP]"
    assert small.decode([]) == ""


@pytest.mark.parametrize("bad", [-1, len(PIECES), 2**40, 1.5, None, "the"])
def test_an_id_outside_the_vocabulary_is_named(small, bad):
    for call in (small.decode, small.tokens):
        with pytest.raises(RequestError, match=r"ids\[1\] is .* which no piece of this vocabulary of 13 has"):
            call([5, bad])


def test_a_million_characters(small):
    began = time.monotonic()
    assert len(small.encode("the cat, " * 111_112)) == 3 * 111_112 + 2
    assert small.encode("a" * 1_000_000).ids == (2, 1, 3)
    assert small.encode("\u0301" * 1_000_000).ids == (2, 3)
    assert len(small.encode("中" * 1_000_000)) == 1_000_002
    assert time.monotonic() - began < 30  # about 4 s on two cores


def test_threads_share_a_tokenizer(small):
    texts = ["the cat"] * 200
    with ThreadPoolExecutor(8) as pool:
        batches = list(pool.map(lambda _: small.encode_batch(texts), range(32)))
    assert batches == [small.encode_batch(texts)] * 32


def test_pickling_keeps_everything(small):
    again = pickle.loads(pickle.dumps(small))
    assert again.hash == small.hash
    assert again.encode("the cat", "cat") == small.encode("the cat", "cat")


FORKS = """
import multiprocessing, os, sys
from bertkit.text.tokenizer import Tokenizer
tokenizer = Tokenizer.from_vocab(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])
texts = ["a b"] * 3000
def count(_):
    return len(tokenizer.encode_batch(texts))
before = count(0)
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(before, *pool.map(count, range(2)), count(0), os.environ.get("TOKENIZERS_PARALLELISM"))
"""


@pytest.mark.parametrize("setting", [None, "true", "false"])
def test_forks_neither_hang_nor_warn(setting):
    """The library's threads do not survive a fork; left alone, a child with "true" hangs for ever."""
    environment = {key: value for key, value in os.environ.items() if key != "TOKENIZERS_PARALLELISM"}
    environment |= {"TOKENIZERS_PARALLELISM": setting} if setting else {}
    done = subprocess.run(
        [sys.executable, "-c", FORKS], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["3000"] * 4 + [str(setting)]
    assert done.stderr == ""


@pytest.mark.parametrize("bad", [None, 3, 1.5, b"bytes", ["a", "list"], ("a", "pair")])
def test_what_is_not_text_is_named(small, bad):
    for call in (small.encode_batch, small.encode_ids, small.count, small.encode_words):
        with pytest.raises(RequestError, match=r"\[1\] is .*; give a str"):
            call(["fine", bad])
    with pytest.raises(RequestError, match=r"pairs\[1\] is .*; give a str"):
        small.encode_batch(["a", "b"], ["fine", bad])
    with pytest.raises(RequestError, match=r"the text is .*; give a str"):
        small.encode(bad)


def test_lone_surrogates_are_named(small):
    with pytest.raises(RequestError, match=r"texts\[1\] holds the lone surrogate U\+DC80 at character 2"):
        small.encode_batch(["fine", "é \udc80"])
    with pytest.raises(RequestError, match=r"the pair holds the lone surrogate U\+D800 at character 0"):
        small.encode("fine", "\ud800")
    with pytest.raises(RequestError, match=r"words\[1\] holds the lone surrogate"):
        small.encode_words(["fine", "\ud800"])
    with pytest.raises(RequestError, match=r"sentences\[1\]\[0\] holds the lone surrogate"):
        small.encode_words_batch([[], ["\ud800"]])


def test_one_text_where_a_list_belongs_is_refused(small):
    for call in (small.encode_batch, small.encode_ids, small.count, small.encode_words):
        with pytest.raises(RequestError, match="is one str where a list belongs"):
            call("the cat")
    with pytest.raises(RequestError, match="2 texts came with 1 pairs"):
        small.encode_batch(["a", "b"], ["c"])


def test_batches_can_be_arrays_and_generators(small):
    expected = small.encode_batch(["the", "cat"])
    assert small.encode_batch(np.array(["the", "cat"])) == expected
    assert small.encode_batch(text for text in ("the", "cat")) == expected
