"""The table's arithmetic, added up again by hand, is the model's answer."""

import math

import pytest

from bertkit.errors import RequestError
from bertkit.inside.look.reading import read
from bertkit.inside.look.table import parse_head, step_table


@pytest.mark.parametrize(("layer", "head"), [(1, 1), (2, 2)])
def test_the_steps_lead_from_scores_to_the_sum(bert, layer, head):
    reading = read(bert, "action gets results")
    table = step_table(reading, layer=layer, head=head, word="gets")
    seen = reading.trace.layers[layer - 1]
    assert table.token == "g"
    assert table.divisor == pytest.approx(8)  # heads of 64
    powers = [math.exp(step.scaled) for step in table.steps]
    for place, (step, power) in enumerate(zip(table.steps, powers, strict=True)):
        own = sum(q * k for q, k in zip(seen.queries[table.place, head - 1], seen.keys[place, head - 1], strict=True))
        assert step.score == pytest.approx(float(own), abs=1e-4)
        assert step.scaled == pytest.approx(step.score / 8)
        assert step.weight == pytest.approx(power / sum(powers), abs=1e-5)
        values = (step.weight * seen.values[place, head - 1]).tolist()
        assert step.weighted == pytest.approx(values, abs=1e-6)
    for n, total in enumerate(table.sum):
        assert total == pytest.approx(sum(step.weighted[n] for step in table.steps), abs=1e-5)


def test_it_prints_in_columns_of_equal_width(bert):
    lines = str(step_table(read(bert, "a cab"))).splitlines()
    assert lines[0] == "layer 1, head 1: what 'a' takes from each token"
    assert "÷ 8" in lines[1]
    assert [line.split()[0] for line in lines[2:]] == ["[CLS]", "a", "c", "##a", "##b", "[SEP]", "sum"]
    assert len({len(line) for line in lines[2:]}) == 1


def test_an_empty_text_has_a_table_for_its_first_token(bert):
    assert step_table(read(bert, "")).token == "[CLS]"


def test_what_is_not_there_is_refused(bert):
    reading = read(bert, "a cab")
    with pytest.raises(RequestError, match="layer 3, head 1 is not there: layers are 1 to 2, heads 1 to 2"):
        step_table(reading, layer=3)
    with pytest.raises(RequestError, match="layer 1, head 0 is not there"):
        step_table(reading, head=0)
    with pytest.raises(RequestError, match="no word 'dog'"):
        step_table(reading, word="dog")


@pytest.mark.parametrize("name", ["3", "3-", "-7", "a-b", "3.7", "1-1-1"])
def test_heads_are_named_by_layer_and_head(name):
    assert parse_head("3-7") == (3, 7)
    with pytest.raises(RequestError, match=f"--head {name} must be a layer and a head"):
        parse_head(name)
