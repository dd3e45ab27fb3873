"""Run by torchrun: each argument is a name and changes to the tiny recipe, such as `fsdp:sharding=fsdp;steps=8`."""

import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import torch
from tiny_runs import tiny_recipe

from bertkit.pretrain.pretraining import pretrain


def main(shards: Path, folder: Path, runs: list[str]) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=60))  # one for all runs
    for run in runs:
        name, _, words = run.partition(":")
        changes = dict(word.split("=") for word in words.split(";") if word)
        if name.startswith("stopped") and os.environ["RANK"] == "1":
            _stop_at(4)
        pretrain(tiny_recipe(shards, **changes), folder / name)
    torch.distributed.destroy_process_group()


def _stop_at(step: int) -> None:
    """SIGTERM to this rank alone, after a step: all must stop after the same one."""
    from bertkit.pretrain import pretraining

    log = pretraining.Session._log

    def logging(self, report, meter):
        log(self, report, meter)
        if report.progress.step == step:
            os.kill(os.getpid(), signal.SIGTERM)

    pretraining.Session._log = logging


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
