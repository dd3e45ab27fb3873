"""Adapters that share a trunk compute what the trunk computes with each of them merged."""

import copy

import pytest
import torch

from bertkit.config import family_config, override
from bertkit.engine.adapters import AdaptedRows, EncoderAdapter, adapted
from bertkit.engine.batches import fastest
from bertkit.engine.cpu import CpuOperations
from bertkit.errors import RequestError
from bertkit.families.family import FAMILIES
from bertkit.model.batch import Batch
from bertkit.model.low_rank import LowRankUpdate, merge, stacked
from bertkit.model.model import new_model
from bertkit.model.operations import TORCH

pytestmark = pytest.mark.usefixtures("_one_thread")
SEQUENCES = [[2, 7, 9, 3], [2, 8, 3], [2, 11, 12, 13, 14, 3], [2, 5, 3], [2, 4, 4, 3]]
OF_ADAPTER = [0, 0, None, 1, 1]  # which adapter computes each sequence
ROWS = ["bert", "roberta", "albert", "distilbert", "modernbert", "mpnet", "bert norm=pre", "bert feed_forward=gated"]


def model_of(row):
    family, *changes = row.split()
    config = family_config(family, "tiny", vocab_size=60, max_length=64, init_std=0.1, dropout=0.0)
    return new_model(override(config, *changes)).eval()


def random_updates(model, seed, *, only=""):
    """Updates of rank 3 of the layers' linear maps whose name contains `only`."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return 0.2 * torch.randn(*shape, generator=generator)

    names = [name for name, p in model.named_parameters() if ".layers." in name and p.dim() == 2 and only in name]
    shapes = {name: model.get_parameter(name).shape for name in names if "relative" not in name}
    return {name: LowRankUpdate(draw(rows, 3), draw(3, columns)) for name, (rows, columns) in shapes.items()}


def rows_of(encoder, updates):
    """The rows of each adapter in a batch of SEQUENCES, whose sequences of one adapter are neighbors."""
    made, rows, stop = [EncoderAdapter.of(encoder, each) for each in updates], [], 0
    for number, sequence in zip(OF_ADAPTER, SEQUENCES, strict=True):
        start, stop = stop, stop + len(sequence)
        if number is not None:
            rows.append(AdaptedRows(start, stop, made[number]))
    return rows


@pytest.mark.parametrize("only", ["", "attention", "feed_forward.up"])
@pytest.mark.parametrize("row", ROWS)
def test_a_batch_of_several_adapters_equals_each_merged(row, only):
    model, batch = model_of(row), Batch.pack(SEQUENCES)
    updates = [random_updates(model, seed, only=only) for seed in range(2)]
    with torch.inference_mode():
        forward = adapted(model.encoder, rows_of(model.encoder, updates))
        found = batch.split(forward(batch))
        plain = fastest(model.encoder)
        assert isinstance(plain.ops, CpuOperations)
        untouched = batch.split(plain(batch))
        merged = [batch.split(merge(copy.deepcopy(model), each).encoder(batch, ops=TORCH)) for each in updates]
    for index, number in enumerate(OF_ADAPTER):
        expected = untouched[index] if number is None else merged[number][index]
        torch.testing.assert_close(found[index], expected, atol=1e-5, rtol=1e-5)
        assert number is None or (found[index] - untouched[index]).abs().max() > 1e-3


def test_every_layers_output_is_adapted():
    model, batch = model_of("bert"), Batch.pack(SEQUENCES[:1])
    updates = random_updates(model, 0)
    with torch.inference_mode():
        rows = [AdaptedRows(0, 4, EncoderAdapter.of(model.encoder, updates))]
        found = adapted(model.encoder, rows).hidden_states(batch)
        expected = merge(copy.deepcopy(model), updates).encoder.hidden_states(batch)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_without_adapters_the_engine_itself_computes():
    model = model_of("bert")
    with torch.inference_mode():
        assert adapted(model.encoder, []).ops is fastest(model.encoder).ops


@pytest.mark.parametrize("family", ["deberta-v2", "xlnet"])
def test_attention_that_reads_weights_has_no_place_for_updates(family):
    assert FAMILIES[family].settings["relative"] not in ("none", "table")
    with pytest.raises(RequestError, match="save the merged model"):
        EncoderAdapter.of(model_of(family).encoder, {})


def test_updates_of_queries_keys_and_values_are_stacked_by_rows():
    parts = [LowRankUpdate(torch.randn(4, rank), torch.randn(rank, 5)) for rank in (1, 0, 3)]
    expected = torch.cat([part.up @ part.down for part in parts])
    torch.testing.assert_close(stacked(parts).matrix, expected)
    x = torch.randn(7, 5)
    torch.testing.assert_close(stacked(parts)(x), x @ expected.T)
