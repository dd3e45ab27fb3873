"""Linear probes of all layers, trained together: independent logistic regressions on the same batches."""

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
MIX_RATE_FACTOR = 10  # on the learning rate, for the few weights of the mixture


@dataclass(frozen=True)
class LinearSettings:
    """How the probes are trained."""

    epochs: int = 10
    rate: float = 5e-3
    batch: int = 512
    seed: int = 0


@dataclass(frozen=True)
class ProbeRows:
    """The inputs of probes: words, or pairs of words, with their labels in one or more tasks."""

    vectors: WordVectors
    words: tuple[NDArray[np.int64], ...]  # n each: one array of words, or two for pairs
    labels: NDArray[np.int64]  # T n: of the task, and of its control

    def __len__(self) -> int:
        return int(self.labels.shape[1])

    def inputs(self, chosen: NDArray[np.int64]) -> Tensor:
        """N n F: the vectors of the chosen rows at every layer, in float32."""
        return torch.cat([self.vectors.rows(words[chosen]) for words in self.words], dim=-1)


@dataclass(frozen=True)
class LinearProbes:
    """P probes for every task: of each layer, or with `mix` of the mixture of the layers up to each."""

    weight: Tensor  # P F (tasks labels)
    bias: Tensor  # P 1 (tasks labels)
    mean: Tensor  # N 1 F, of the features
    deviation: Tensor  # N 1 F
    mix: Tensor | None  # P N: each probe's weights of the layers
    tasks: int

    def predict(self, rows: ProbeRows) -> NDArray[np.int64]:
        """T P n: the label that each probe predicts for each row."""
        labels = []
        with torch.inference_mode():
            for chosen in _blocks(len(rows)):
                x_NnF = rows.inputs(chosen).sub_(self.mean).div_(self.deviation)
                x_PnF = x_NnF if self.mix is None else _mix_layers(self.mix, x_NnF)
                logits = _logits(x_PnF, self.weight, self.bias, self.tasks)
                labels.append(logits.argmax(dim=-1).permute(2, 0, 1).numpy())
        return np.concatenate(labels, axis=-1)


def fit_probes(
    rows: ProbeRows, labels: int, settings: LinearSettings, *, mix: bool = False, meter: Meter | None = None
) -> LinearProbes:
    """Train a classifier with `labels` labels for every layer and task; only the order of the rows is random.

    With `mix`, the input of probe l is a learned mixture of layers 0 to l (Tenney et al. 2019).
    """
    mean, deviation = _feature_statistics(rows)
    layers, _, width = mean.shape
    tasks = len(rows.labels)
    weight = torch.zeros(layers, width, tasks * labels, requires_grad=True)
    bias = torch.zeros(layers, 1, tasks * labels, requires_grad=True)
    scores = torch.zeros(layers, layers, requires_grad=mix)
    optimizer = torch.optim.AdamW([weight, bias], lr=settings.rate, weight_decay=0.01)
    if mix:
        optimizer.add_param_group({"params": [scores], "weight_decay": 0.0, "factor": MIX_RATE_FACTOR})
    targets, total, done = torch.from_numpy(rows.labels), settings.epochs * len(rows), 0
    for chosen in _shuffled(len(rows), settings):
        for group in optimizer.param_groups:
            group["lr"] = settings.rate * group.get("factor", 1) * (1 - done / total)
        optimizer.zero_grad()
        x_NnF = rows.inputs(chosen).sub_(mean).div_(deviation)
        x_PnF = _mix_layers(_layer_weights(scores), x_NnF) if mix else x_NnF
        logits = _logits(x_PnF, weight, bias, tasks)
        loss = _loss(logits, targets[:, chosen])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        done += len(chosen)
        if meter is not None:
            meter.update(done, {"loss": f"{float(loss.detach()) / layers / tasks:.3f}"})
    layer_weights = _layer_weights(scores).detach() if mix else None
    return LinearProbes(weight.detach(), bias.detach(), mean, deviation, layer_weights, tasks)


def _logits(x_PnF: Tensor, weight: Tensor, bias: Tensor, tasks: int) -> Tensor:
    """P n T C: the logits of every probe for every row and task."""
    logits = torch.baddbmm(bias, x_PnF, weight)
    return logits.view(*logits.shape[:2], tasks, -1)


def _loss(logits_PnTC: Tensor, targets_Tn: Tensor) -> Tensor:
    """The mean over rows, summed over probes and tasks, so that each has its own gradient."""
    probes, rows = logits_PnTC.shape[:2]
    targets = targets_Tn.T.expand(probes, -1, -1)
    return F.cross_entropy(logits_PnTC.flatten(0, 2), targets.flatten(), reduction="sum") / rows


def _layer_weights(scores_PN: Tensor) -> Tensor:
    """P N: row l is a softmax over layers 0 to l."""
    above = torch.ones_like(scores_PN, dtype=torch.bool).triu(1)
    return scores_PN.masked_fill(above, -torch.inf).softmax(dim=-1)


def _mix_layers(weights_PN: Tensor, x_NnF: Tensor) -> Tensor:
    return torch.einsum("pl,lnf->pnf", weights_PN, x_NnF)


def _feature_statistics(rows: ProbeRows) -> tuple[Tensor, Tensor]:
    """N 1 F each: mean and standard deviation of every feature, for standardization."""
    total = squares = torch.zeros(())
    for chosen in _blocks(len(rows)):
        x_NnF = rows.inputs(chosen).double()
        total, squares = total + x_NnF.sum(dim=1, keepdim=True), squares + x_NnF.square().sum(dim=1, keepdim=True)
    mean = total / len(rows)
    deviation = (squares / len(rows) - mean.square()).clamp(min=0).sqrt()
    return mean.float(), deviation.float().clamp(min=1e-4)


def _blocks(rows: int) -> Iterator[NDArray[np.int64]]:
    return (np.arange(start, min(start + ROWS_AT_ONCE, rows)) for start in range(0, rows, ROWS_AT_ONCE))


def _shuffled(rows: int, settings: LinearSettings) -> Iterator[NDArray[np.int64]]:
    rng = np.random.default_rng(settings.seed)
    for _ in range(settings.epochs):
        order = rng.permutation(rows)
        # Sorted within a batch, so that the file is read in one direction.
        yield from (np.sort(order[start : start + settings.batch]) for start in range(0, rows, settings.batch))
