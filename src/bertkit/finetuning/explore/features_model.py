"""The regression on one layer of a frozen encoder as a model folder: the layers up to it, and a linear head.

A head reads one layer, the last that a model has: the layers above it are left out. The embeddings alone, several
layers side by side and a mixture of layers have no place in a folder; nor have the inner layers of families that end
with a norm, which would be applied to them.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.model_selection import KFold, ShuffleSplit, cross_val_score
from sklearn.pipeline import Pipeline

from bertkit.checkpoint.save_load import Checkpoint, save_checkpoint
from bertkit.config import BertConfig
from bertkit.finetuning.explore.features import FOLDS, Features, fit_classes, new_regression
from bertkit.finetuning.learner import with_config
from bertkit.finetuning.prepare import Prepared
from bertkit.model.heads import HEADS, TokenHead
from bertkit.tasks.folder import task_json
from bertkit.tasks.shared.decision import Decision

MANY = 2000  # rows from which one fifth that is held out says enough
UNKNOWN = -30.0  # logit, relative to the others', of a label that no training row has


def save_best_layer(start: Checkpoint, prepared: Prepared, features: Features, target: Path) -> int:
    """Save the layer that cross-validation on the training data prefers, and tell its number."""
    layer = choose_layer(features, saveable_layers(start.model.config))
    save_layer(start, prepared, features, layer, target)
    return layer


def saveable_layers(config: BertConfig) -> list[int]:
    """The layers whose vectors a shortened encoder gives."""
    return [config.depth] if config.parts.norm == "pre" else list(range(1, config.depth + 1))


def choose_layer(features: Features, layers: Sequence[int]) -> int:
    """The layer with the best accuracy on training rows that were held out; of equals the highest."""
    many = len(features.known) > MANY
    folds = ShuffleSplit(1, test_size=1 / FOLDS, random_state=0) if many else KFold(FOLDS, shuffle=True, random_state=0)
    if len(layers) == 1 or len(features.known) < 2 * FOLDS:
        return layers[-1]
    scores = [
        np.nan_to_num(cross_val_score(new_regression(), features.train[:, layer], features.known, cv=folds)).mean()
        for layer in layers
    ]
    return max(zip(scores, layers, strict=True))[1]


def save_layer(start: Checkpoint, prepared: Prepared, features: Features, layer: int, target: Path) -> None:
    """Write a folder that answers as the regression on this layer's vectors does."""
    task: Any = prepared.task
    pooled = HEADS[task.head].pooled
    if pooled:  # the mean of a text's vectors gives the mean of their logits
        task = replace(task, length=replace(task.length, pool="mean"))
    config = start.model.config
    parts = replace(config.parts, pooler="none", pooler_norm=False, pooling="mean")
    if not pooled:
        parts = replace(config.parts, token_pooler=False)
    model = with_config(start.model, replace(config, depth=layer, parts=parts), {task.head: task.outputs})
    head = model.heads[task.head]
    assert isinstance(head, TokenHead)
    weight, bias = linear_map(fit_classes(features.train[:, layer], features.known), task.outputs)
    with torch.no_grad():
        head.out.weight.copy_(torch.from_numpy(weight))
        head.out.bias.copy_(torch.from_numpy(bias))
    record = {"features": {"layer": layer, "of": config.depth} | ({"pooling": "mean"} if pooled else {})}
    kept = {"problem_type": task.row.problem_type} if task.row.problem_type else {}
    checkpoint = replace(
        start,
        model=model.eval(),
        labels=task.labels,
        embed=None,
        settings={**start.settings, **kept},
        task=task_json(task, Decision(), record),
    )
    save_checkpoint(checkpoint, target)


def linear_map(regression: Pipeline, labels: int) -> tuple[np.ndarray, np.ndarray]:
    """(weight [labels, width], bias [labels]) with which plain vectors give the regression's probabilities."""
    scaler, found = regression[0], regression[-1]
    slopes, offsets = found.coef_, found.intercept_
    if len(found.classes_) == 2:  # one logit, the second class's
        slopes, offsets = np.concatenate([-slopes, slopes]) / 2, np.concatenate([-offsets, offsets]) / 2
    weight = np.zeros((labels, slopes.shape[1]))
    bias = np.full(labels, UNKNOWN)
    weight[found.classes_] = slopes / scaler.scale_
    bias[found.classes_] = offsets - weight[found.classes_] @ scaler.mean_
    return weight, bias
