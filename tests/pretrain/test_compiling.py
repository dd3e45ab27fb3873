"""Layers that are compiled one for all compute what they did, and there are as many graphs for many as for few."""

from functools import partial

import pytest
import torch

from bertkit.config import family_config, override
from bertkit.model.batch import Batch
from bertkit.model.weights import new_model
from bertkit.pretrain.compiling import compile_layers
from bertkit.pretrain.objectives import MaskedWords, Targets
from bertkit.train.half import HalfPrecision

SHAPE = ("width=32", "heads=2", "inner=48", "vocab_size=100", "dropout=0", "attention_dropout=0", "init_std=0.1")


@pytest.fixture
def graphs(monkeypatch):
    """What was compiled, as it comes; run as it is, for a compiler takes its time."""
    torch.compiler.reset()
    seen = []

    def plainly(graph, _inputs):
        seen.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=plainly))
    yield seen
    torch.compiler.reset()


def losses_and_gradients(depth, compiled):
    config = override(family_config("bert", "tiny"), *SHAPE, f"depth={depth}")
    objective = MaskedWords(new_model(config, {"masked_word": None}, seed=1)).train()
    module = HalfPrecision(objective)
    if compiled:
        compile_layers(module)
    ids = torch.randint(100, (4, 8), generator=torch.Generator().manual_seed(0))
    targets = Targets(torch.arange(0, 32, 5), ids.flatten()[::5], torch.empty(0, dtype=torch.long))
    loss, count, _ = module(Batch.pack(ids.tolist()).laid_out(), targets)["mlm"]
    (loss / count).backward()
    return loss.detach(), [parameter.grad for parameter in objective.parameters()]


def test_compiled_layers_compute_what_they_did(graphs):
    plain, compiled = losses_and_gradients(2, compiled=False), losses_and_gradients(2, compiled=True)
    assert graphs
    torch.testing.assert_close(compiled, plain)


def test_depth_costs_no_graphs(graphs):
    losses_and_gradients(2, compiled=True)
    few = len(graphs)
    torch.compiler.reset()
    losses_and_gradients(6, compiled=True)
    assert len(graphs) == 2 * few
