"""Groups, Muon's arithmetic, and memory that comes back bit for bit."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from bertkit.config import family_config, override
from bertkit.errors import RequestError
from bertkit.model.model import new_model
from bertkit.train.muon import Muon, orthogonalized
from bertkit.train.optimizer import build_optimizer
from bertkit.train.optimizer_rows import OptimizerSettings

CONFIG = override(family_config("bert", "tiny"), "width=16", "heads=2", "inner=32", "vocab_size=50", "max_length=16")


def model(seed=0):
    return new_model(CONFIG, {"masked_word": None, "next_sentence": None}, seed=seed)


def groups(optimizers):
    return [(type(part).__name__, group) for part, _ in optimizers.parts for group in part.param_groups]


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_every_parameter_is_in_exactly_one_group(name):
    net = model()
    found = [id(p) for _, group in groups(build_optimizer(net, OptimizerSettings(name=name))) for p in group["params"]]
    assert len(found) == len(set(found))
    assert set(found) == {id(p) for p in net.parameters()}


def test_weight_decay_is_off_norms_and_biases_and_on_matrices():
    net = model()
    names = {id(p): name for name, p in net.named_parameters()}
    for _, group in groups(build_optimizer(net, OptimizerSettings(weight_decay=0.3))):
        for parameter in group["params"]:
            vector = names[id(parameter)].endswith("bias") or "norm" in names[id(parameter)]
            assert group["weight_decay"] == (0.0 if vector else 0.3), names[id(parameter)]


def test_muon_takes_the_layers_matrices_and_nothing_else():
    net = model()
    names = {id(p): name for name, p in net.named_parameters()}
    optimizers = build_optimizer(net, OptimizerSettings(name="muon"))
    taken = {names[id(p)] for kind, group in groups(optimizers) if kind == "Muon" for p in group["params"]}
    assert taken == {name for name, p in net.named_parameters() if "layers." in name and p.dim() == 2}
    assert len(taken) >= 8


def test_frozen_parameters_are_left_out():
    net = model()
    net.pooler.requires_grad_(False)
    count = sum(len(group["params"]) for _, group in groups(build_optimizer(net, OptimizerSettings())))
    assert count == len(list(net.parameters())) - 2


@pytest.mark.parametrize("shape", [(32, 32), (64, 16), (16, 64)])
def test_orthogonalized_has_singular_values_near_one_and_the_same_vectors(shape):
    torch.manual_seed(0)
    matrix = torch.randn(shape) * 37
    result = orthogonalized(matrix)
    values = torch.linalg.svdvals(result)
    assert float(values.min()) > 0.5
    assert float(values.max()) < 1.3
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    exact = left @ right
    assert float(F_cosine(result, exact)) > 0.97


def F_cosine(a, b):
    return (a * b).sum() / (a.norm() * b.norm())


def test_a_stack_is_made_orthogonal_matrix_by_matrix():
    torch.manual_seed(3)
    for rows, columns in ((12, 8), (8, 12)):
        stack = torch.randn(5, rows, columns) * torch.tensor([1e-6, 1.0, 1e3, 0.0, 2.0])[:, None, None]
        for matrix, found in zip(stack, orthogonalized(stack), strict=True):
            torch.testing.assert_close(found, orthogonalized(matrix))


def test_orthogonalized_nothing_is_nothing():
    assert torch.equal(orthogonalized(torch.zeros(4, 6)), torch.zeros(4, 6))


def test_muon_by_hand():
    """One step from zero momentum: nesterov = 0.0975 x gradient, made orthogonal; decay first."""
    torch.manual_seed(0)
    parameter = nn.Parameter(torch.randn(8, 4))
    before, gradient = parameter.detach().clone(), torch.randn(8, 4)
    parameter.grad = gradient
    optimizer = Muon([parameter], weight_decay=0.1)
    optimizer.param_groups[0]["lr"] = 0.5
    optimizer.step()
    expected = before * (1 - 0.5 * 0.1) - 0.5 * 2**0.5 * orthogonalized(gradient)
    assert torch.allclose(parameter, expected, atol=1e-5)


def stepped(net, optimizers, times, seed):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(times):
        for parameter in net.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizers.step(1e-3)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_memory_comes_back_bit_for_bit(name, tmp_path):
    net, other = model(), model(seed=1)
    settings = OptimizerSettings(name=name)
    optimizers = build_optimizer(net, settings)
    stepped(net, optimizers, 3, seed=0)
    save_file(optimizers.state_tensors(), tmp_path / "memory.safetensors")
    other.load_state_dict(net.state_dict())
    resumed = build_optimizer(other, settings)
    resumed.load_state_tensors(load_file(tmp_path / "memory.safetensors"))
    again = resumed.state_tensors()
    assert again.keys() == optimizers.state_tensors().keys()
    assert all(torch.equal(again[key], value) for key, value in optimizers.state_tensors().items())
    stepped(net, optimizers, 3, seed=9)
    stepped(other, resumed, 3, seed=9)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))


def test_memory_of_another_shape_or_number_is_refused():
    net = model()
    optimizers = build_optimizer(net, OptimizerSettings())
    for name, tensor in {
        "0.0.exp_avg": torch.zeros(3),
        "0.999.exp_avg": torch.zeros(3),
        "7.0.x": torch.zeros(3),
    }.items():
        with pytest.raises(RequestError, match="where this model has|has no place for"):
            optimizers.load_state_tensors({name: tensor})
    with pytest.raises(RequestError, match="has no place for nonsense"):
        optimizers.load_state_tensors({"nonsense": torch.zeros(3)})


def test_an_unknown_optimizer_is_refused():
    with pytest.raises(RequestError, match="unknown optimizer 'sgd'; choose from: adamw, muon"):
        OptimizerSettings(name="sgd")


def test_a_step_clears_the_gradients_and_scales_the_rate():
    net = model()
    optimizers = build_optimizer(net, OptimizerSettings(name="muon", muon_scale=10.0))
    stepped(net, optimizers, 1, seed=0)
    assert all(parameter.grad is None for parameter in net.parameters())
    assert [group["lr"] for _, group in groups(optimizers)] == pytest.approx([1e-3, 1e-3, 1e-2])
