"""One step is one step however it is cut, and a step that goes wrong leaves no trace."""

import math

import pytest
import torch
from torch import nn

from bertkit.errors import BertkitError
from bertkit.train.distributed import Ranks
from bertkit.train.loop import LoopSettings, MicroBatch, _backward, first_nonfinite, train
from bertkit.train.optimizer import build_optimizer
from bertkit.train.optimizer_rows import OptimizerSettings
from bertkit.train.runs import Progress
from bertkit.train.schedule import Budget, Schedule

WEIGHTS = {"words": 1.0, "pairs": 2.0}


class Two(nn.Module):
    """Two losses with counts of their own over rows of numbers."""

    def __init__(self, dropout=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Linear(6, 16)
        self.dropout = nn.Dropout(dropout)
        self.outer = nn.Linear(16, 1)

    def forward(self, rows, chosen):
        scores = self.outer(self.dropout(self.inner(rows).tanh())).squeeze(1)
        squares = scores.square()
        zero = torch.zeros((), dtype=torch.long)
        return {
            "words": ((squares * chosen).sum(), chosen.sum(), zero),
            "pairs": ((scores - 1).square().sum(), torch.tensor(len(rows)), (scores > 0).sum()),
        }


def data(rows=32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 6, generator=generator), torch.rand(rows, generator=generator) < 0.3


def cut(rows, chosen, pieces) -> list[MicroBatch]:
    parts = zip(rows.chunk(pieces), chosen.chunk(pieces), strict=True)
    return [
        MicroBatch((r, c), {"words": int(c.sum()), "pairs": len(r)}, r.numel(), seed=i)
        for i, (r, c) in enumerate(parts)
    ]


def run(module, micro_batches, steps=4, **options):
    options = {"budget": Budget(steps=steps), "schedule": Schedule(peak=0.01, warmup=0)} | options
    optimizers = build_optimizer(module, OptimizerSettings())
    return train(module, WEIGHTS, micro_batches, optimizers, LoopSettings(**options), Ranks(), Progress())


@pytest.mark.parametrize("pieces", [2, 8, 32])
def test_one_times_32_is_32_times_one(pieces):
    rows, chosen = data()
    found = []
    for count in (1, pieces):
        module = Two()
        totals, tokens = _backward(module, WEIGHTS, cut(rows, chosen, count), False, Ranks())
        gradients = torch.cat([p.grad.flatten() for p in module.parameters()])
        found.append((torch.stack([totals["words"], totals["pairs"]]), tokens, gradients))
    (one, tokens, gradient), (many, tokens_again, gradient_again) = found
    assert tokens == tokens_again == rows.numel()
    assert float((one - many).abs().max() / one.abs().max()) < 1e-6
    assert float((gradient - gradient_again).norm() / gradient.norm()) < 1e-6


def test_a_step_is_the_mean_over_everything_and_not_a_mean_of_means():
    rows, chosen = data()
    module, plain = Two(), Two()
    _backward(module, WEIGHTS, cut(rows, chosen, 8), False, Ranks())
    sums = plain(rows, chosen)
    sum(WEIGHTS[name] * loss / count for name, (loss, count, _) in sums.items()).backward()
    for ours, expected in zip(module.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(ours.grad, expected.grad, rtol=1e-5, atol=1e-7)


def test_whole_runs_agree_however_they_are_cut():
    losses = []
    for pieces in (1, 32):
        module = Two()
        losses.append(
            [r.losses["words"] for r in run(module, lambda step, p=pieces: cut(*data(seed=step), p), steps=8)]
        )
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_dropout_depends_on_the_seed_of_the_part_and_not_on_history():
    rows, chosen = data()
    module = Two(dropout=0.5)
    first, _ = _backward(module, WEIGHTS, cut(rows, chosen, 4), False, Ranks())
    torch.rand(100)
    second, _ = _backward(module, WEIGHTS, cut(rows, chosen, 4), False, Ranks())
    assert torch.equal(first["words"], second["words"])


def test_seeding_draws_what_torch_draws():
    Ranks().seed(11)
    ours = torch.rand(4), torch.randint(99, (3,)), torch.nn.functional.dropout(torch.ones(64))
    torch.manual_seed(11)
    theirs = torch.rand(4), torch.randint(99, (3,)), torch.nn.functional.dropout(torch.ones(64))
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def test_a_part_without_targets_counts_nothing():
    rows, _ = data(4)
    nothing = torch.zeros(4, dtype=torch.bool)
    [report] = run(Two(), lambda step: cut(rows, nothing, 2), steps=1)
    assert report.losses["words"] == 0.0
    assert math.isfinite(report.norm)


def poisoned(step, at=(3,)):
    rows, chosen = data(seed=step)
    if step in at:
        rows[5, 2] = float("nan")
    return cut(rows, chosen, 4)


def test_a_poisoned_step_is_left_out_and_named():
    module = Two()
    loop, before = run(module, poisoned, steps=6), {}
    for report in loop:
        if report.progress.step == 3:
            before = {name: value.clone() for name, value in module.state_dict().items()}
        if report.progress.step == 4:
            assert report.nonfinite == "the output of inner"
            assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
            assert all(parameter.grad is None for parameter in module.parameters())
        else:
            assert report.nonfinite is None
    assert report.progress.step == 6
    assert (report.progress.skipped, report.progress.skipped_in_a_row) == (1, 0)
    assert not torch.equal(before["inner.weight"], module.inner.weight)


def test_looking_back_hears_of_a_bad_step_one_late_and_trains_the_same():
    """What CUDA does, so that it never waits: the step itself is left out all the same."""
    found = []
    for late_nan_check in (False, True):
        module = Two()
        reports = list(run(module, poisoned, steps=6, late_nan_check=late_nan_check))
        found.append(
            [module.inner.weight.clone(), [r.progress.step for r in reports if r.nonfinite], reports[-1].progress]
        )
    (straight, named, progress), (late, named_late, progress_late) = found
    assert torch.equal(straight, late)
    assert (named, named_late) == ([4], [5])
    assert progress.skipped == progress_late.skipped == 1


def test_too_many_bad_steps_in_a_row_end_the_run():
    bad = {3, 7, 8, 9}
    steps = []
    with pytest.raises(BertkitError, match=r"step 10: the output of inner is NaN or infinite, and so were the 2 steps"):
        for report in run(Two(), lambda step: poisoned(step, bad), steps=20, most_skipped=2):
            steps.append(report.progress.step)
    assert steps == list(range(1, 10))


def test_a_bad_weight_and_a_bad_gradient_are_named():
    module = Two()
    rows, chosen = data()
    assert first_nonfinite(module, cut(rows, chosen, 1), Ranks()) == "the norm of all gradients"
    module.outer.weight.grad = torch.full_like(module.outer.weight, float("inf"))
    assert first_nonfinite(module, cut(rows, chosen, 1), Ranks()) == "the gradient of outer.weight"
    with torch.no_grad():
        module.outer.bias.fill_(float("nan"))
    assert first_nonfinite(module, cut(rows, chosen, 1), Ranks()) == "the weight outer.bias"


def test_the_norm_is_clipped():
    rows, chosen = data()
    module = Two()
    seen = []
    optimizers = build_optimizer(module, OptimizerSettings())
    step = optimizers.step
    optimizers.step = lambda rate, norm: (
        seen.append(torch.cat([p.grad.flatten() for p in module.parameters()]).norm()),
        step(rate, norm),
    )
    settings = LoopSettings(budget=Budget(steps=1), schedule=Schedule(peak=0.01, warmup=0), clip=0.01)
    [report] = train(module, WEIGHTS, lambda _: cut(rows, chosen, 1), optimizers, settings, Ranks(), Progress())
    assert report.norm > 0.1
    assert float(seen[0]) == pytest.approx(0.01, rel=1e-3)
