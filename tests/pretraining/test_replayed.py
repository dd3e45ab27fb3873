"""A replayed pre-training step is the step: every loss, the norm, and the weights at the end."""

import pytest
import torch
from memory_corpus import random_corpus
from test_objectives import electra, masked_words
from torch.fx.experimental.proxy_tensor import make_fx

from bertkit.model.batch import Batch
from bertkit.pretraining.examples.batches import DataSettings, ExampleSource
from bertkit.pretraining.examples.inputs import to_inputs
from bertkit.train.distributed import Ranks
from bertkit.train.loop import LoopSettings, MicroBatch, train
from bertkit.train.optimizer import build_optimizer
from bertkit.train.optimizer_rows import OptimizerSettings
from bertkit.train.replay import Replay
from bertkit.train.runs import Progress
from bertkit.train.schedule import Budget, Schedule

OBJECTIVES = {("mlm",): masked_words, ("mlm", "nsp"): masked_words, ("rtd",): electra, ("rtd", "fill"): electra}
CPU, LENGTH = torch.device("cpu"), 48

pytestmark = pytest.mark.usefixtures("_one_thread")


def module_for(objective):
    return electra(float("fill" in objective)) if "rtd" in objective else masked_words(objective)


def micros_of(objective, fixed=True):
    source = ExampleSource(
        random_corpus(30, seed=0, distinct=False), DataSettings(length=48, objective=objective, block=8)
    )

    def micro_batches(step):
        examples = source.block(step)
        sequences, tokens = len(examples.lengths), int(examples.lengths.sum())
        counts = {"mlm": len(examples.chosen), "pair": sequences, "rtd": tokens}
        counts["fill"] = len(examples.chosen[::4])
        return [MicroBatch(to_inputs(examples, CPU, fixed_length=LENGTH if fixed else None), counts, tokens, seed=step)]

    return micro_batches


def steps_of(objective, take=None, optimizer="adamw", micro_batches=None, module=None, autocast=False):
    module = module or module_for(objective)
    settings = LoopSettings(budget=Budget(steps=8), schedule=Schedule(peak=1e-3, warmup=2), autocast=autocast)
    optimizers = build_optimizer(module, OptimizerSettings(name=optimizer))
    steps = train(
        module, module.weights, micro_batches or micros_of(objective), optimizers, settings, Ranks(), Progress(), take
    )
    told = [(*report.losses.values(), *report.accuracies.values(), report.norm) for report in steps]
    return told, {name: p.detach().clone() for name, p in module.named_parameters()}


def replaying(run):
    """What a graph does, without one: the same function again, on the same buffers."""
    kept = []
    return lambda: kept.append(run()) or kept, lambda: kept[-1]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_replayed_steps_are_the_steps(objective, optimizer):
    take = Replay(CPU, replaying)
    told, weights = steps_of(objective, optimizer=optimizer)
    again, others = steps_of(objective, take, optimizer)
    assert len(take.recorded) == 1
    assert len(told) == 8
    for plain, replayed in zip(told, again, strict=True):
        assert replayed == pytest.approx(plain, rel=1e-4)
    for name, value in weights.items():
        torch.testing.assert_close(others[name], value, atol=1e-4, rtol=1e-3, msg=name)


@pytest.mark.parametrize("autocast", [False, True])
def test_replayed_steps_compute_in_the_dtype_of_the_steps(autocast):
    runs = []
    for take in (None, Replay(CPU, replaying)):
        module, dtypes = module_for(("mlm",)), []
        layer = module.model.encoder.layers[0].attention.out
        layer.register_forward_hook(lambda _, __, output, seen=dtypes: seen.append(output.dtype))
        told, _ = steps_of(("mlm",), take, module=module, autocast=autocast)
        assert dtypes == [torch.bfloat16 if autocast else torch.float32] * 8
        runs.append(told)
    for plain, replayed in zip(*runs, strict=True):  # a last bit of float32 may round to the next bfloat16
        assert replayed == pytest.approx(plain, rel=1e-3 if autocast else 1e-4)


def test_what_has_no_fixed_form_is_taken_as_usual():
    take = Replay(CPU, replaying)
    steps_of(("mlm",), take, micro_batches=micros_of(("mlm",), fixed=False))
    assert not take.recorded
    assert Batch.pack([[1, 2]]).form is None


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_one_graph_serves_every_mix_of_lengths(objective):
    """Nothing of a step may depend on the values of one mix: a graph would repeat them for ever."""
    module, micro_batches = module_for(objective), micros_of(objective)
    inputs = [micro_batches(step)[0].inputs for step in range(4)]
    assert len({tuple(each.form for each in own) for own in inputs}) == 1
    assert len({own[0].lengths for own in inputs}) > 1
    batch, targets = inputs[0]

    def call(*tensors):
        sums = module(batch.refilled(tensors[:4]), targets.refilled(tensors[4:]))
        return torch.stack([loss for loss, _, _ in sums.values()])

    graph = make_fx(call)(*batch.tensors, *targets.tensors)

    def losses_of(step):
        torch.manual_seed(1)  # of the generator's samples
        return torch.stack([step(*own[0].tensors, *own[1].tensors) for own in inputs])

    losses = losses_of(graph)
    torch.testing.assert_close(losses, losses_of(call))
    assert all(len(set(each.tolist())) > 1 for each in losses.T)
