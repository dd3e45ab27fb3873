"""bfloat16 with float32 weights: near the whole, gradients in float32, and one graph for every mix of lengths."""

import numpy as np
import pytest
import torch

from bertkit.config import family_config
from bertkit.model import operations
from bertkit.model.model import new_model
from bertkit.pretraining.examples.arrays import Examples
from bertkit.pretraining.examples.inputs import to_inputs
from bertkit.pretraining.objectives.module import ForPretraining
from bertkit.pretraining.objectives.plm import PLM_LOSS
from bertkit.pretraining.objectives.plm_module import PermutedWords
from bertkit.pretraining.objectives.rtd_module import ReplacedTokens
from bertkit.pretraining.objectives.table import objective_rows
from bertkit.train.half import HalfPrecision

CPU = torch.device("cpu")


def examples(seed: int, sequences: int = 8, length: int = 32) -> Examples:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(8, length + 1, sequences)
    total = int(lengths.sum())
    ids = rng.integers(10, 100, total)
    inner = np.setdiff1d(np.arange(total), np.concatenate(([0], np.cumsum(lengths)[:-1], np.cumsum(lengths) - 1)))
    chosen = np.sort(rng.choice(inner, total // 8, replace=False))
    labels = rng.integers(0, 2, sequences)
    return Examples(ids, np.zeros(total, int), lengths, chosen, ids[chosen].copy(), labels, 0)


def learner(kind: str) -> torch.nn.Module:
    settings = {"vocab_size": 100, "dropout": 0.0, "attention_dropout": 0.0, "init_std": 0.05}
    if kind == "mlm":
        model = new_model(family_config("bert", "tiny", **settings), {"masked_word": None, "next_sentence": None})
        return ForPretraining(model, objective_rows(["mlm", "nsp"]))
    if kind == "plm":
        model = new_model(family_config("xlnet", "tiny", **settings), {"masked_word": None})
        model.encoder.embeddings.mask_id = 4
        return PermutedWords(model, PLM_LOSS)
    config = family_config("electra", "tiny", embedding_width=64, **settings)
    small = family_config("electra", "tiny", embedding_width=64, **settings | {"width": 64, "heads": 1, "inner": 128})
    judge = new_model(config, {"replaced_token": None, "masked_word": None}, seed=1)
    return ReplacedTokens(new_model(small, {"masked_word": None}), judge, fill=1.0)


@pytest.mark.parametrize("kind", ["mlm", "rtd"])
def test_losses_are_near_and_gradients_are_float32(kind):
    module, inputs = learner(kind), to_inputs(examples(0), CPU)
    losses = []
    for each in (module, HalfPrecision(module)):
        module.zero_grad()
        torch.manual_seed(0)
        losses.append(sum(sums[0] for sums in each(*inputs).values()))
        losses[-1].backward()
    assert losses[1].item() == pytest.approx(losses[0].item(), rel=5e-3)
    for name, parameter in module.named_parameters():
        assert parameter.dtype == torch.float32
        assert parameter.grad is not None, name
        assert parameter.grad.dtype == torch.float32


@pytest.mark.parametrize("kind", ["mlm", "rtd", "plm"])
def test_one_graph_serves_every_mix_of_lengths(kind, monkeypatch):
    """A new mix must not compile anew: on a GPU that costs half a minute each time."""

    def any_lengths(qkv, batch, window, dropout=0.0, bias=None):  # reads what the variable-length kernel reads
        return qkv[:, 2] * (batch.offsets.sum() * 0 + batch.longest * 0 + 1)

    monkeypatch.setattr(operations, "attend", any_lengths)
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    compiled = torch.compile(HalfPrecision(learner(kind)), backend=backend, fullgraph=True, dynamic=False)
    for seed in range(4):
        compiled(*to_inputs(examples(seed), CPU, objective=("plm" if kind == "plm" else "mlm",), fixed_length=32))
    assert len(graphs) == 1
