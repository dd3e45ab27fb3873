"""The readable WordPiece: equal to the library on every code point, and training as the papers tell it."""

import random
import unicodedata
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordPiece
from tokenizers.normalizers import NFD, BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from bertkit.errors import RequestError
from bertkit.text import wordpiece
from bertkit.text.wordpiece import SPECIALS, Piece, Word, basic_words, longest_match, train, wordpieces

# All planes that hold characters; of the empty planes 4 to 13 and the private ones at the end, every 97th.
EVERY_CODE = [*range(0xD800), *range(0xE000, 0x40000), *range(0x40000, 0xE0000, 97), *range(0xE0000, 0xE1000)]
EVERY_CHARACTER = [chr(code) for code in (*EVERY_CODE, *range(0xE1000, 0x110000, 97), 0x10FFFF)]
CHUNKS = [EVERY_CHARACTER[i : i + 1024] for i in range(0, len(EVERY_CHARACTER), 1024)]


def only(**flags: bool) -> BertNormalizer:
    """The library's normalizer with one step switched on."""
    off = {"clean_text": False, "handle_chinese_chars": False, "strip_accents": False, "lowercase": False}
    return BertNormalizer(**(off | flags))


def differing(ours, theirs) -> list[str]:
    """Characters on which the two functions differ, looked for by the thousand."""
    return [
        f"U+{ord(char):04X}"
        for chunk in CHUNKS
        if "".join(map(ours, chunk)) != theirs("".join(chunk))
        for char in chunk
        if ours(char) != theirs(char)
    ]


def library_words(text: str, backend: Backend) -> list[tuple[str, int, int]]:
    """The library's words: its normalized texts, with the offsets a vocabulary of nothing but [UNK] gives."""
    texts = [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(backend.normalizer.normalize_str(text))]
    offsets = backend.encode(text).offsets
    assert len(texts) == len(offsets)
    return [(word, start, end) for word, (start, end) in zip(texts, offsets, strict=True)]


