"""Sentence splitting: the hard cases by name, nothing lost, linear time."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.text.sentences import split_sentences

# Each case is written with "|" where sentences part.
CASES = [
    "One sentence only",
    "He left. |She stayed. |Why? |Because!",
    "Mr. Smith met Mrs. Jones and Dr. No. |They talked.",
    "MR. SMITH LEFT. |MRS. JONES STAYED.",
    "See e.g. this one, i.e. That one, cf. Smith. |Done.",
    "The U.S. troops and the U.S. Army left the U.S. |The war was over.",
    "It is 3.14 or 2.5 percent. |Version 1.2.3 is out.",
    "J. R. R. Tolkien wrote it. |C. S. Lewis read it. |A. I. Smith did not.",
    "It was plan B. |The team agreed.",
    "He rose at 5 a.m. and left at 6 p.m. |The train was late.",
    "No. 5 is alive, as is Fig. 3 on p. 7. |She said no. |John left.",
    "On Jan. 5 it snowed. |It rained in Dec. |Then came spring.",
    "Apple Inc. was founded by Jobs, Wozniak, etc. |It grew.",
    "John Smith Jr. spoke. |Smith et al. (2010) disagreed.",
    "He lives on Main St. |He likes it. |St. John lives there too.",
    "Wait... |What? |Well... no. |And so on . . . and on. |End.",
    "“Stop!” he said. |“Why?” |“Because.” |‘Fine.’ |(Really.) |[Yes.] |No.",
    '"Stop!" he said. |"Why?" |(He asked.) |So?!',
    "1. First item. |2. Second item. |In 1999. |The end.",
    "Über alles. |École fermée. |Straße. |«Été.» |Fin",
    "Er kam. und ging. |Österreich war da. ärgerlich.",
    "你好。|再见！|「好。」|他说？|是",
    "日本語です。|English. |混ぜる。 |はい",
    "Mixed.no space.here 5.5.5 |",
    "Visit example.com. |Or www.example.org today.",
    "  leading and trailing.  |Spaces.   ",
    "A tab.\t|Then a line.\u2028|And a wide space.\u3000|Done.",
]


@pytest.mark.parametrize("case", CASES)
def test_where_sentences_part(case):
    sentences = [part.strip() for part in case.split("|") if part.strip()]
    text = case.replace("|", "")
    assert [text[start:end] for start, end in split_sentences(text)] == sentences


@given(st.text(st.one_of(st.sampled_from(" \t\n.!?…。！？\"'”)(“aAzZ1\u3000éÉ"), st.characters()), max_size=80))
def test_nothing_but_white_space_is_outside_the_sentences(text):
    spans = split_sentences(text)
    borders = [0, *(place for span in spans for place in span), len(text)]
    assert borders == sorted(borders)
    outside = [text[borders[i] : borders[i + 1]] for i in range(0, len(borders), 2)]
    assert "".join(outside).strip() == ""
    for start, end in spans:
        assert text[start:end] == text[start:end].strip() != ""


@given(st.lists(st.sampled_from(["He left.", "Why not?", "“Go!”", "It is 3.14 now."]), max_size=8))
def test_plain_sentences_are_found_again(sentences):
    text = " ".join(sentences)
    assert [text[start:end] for start, end in split_sentences(text)] == sentences


HOSTILE = {
    "dots": ".",
    "dots and spaces": ". ",
    "dots and quotes": '."',
    "initials": "A. ",
    "abbreviations": "e.g. ",
    "wide stops": "。",
    "spaces": " ",
    "quotes": '"',
    "brackets": ". (((",
    "lower case": ". a",
    "marks": "?! ",
    "mixed": '。. "',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_takes_linear_time(name):
    text = "." + HOSTILE[name] * (300_000 // len(HOSTILE[name]))
    began = time.process_time()
    split_sentences(text)
    # 300,000 characters take 0.3 s at most here; a quadratic way would take minutes.
    assert time.process_time() - began < 5


def test_blank_text_has_no_sentence():
    assert split_sentences("") == split_sentences(" \n\t ") == []
