"""GradCache: a step in parts has the gradients of the step as one batch, with dropout, in half precision, on ranks."""

import os
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from bertkit.checkpoint.save_load import load_checkpoint
from bertkit.finetuning.embeddings.data import TextRows
from bertkit.finetuning.embeddings.session import VectorData, VectorSession
from bertkit.finetuning.embeddings.settings import read_vector_request
from bertkit.finetuning.embeddings.tuning import encode, open_vectors
from bertkit.model.batch import Batch
from bertkit.train.distributed import Ranks
from bertkit.train.half import HalfPrecision
from bertkit.train.loop import LoopSettings, StepContext, take_step
from bertkit.train.runs import Run
from bertkit.train.schedule import Budget, Schedule

pytestmark = pytest.mark.usefixtures("_one_thread")
ROWS = 24
LOOP = LoopSettings(budget=Budget(steps=1), schedule=Schedule(peak=0.0, warmup=0), clip=1e9)


class NoUpdate:
    """In place of optimizers: the gradients stay as they are."""

    def step(self, rate: float, norm: torch.Tensor) -> None:
        pass


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return tiny.tiny_folder(tmp_path_factory.mktemp("tiny") / "model")


def session_of(model: Path, objective: str, *settings: str, seed: int = 0) -> VectorSession:
    """A session over random texts of 3 to 12 words, some of which stand in several rows."""
    draw = np.random.default_rng(seed)
    texts = [" ".join(draw.choice(tiny.GOOD + tiny.BAD, draw.integers(3, 12))) for _ in range(40)]
    rows = draw.integers(len(texts), size=(ROWS, 1 if objective == "twins" else 2))
    start = load_checkpoint(model)
    wanted = read_vector_request(f"batch={ROWS}", *settings)[0]
    scores = draw.random(ROWS, dtype=np.float32) if objective in ("scores", "cosent") else None
    teacher = draw.normal(size=(len(texts), 8)).astype(np.float16) if objective == "teacher" else None
    data = VectorData(objective, TextRows(texts, rows, scores), encode(start, texts, 64), None, teacher)
    return open_vectors(Run(model.parent / "never-written"), data, start, wanted, Ranks())[0]


def step(session: VectorSession, module: nn.Module | None = None, ranks: Ranks = Ranks()) -> tuple[dict, list]:  # noqa: B008
    """The gradients and (sum, count, correct) of the session's first step."""
    module = session.module if module is None else module
    context = StepContext(module, session.module.weights, NoUpdate(), LOOP, ranks)
    totals, _, tokens = (session.step_function() or take_step)(context, session.micro_batches(0), 0.0)
    gradients = {name: p.grad.clone() for name, p in session.module.named_parameters() if p.grad is not None}
    session.module.zero_grad(set_to_none=True)
    return gradients, [*totals["task"].tolist(), tokens]


def assert_equal(one: dict, other: dict, tolerance: float = 1e-5) -> None:
    assert one.keys() == other.keys()
    largest = max(float(gradient.abs().max()) for gradient in one.values())
    assert largest > 1e-3
    for name, gradient in one.items():
        assert float((gradient - other[name]).abs().max()) < tolerance * max(largest, 1), name


@pytest.mark.parametrize("objective", ["pairs", "twins", "teacher", "scores", "cosent"])
def test_a_step_in_parts_has_the_gradients_of_the_step_as_one(model, objective):
    quiet = ("dropout=0",) if objective != "twins" else ("dropout=1e-9",)  # twins need some
    whole = session_of(model, objective, *quiet)
    parts = session_of(model, objective, *quiet, "tokens=64")
    assert len(whole.micro_batches(0)) == 1
    assert len(parts.micro_batches(0)) > 3
    (gradients, totals), (in_parts, totals_in_parts) = step(whole), step(parts)
    assert_equal(gradients, in_parts)
    assert totals_in_parts == pytest.approx(totals, rel=1e-5)
    assert totals[1] == ROWS


def with_graph(session: VectorSession) -> dict:
    """The slow twin: all parts are embedded with their graphs, which are kept until the loss of all is known."""
    learner, parts = session.learner, session.micro_batches(0)
    vectors = []
    for part in parts:
        torch.manual_seed(part.seed)
        vectors.append(learner(*part.inputs)["task"][0])
    texts = torch.cat(vectors)[torch.cat([part.places for part in parts]).argsort()]
    (learner.loss(texts, parts[0].targets)[0] / ROWS).backward()
    gradients = {name: p.grad.clone() for name, p in session.module.named_parameters() if p.grad is not None}
    session.module.zero_grad(set_to_none=True)
    return gradients


