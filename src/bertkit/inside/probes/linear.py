"""Linear probes of every layer at once: logistic regressions that share their batches and nothing else."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bertkit.inside.probes.word_vectors import WordVectors
from bertkit.progress import Meter

ROWS_AT_ONCE = 4096
MIX_FASTER = 10  # learning rate of the mixture's few weights relative to the maps'


@dataclass(frozen=True)
class LinearSettings:
    """How the probes are trained."""

    epochs: int = 10
    rate: float = 5e-3
    batch: int = 512
    seed: int = 0


@dataclass(frozen=True)
class ProbeRows:
    """What is probed: a word, or two words side by side, and what to say of it in each of several tasks."""

    vectors: WordVectors
    words: tuple[NDArray[np.int64], ...]  # n each: one row of words, or two
    labels: NDArray[np.int64]  # tasks n: the task, and its control

    def __len__(self) -> int:
        return int(self.labels.shape[1])

    def inputs(self, chosen: NDArray[np.int64]) -> Tensor:
        """N n F float32."""
        return torch.cat([self.vectors.rows(words[chosen]) for words in self.words], dim=-1)


@dataclass(frozen=True)
class LinearProbes:
    """A probe for each layer, or with `mix` for the mixture of the layers up to each, for every task."""

    weight: Tensor  # P F (tasks labels)
    bias: Tensor  # P 1 (tasks labels)
    center: Tensor  # N 1 F
    spread: Tensor  # N 1 F
    mix: Tensor | None  # P N: each probe's weights of the layers
    tasks: int

    def say(self, rows: ProbeRows) -> NDArray[np.int64]:
        """T P n: the label that each probe gives each row."""
        said = []
        with torch.inference_mode():
            for chosen in _blocks(len(rows)):
                x_NnF = rows.inputs(chosen).sub_(self.center).div_(self.spread)
                x_PnF = x_NnF if self.mix is None else _mixed(self.mix, x_NnF)
                logits = _logits(x_PnF, self.weight, self.bias, self.tasks)
                said.append(logits.argmax(dim=-1).permute(2, 0, 1).numpy())
        return np.concatenate(said, axis=-1)


def fit_probes(
    rows: ProbeRows, labels: int, settings: LinearSettings, *, mix: bool = False, meter: Meter | None = None
) -> LinearProbes:
    """Train classifiers of `labels` labels at every layer, for every task; only the order of the rows is random.

    With `mix`, probe l reads a learned mixture of layers 0 to l (Tenney et al. 2019).
    """
    center, spread = _spread(rows)
    layers, _, width = center.shape
    tasks = len(rows.labels)
    weight = torch.zeros(layers, width, tasks * labels, requires_grad=True)
    bias = torch.zeros(layers, 1, tasks * labels, requires_grad=True)
    scores = torch.zeros(layers, layers, requires_grad=mix)
    optimizer = torch.optim.AdamW([weight, bias], lr=settings.rate, weight_decay=0.01)
    if mix:
        optimizer.add_param_group({"params": [scores], "weight_decay": 0.0, "faster": MIX_FASTER})
    targets, total, done = torch.from_numpy(rows.labels), settings.epochs * len(rows), 0
    for chosen in _shuffled(len(rows), settings):
        for group in optimizer.param_groups:
            group["lr"] = settings.rate * group.get("faster", 1) * (1 - done / total)
        optimizer.zero_grad()
        x_NnF = rows.inputs(chosen).sub_(center).div_(spread)
        x_PnF = _mixed(_shares(scores), x_NnF) if mix else x_NnF
        logits = _logits(x_PnF, weight, bias, tasks)
        loss = _loss(logits, targets[:, chosen])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        done += len(chosen)
        if meter is not None:
            meter.update(done, {"loss": f"{float(loss.detach()) / layers / tasks:.3f}"})
    shares = _shares(scores).detach() if mix else None
    return LinearProbes(weight.detach(), bias.detach(), center, spread, shares, tasks)


def _logits(x_PnF: Tensor, weight: Tensor, bias: Tensor, tasks: int) -> Tensor:
    """P n T C: what every probe says of every row, in every task."""
    both = torch.baddbmm(bias, x_PnF, weight)
    return both.view(*both.shape[:2], tasks, -1)


def _loss(logits_PnTC: Tensor, targets_Tn: Tensor) -> Tensor:
    """The mean over rows, summed over probes and tasks: each has the gradient it would have alone."""
    probes, rows = logits_PnTC.shape[:2]
    targets = targets_Tn.T.expand(probes, -1, -1)
    return F.cross_entropy(logits_PnTC.flatten(0, 2), targets.flatten(), reduction="sum") / rows


def _shares(scores_PN: Tensor) -> Tensor:
    """P N: row l spreads a weight of 1 over layers 0 to l."""
    above = torch.ones_like(scores_PN, dtype=torch.bool).triu(1)
    return scores_PN.masked_fill(above, -torch.inf).softmax(dim=-1)


def _mixed(shares_PN: Tensor, x_NnF: Tensor) -> Tensor:
    return torch.einsum("pl,lnf->pnf", shares_PN, x_NnF)


def _spread(rows: ProbeRows) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of every feature at every layer, so that one learning rate suits all: N 1 F each."""
    total = squares = torch.zeros(())
    for chosen in _blocks(len(rows)):
        x_NnF = rows.inputs(chosen).double()
        total, squares = total + x_NnF.sum(dim=1, keepdim=True), squares + x_NnF.square().sum(dim=1, keepdim=True)
    center = total / len(rows)
    spread = (squares / len(rows) - center.square()).clamp(min=0).sqrt()
    return center.float(), spread.float().clamp(min=1e-4)


def _blocks(rows: int) -> Iterator[NDArray[np.int64]]:
    return (np.arange(start, min(start + ROWS_AT_ONCE, rows)) for start in range(0, rows, ROWS_AT_ONCE))


def _shuffled(rows: int, settings: LinearSettings) -> Iterator[NDArray[np.int64]]:
    draw = np.random.default_rng(settings.seed)
    for _ in range(settings.epochs):
        order = draw.permutation(rows)
        # Sorted within a batch: the disk is read in one direction.
        yield from (np.sort(order[start : start + settings.batch]) for start in range(0, rows, settings.batch))
