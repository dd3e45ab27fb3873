"""Heads made for the purpose are named for what they do; words are linked by the heads that link them."""

import math
import re
from dataclasses import replace
from importlib.resources import files

import pytest
import torch

from bertkit.errors import RequestError
from bertkit.inside.look.heads import KIND_NAMES, HeadIndex, catalogue, link, parse_link
from bertkit.inside.look.reading import read

TEXT = "a b c a d b e"


@pytest.fixture
def reading(bert):
    return read(bert, TEXT)


def with_weights(reading, weights_LL):
    """The same reading by a model whose every head looks so."""
    layers = [replace(layer, weights=weights_LL.expand(*layer.weights.shape)) for layer in reading.trace.layers]
    return replace(reading, trace=replace(reading.trace, layers=tuple(layers)))


def looks(reading, kind):
    """L L: all weight on what the kind says; where there is no such token, on [CLS]."""
    length, ids = len(reading.tokens), reading.encoding.ids
    weights = torch.zeros(length, length)
    for row in range(length):
        twins = [column for column in range(length) if ids[column] == ids[row] and column != row]
        target = {
            "next": min(row + 1, length - 1),
            "previous": max(row - 1, 0),
            "itself": row,
            "first": 0,
            "separator": length - 1,
            "same_word": (twins or [0])[0],
        }[kind]
        weights[row, target] = 1
    return weights


@pytest.mark.parametrize("kind", ["next", "previous", "itself", "first", "separator", "same_word"])
def test_a_head_is_named_for_what_it_looks_at(reading, kind):
    rows = catalogue([with_weights(reading, looks(reading, kind))])
    assert {row.kind for row in rows} == {kind}
    assert all(getattr(row, kind) == 1 for row in rows)
    assert all(row.entropy == 0 for row in rows)


def test_even_heads_are_broad(reading):
    length = len(reading.tokens)
    [row, *_] = catalogue([with_weights(reading, torch.full((length, length), 1 / length))])
    assert row.kind == "broad"
    assert row.entropy == pytest.approx(math.log2(length), abs=1e-5)
    assert row.breadth == pytest.approx(1)
    real = range(1, length - 1)
    distance = sum(abs(i - j) for i in real for j in range(length)) / (length * len(real))
    assert row.distance == pytest.approx(distance, abs=1e-5)


def test_two_looks_of_equal_strength_are_mixed(reading):
    weights = (looks(reading, "next") + looks(reading, "previous") + looks(reading, "first")) / 3
    assert {row.kind for row in catalogue([with_weights(reading, weights)])} == {"mixed"}


def test_first_token_and_separators_together_are_special_tokens(reading):
    weights = 0.4 * looks(reading, "first") + 0.3 * looks(reading, "separator") + 0.3 * looks(reading, "next")
    rows = catalogue([with_weights(reading, weights)])
    assert {row.kind for row in rows} == {"special"}
    assert all(row.special == pytest.approx(row.first + row.separator) and row.special > 0.7 for row in rows)


def test_every_head_has_a_row_and_texts_count_by_their_tokens(bert):
    short, long = read(bert, "a b"), read(bert, "c d e f g h")
    one, other, both = (catalogue(each) for each in ([short], [long], [short, long]))
    config = bert.model.config
    assert [(row.layer, row.head) for row in both] == [
        (layer, head) for layer in range(1, config.depth + 1) for head in range(1, config.heads + 1)
    ]
    for left, right, together in zip(one, other, both, strict=True):
        assert together.entropy == pytest.approx((2 * left.entropy + 6 * right.entropy) / 8, abs=1e-5)
        assert together.next == pytest.approx((2 * left.next + 6 * right.next) / 8, abs=1e-5)


def test_no_texts_no_catalogue():
    with pytest.raises(RequestError, match="needs one text at least"):
        catalogue([])


def test_links_are_the_weights_between_the_pieces_of_two_words(bert):
    reading = read(bert, "cab dig a")
    ranked = link(reading, "dig", "CAB")
    assert [each.weight for each in ranked] == sorted((each.weight for each in ranked), reverse=True)
    best = ranked[0]
    weights = reading.trace.layers[best.layer - 1].weights[best.head - 1]
    assert reading.tokens[1:7] == ("c", "##a", "##b", "d", "##i", "##g")
    assert best.weight == pytest.approx(float(weights[4:7, 1:4].sum(dim=1).mean()), abs=1e-6)


def test_a_link_that_is_planted_is_found(reading):
    weights = reading.trace.layers[1].weights.clone()
    weights[1] = 0
    weights[1, :, reading.positions_of("c")[0]] = 1
    layers = list(reading.trace.layers)
    layers[1] = replace(layers[1], weights=weights)
    planted = replace(reading, trace=replace(reading.trace, layers=tuple(layers)))
    best = link(planted, "e", "c")[0]
    assert (best.layer, best.head, best.weight) == (2, 2, 1)


@pytest.mark.parametrize("words", [("he", "Bert"), (",", "world"), ("world", ","), (",", ",")])
def test_a_link_is_two_words_and_a_comma_is_one(words):
    assert parse_link(",".join(words)) == words


@pytest.mark.parametrize("words", ["he", "he,", ",Bert", " , ", ",", ",,", ""])
def test_a_link_needs_two_words(words):
    with pytest.raises(RequestError, match="must be two words of the text with a comma, such as he,Bert"):
        parse_link(words)


def test_page_and_command_have_the_same_names():
    source = files("bertkit.inside.look").joinpath("page", "captions.js").read_text("utf-8")
    patterns = re.search(r"const PATTERNS = {(.*?)};", source, re.DOTALL)[1]
    assert dict(re.findall(r'(\w+): \[".*?", "(.*?)"\]', patterns)) == KIND_NAMES
    assert HeadIndex(3, 7).name == "layer 3, head 7"
    assert re.search(r"headName = .*`layer \$\{layer\}, head \$\{head\}`", source)
