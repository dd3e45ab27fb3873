"""The losses between vectors, held against loops that anybody can read; and matrices that move in few directions."""

import math

import pytest
import tiny
import torch
import torch.nn.functional as F

from bertkit.errors import RequestError
from bertkit.finetuning.embeddings.losses import (
    VectorLearner,
    VectorTargets,
    contrastive_loss,
    cosent_loss,
    score_loss,
    teacher_loss,
)
from bertkit.finetuning.learner import freeze_below
from bertkit.model.batch import Batch
from bertkit.model.model import new_model
from bertkit.train.half import HalfPrecision
from bertkit.train.low_rank import LowRank

pytestmark = pytest.mark.usefixtures("_one_thread")


def units(count: int, width: int = 6, seed: int = 0) -> torch.Tensor:
    return F.normalize(torch.randn(count, width, generator=torch.Generator().manual_seed(seed)), dim=-1)


def targets(names: list[int], rows: int, wanted: torch.Tensor | None = None) -> VectorTargets:
    return VectorTargets(rows, torch.tensor(names), wanted)


def contrast_plain(vectors, names, heat):
    """Pair by pair: minus the log of the share that the right partner has among all who may be asked."""
    count = len(names) // 2
    first, second = vectors[:count], vectors[count:]
    total, right = 0.0, 0
    for here, there, own, other in (
        (first, second, names[:count], names[count:]),
        (second, first, names[count:], names[:count]),
    ):
        for i in range(count):
            may = [
                j for j in range(count) if j == i or (own[j] != own[i] and other[j] != other[i] and other[j] != own[i])
            ]
            scores = {j: math.exp(float(here[i] @ there[j]) / heat) for j in may}
            total -= math.log(scores[i] / sum(scores.values())) / 2
            right += here is first and max(scores, key=scores.__getitem__) == i
    return total, right


@pytest.mark.parametrize(
    "names", [[0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 0, 2, 3, 4, 5, 4], [0, 1, 2, 3, 0, 1, 2, 3], [0, 1, 2, 3, 1, 2, 3, 4]]
)
@pytest.mark.parametrize("heat", [0.05, 0.5])
def test_contrast_is_what_the_loop_says(names, heat):
    vectors = units(8)
    loss, right = contrastive_loss(vectors, targets(names, 4), heat)
    plain, hits = contrast_plain(vectors, names, heat)
    assert float(loss) == pytest.approx(plain, rel=1e-4, abs=1e-6)
    assert int(right) == hits


def test_a_text_that_stands_twice_is_no_wrong_answer():
    one = units(3)
    vectors = one[[0, 0, 1, 0, 0, 1]]
    apart, _ = contrastive_loss(vectors, targets([0, 0, 1, 2, 2, 1], 3), 0.05)
    counted, _ = contrastive_loss(vectors, targets([0, 3, 1, 2, 4, 1], 3), 0.05)
    assert float(counted) - float(apart) == pytest.approx(2 * math.log(2), abs=0.01), (
        "else both copies share one half of the probability"
    )


def test_a_text_on_the_other_side_of_another_pair_is_no_wrong_answer():
    """(a, b), (b, c): b is nearest to its own copy, which says nothing against c being its partner."""
    a, b, c = units(3)
    loss, right = contrastive_loss(torch.stack((a, b, b, c)), targets([0, 1, 1, 2], 2), 0.05)
    of_a, of_c = (float(-(torch.stack((x @ b, a @ c)) / 0.05).log_softmax(0)[0]) for x in (a, c))
    assert float(loss) == pytest.approx((of_a + of_c) / 2, rel=1e-4), "b has nobody else to choose from, on either side"
    assert int(right) == 1 + int(a @ b > a @ c)
    turned, _ = contrastive_loss(torch.stack((a, b, b, a)), targets([0, 1, 1, 0], 2), 0.05)
    assert float(turned) == 0


def follow_plain(vectors, teacher, names, heat):
    """Text by text: how far the pupil's shares of nearness are from the teacher's."""
    total = 0.0
    for i in range(len(names)):
        others = [j for j in range(len(names)) if names[j] != names[i]]
        shares = []
        for side in (teacher, vectors):
            weights = [math.exp(float(side[i] @ side[j]) / heat) for j in others]
            shares.append([weight / sum(weights) for weight in weights])
        total += sum(p * math.log(p / q) for p, q in zip(*shares, strict=True))
    return total


@pytest.mark.parametrize(("names", "rows"), [([0, 1, 2, 3, 4, 5], 3), ([0, 1, 2, 0, 4, 5], 3), ([0, 1, 2, 3], 4)])
def test_following_a_teacher_is_what_the_loop_says(names, rows):
    vectors, teacher = units(len(names)), units(len(names), width=9, seed=1)
    loss, _ = teacher_loss(vectors, targets(names, rows, 3 * teacher.half()), 0.1)  # of any length
    plain = follow_plain(vectors, F.normalize(teacher.half().float(), dim=-1), names, 0.1)
    assert float(loss) == pytest.approx(plain * rows / len(names), rel=1e-3)
    same, _ = teacher_loss(vectors, targets(names, rows, vectors), 0.1)
    assert float(same) == pytest.approx(0, abs=1e-5)


