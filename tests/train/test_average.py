"""Means of weights: the formulas, the steps that count, and that they come back from a checkpoint as they were."""

import pytest
import torch
from torch import nn

from bertkit.errors import RequestError
from bertkit.train.average import Average, AverageSettings


def moving(settings: AverageSettings, steps: int) -> tuple[Average, nn.Linear, list[torch.Tensor]]:
    """A module whose weights change at every step, and the weights it has had."""
    module = nn.Linear(3, 2)
    average, seen = Average(module, settings), []
    for step in range(1, steps + 1):
        with torch.no_grad():
            module.weight.copy_(torch.randn(2, 3, generator=torch.Generator().manual_seed(step)))
        average.update(step, step / steps)
        seen.append(module.weight.detach().clone())
    return average, module, seen


def test_the_tail_is_the_plain_mean_of_its_steps():
    average, _, seen = moving(AverageSettings(kind="tail", every=1, tail=0.25), 40)
    assert average.count == 10
    torch.testing.assert_close(average.means[0], torch.stack(seen[30:]).mean(dim=0))


def test_looks_are_some_steps_apart_and_the_last_step_always_counts():
    average, _, seen = moving(AverageSettings(kind="tail", every=4, tail=0.5), 22)
    torch.testing.assert_close(average.means[0], torch.stack([seen[i - 1] for i in (12, 16, 20, 22)]).mean(dim=0))


def test_ema_forgets_by_its_decay_and_does_not_lean_on_the_start():
    average, _, seen = moving(AverageSettings(kind="ema", every=1, decay=0.8), 12)
    expected = torch.stack(seen[:5]).mean(dim=0)  # a plain mean until it has 1 / (1 - decay) samples
    for weights in seen[5:]:
        expected = 0.8 * expected + 0.2 * weights
    torch.testing.assert_close(average.means[0], expected)


def test_none_costs_nothing():
    average, module, _ = moving(AverageSettings(), 5)
    before = module.weight.detach().clone()
    with average.applied():
        assert torch.equal(module.weight, before)
    assert not average.means
    assert set(average.state_tensors()) == {"count"}


def test_in_place_the_module_has_the_mean_and_afterwards_its_own_bits():
    average, module, seen = moving(AverageSettings(kind="ema", every=1), 6)
    address = module.weight.data_ptr()
    with average.applied():
        assert torch.equal(module.weight, average.means[0])
    assert torch.equal(module.weight, seen[-1])
    with pytest.raises(KeyError), average.applied():
        raise KeyError("in the middle")
    assert torch.equal(module.weight, seen[-1])
    assert module.weight.data_ptr() == address


def test_what_is_frozen_is_left_alone():
    module = nn.Linear(3, 2)
    module.bias.requires_grad_(False)
    average = Average(module, AverageSettings(kind="ema", every=1))
    average.update(1, 0.5)
    assert set(average.state_tensors()) == {"weight", "count"}


def test_saved_and_loaded_it_goes_on_with_the_same_bits():
    settings = AverageSettings(kind="ema", every=1, decay=0.7)
    straight, module, _ = moving(settings, 6)
    again = Average(module, settings)
    again.load_state_tensors({name: tensor.clone() for name, tensor in straight.state_tensors().items()})
    for average in (straight, again):
        average.update(7, 0.5)
    assert (again.count, straight.count) == (7, 7)
    assert all(torch.equal(a, b) for a, b in zip(again.means, straight.means, strict=True))


@pytest.mark.parametrize("damage", [{"weight": torch.zeros(1)}, {"weight": None}])
def test_a_damaged_mean_is_refused(damage):
    average, module, _ = moving(AverageSettings(kind="ema", every=1), 2)
    tensors = {name: t for name, t in (average.state_tensors() | damage).items() if t is not None}
    with pytest.raises(RequestError, match="the mean of weight is missing or of another shape"):
        Average(module, average.settings).load_state_tensors(tensors)
