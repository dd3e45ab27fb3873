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

    def wrong(self, numbers):
        """Those that do not hold."""
        return {number: self.statuses[number] for number in numbers if self.statuses[number] != "ok"}

    def time(self, numbers):
        """CPU seconds of these together."""
        return sum(self.seconds[number] for number in numbers)


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
        code = run_command(["facts"])
    torch.set_num_threads(threads)
    return FactsRun(code, printed.getvalue(), statuses, seconds, with_settings)
