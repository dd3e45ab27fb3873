"""Too little memory: one sentence before the first step, with the block that fits."""

import pytest
import torch
from tiny_runs import make_shards, tiny_recipe

from bertkit.errors import RequestError
from bertkit.pretraining import pretraining
from bertkit.pretraining import session as session_module
from bertkit.pretraining.examples.batches import DataSettings
from bertkit.pretraining.planning import memory
from bertkit.pretraining.pretraining import pretrain
from bertkit.pretraining.stages import Stage


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return make_shards(tmp_path_factory.mktemp("corpus"))


def stage(block: int, batch: int) -> Stage:
    return Stage(1.0, batch, DataSettings(block=block))


def test_smaller_blocks_divide_the_batch():
    assert memory.smaller_blocks(stage(64, 256)) == [32, 16, 8, 4, 2, 1]
    assert memory.smaller_blocks(stage(24, 48)) == [12, 6, 3, 1]
    assert memory.smaller_blocks(stage(7, 49)) == [1]
    assert memory.smaller_blocks(stage(1, 4)) == []


def device(limit: int, compiled_limit: int = 0):
    """What a GPU does that holds blocks up to `limit`, or up to `compiled_limit` of compiled code."""
    tried = []

    def attempt(block: int, compiled: bool) -> None:
        tried.append((block, compiled))
        if block > (compiled_limit if compiled else limit):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")

    return attempt, tried


def test_what_fits_is_tried_once():
    attempt, tried = device(64)
    memory.check_device_memory(attempt, stage(64, 128), alone=True)
    assert tried == [(64, False)]


def test_compiled_code_may_fit_where_plain_code_does_not():
    attempt, tried = device(32, compiled_limit=64)
    memory.check_device_memory(attempt, stage(64, 128), alone=True)
    assert tried == [(64, False), (64, True)]


def test_the_block_that_fits_is_found_by_halving():
    attempt, tried = device(20)
    with pytest.raises(RequestError, match=r"^block=128 \(sequences of 128 tokens .* than the GPU has; block=16 fits"):
        memory.check_device_memory(attempt, stage(128, 128), alone=True)
    assert [block for block, _ in tried] == [128, 128, 64, 32, 16]


def test_where_nothing_fits_and_where_ranks_cannot_search_alone():
    for limit, alone in ((0, True), (16, False)):
        attempt, tried = device(limit)
        with pytest.raises(RequestError, match="lower block, or choose a shorter length or a smaller model"):
            memory.check_device_memory(attempt, stage(64, 128), alone=alone)
        assert alone or [block for block, _ in tried] == [64, 64]


def test_other_errors_come_through():
    def broken(block, compiled):
        raise ValueError("not memory")

    with pytest.raises(ValueError, match="not memory"):
        memory.check_device_memory(broken, stage(64, 128), alone=True)


def test_a_rehearsal_runs_the_largest_block_and_changes_nothing(shards, tmp_path, monkeypatch):
    seen = []
    run = memory.one_pass
    monkeypatch.setattr(session_module, "one_pass", lambda *given: (seen.append(given[2][0]), run(*given)))
    begin = pretraining._open

    def rehearsed(*given):
        session, progress = begin(*given)
        session.check_memory()
        return session, progress

    recipe = tiny_recipe(shards, steps=3, stages="0.5: 16 x 12")
    pretrain(recipe, tmp_path / "plain")
    monkeypatch.setattr(pretraining, "_open", rehearsed)
    pretrain(recipe, tmp_path / "rehearsed")
    [batch] = seen
    assert max(batch.lengths) > 12, "the longest texts, though the run begins with short ones"
    plain, other = (tmp_path / name / "model" / "model.safetensors" for name in ("plain", "rehearsed"))
    assert plain.read_bytes() == other.read_bytes()


def test_on_the_cpu_it_is_said_before_anything_is_written(shards, tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda: 900_000)
    recipe = tiny_recipe(shards, block=64, batch=64, objective="mlm")
    with pytest.raises(
        RequestError, match=r"block=64 \(.*\) needs about 0.0 GB of memory, and .*; block=\d+ fits"
    ) as e:
        pretrain(recipe, tmp_path / "run")
    assert "\n" not in str(e.value)
    assert not (tmp_path / "run").exists()
    fitting = int(str(e.value).split("block=")[2].split()[0])
    monkeypatch.setattr(memory, "free_memory", lambda: None)
    pretrain(tiny_recipe(shards, block=fitting, batch=64, objective="mlm", steps=1), tmp_path / "run")


def test_the_estimate_grows_with_what_it_counts(shards):
    def of(**changes):
        return memory.activation_bytes(tiny_recipe(shards, **changes), 1000)

    plain = of(objective="mlm")
    assert 0 < plain < of(objective="causal")
    assert plain < of(objective="rtd") < of(objective="rtd,fill")
    assert plain < of(objective="mlm", depth=4)
    assert plain < of(objective="mlm", rate=0.3)


def test_free_memory_is_what_machine_and_container_leave(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    assert memory.free_memory() is None
    (tmp_path / "meminfo").write_text("MemTotal: 100 kB\nMemAvailable:   50 kB\n")
    assert memory.free_memory() == 50 * 1024
    files = {"max": "30000", "current": "20000", "stat": "anon 5\ninactive_file 4000\nactive_file 9\n"}
    for name, text in files.items():
        (tmp_path / f"memory.{name}").write_text(text)
    assert memory.free_memory() == 14_000
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.free_memory() == 50 * 1024
    (tmp_path / "meminfo").write_text("nonsense\nMemAvailable:\n")
    assert memory.free_memory() is None


def test_as_many_bad_steps_as_the_recipe_allows(shards, tmp_path, monkeypatch):
    from bertkit.errors import BertkitError
    from bertkit.pretraining.session import PretrainingSession

    after = PretrainingSession._finish_step

    def poison(self, report, meter):
        going_on = after(self, report, meter)
        if report.progress.step == 2:
            with torch.no_grad():
                self.module.models["model"].encoder.layers[0].attention.out.weight[0, 0] = float("nan")
        return going_on

    monkeypatch.setattr(PretrainingSession, "_finish_step", poison)
    with pytest.raises(BertkitError, match="step 4: .* and so were the 1 steps before"):
        pretrain(tiny_recipe(shards, most_skipped=1), tmp_path / "run")
    with pytest.raises(RequestError, match="most_skipped=-1 must be at least 0"):
        pretrain(tiny_recipe(shards, most_skipped=-1), tmp_path / "other")
