"""Feature-based use: only a small classifier on the vectors of a frozen encoder is trained.

A logistic regression on one layer, on the last four concatenated, or on a learned mixture of all layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from bertkit.data.examples import TextExample
from bertkit.engine.batches import fastest, last_layer, map_batches, token_batches, token_budget
from bertkit.errors import RequestError
from bertkit.finetuning.batches import within_budget
from bertkit.finetuning.check.label_errors import LabelError, likely_label_errors
from bertkit.finetuning.evaluate import GPU_BATCH_TOKENS, window_passages
from bertkit.finetuning.learner import pack
from bertkit.finetuning.prepare import Prepared
from bertkit.model.heads import HEADS, ScalarMix
from bertkit.model.model import BertModel, parameter_count
from bertkit.model.pooling import pool
from bertkit.tasks.classify import Classify
from bertkit.tasks.metrics.classes import accuracy, label_f1
from bertkit.tasks.table import TASKS
from bertkit.tasks.task import Dataset, Task, Window

FOLDS = 5  # of cross-validation
MIX_STEPS = 300  # of training a learned mixture of layers
MAX_CHECKED, MIN_CHECKED = 2000, 200  # examples whose labels are checked for the report
MAX_CPU_WORK = 0.8e11  # tokens x parameters of the layers that are computed for it: about a second on two cores


@dataclass(frozen=True)
class Features:
    """Vectors of every layer [texts or words, depth + 1, width] and label ids, for training and dev data."""

    train: np.ndarray
    train_labels: np.ndarray
    dev: np.ndarray
    dev_labels: np.ndarray


@dataclass(frozen=True)
class FeatureScore:
    """The score of a choice of layers on dev."""

    layers: str
    accuracy: float
    macro_f1: float

    def __str__(self) -> str:
        return f"{self.layers:<24} accuracy {self.accuracy:.4f}  macro_f1 {self.macro_f1:.4f}"


def read_features(model: BertModel, prepared: Prepared) -> Features:
    """The features of a frozen encoder for labels of texts or tags of words."""
    task = prepared.task
    if not task.row.exclusive:
        able = " and ".join(f"'{row.name}'" for row in TASKS.values() if row.exclusive)
        raise RequestError(f"features go with {able}, not with '{task.name}'")
    datasets = (prepared.train, prepared.dev)
    train, dev = ((layer_features(model, task, dataset), gold(task, dataset)) for dataset in datasets)
    return Features(*train, *dev)


def feature_scores(features: Features) -> list[FeatureScore]:
    """The scores of every layer, of the last four together, and of a learned mixture."""
    train, train_labels, dev = features.train, features.train_labels, features.dev
    depth = train.shape[1] - 1
    choices = {"embeddings": [0]} | {f"layer {n}": [n] for n in range(1, depth + 1)}
    choices["last four, side by side"] = list(range(max(1, depth - 3), depth + 1))
    predictions = {}
    for name, layers in choices.items():
        train_vectors, dev_vectors = (vectors[:, layers].reshape(len(vectors), -1) for vectors in (train, dev))
        predictions[name] = predict_labels(train_vectors, train_labels, dev_vectors)
    predictions["learned mixture"], _ = predict_from_mixture(train, train_labels, dev)
    dev_labels = features.dev_labels
    return [
        FeatureScore(name, accuracy(dev_labels, predicted), label_f1(dev_labels, predicted))
        for name, predicted in predictions.items()
    ]


def layer_features(model: BertModel, task: Task, dataset: Dataset, pooling: str = "mean") -> np.ndarray:
    """[texts or words, depth + 1, width]: pooled vectors of texts, or the vectors at the first piece of each word."""
    windows, pooled = dataset.flat, HEADS[task.head].pooled
    order = sorted(range(len(windows)), key=lambda i: -len(windows[i].ids))
    by_window: dict[int, np.ndarray] = {}
    model.eval()
    with torch.inference_mode():
        for group in within_budget([len(windows[i].ids) for i in order], GPU_BATCH_TOKENS):
            indices = [order[i] for i in group]
            vectors = _vectors(model, [windows[i] for i in indices], pooling if pooled else None)
            by_window |= dict(zip(indices, vectors, strict=True))
    rows = [by_window[index] for index in range(len(windows))]
    if not pooled:
        return np.concatenate([row[list(w.detail.positions)] for row, w in zip(rows, windows, strict=True)])
    owners = np.array([window.example for window in windows])
    firsts = np.flatnonzero(np.r_[True, owners[1:] != owners[:-1]])
    counts = np.diff(np.r_[firsts, len(owners)])
    means: np.ndarray = np.add.reduceat(np.stack(rows), firsts, axis=0) / counts[:, None, None]
    return means


def gold(task: Task, dataset: Dataset) -> np.ndarray:
    """The label id of each text or word, in the order of `layer_features`."""
    if not HEADS[task.head].pooled:
        return np.array([window.target[position] for window in dataset.flat for position in window.detail.positions])
    return np.array([windows[0].target for windows in dataset.windows])


def predict_labels(train: np.ndarray, labels: np.ndarray, dev: np.ndarray) -> np.ndarray:
    """The label ids of the dev vectors, predicted by a logistic regression on the training vectors."""
    predicted: np.ndarray = fit_classifier(train, labels).predict(dev)
    return predicted


def fit_classifier(train: np.ndarray, labels: np.ndarray) -> Pipeline:
    """A logistic regression on standardized vectors."""
    return new_classifier().fit(train, labels)


def new_classifier() -> Pipeline:
    """The logistic regression before it is fitted."""
    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000, C=0.1))


def predict_from_mixture(train: np.ndarray, labels: np.ndarray, dev: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A classifier on a learned mixture of layers: (label ids predicted for dev, weight of each layer).

    The mean over tokens of a mixture is the mixture of the means, so pooled vectors are sufficient.
    """
    logits, weights = mixture_logits(*(torch.from_numpy(x) for x in (train, labels, dev)))
    return logits.argmax(dim=-1).numpy(), weights.numpy()


