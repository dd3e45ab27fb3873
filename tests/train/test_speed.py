"""The count of useful operations against a count by hand and torch's own counter; rates against common sense."""

import time
from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from bertkit.config import BertConfig, family_config
from bertkit.model.batch import Batch
from bertkit.model.model import new_model
from bertkit.pretraining.objectives.module import ForPretraining
from bertkit.pretraining.objectives.rtd_module import ReplacedTokens
from bertkit.pretraining.objectives.table import objective_rows
from bertkit.pretraining.objectives.targets import Targets
from bertkit.train.speed import (
    attended_tokens,
    flops_per_token,
    matmul_rate,
    mean_attended_length,
    memory_gib,
    utilization,
)

TINY = {"vocab_size": 50, "width": 16, "depth": 3, "heads": 2, "inner": 48, "max_length": 32}
TINY |= {"dropout": 0.0, "attention_dropout": 0.0}


def test_bert_base_by_hand():
    # 12 layers of 768 x (768 x 4 + 3072 x 2) = 84,934,656 numbers in matrices; 6 operations for each.
    layers = 6 * 84_934_656
    attention = 12 * 128 * 768 * 12
    head = 6 * (768 * 768 + 768 * 30_522)
    assert flops_per_token(BertConfig(), 128, 0.0) == layers + attention
    assert flops_per_token(BertConfig(), 128, 0.15) == pytest.approx(layers + attention + 0.15 * head)
    assert flops_per_token(BertConfig(), 128, 0.15) == pytest.approx(545.4e6, rel=1e-3)


def counted(module: torch.nn.Module, lengths: tuple[int, ...], chosen: list[int]) -> float:
    """What torch counts forward and backward, attention as the two plain products it is."""
    ids = torch.randint(5, 50, (sum(lengths),))
    batch = Batch(ids, torch.zeros_like(ids), lengths)
    targets = Targets(torch.tensor(chosen), ids[chosen], torch.empty(0, dtype=torch.long))
    counter = FlopCounterMode(display=False)
    with sdpa_kernel(SDPBackend.MATH), counter:
        sum(values[0] for values in module(batch, targets).values()).backward()
    return counter.get_total_flops()


@pytest.mark.parametrize(
    ("family", "numbers"),
    [("bert", {}), ("albert", {"embedding_width": 8}), ("modernbert", {}), ("electra", {"embedding_width": 8})],
)
def test_agrees_with_torchs_counter(family, numbers):
    config = family_config(family, "tiny", **{**TINY, **numbers})
    module = ForPretraining(new_model(config, {"masked_word": None}), objective_rows(["mlm"]))
    found = counted(module, (20, 20), [1, 5, 7, 21, 30])
    # rotations and norms are no matmuls; nothing else is left out
    assert flops_per_token(config, 20, 5 / 40) * 40 == pytest.approx(found, rel=1e-9)


def test_agrees_on_electras_two_models():
    config = family_config("electra", "tiny", **TINY)
    generator = replace(config, width=8, heads=1, inner=12, embedding_width=16)
    module = ReplacedTokens(
        new_model(generator, {"masked_word": None}), new_model(config, {"replaced_token": None}, seed=1)
    )
    found = counted(module, (24,), [2, 3, 9, 20])
    assert flops_per_token(config, 24, 4 / 24, generator=generator) * 24 == pytest.approx(found, rel=1e-9)


def test_texts_of_several_lengths_are_seen_by_their_squares():
    config = BertConfig(**TINY)
    lengths = (4, 28)
    seen = mean_attended_length(lengths)
    assert seen == 25.0
    assert mean_attended_length([]) == 0.0
    found = counted(ForPretraining(new_model(config, {"masked_word": None}), objective_rows(["mlm"])), lengths, [1, 2])
    assert flops_per_token(config, seen, 2 / 32) * 32 == pytest.approx(found, rel=1e-9)


def test_local_layers_see_their_window():
    config = family_config("modernbert", "base", depth=4)
    assert [attended_tokens(config, 1024, layer) for layer in range(4)] == [1024, 129, 129, 1024]
    assert [attended_tokens(config, 100, layer) for layer in range(4)] == [100] * 4
    everywhere = replace(config, parts=replace(config.parts, window=None))
    saved = 12 * config.width * 2 * (1024 - 129)
    assert flops_per_token(everywhere, 1024, 0.15) - flops_per_token(config, 1024, 0.15) == saved


def test_shared_layers_count_by_use():
    shared = family_config("albert", "base", vocab_size=100, embedding_width=None)
    assert flops_per_token(shared, 64, 0.15) == flops_per_token(BertConfig(vocab_size=100), 64, 0.15)


def test_share_is_a_plain_ratio():
    assert utilization(500_000, 545e6, 775e12) == pytest.approx(0.3516, rel=1e-3)
    assert utilization(500_000, 545e6, 0.0) == 0.0  # unknown rate: no share, no crash


def test_matmul_rate_is_quick_and_plausible():
    began = time.perf_counter()
    rate = matmul_rate("cpu", seconds=0.1)
    assert time.perf_counter() - began < 5  # 0.2 s alone; the machine is shared
    assert 1e8 < rate < 1e14


def test_matmul_rate_leaves_the_random_stream_alone():
    before = torch.get_rng_state()
    matmul_rate("cpu", seconds=0.01)
    assert torch.equal(before, torch.get_rng_state())


def test_memory_of_the_process():
    before = memory_gib("cpu")
    held = torch.ones(2**26)  # 256 MiB, touched
    assert 0.02 < before < 512
    assert memory_gib("cpu") >= max(before, held.numel() * 4 / 2**30)
