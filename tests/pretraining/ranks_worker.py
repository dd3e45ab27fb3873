"""Run by torchrun: each argument is a name and changes to the tiny recipe, such as `fsdp:sharding=fsdp;steps=8`."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from unittest.mock import patch

import torch
from tiny_runs import tiny_recipe

from bertkit.model.layer import SelfAttention
from bertkit.pretraining.pretraining import pretrain
from bertkit.pretraining.session import PretrainingSession


def main(shards: Path, folder: Path, runs: list[str]) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=60))  # one for all runs
    for run in runs:
        name, _, words = run.partition(":")
        changes = dict(word.split("=") for word in words.split(";") if word)
        with _trouble(name) if os.environ["RANK"] == "1" else nullcontext():
            pretrain(tiny_recipe(shards, **changes), folder / name)
    torch.distributed.destroy_process_group()


def _trouble(name: str) -> AbstractContextManager[object]:
    """What happens to rank 1 alone in the run of that name."""
    if name.startswith("stopped"):
        return _stopped_at(4)
    return _poisoned_at(3) if name.startswith("poisoned") else nullcontext()


def _stopped_at(step: int) -> AbstractContextManager[object]:
    """SIGTERM to this rank alone, after a step: all must stop after the same one."""
    log = PretrainingSession._log

    def logging(self, report, meter):
        log(self, report, meter)
        if report.progress.step == step:
            os.kill(os.getpid(), signal.SIGTERM)

    return patch.object(PretrainingSession, "_log", logging)


@contextmanager
def _poisoned_at(step: int) -> Iterator[None]:
    """NaN in the forward of this rank's first block of a step, as a bad batch would give on one rank."""
    micro_batches, forward, poisoned = PretrainingSession.micro_batches, SelfAttention.forward, []

    def remembering(self, number):
        parts = micro_batches(self, number)
        if number == step:
            poisoned.append(parts[0].inputs[0])
        return parts

    def poisoning(self, x, batch, *operations):
        out = forward(self, x, batch, *operations)
        return out * float("nan") if any(batch is each for each in poisoned) else out

    with (
        patch.object(PretrainingSession, "micro_batches", remembering),
        patch.object(SelfAttention, "forward", poisoning),
    ):
        yield


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