@pytest.mark.parametrize("objective", ["pairs", "twins", "teacher", "cosent"])
def test_dropout_is_the_same_in_both_passes(model, objective):
    session = session_of(model, objective, "dropout=0.3", "tokens=64")
    assert_equal(with_graph(session), step(session)[0])
    other = session_of(model, objective, "dropout=0.3", "tokens=64", "seed=1")
    with pytest.raises(AssertionError):
        assert_equal(with_graph(session), with_graph(other))


def test_low_rank_updates_in_half_precision_go_through_it(model):
    whole, parts = (session_of(model, "pairs", "dropout=0", "rank=2", *more) for more in ([], ["tokens=64"]))
    assert_equal(step(whole)[0], step(parts)[0])
    half = step(parts, HalfPrecision(parts.module))[0]
    assert_equal(step(whole, HalfPrecision(whole.module))[0], half, 0.02)
    assert all(gradient.dtype == torch.float32 for gradient in half.values())


def test_a_compiled_module_has_the_same_gradients(model):
    whole, parts = (session_of(model, "pairs", "dropout=0", *more) for more in ([], ["tokens=256"]))
    assert_equal(step(whole)[0], step(parts, torch.compile(parts.module, backend="eager"))[0])


def test_a_run_in_parts_ends_where_a_run_as_one_does(model, tmp_path):
    from bertkit.finetuning.embeddings.tuning import tune_vectors

    draw = np.random.default_rng(1)
    words = [tiny.GOOD, tiny.BAD]
    rows = [f"{draw.choice(words[n % 2])} film\tit is {draw.choice(words[n % 2])}" for n in range(64)]
    (tmp_path / "pairs.tsv").write_text("\n".join(["query\tpassage", *rows]) + "\n")
    losses = []
    for name, more in (("one", []), ("parts", ["tokens=64"])):
        wanted = read_vector_request("batch=32", "dropout=0", "epochs=3", "learning_rate=1e-3", *more)[0]
        losses.append(tune_vectors(wanted, model, tmp_path / "pairs.tsv", None, tmp_path / name).score)
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    one, parts = (load_checkpoint(tmp_path / name).model.encoder.state_dict() for name in ("one", "parts"))
    assert all(torch.allclose(one[name], parts[name], atol=1e-4) for name in one)


def test_nan_is_found_where_it_is(model):
    from bertkit.train.loop import first_nonfinite

    session = session_of(model, "pairs", "dropout=0", "tokens=64")
    parts = session.micro_batches(0)
    assert "norm" in first_nonfinite(session.module, parts, Ranks())
    batch: Batch = parts[2].inputs[0]
    with torch.no_grad():
        session.learner.model.encoder.embeddings.word.weight[batch.ids[1]] = float("inf")
    assert "weight" in first_nonfinite(session.module, parts, Ranks())


def _on_rank(rank: int, folder: Path) -> None:
    """One of two ranks: its own rows, gradients averaged by DDP."""
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    ranks = Ranks(rank, 2)
    session = session_of(folder / "model", "pairs", "dropout=0", "tokens=64", seed=rank)
    session.ranks = ranks
    torch.save(step(session, DistributedDataParallel(session.module), ranks), folder / f"rank-{rank}.pt")
    dist.destroy_process_group()


def test_each_of_two_ranks_compares_its_own_texts(tmp_path):
    model = tiny.tiny_folder(tmp_path / "model")
    spawn(_on_rank, (tmp_path,), nprocs=2)
    expected = [step(session_of(model, "pairs", "dropout=0", seed=rank)) for rank in (0, 1)]
    (both, totals), (again, _) = (torch.load(tmp_path / f"rank-{rank}.pt") for rank in (0, 1))
    assert_equal(both, again, 1e-7)
    mean = {name: (gradient + expected[1][0][name]) / 2 for name, gradient in expected[0][0].items()}
    assert_equal(mean, both)
    assert totals == pytest.approx([a + b for a, b in zip(expected[0][1], expected[1][1], strict=True)], rel=1e-5)
