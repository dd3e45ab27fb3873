"""A logistic regression on one layer of a frozen encoder as a model folder: the layers up to it, and a linear head.

A head reads the last layer of a model, so the layers above the chosen one are left out. The embeddings alone, several
layers and mixtures of layers cannot be saved; nor can inner layers of families with a final norm, which would be
applied to them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from sklearn.model_selection import KFold, ShuffleSplit, cross_val_score
from sklearn.pipeline import Pipeline

from bertkit.checkpoint.save_load import Checkpoint, save_checkpoint
from bertkit.config import BertConfig
from bertkit.finetuning.explore.features import FOLDS, Features, fit_classifier, new_classifier
from bertkit.finetuning.learner import linear_on_mean, with_config
from bertkit.finetuning.prepare import Prepared
from bertkit.model.heads import HEADS, TokenHead
from bertkit.model.model import BertModel
from bertkit.tasks.folder import task_checkpoint
from bertkit.tasks.shared.decision import Decision

SINGLE_SPLIT_ROWS = 2000  # with more rows, one held-out fifth replaces cross-validation
MISSING_LABEL_LOGIT = -30.0  # bias of a label that no training example has


def save_best_layer(start: Checkpoint, prepared: Prepared, features: Features, target: Path) -> int:
    """Save the layer with the best accuracy in cross-validation on the training data, and return its number."""
    layer = choose_layer(features, saveable_layers(start.model.config))
    save_layer(start, prepared, features, layer, target)
    return layer


def save_layer(start: Checkpoint, prepared: Prepared, features: Features, layer: int, target: Path) -> None:
    """Write `layer_checkpoint` as a model folder."""
    save_checkpoint(layer_checkpoint(start, prepared.task, features, layer, prepared.checksums), target)


def saveable_layers(config: BertConfig) -> list[int]:
    """The layers whose vectors a shortened encoder computes."""
    return [config.depth] if config.parts.norm == "pre" else list(range(1, config.depth + 1))


def choose_layer(features: Features, layers: Sequence[int]) -> int:
    """The layer with the best accuracy on held-out training examples; of equally good ones the highest."""
    labels = features.train_labels
    if len(layers) == 1 or len(labels) < 2 * FOLDS:
        return layers[-1]
    cross_validation = KFold(FOLDS, shuffle=True, random_state=0)
    single_split = ShuffleSplit(1, test_size=1 / FOLDS, random_state=0)
    folds = single_split if len(labels) > SINGLE_SPLIT_ROWS else cross_validation
    scores = [
        np.nan_to_num(cross_val_score(new_classifier(), features.train[:, layer], labels, cv=folds)).mean()
        for layer in layers
    ]
    return max(zip(scores, layers, strict=True))[1]


def layer_checkpoint(
    start: Checkpoint, task: Any, features: Features, layer: int, checksums: Mapping[str, str] = MappingProxyType({})
) -> Checkpoint:
    """A model with the predictions of a logistic regression on the vectors of this layer."""
    pooled = HEADS[task.head].pooled
    if pooled:  # the regression is linear: the mean of the logits of windows is the logit of their mean vector
        task = replace(task, length=replace(task.length, pool="mean"))
    config = start.model.config
    parts = linear_on_mean(config.parts)
    if not pooled:
        parts = replace(config.parts, token_pooler=False)
    model = with_config(start.model, replace(config, depth=layer, parts=parts), {task.head: task.outputs})
    load_classifier(model, task, fit_classifier(features.train[:, layer], features.train_labels))
    features_record = {"layer": layer, "of": config.depth} | ({"pooling": "mean"} if pooled else {})
    record = {"features": features_record, "sha256": dict(checksums)}
    return task_checkpoint(start, model.eval(), task, Decision(), record)


def load_classifier(model: BertModel, task: Any, regression: Pipeline) -> None:
    """Put a logistic regression into the model's head."""
    head = model.heads[task.head]
    assert isinstance(head, TokenHead)
    weight, bias = linear_map(regression, task.outputs)
    with torch.no_grad():
        head.out.weight.copy_(torch.from_numpy(weight))
        head.out.bias.copy_(torch.from_numpy(bias))


def linear_map(regression: Pipeline, labels: int) -> tuple[np.ndarray, np.ndarray]:
    """(weight [labels, width], bias [labels]) that give the regression's probabilities for vectors before scaling."""
    scaler, classifier = regression[0], regression[-1]
    slopes, offsets = classifier.coef_, classifier.intercept_
    if len(classifier.classes_) == 2:  # scikit-learn has one logit then, that of the second class
        slopes, offsets = np.concatenate([-slopes, slopes]) / 2, np.concatenate([-offsets, offsets]) / 2
    weight = np.zeros((labels, slopes.shape[1]))
    bias = np.full(labels, MISSING_LABEL_LOGIT)
    weight[classifier.classes_] = slopes / scaler.scale_
    bias[classifier.classes_] = offsets - weight[classifier.classes_] @ scaler.mean_
    return weight, bias
