"""Permutation language modeling: two streams as transformers computes them, and a random order of the targets."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from tiny_runs import make_shards, tiny_recipe

import bertkit
from bertkit.checkpoint.save_load import load_checkpoint
from bertkit.config import family_config
from bertkit.errors import RequestError
from bertkit.model.batch import Batch
from bertkit.model.model import new_model
from bertkit.model.two_streams import query_vectors
from bertkit.pretraining.examples.arrays import Examples
from bertkit.pretraining.examples.batches import ExampleSource
from bertkit.pretraining.examples.inputs import to_inputs
from bertkit.pretraining.learner import build_learner
from bertkit.pretraining.objectives.plm import prediction_order
from bertkit.pretraining.pretraining import pretrain
from bertkit.text.shards.reader import open_shards

SHAPE = {"width": 32, "depth": 3, "heads": 4, "inner": 48, "max_length": 32, "vocab_size": 40, "init_std": 0.2}
LENGTHS = (9, 4, 12)


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return make_shards(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("xlnet")
    torch.manual_seed(0)
    shape = {"vocab_size": 40, "d_model": 32, "n_layer": 3, "n_head": 4, "d_inner": 48, "initializer_range": 0.2}
    transformers.XLNetLMHeadModel(transformers.XLNetConfig(**shape)).save_pretrained(path)
    return path


def packed(seed=0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    ids = [torch.randint(6, 40, (length,), generator=generator).tolist() for length in LENGTHS]
    return Batch.pack(ids, [[int(at > length // 2) for at in range(length)] for length in LENGTHS])


CHOSEN = [5, 2, 7, 10, 24, 20, 14]  # positions in the packed batch, in the order of prediction


def logits_of(model, batch, chosen=CHOSEN):
    order = torch.arange(1, len(chosen) + 1)
    with torch.no_grad():
        return model.heads["masked_word"](query_vectors(model.encoder, batch, torch.tensor(chosen), order))


def test_both_streams_are_theirs(folder):
    """Sequence by sequence, with the permutation as a mask and the targets as a mapping; [CLS] is their last token."""
    model, batch = load_checkpoint(folder).model, packed()
    theirs = transformers.XLNetLMHeadModel.from_pretrained(folder).eval()
    got, starts = logits_of(model, batch), batch.offsets.tolist()
    for ids, segments, start in zip(batch.split(batch.ids), batch.split(batch.segments), starts, strict=False):
        mine = [position for position in CHOSEN if start <= position < start + len(ids)]
        places = [position - start - 1 for position in mine]  # without [CLS] before them
        order = torch.zeros(len(ids))
        order[places] = torch.arange(1.0, len(places) + 1)
        hidden = (order[None, :] >= order[:, None]) & (order[None, :] > 0)
        mapping = torch.zeros(len(places), len(ids))
        mapping[torch.arange(len(places)), torch.tensor(places)] = 1
        types = segments.roll(-1)
        types[-1] = 2
        with torch.no_grad():
            expected = theirs(
                ids.roll(-1)[None],
                token_type_ids=types[None],
                perm_mask=hidden[None].float(),
                target_mapping=mapping[None],
            ).logits[0]
        rows = [CHOSEN.index(position) for position in mine]
        torch.testing.assert_close(got[rows], expected, atol=1e-5, rtol=1e-5)


def test_a_target_is_seen_by_later_ones_only(folder):
    model, batch = load_checkpoint(folder).model, packed()
    before = logits_of(model, batch)
    for number, position in enumerate(CHOSEN):
        ids = batch.ids.clone()
        ids[position] = 39 - ids[position] + 6
        after = logits_of(model, replace(batch, ids=ids))
        moved = (after - before).abs().amax(-1) > 1e-4
        same = torch.bucketize(torch.tensor(CHOSEN), batch.offsets[1:], right=True)
        expected = [other > number and bool(same[other] == same[number]) for other in range(len(CHOSEN))]
        assert moved.tolist() == expected


def test_padding_of_a_fixed_shape_changes_nothing(shards):
    recipe = tiny_recipe(shards, family="xlnet", objective="plm", vocab_size=40, dropout=0, attention_dropout=0)
    learner = build_learner(recipe).eval()
    examples = ExampleSource(open_shards(shards), recipe.data).block(0)
    sums = [
        learner(*to_inputs(examples, torch.device("cpu"), objective=("plm",), fixed_length=length))["plm"]
        for length in (None, recipe.data.length)
    ]
    torch.testing.assert_close(*sums)


def block(*sequences: tuple[list[int], list[int]]) -> Examples:
    """Examples of (ids, chosen positions in the sequence)."""
    ids = np.array([token for tokens, _ in sequences for token in tokens], dtype=np.int32)
    lengths = np.array([len(tokens) for tokens, _ in sequences])
    starts = np.cumsum(lengths) - lengths
    chosen = np.array([start + at for (_, places), start in zip(sequences, starts, strict=True) for at in places])
    return Examples(ids, np.zeros_like(ids), lengths, chosen, ids[chosen], None, 0)


def test_the_order_depends_on_the_sequence_alone():
    first, second = ([2, 9, 8, 7, 6, 3], [1, 2, 4]), ([2, 30, 31, 32, 33, 34, 3], [1, 3, 4, 5])
    alone, together = prediction_order(block(second)), prediction_order(block(first, second))
    assert sorted(together[:3].tolist()) == [0, 1, 2]
    assert (together[3:] - 3).tolist() == alone.tolist()


def test_every_order_is_as_probable():
    rng = np.random.default_rng(0)
    counts = Counter()
    for _ in range(50):
        made = block(*(([2, *rng.integers(5, 9999, 8).tolist(), 3], [1, 4, 6]) for _ in range(60)))
        counts.update(tuple(row) for row in (prediction_order(made).reshape(-1, 3) % 3).tolist())
    assert len(counts) == 6
    assert all(abs(count - 500) < 5 * 500**0.5 for count in counts.values())


def test_other_chosen_tokens_have_another_order():
    ids = [2, *range(10, 40), 3]
    orders = {tuple(prediction_order(block((ids, [1, 2, 3, 4, 5, 6, last])))[:6].tolist()) for last in range(7, 27)}
    assert len(orders) > 10


def test_it_learns_and_fills(shards, tmp_path):
    """Words of a fixed cycle: each follows from its neighbors."""
    recipe = tiny_recipe(shards, family="xlnet", objective="plm", steps=4, masking="whole-word", rate=0.2)
    assert pretrain(recipe, tmp_path / "run").progress.step == 4
    bert = bertkit.load(tmp_path / "run" / "model")
    assert bert.model.encoder.embeddings.mask_id == bert.tokenizer.mask_id
    assert len(bert.fill("the old [MASK] runs .", top=3)) == 3
    theirs = transformers.AutoModel.from_pretrained(tmp_path / "run" / "model")
    assert isinstance(theirs, transformers.XLNetModel)


def test_bad_settings(shards):
    with pytest.raises(RequestError, match="objective=plm needs a model with two streams; set family=xlnet"):
        build_learner(tiny_recipe(shards, objective="plm", vocab_size=40))
    with pytest.raises(RequestError, match="must be 0 with plm, which replaces no token"):
        tiny_recipe(shards, family="xlnet", objective="plm", mask_share=0.5)
    with pytest.raises(RequestError, match="reads one text"):
        tiny_recipe(shards, family="xlnet", objective="plm,nsp")


def test_only_plm_trains_the_query():
    model = new_model(family_config("xlnet", **SHAPE), {"masked_word": None})
    assert not model.encoder.embeddings.query.requires_grad
