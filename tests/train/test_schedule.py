"""Learning rates and budgets are pure functions: no clock but the one that is given."""

import itertools

import pytest
import torch
from torch import nn

from bertkit.errors import RequestError
from bertkit.train.distributed import Ranks
from bertkit.train.loop import LoopSettings, MicroBatch, train
from bertkit.train.optimizer import build_optimizer
from bertkit.train.optimizer_rows import OptimizerSettings
from bertkit.train.runs import Progress
from bertkit.train.schedule import DECAYS, OWN_WARMUP, Budget, Schedule


def test_warm_up_rises_evenly_to_the_peak():
    schedule = Schedule(peak=2.0, warmup=4, decay="constant")
    assert [schedule.rate(step, 0.0) for step in range(6)] == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]
    assert Schedule(peak=2.0, warmup=0, decay="constant").rate(0, 0.0) == 2.0


@pytest.mark.parametrize(
    ("decay", "expected"),
    [
        ("linear", [1.0, 0.75, 0.5, 0.25, 0.0]),
        ("cosine", [1.0, 0.853553, 0.5, 0.146447, 0.0]),
        ("constant", [1.0, 1.0, 1.0, 1.0, 1.0]),
        ("trapezoid", [1.0, 1.0, 1.0, 0.833333, 0.0]),
        ("inverse-sqrt", [10**-0.5] * 5),  # of the step alone
        ("slanted", [1 / 32, 0.838542, 0.569444, 0.300347, 1 / 32]),
    ],
)
def test_each_decay_at_each_quarter(decay, expected):
    schedule = Schedule(peak=1.0, warmup=0, decay=decay)
    assert [schedule.rate(9, quarter / 4) for quarter in range(5)] == pytest.approx(expected, abs=1e-6)
    rates = [schedule.rate(9, share / 100) for share in range(10 if decay in OWN_WARMUP else 0, 101)]
    assert rates == sorted(rates, reverse=True)


def test_a_slanted_triangle_rises_over_the_first_tenth_whatever_the_warm_up():
    schedule = Schedule(peak=32.0, warmup=50, decay="slanted")
    assert [schedule.rate(0, share / 100) for share in (0, 5, 10, 55, 100)] == pytest.approx([1, 16.5, 32, 16.5, 1])


def test_every_decay_is_tested_above():
    assert set(DECAYS) == {"linear", "cosine", "constant", "trapezoid", "inverse-sqrt", "slanted"}


def test_progress_outside_its_range_and_the_floor():
    schedule = Schedule(peak=1.0, warmup=0, floor=0.1)
    assert schedule.rate(5, 1.7) == 0.1
    assert schedule.rate(5, -1.0) == 1.0


def test_a_budget_is_spent_by_step_or_by_the_clock_whichever_is_first():
    assert Budget(steps=10).progress(5, 1e9) == 0.5
    assert Budget(minutes=2).progress(10**9, 30) == 0.25
    assert Budget(steps=10, minutes=2).progress(5, 30) == 0.5
    assert Budget(steps=10, minutes=2).progress(2, 90) == 0.75


@pytest.mark.parametrize("budget", [{}, {"steps": 0}, {"steps": -3}, {"minutes": 0.0}, {"minutes": -1.0}])
def test_no_budget_is_refused(budget):
    with pytest.raises(RequestError):
        Budget(**budget)


def test_an_unknown_decay_is_refused():
    with pytest.raises(RequestError, match="unknown decay 'quadratic'; choose from: linear"):
        Schedule(peak=1.0, warmup=0, decay="quadratic")


class Squares(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return {"loss": ((self.weight * x).square().sum(), torch.tensor(len(x)), torch.tensor(0))}


def by_the_clock(seconds_a_step, evaluation=0.0, every=1, start=None):
    """Reports of a run of one minute whose clock ticks as told."""
    now = itertools.count()
    times = [0.0]

    def clock():
        if next(now):
            times[0] += seconds_a_step
        return times[0]

    module = Squares()
    settings = LoopSettings(
        budget=Budget(minutes=1), schedule=Schedule(peak=1e-3, warmup=3), clock=clock, most_skipped=0
    )
    optimizers = build_optimizer(module, OptimizerSettings())
    part = MicroBatch((torch.ones(3),), {"loss": 3}, 3, seed=0)
    reports = []
    for report in train(module, {"loss": 1.0}, lambda _: [part], optimizers, settings, Ranks(), start or Progress()):
        reports.append(report)
        if report.progress.step % every == 0:
            times[0] += evaluation
    return reports


def test_minutes_end_on_time_with_the_schedule_spent():
    reports = by_the_clock(0.5)
    assert len(reports) == 120
    assert reports[-1].progress.seconds == 60.0
    assert reports[-1].rate == pytest.approx(1e-3 / 120)
    assert max(report.rate for report in reports) < 1e-3
    assert reports[0].rate == pytest.approx(1e-3 / 3)


def test_evaluating_and_saving_count_as_time():
    reports = by_the_clock(0.5, evaluation=2.0, every=10)
    assert len(reports) == 88  # 44 seconds of steps and eight evaluations of two
    assert 60.0 <= reports[-1].progress.seconds < 60.0 + 2.5


def test_the_clock_goes_on_where_it_stopped():
    reports = by_the_clock(0.5, start=Progress(step=100, seconds=50.0))
    assert len(reports) == 20
    assert by_the_clock(0.5, start=Progress(step=120, seconds=60.0)) == []