def mixture_logits(train: Tensor, labels: Tensor, dev: Tensor) -> tuple[Tensor, Tensor]:
    """(logits for dev, weight of each layer) of that classifier, computed where the tensors are."""
    center, spread = train.mean(dim=0), train.std(dim=0, correction=0) + 1e-6
    features, dev_features = (((x - center) / spread).float() for x in (train, dev))
    mix, out = ScalarMix(train.shape[1]).to(train.device), nn.Linear(train.shape[2], int(labels.max()) + 1)
    out = out.to(train.device)
    with torch.no_grad():
        out.weight.zero_()
        out.bias.zero_()
    optimizer = torch.optim.AdamW([*mix.parameters(), *out.parameters()], lr=0.02, weight_decay=0.1)
    for _ in range(MIX_STEPS):
        optimizer.zero_grad()
        F.cross_entropy(out(_mixed(mix, features)), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    with torch.no_grad():
        return out(_mixed(mix, dev_features)), mix.weights.softmax(0)


def _mixed(mix: ScalarMix, features_NLD: Tensor) -> Tensor:
    mixed: Tensor = mix(list(features_NLD.unbind(dim=1)))
    return mixed


def _vectors(model: BertModel, windows: Sequence[Window], pooling: str | None) -> list[np.ndarray]:
    """The vectors of each window: [layers, width], or [tokens, layers, width] without pooling."""
    batch = pack(windows, model.config).to(model.device)
    states = model.encoder.hidden_states(batch)
    if pooling is not None:
        return list(torch.stack([pool(state, batch, pooling) for state in states], dim=1).cpu().numpy())
    return [part.cpu().numpy() for part in batch.split(torch.stack(states, dim=1))]


@dataclass(frozen=True)
class Doubts:
    """Training labels that are probably wrong, with their texts, among the first `checked` examples."""

    found: Sequence[tuple[LabelError, str]] = ()
    checked: int = 0


def doubtful_labels(model: BertModel, prepared: Prepared) -> Doubts:
    """Training labels that are probably wrong, by cross-validation on features of the encoder.

    Only as many examples are checked as take about two seconds, and only if each label has at least five of them.
    """
    if not isinstance(prepared.task, Classify):
        return Doubts()
    count = _checked_count(model, prepared.train)
    train = Dataset(prepared.train.examples[:count], prepared.train.windows[:count])
    labels = gold(prepared.task, train)
    if np.bincount(labels, minlength=len(prepared.task.labels)).min() < FOLDS:
        return Doubts()
    features = StandardScaler().fit_transform(_text_means(model, [windows[0] for windows in train.windows]))
    classifier = LogisticRegression(max_iter=200, C=0.1)
    probabilities = cross_val_predict(classifier, features, labels, cv=FOLDS, method="predict_proba")
    texts = [example.text for example in train.examples if isinstance(example, TextExample)]
    errors = likely_label_errors(probabilities, labels, prepared.task.labels)
    return Doubts([(error, texts[error.example]) for error in errors], len(texts))


def _checked_count(model: BertModel, train: Dataset) -> int:
    """How many examples are checked: on a CPU, as many as MAX_CPU_WORK allows."""
    if model.device.type != "cpu":
        return MAX_CHECKED
    parameters = sum(parameter_count(layer) for layer in model.encoder.ordered_layers)  # shared layers count each time
    work = np.cumsum([len(windows[0].ids) for windows in train.windows]) * parameters
    return int(np.clip(np.searchsorted(work, MAX_CPU_WORK), MIN_CHECKED, MAX_CHECKED))


def _text_means(model: BertModel, windows: Sequence[Window]) -> np.ndarray:
    """[windows, width]: the mean of the last layer's vectors, by the fastest engine."""
    passages, device = window_passages(windows, model.config), model.device
    lengths = [len(window.ids) for window in windows]
    groups = list(token_batches(lengths, token_budget(lengths, device)))

    def compute(chosen: list[int]) -> np.ndarray:
        batch, hidden_TD = last_layer(model.encoder, [passages[n] for n in chosen], device)
        means: np.ndarray = pool(hidden_TD.float(), batch, "mean").cpu().numpy()
        return means

    model.eval()
    with torch.inference_mode():
        fastest(model.encoder)  # packs the weights once, not in every thread
    rows = np.concatenate(map_batches(compute, groups, sum(lengths), device))
    return rows[np.argsort(np.concatenate([np.array(group) for group in groups]))]