def test_a_batch_of_one_text_teaches_nothing_and_breaks_nothing():
    vectors = units(1).requires_grad_()
    loss, _ = teacher_loss(vectors, targets([0], 1, units(1, 4)), 0.05)
    loss.backward()
    assert loss.item() == 0
    assert not vectors.grad.any()
    pair = units(2).requires_grad_()
    loss, right = contrastive_loss(pair, targets([0, 1], 1), 0.05)
    loss.backward()
    assert (loss.item(), right.item()) == (0, 1)
    assert torch.isfinite(pair.grad).all()


def test_rating_is_the_squared_distance_of_cosines_from_scores():
    vectors, scores = units(6), torch.tensor([0.0, 0.5, 1.0])
    loss, _ = score_loss(vectors, targets(list(range(6)), 3, scores), 0.05)
    plain = sum((float(vectors[i] @ vectors[i + 3]) - float(scores[i])) ** 2 for i in range(3))
    assert float(loss) == pytest.approx(plain, rel=1e-5)


@pytest.mark.parametrize("scores", [[0.0, 0.5, 1.0, 0.5], [0.2, 0.2, 0.2, 0.2]])
def test_cosent_is_what_the_loop_says(scores):
    vectors = units(8).requires_grad_()
    loss, _ = cosent_loss(vectors, targets(list(range(8)), 4, torch.tensor(scores)), 0.1)
    cosines = [float(vectors[i].detach() @ vectors[i + 4].detach()) for i in range(4)]
    twos = [(i, j) for i in range(4) for j in range(4) if scores[i] > scores[j]]
    plain = math.log(1 + sum(math.exp((cosines[j] - cosines[i]) / 0.1) for i, j in twos))
    assert loss.item() == pytest.approx(4 * plain, rel=1e-5)
    loss.backward()
    assert bool(vectors.grad.any()) == bool(twos), "equal scores say nothing"


def model(dropout: float = 0.0):
    from bertkit.config import family_config

    shape = {"depth": 2, "width": 32, "heads": 2, "inner": 64, "max_length": 64, "vocab_size": len(tiny.PIECES)}
    return new_model(family_config("bert", "tiny", **shape, dropout=dropout, attention_dropout=dropout), {})


BATCH = Batch.pack([[2, 5, 6, 3], [2, 9, 3], [2, 12, 13, 14, 3], [2, 7, 3]])
ASKED = targets([0, 1, 2, 3], 2)


def test_low_rank_starts_where_the_model_is_and_moves_within_its_rank():
    learner = VectorLearner(model(), "pairs", 0.05)
    before = {name: parameter.detach().clone() for name, parameter in learner.named_parameters()}
    plain = learner(BATCH, ASKED)["task"][0].item()
    low = LowRank(learner, 3)
    assert low(BATCH, ASKED)["task"][0].item() == pytest.approx(plain, rel=1e-6)
    optimizer = torch.optim.SGD([p for p in low.parameters() if p.requires_grad], lr=0.1)
    for _ in range(3):
        low(BATCH, ASKED)["task"][0].backward()
        optimizer.step()
        optimizer.zero_grad()
    now = {**dict(learner.named_parameters()), **low.updated_matrices()}
    for name, tensor in now.items():
        change = (tensor - before[name]).detach()
        if "embeddings" in name and tensor.dim() == 2:
            assert not change.any(), name
        elif tensor.dim() == 2:
            strengths = torch.linalg.svdvals(change)
            assert strengths[0] > 1e-6, name
            assert (strengths[3:] < 1e-4 * strengths[0]).all(), name
    assert low(BATCH, ASKED)["task"][0].item() < plain


def test_low_rank_goes_through_half_precision_with_gradients_in_float32():
    low = LowRank(VectorLearner(model(), "pairs", 0.05), 2)
    whole = low(BATCH, ASKED)["task"][0].item()
    half = HalfPrecision(low)(BATCH, ASKED)["task"][0]
    half.backward()
    assert half.item() == pytest.approx(whole, rel=0.1)
    moving = [p for p in low.parameters() if p.requires_grad]
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in moving if p.dim() == 1)
    assert all(low.up[key].grad.abs().sum() > 0 for key in low.up if "attention/out" in key)


def test_low_rank_needs_a_matrix():
    frozen = VectorLearner(model(), "pairs", 0.05)
    freeze_below(frozen.model, 99)
    with pytest.raises(RequestError, match="rank=2 leaves no matrix to be tuned"):
        LowRank(frozen, 2)
