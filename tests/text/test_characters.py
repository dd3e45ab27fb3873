"""Spans of characters: accents stay with their letter, and nothing overlaps."""

from bertkit.text.characters import with_marks, word_spans
from bertkit.text.tokenizer import Tokenizer


def test_accents_that_stand_apart_belong_to_the_span_before_them():
    text = "cafe\u0301\u0301 x\u0323 y"
    assert with_marks([(0, 4), (7, 8), (10, 11)], text) == ((0, 6), (7, 9), (10, 11))
    assert with_marks([(0, 4), (4, 5)], "cafe\u0301") == ((0, 4), (4, 5)), "but for those that another span holds"
    assert with_marks([(0, 1), (0, 1)], "é\u0301") == ((0, 1), (0, 2)), "tokens of one character: the last takes it"
    assert with_marks([(0, 4)], "cafe x") == ((0, 4),)
    assert with_marks([], "\u0301") == ()


def test_words_of_a_text(uncased_vocab):
    tokenizer = Tokenizer.from_vocab(uncased_vocab)
    text = " Unbelievably\u200b, Ada's 日本 e\u0301\u0301! \x00"
    spans = word_spans(tokenizer.encode(text), text)
    assert [text[a:b] for a, b in spans] == ["Unbelievably", ",", "Ada", "'", "s", "日", "本", "e\u0301\u0301", "!"]
    assert word_spans(tokenizer.encode(""), "") == ()
