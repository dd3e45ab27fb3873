"""Text and shards to words as numbers."""

import gzip

import numpy as np
import pytest

from bertkit.errors import RequestError
from bertkit.inside.static.corpus import fingerprints, read_words, words_of_shards, words_of_texts
from bertkit.text.shards.writer import write_shards

TEXT = """The cat saw the dog. The dog, it saw the cat!

Unbelievable: the cat-dog saw 3 dogs... and the dog saw Zürich.
"""


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def spelled(corpus) -> list[list[str]]:
    sentences = zip(corpus.starts[:-1], corpus.starts[1:], strict=True)
    return [[corpus.words[number] for number in corpus.ids[start:stop]] for start, stop in sentences]


def test_words_are_numbered_by_falling_count_and_sentences_keep_their_order(text):
    corpus = words_of_texts([text], min_count=1)
    assert spelled(corpus)[:2] == [["the", "cat", "saw", "the", "dog"], ["the", "dog", "it", "saw", "the", "cat"]]
    assert spelled(corpus)[2][:5] == ["unbelievable", "the", "cat", "dog", "saw"]
    assert corpus.words[0] == "the"
    assert list(corpus.counts) == sorted(corpus.counts, reverse=True)
    assert (np.bincount(corpus.ids) == corpus.counts).all()


def test_rare_words_are_left_out_and_what_stood_around_them_moves_together(text):
    corpus = words_of_texts([text], min_count=3)
    assert set(corpus.words) == {"the", "cat", "saw", "dog"}
    assert spelled(corpus)[1] == ["the", "dog", "saw", "the", "cat"]
    assert len(corpus.ids) == corpus.counts.sum()


def test_case_can_stay(text):
    assert "Zürich" in words_of_texts([text], min_count=1, lowercase=False).words


def test_sentence_numbers_agree_with_the_starts(text):
    corpus = words_of_texts([text], min_count=1)
    numbers = corpus.sentence_numbers(0, len(corpus.ids) + 99)
    expected = [n + 1 for n, words in enumerate(spelled(corpus)) for _ in words]
    assert numbers.tolist() == expected
    assert corpus.sentence_numbers(4, 7).tolist() == expected[4:7]


@pytest.mark.parametrize("block_bytes", [64, 32_000_000])
def test_shards_give_the_words_of_the_text(text, tmp_path, uncased_vocab, block_bytes):
    write_shards([text], uncased_vocab, tmp_path / "shards", processes=1, block_bytes=block_bytes)
    ours, theirs = read_words([tmp_path / "shards"], min_count=1), words_of_texts([text], min_count=1)
    # The vocabulary strips accents; all else, words of several pieces too, is as it was written.
    assert spelled(ours) == [[word.replace("ü", "u") for word in words] for words in spelled(theirs)]


def test_unknown_words_of_shards_are_left_out(tmp_path, uncased_vocab):
    text = tmp_path / "text.txt"
    text.write_text("the cat \U0001f9ff the cat \u16a0\u16a2 saw the cat\n", encoding="utf-8")
    write_shards([text], uncased_vocab, tmp_path / "shards", processes=1)
    assert set(words_of_shards(tmp_path / "shards", min_count=1).words) == {"the", "cat", "saw"}


def test_fingerprints_know_order_length_and_where_words_end():
    pieces = np.array([1, 2, 2, 1, 1, 2, 0, 1, 0, 0], np.uint16)
    begins = np.array([0, 2, 4, 6, 7, 8])
    prints = fingerprints(pieces, begins)
    words = [tuple(part.tolist()) for part in np.split(pieces, begins[1:])]
    for one in range(len(words)):
        for other in range(len(words)):
            assert (prints[one] == prints[other]) == (words[one] == words[other])
    assert len(fingerprints(np.empty(0, np.uint16), np.empty(0, np.int64))) == 0


def test_fingerprints_of_many_words_all_differ():
    rng = np.random.default_rng(0)
    words = {tuple(rng.integers(0, 300, rng.integers(1, 5)).tolist()) for _ in range(200_000)}
    pieces = np.array([piece for word in words for piece in word], np.uint16)
    lengths = np.array([len(word) for word in words])
    assert len(np.unique(fingerprints(pieces, np.cumsum(lengths) - lengths))) == len(words)


def test_compressed_and_jsonl_texts_are_read(text, tmp_path):
    packed = tmp_path / "text.txt.gz"
    packed.write_bytes(gzip.compress(TEXT.encode()))
    assert spelled(read_words([packed], min_count=1)) == spelled(read_words([text], min_count=1))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "text.txt is empty; leave it out"),
        ("... !!! \U0001f600\n", "holds no words; give some text"),
        ("one two three\n", "has 0 words that occur 5 times or more; give more text, or a lower min_count"),
        ("same same same same same same\n", "has 1 words that occur 5 times"),
    ],
)
def test_texts_without_words_are_refused(tmp_path, content, said):
    path = tmp_path / "text.txt"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(RequestError, match=said):
        read_words([path])


def test_shards_and_texts_do_not_mix_and_torn_shards_speak(text, tmp_path, uncased_vocab):
    write_shards([text], uncased_vocab, tmp_path / "shards", processes=1)
    with pytest.raises(RequestError, match="name that folder alone"):
        read_words([tmp_path / "shards", text])
    (tmp_path / "shards" / "shard-00000" / "tokens.bin").write_bytes(b"")
    with pytest.raises(RequestError, match="tokens.bin has 0 bytes"):
        read_words([tmp_path / "shards"])
