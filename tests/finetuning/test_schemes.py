"""Tags and spans: every scheme is told from the others, checked, converted, and read back as it was written."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertkit.data.schemes import (
    SCHEMES,
    Span,
    Violation,
    check_tags,
    convert,
    first_violation,
    join_tag,
    may_follow,
    recognize,
    spans_from_tags,
    split_tag,
    strict_spans,
    tags_from_spans,
)
from bertkit.errors import RequestError

SPAN_SCHEMES = [name for name in SCHEMES if name != "plain"]
LABEL = st.sampled_from(["PER", "LOC", "B-I", "日本", "O", "", "-"])


@st.composite
def sentences(draw, label=LABEL, most=10):
    """(spans, how many words): spans that stand apart, some of them touching."""
    spans, end = [], 0
    for _ in range(draw(st.integers(0, 4))):
        start = end + draw(st.integers(0, 2))
        end = start + draw(st.integers(1, 4))
        spans.append(Span(start, end, draw(label)))
    return spans, end + draw(st.integers(0, 2))


@pytest.mark.parametrize("scheme", SPAN_SCHEMES)
@given(sentence=sentences())
def test_spans_come_back_as_they_were(scheme, sentence):
    spans, length = sentence
    tags = tags_from_spans(spans, length, scheme)
    assert len(tags) == length
    assert spans_from_tags(tags) == strict_spans(tags, scheme) == spans
    assert first_violation(tags, scheme) is None
    labels = {span.label for span in spans}
    assert set(tags) <= {"O", *(join_tag(letter, label) for letter in SCHEMES[scheme] for label in labels)}


@pytest.mark.parametrize("source", SPAN_SCHEMES)
@pytest.mark.parametrize("target", SPAN_SCHEMES)
@settings(max_examples=40)
@given(sentence=sentences())
def test_every_conversion_there_and_back(source, target, sentence):
    tags = tags_from_spans(*sentence, source)
    converted = convert(tags, source, target)
    assert first_violation(converted, target) is None
    assert convert(converted, target, source) == tags


@pytest.mark.parametrize(
    ("scheme", "written"),
    [
        ("IOB1", "I-A B-A I-A I-B O I-A I-A I-A"),
        ("IOB2", "B-A B-A I-A B-B O B-A I-A I-A"),
        ("BIOES", "S-A B-A E-A S-B O B-A I-A E-A"),
        ("BILOU", "U-A B-A L-A U-B O B-A I-A L-A"),
    ],
)
def test_schemes_by_hand(scheme, written):
    spans = [Span(0, 1, "A"), Span(1, 3, "A"), Span(3, 4, "B"), Span(5, 8, "A")]
    tags = tuple(written.split())
    assert tags_from_spans(spans, 8, scheme) == tags
    assert spans_from_tags(tags) == spans
    assert recognize([tags]) == scheme


def slow_is_valid(tags, scheme):
    """A sequence is valid if writing some set of spans gives exactly it: the lenient reading is the candidate."""
    letters = {"IOB1": "BI", "IOB2": "BI", "BIOES": "BIES", "BILOU": "BILU"}[scheme]
    if not all(tag == "O" or tag[0] in letters for tag in tags):
        return False
    return tags_from_spans(spans_from_tags(tags), len(tags), scheme) == tuple(tags)


@pytest.mark.parametrize("scheme", SPAN_SCHEMES)
@settings(max_examples=200)
@given(tags=st.lists(st.sampled_from(["O", *(f"{x}-{y}" for x in "BIESLU" for y in "AB")]), max_size=6))
def test_what_is_forbidden_is_what_spans_never_write(scheme, tags):
    violation = first_violation(tags, scheme)
    assert (violation is None) == slow_is_valid(tags, scheme)
    if violation is not None and violation.word < len(tags):
        # Everything before the first violation can still be finished into a valid sentence.
        endings = [[], ["E-A"], ["E-B"], ["L-A"], ["L-B"]]
        assert any(slow_is_valid([*tags[: violation.word], *ending], scheme) for ending in endings)


@given(st.text(max_size=6))
def test_any_tag_is_split_and_joined_again(tag):
    letter, label = split_tag(tag)
    assert (join_tag(letter, label) if letter else label) == tag


@pytest.mark.parametrize(
    ("tags", "scheme", "said"),
    [
        (["O", "I-PER"], "IOB2", "word 2: IOB2 does not let 'I-PER' follow 'O'"),
        (["I-PER"], "IOB2", "word 1: IOB2 does not let 'I-PER' begin a sentence"),
        (["B-PER", "I-LOC"], "IOB2", "word 2: IOB2 does not let 'I-LOC' follow 'B-PER'"),
        (["O", "B-PER"], "IOB1", "word 2: IOB1 does not let 'B-PER' follow 'O'"),
        (["O", "B-PER"], "BIOES", "word 2: BIOES does not let a sentence end with 'B-PER'"),
        (["B-PER", "O"], "BIOES", "word 2: BIOES does not let 'O' follow 'B-PER'"),
        (["O", "E-PER"], "BIOES", "word 2: BIOES does not let 'E-PER' follow 'O'"),
        (["O", "E-PER"], "IOB2", "word 2: 'E-PER' is no tag of IOB2"),
        (["O", "BPER"], "IOB2", "word 2: 'BPER' is no tag of IOB2"),
        (["B-"], "IOB2", "word 1: 'B-' is no tag of IOB2"),
        (["o"], "IOB2", "word 1: 'o' is no tag of IOB2"),
        (["B-A", ""], "IOB2", "word 2: '' is no tag of IOB2"),
        (["NN", ""], "plain", "word 2: '' is no tag of plain"),
    ],
)
def test_violations_say_where_and_what(tags, scheme, said):
    assert str(first_violation(tags, scheme)) == said
    with pytest.raises(RequestError, match=said):
        convert(tags, scheme, "BIOES" if scheme != "BIOES" else "IOB2")


def test_check_names_the_place():
    good, bad = ["B-A", "I-A"], ["O", "I-A"]
    check_tags([good, good], "IOB2")
    with pytest.raises(RequestError, match="^dev.conll, line 9, word 2: IOB2 does not let 'I-A' follow 'O'; correct"):
        check_tags([good, bad], "IOB2", ["dev.conll, line 5", "dev.conll, line 9"])
    with pytest.raises(RequestError, match="^sentence 2, word 2"):
        check_tags(iter([good, bad]), "IOB2")
    assert first_violation(bad, "IOB2") == Violation(1, "I-A", "O", "IOB2")
    assert first_violation([], "BIOES") is None


@pytest.mark.parametrize("scheme", SPAN_SCHEMES)
def test_a_file_is_recognized_in_spite_of_a_slip(scheme):
    rng = random.Random(5)
    file = []
    for _ in range(60):
        start, end = sorted(rng.sample(range(9), 2))
        spans = [Span(start, end, rng.choice("AB"))]
        file.append(tags_from_spans(spans, 9, scheme))
    assert recognize(file) == scheme
    broken = [("O", "I-A"), ("B-A", "BA"), *file]  # one tag out of place, one that is none
    assert recognize(broken) == scheme
    with pytest.raises(RequestError, match="sentence"):
        check_tags(broken, scheme)


@pytest.mark.parametrize(
    ("file", "scheme"),
    [
        ([["DT", "NN", "VBZ", "-LRB-", "O"]], "plain"),
        ([["N", "V", "A", "S", "I", "P", "."]], "plain"),
        ([["NOUN"]], "plain"),
        ([["O", "O"], []], "IOB2"),
        ([], "IOB2"),
        ([["B", "I", "O"]], "IOB2"),
        ([["I", "I", "O", "I", "B"]], "IOB1"),
        ([["B", "E", "S", "O"]], "BIOES"),
        ([["S-A"]], "BIOES"),
        ([["B-A", "O"]], "IOB2"),
        ([["I-A", "O"]], "IOB1"),
        ([["I-A", "I-B"], ["I-A", "B-A"]], "IOB1"),
    ],
)
def test_recognized_by_hand(file, scheme):
    assert recognize(file) == scheme


def test_plain_tags_stay_as_they_are():
    tags = ("DT", "B-ish", "O")
    assert convert(tags, "plain", "plain") == tags
    assert first_violation(tags, "plain") is None
    assert may_follow("DT", "DT", "plain")
    for refused in (
        lambda: convert(tags, "plain", "IOB2"),
        lambda: convert(["B-A"], "IOB2", "plain"),
        lambda: strict_spans(tags, "plain"),
    ):
        with pytest.raises(RequestError, match="plain tags"):
            refused()


@pytest.mark.parametrize(
    "spans", [[Span(0, 2, "A"), Span(1, 3, "B")], [Span(2, 2, "A")], [Span(2, 4, "A")], [Span(-1, 1, "A")]]
)
def test_spans_that_cannot_be_written_are_refused(spans):
    with pytest.raises(RequestError, match="overlaps .* or leaves its 3 words"):
        tags_from_spans(spans, 3, "IOB2")


def test_an_unknown_scheme_is_named():
    for call in (
        lambda: first_violation(["O"], "IOB3"),
        lambda: tags_from_spans([], 1, "IOB3"),
        lambda: strict_spans(["O"], "IOB3"),
    ):
        with pytest.raises(RequestError, match="unknown tag scheme 'IOB3'; choose from: BILOU, BIOES, IOB1, IOB2"):
            call()
