"""`bertkit facts` once for every test that asks what it found: the facts are measured once, in this process."""

import io
import time
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import import_module

import pytest
import torch

from bertkit.cli.main import run as run_command
from bertkit.facts import pretraining, run


@dataclass(frozen=True)
class FactsRun:
    """The command's exit code and output, and of each fact its status and the CPU time that it took."""

    code: int
    printed: str
    statuses: dict[str, str]
    seconds: dict[str, float]
    with_settings: set[str]  # facts that ask for pre-training's DataSettings
    unit: float  # CPU seconds of a fixed piece of work: CPUs differ by a factor of three

    def wrong(self, numbers):
        """Those that do not hold."""
        return {number: self.statuses[number] for number in numbers if self.statuses[number] != "ok"}

    def time(self, numbers):
        """CPU time of these together, in units of `unit_seconds`."""
        return sum(self.seconds[number] for number in numbers) / self.unit


def unit_seconds() -> float:
    """CPU seconds of 200 forward and backward passes of a tiny layer, after as many that are not counted."""
    layer, x = torch.nn.TransformerEncoderLayer(64, 2, 256, batch_first=True), torch.randn(8, 32, 64)
    for _ in range(2):
        began = time.process_time()
        for _ in range(200):
            layer(x).sum().backward()
    return time.process_time() - began


@pytest.fixture(scope="session")
def facts_run():
    measured, made, statuses, seconds, asking, with_settings = (
        run.run_facts,
        pretraining.DataSettings,
        {},
        {},
        [],
        set(),
    )

    def noted(**settings):
        asking.append(settings)
        return made(**settings)

    def timed(*given):
        before = time.process_time()
        for result in measured(*given):
            number = result.fact.number
            statuses[number], seconds[number] = result.status, time.process_time() - before
            with_settings.update([number] if asking else [])
            yield result
            asking.clear()
            before = time.process_time()

    for library in ("torch._dynamo", "sklearn.linear_model", "scipy.optimize", "scipy.stats"):
        import_module(library)  # before the clock starts: whichever test needs them first would pay for it
    threads, printed = torch.get_num_threads(), io.StringIO()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        patch.setattr(run, "run_facts", timed)
        patch.setattr(pretraining, "DataSettings", noted)
        code, unit = run_command(["facts"]), unit_seconds()
    torch.set_num_threads(threads)
    return FactsRun(code, printed.getvalue(), statuses, seconds, with_settings, unit)