def unknown_backend(lowercase: bool, strip_accents: bool | None, split_cjk: bool) -> Backend:
    backend = Backend(WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
    backend.normalizer = BertNormalizer(True, split_cjk, strip_accents, lowercase)
    backend.pre_tokenizer = BertPreTokenizer()
    return backend


# The library's tables and Python's differ; these five tests say that the lists of exceptions are right and whole
# for the Python and the library that run them. A new Unicode version in either shows up here first.


def test_cleaning_equals_the_library_on_every_character():
    assert differing(wordpiece._clean, only(clean_text=True).normalize_str) == []


def test_lower_case_equals_the_library_on_every_character():
    assert differing(wordpiece._lower, only(lowercase=True).normalize_str) == []


def test_ideographs_equal_the_library_on_every_character():
    def spaced(char: str) -> str:
        return f" {char} " if wordpiece._is_cjk(char) else char

    assert differing(spaced, only(handle_chinese_chars=True).normalize_str) == []


def test_marks_and_decompositions_equal_the_library_on_every_character():
    def stripped(char: str) -> str:  # "a" between, so that no mark moves past another
        return "a" + "".join(p for p in wordpiece._decomposition(char) if wordpiece._category(p) != "Mn")

    normalizer = only(strip_accents=True)
    assert differing(stripped, lambda chars: normalizer.normalize_str("".join(f"a{c}" for c in chars))) == []


def test_combining_classes_equal_the_library():
    """A mark of the highest class before and one of the lowest after: any third class moves past one of them."""
    marks = [char for char in EVERY_CHARACTER if ord(char) < 0x20000 or 0xE0000 <= ord(char) < 0xE0200]
    for i in range(0, len(marks), 512):
        text = "".join(f"a\u0345{char}\u0334" for char in marks[i : i + 512])
        ours = "".join(part for part, _ in wordpiece._decomposed([(char, (0, 0)) for char in text]))
        assert ours == NFD().normalize_str(text), f"between U+{ord(marks[i]):04X} and 512 further"


def test_punctuation_equals_the_library_on_every_character():
    splitter = BertPreTokenizer()
    for chunk in CHUNKS:
        kept = [char for char in chunk if wordpiece._clean(char) == char != " "]
        theirs = [word for word, _ in splitter.pre_tokenize_str(" ".join(f"a{char}a" for char in kept))]
        ours = []
        for char in kept:
            ours += ["a", char, "a"] if wordpiece._is_punctuation(char) else [f"a{char}a"]
        assert ours == theirs


@pytest.mark.parametrize(
    "table", [wordpiece.CJK_RANGES, wordpiece.ADDED_AFTER_8, wordpiece.ADDED_AFTER_9, *wordpiece.LOWERCASE]
)
def test_ranges_are_in_order(table):
    ranges = wordpiece._ranges(table)
    assert all(first <= last for first, last in ranges)
    assert all(last < first for (_, last), (first, _) in pairwise(ranges))


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("strip_accents", [None, True, False])
@pytest.mark.parametrize("split_cjk", [True, False])
def test_words_equal_the_library_on_runs_of_marks(lowercase, strip_accents, split_cjk):
    """Sorting marks is where offsets go astray: strings rich in marks and in characters that decompose to them."""
    rng = random.Random(5)
    backend = unknown_backend(lowercase, strip_accents, split_cjk)
    marks = [char for char in EVERY_CHARACTER if unicodedata.combining(char)]
    composed = [char for char in EVERY_CHARACTER if unicodedata.decomposition(char)]
    alphabets = (marks, marks, composed, EVERY_CHARACTER[:0x3000], list(" aA,中\u3000\u1b44"))
    for _ in range(500):
        text = "".join(rng.choice(rng.choice(alphabets)) for _ in range(rng.randint(1, 12)))
        words = basic_words(text, lowercase=lowercase, strip_accents=strip_accents, split_cjk=split_cjk)
        assert [(w.text, w.start, w.end) for w in words] == library_words(text, backend), ascii(text)


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_words_equal_the_library(text):
    words = basic_words(text, lowercase=True)
    assert [(w.text, w.start, w.end) for w in words] == library_words(text, unknown_backend(True, None, True))


def test_words_know_where_every_character_came_from():
    [first, second] = basic_words("Ünï\u0301 İ", lowercase=True)
    assert first == Word("uni", 0, 3, ((0, 1), (1, 2), (2, 3)))
    assert second == Word("i", 5, 6, ((5, 6),))
    [hangul] = basic_words("한", lowercase=True)
    assert hangul == Word("\u1112\u1161\u11ab", 0, 1, ((0, 1),) * 3)


@pytest.mark.parametrize(
    ("text", "lowercase", "words"),
    [
        ("naïve Café", True, "naive cafe"),
        ("naïve Café", False, "naïve Café"),
        ("hat,", True, "hat ,"),
        ("a$b+c", True, "a $ b + c"),
        ("ab\tc\nd\u3000e\xa0f", True, "ab c d e f"),
        ("a\0b\ufffdc\x07d\u200be\ue000f", True, "abcdef"),
        ("中文ab字", True, "中 文 ab 字"),
        ("ΟΔΥΣΣΕΥΣ", True, "οδυσσευσ"),  # no final sigma
        ("", True, ""),
        (" \t\n ", True, ""),
        ("\u0301\u0302", True, ""),
    ],
)
def test_words(text, lowercase, words):
    assert [word.text for word in basic_words(text, lowercase=lowercase)] == words.split()


@pytest.mark.parametrize(
    ("word", "pieces"),
    [
        ("playing", "play ##ing"),
        ("playful", "[UNK]"),
        ("ingplay", "[UNK]"),
        ("play", "play"),
        ("p" * 100, "p" + " ##p" * 99),
        ("p" * 101, "[UNK]"),
    ],
)
def test_longest_match(word, pieces):
    vocabulary = {"play", "##ing", "##in", "##g", "pl", "p", "##p", "[UNK]"}
    assert longest_match(word, vocabulary) == pieces.split()


def test_pieces_have_places_and_words():
    vocabulary = {"play", "##ing", "[UNK]", "[MASK]", ","}
    assert wordpieces("Playing, [MASK]PLAY zzz", vocabulary, lowercase=True) == [
        Piece("play", 0, 4, 0),
        Piece("##ing", 4, 7, 0),
        Piece(",", 7, 8, 1),
        Piece("[MASK]", 9, 15, 2),
        Piece("play", 15, 19, 3),
        Piece("[UNK]", 20, 23, 4),
    ]
    without = wordpieces("[MASK]", vocabulary, lowercase=True, specials=())
    assert [piece.text for piece in without] == ["[UNK]"] * 3


def pieces_of(text: str, vocabulary: set[str]) -> str:
    return " ".join(piece.text for piece in wordpieces(text, vocabulary, lowercase=True))


def test_published_examples(uncased_vocab):
    """SPEC T3, T4, T5, T7, T8, T10 with the released uncased vocabulary."""
    vocabulary = set(uncased_vocab.read_text(encoding="utf-8").split("\n"))
    examples = {
        "embeddings": "em ##bed ##ding ##s",
        "ensurance": "en ##sur ##ance",
        "insured": "ins ##ured",
        "philammon": "phil ##am ##mon",
        "playing": "playing",
        "kroxldyph": "k ##ro ##x ##ld ##yp ##h",
        "😀": "[UNK]",
        "a" * 101: "[UNK]",
        "hat,": "hat ,",
        "naïve Café": "naive cafe",
        "flabbergast": "fl ##ab ##berg ##ast",
        "flabbergasts": "fl ##ab ##berg ##ast ##s",
        "flabbergasted": "fl ##ab ##berg ##ast ##ed",
        "flabbergasting": "fl ##ab ##berg ##ast ##ing",
    }
    assert {text: pieces_of(text, vocabulary) for text in examples} == examples


def test_only_white_space_is_discarded(cased_vocab):
    """SPEC T8: cased, without accent stripping, each other character is under exactly one piece."""
    vocabulary = set(cased_vocab.read_text(encoding="utf-8").split("\n"))
    text = "Só, naïve  Café: 中文\u3000and “quotes”,\nunaffable—don't 😀😀 x" + "y" * 120
    covered = [i for p in wordpieces(text, vocabulary, lowercase=False) for i in range(p.start, p.end)]
    assert covered == [i for i, char in enumerate(text) if not char.isspace()]


COUNTS = {"hug": 10, "pug": 5, "pun": 12, "bun": 4, "hugs": 5}


def test_training_by_hand():
    # (##u, ##g) 20 times, then (##u, ##n) 16, then (h, ##ug) 15, (p, ##un) 12, (hug, ##s) 5 = (p, ##ug) 5.
    alphabet = [piece for char in "bghnpsu" for piece in (char, f"##{char}")]
    merges = ["##ug", "##un", "hug", "pun", "hugs", "pug", "bun"]
    assert train(COUNTS, 5 + 14 + 7) == [*SPECIALS, *alphabet, *merges]
    assert train(COUNTS, 5 + 14 + 2)[-2:] == ["##ug", "##un"]


def test_training_does_not_depend_on_the_order_of_the_words():
    assert train(COUNTS, 24) == train(dict(reversed(COUNTS.items())), 24)


def test_ties_go_to_the_pair_that_sorts_first():
    # Both pairs occur 3 times; "##" sorts before letters.
    assert train({"xyz": 3}, 5 + 6 + 1)[-1] == "##yz"
    assert train({"cd": 3, "ab": 3}, 5 + 8 + 2)[-2:] == ["ab", "cd"]


def test_overlapping_neighbors_merge_from_the_left():
    assert train({"aaaa": 2}, 5 + 2 + 3)[-3:] == ["##aa", "##aaa", "aaaa"]


def test_two_ways_to_one_piece_count_once():
    # ("a", "##bc") and ("ab", "##c") both make "abc".
    vocabulary = train({"abc": 5, "bc": 1, "zbc": 9, "ab": 50, "abcd": 3}, 5 + 10 + 5)
    assert len(vocabulary) == len(set(vocabulary)) == 20


def test_rare_characters_are_cut_with_their_words():
    vocabulary = train({"ab": 9, "aé": 2, "ba": 5}, 5 + 4 + 1, alphabet_limit=2)
    assert vocabulary[5:] == ["a", "##a", "b", "##b", "ab"]


def test_at_the_limit_of_the_alphabet_lower_code_points_stay():
    assert train({"b": 1, "a": 1, "c": 1}, 9, alphabet_limit=2)[5:] == ["a", "##a", "b", "##b"]


def test_a_corpus_that_cannot_give_the_size_says_how_many():
    with pytest.raises(RequestError, match=r"at most 26 pieces and 100 were asked for; ask for 26 or fewer"):
        train(COUNTS, 100)
    with pytest.raises(RequestError, match=r"at most 7 pieces"):
        train({"ab": 1, "a": 1, "b": 1}, 10, alphabet_limit=1)
    with pytest.raises(RequestError, match=r"at most 5 pieces"):
        train({}, 6)


def test_rare_pairs_are_no_pieces():
    with pytest.raises(RequestError, match=r"at most 9 pieces"):
        train({"ab": 1}, 10)
    assert train({"ab": 1}, 10, min_count=1)[-1] == "ab"


def test_a_size_below_the_alphabet_is_refused():
    with pytest.raises(RequestError, match=r"ask for at least 19 or lower the alphabet limit"):
        train(COUNTS, 18)
    assert len(train(COUNTS, 19)) == 19


def test_an_empty_word_is_no_word():
    assert train({"": 7, "ab": 2}, 10)[-1] == "ab"


def test_other_specials():
    assert train({"ab": 2}, 6, specials=("<pad>",)) == ["<pad>", "a", "##a", "b", "##b", "ab"]
