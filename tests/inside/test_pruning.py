"""Leaving out heads: what it does to the model, what it is said to cost, and that nothing stays behind."""

import pytest
import torch

from bertkit.errors import RequestError
from bertkit.inside.prune import prune, without_heads
from bertkit.model.batch import Batch

TEXTS = ["a cab can back", "up a big hill and down", "dogs dig"]


def pack(bert, text):
    return Batch.pack([bert.tokenizer.encode(text).ids])


def test_a_head_left_out_gives_zeros(bert):
    """The twin: the columns of the output map that read the head are zero."""
    batch = pack(bert, TEXTS[0])
    encoder = bert.model.encoder
    with torch.inference_mode():
        before = encoder(batch)
        with without_heads(encoder, [(2, 1)]):
            without = encoder(batch)
        after = encoder(batch)
        out = encoder.stack[1].attention.out
        kept = out.weight.data.clone()
        out.weight.data[:, : bert.model.config.width // bert.model.config.heads] = 0
        twin = encoder(batch)
        out.weight.data.copy_(kept)
    torch.testing.assert_close(without, twin, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(without, before, atol=1e-3)
    assert torch.equal(after, before)


def test_a_shared_layer_loses_its_head_at_one_depth_only(tiny_bert):
    bert = tiny_bert("albert")
    batch, encoder = pack(bert, TEXTS[0]), bert.model.encoder
    assert encoder.stack[0] is encoder.stack[1]
    with torch.inference_mode():
        outputs = []
        for heads in ([], [(1, 1)], [(2, 1)], [(1, 1), (2, 1)]):
            with without_heads(encoder, heads):
                states = encoder.hidden_states(batch)
                assert torch.equal(states[-1], encoder(batch)), "the second pass is as the first"
            outputs.append(states)
    assert torch.equal(outputs[0][1], outputs[2][1])
    assert not torch.allclose(outputs[0][1], outputs[1][1], atol=1e-3)
    assert not torch.allclose(outputs[0][2], outputs[2][2], atol=1e-3)
    assert not torch.allclose(outputs[2][2], outputs[3][2], atol=1e-3)


@pytest.mark.parametrize(("heads", "measure"), [(("masked_word",), "masked-word loss"), ((), "1 - cosine")])
def test_costs_are_ranked_and_a_silent_head_costs_nothing(tiny_bert, heads, measure):
    bert = tiny_bert(heads=heads)
    config, out = bert.model.config, bert.model.encoder.stack[0].attention.out
    with torch.no_grad():
        out.weight[:, config.width // config.heads :] = 0  # nobody listens to head 2 of layer 1
    seen = []
    report = prune(bert, TEXTS, seen.append)
    assert report.measure.startswith(measure)
    assert seen == [1, 2, 3, 4]
    costs = {(each.layer, each.head): each.cost for each in report.alone}
    assert len(costs) == config.depth * config.heads
    assert costs[1, 2] == pytest.approx(0, abs=1e-6)
    assert [each.cost for each in report.alone] == sorted(costs.values())
    assert [count for count, _ in report.together] == [1, 2]
    assert report.together[0][1] == pytest.approx(report.alone[0].cost, abs=1e-6)
    assert prune(bert, TEXTS) == report


def test_the_loss_is_of_the_hidden_tokens_alone(bert):
    report = prune(bert, ["a b c d"])
    ids = torch.tensor(bert.tokenizer.encode("a b c [MASK]").ids)
    with torch.inference_mode():
        batch = Batch(ids, torch.zeros_like(ids), (len(ids),))
        logits = bert.model.logits(batch, "masked_word")[4]
    expected = -logits.log_softmax(dim=-1)[bert.tokenizer.vocab["d"]]
    assert report.whole == pytest.approx(float(expected), abs=1e-5)


def test_texts_are_needed_and_must_fit(bert):
    with pytest.raises(RequestError, match="give one at least"):
        prune(bert, [])
    with pytest.raises(RequestError, match="text 2 has 102 tokens, over the limit of 64"):
        prune(bert, ["a", "a " * 100])


def test_a_loss_of_nothing_is_refused(bert):
    with pytest.raises(RequestError, match="no token that could be masked; give one with a word in it"):
        prune(bert, ["", " "])
    assert prune(bert, ["", "a"]).whole > 0
