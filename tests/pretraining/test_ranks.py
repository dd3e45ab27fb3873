"""Two ranks under torchrun do what one does: copies of the model or tensors spread over them, and resumed on one."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tiny_runs import make_shards, tiny_recipe

from bertkit.errors import RequestError
from bertkit.pretraining.pretraining import pretrain
from bertkit.train.distributed import Ranks
from bertkit.train.runs import Run

HERE = Path(__file__).parent
STEPS = 8
KINDS = {"bert": {"average": "ema", "average_every": 2}, "electra": {"objective": "rtd,fill", "optimizer": "muon"}}
RUNS = {
    f"{sharding}-{kind}": {"sharding": sharding, "steps": STEPS, "save_every": 3, **changes}
    for sharding in ("ddp", "fsdp")
    for kind, changes in KINDS.items()
}
RUNS["stopped"] = {"sharding": "fsdp", "steps": STEPS, **KINDS["bert"]}
# Two blocks a step on each rank, and NaN in the first one of rank 1.
RUNS |= {f"poisoned-{sharding}": {"sharding": sharding, "steps": STEPS, "batch": 16} for sharding in ("ddp", "fsdp")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """All runs on two ranks, made by one torchrun, and the same on one rank."""
    folder = tmp_path_factory.mktemp("ranks")
    shards = make_shards(folder / "corpus")
    look = {"heldout": shards, "evaluate_every": 4}
    words = [
        f"{name}:" + ";".join(f"{key}={value}" for key, value in (run | look).items()) for name, run in RUNS.items()
    ]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--master-addr", "127.0.0.1", "--master-port", str(port), str(HERE / "ranks_worker.py")]
    paths = os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(HERE)])
    done = subprocess.run(
        [*command, str(shards), str(folder), *words],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    for kind, changes in KINDS.items():
        pretrain(tiny_recipe(shards, steps=STEPS, save_every=3, **changes, **look), folder / f"one-{kind}")
    return folder


def metrics(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def losses(run: Path) -> list[dict[str, float]]:
    return [line["loss"] for line in metrics(run) if "loss" in line]


def evaluations(run: Path) -> list[dict[str, float]]:
    return [line[key] for line in metrics(run) for key in ("evaluation", "averaged") if key in line]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
def test_two_ranks_are_one(folder, sharding, kind):
    two, one = folder / f"{sharding}-{kind}", folder / f"one-{kind}"
    assert len(losses(two)) == STEPS
    for ours, expected in zip(losses(two), losses(one), strict=True):
        assert ours == pytest.approx(expected, rel=1e-6)
    for ours, expected in zip(evaluations(two), evaluations(one), strict=True):
        assert ours == pytest.approx(expected, rel=1e-6)
    assert [path.name for path in Run(two).checkpoints()] == [path.name for path in Run(one).checkpoints()]
    for part in ("model/model.safetensors", f"checkpoints/step-{STEPS:08d}/optimizer.safetensors"):
        ours, expected = load_file(two / part), load_file(one / part)
        assert ours.keys() == expected.keys()
        for name, tensor in expected.items():
            assert ours[name].shape == tensor.shape
            assert float((ours[name] - tensor).abs().max()) < 1e-5, (part, name)


def test_a_signal_to_one_rank_stops_both_and_one_rank_goes_on(folder):
    stopped = folder / "stopped"
    assert Run(stopped).latest().name == "step-00000004"
    assert not (stopped / "model").exists()
    shards = folder / "corpus" / "shards"
    recipe = tiny_recipe(shards, steps=STEPS, heldout=shards, evaluate_every=4, **KINDS["bert"])
    assert pretrain(recipe, stopped, resume=True).progress.step == STEPS
    for ours, expected in zip(losses(stopped), losses(folder / "one-bert"), strict=True):
        assert ours == pytest.approx(expected, rel=1e-6)
    ours, expected = (load_file(folder / name / "model" / "model.safetensors") for name in ("stopped", "one-bert"))
    assert max(float((ours[name] - expected[name]).abs().max()) for name in expected) < 1e-5


@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
def test_a_nan_on_one_rank_leaves_the_step_out_on_all_and_the_run_goes_on(folder, sharding):
    run = folder / f"poisoned-{sharding}"
    steps = [line for line in metrics(run) if "loss" in line]
    assert [line["step"] for line in steps] == list(range(1, STEPS + 1))
    [bad] = [line for line in steps if "bad" in line]
    assert (bad["step"], bad["bad"]) == (4, "the output of model.encoder.layers.0.attention on rank 1")
    assert [line["skipped"] for line in steps] == [0, 0, 0, 1, 1, 1, 1, 1]
    assert all(value is not None for line in steps[4:] for value in (*line["loss"].values(), line["norm"]))
    for ours, expected in zip(losses(run)[4:], losses(folder / "poisoned-ddp")[4:], strict=True):
        assert ours == pytest.approx(expected, rel=1e-6)
    assert all(tensor.isfinite().all() for tensor in load_file(run / "model" / "model.safetensors").values())


def test_a_share_is_a_part_of_its_own_and_all_parts_are_the_whole():
    parts = [Ranks(rank, 4).share(range(16, 24)) for rank in range(4)]
    assert [list(part) for part in parts] == [[16, 17], [18, 19], [20, 21], [22, 23]]
    with pytest.raises(RequestError, match="3 blocks per step do not divide evenly over 2 ranks; raise batch or lower"):
        Ranks(0, 2).share(range(3))
