"""Feature-based use: the encoder stays as it is, and a small model on top of its vectors is all that learns.

A logistic regression on one layer, on the last four side by side, or on a learned mixture of all layers.
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
from bertkit.errors import RequestError
from bertkit.finetuning.batches import within_budget
from bertkit.finetuning.check.label_errors import LabelError, likely_label_errors
from bertkit.finetuning.evaluate import TOKENS
from bertkit.finetuning.learner import pack
from bertkit.finetuning.prepare import Prepared
from bertkit.model.heads import HEADS, ScalarMix
from bertkit.model.model import BertModel
from bertkit.model.pooling import pool
from bertkit.tasks.classify import Classify
from bertkit.tasks.metrics.classes import accuracy, label_f1
from bertkit.tasks.table import TASKS
from bertkit.tasks.task import Part, Task, Window

MIX_STEPS = 300
FOLDS = 5


@dataclass(frozen=True)
class FeatureScore:
    """What a choice of layers reaches on dev."""

    layers: str
    accuracy: float
    macro_f1: float

    def __str__(self) -> str:
        return f"{self.layers:<24} accuracy {self.accuracy:.4f}  macro_f1 {self.macro_f1:.4f}"


@dataclass(frozen=True)
class Features:
    """Vectors of every layer [texts or words, depth + 1, width], and the numbers of their labels."""

    train: np.ndarray
    known: np.ndarray
    dev: np.ndarray
    wanted: np.ndarray


def read_features(model: BertModel, prepared: Prepared) -> Features:
    """What the encoder, as it is, gives for classes of texts or for tags of words."""
    task, parts = prepared.task, (prepared.train, prepared.dev)
    if not task.row.exclusive:
        able = " and ".join(f"'{row.name}'" for row in TASKS.values() if row.exclusive)
        raise RequestError(f"features go with {able}, not with '{task.name}'")
    (train, known), (dev, wanted) = ((layer_features(model, task, part), gold(task, part)) for part in parts)
    return Features(train, known, dev, wanted)


def feature_scores(features: Features) -> list[FeatureScore]:
    """Every layer by itself, the last four together, and a learned mixture."""
    train, known, dev, wanted = features.train, features.known, features.dev, features.wanted
    depth = train.shape[1] - 1
    choices = {"embeddings": [0]} | {f"layer {n}": [n] for n in range(1, depth + 1)}
    choices["last four, side by side"] = list(range(max(1, depth - 3), depth + 1))
    rows = []
    for name, chosen in choices.items():
        said = regress_classes(train[:, chosen].reshape(len(train), -1), known, dev[:, chosen].reshape(len(dev), -1))
        rows.append(FeatureScore(name, accuracy(wanted, said), label_f1(wanted, said)))
    said, _ = mix_classes(train, known, dev)
    return [*rows, FeatureScore("learned mixture", accuracy(wanted, said), label_f1(wanted, said))]


def layer_features(model: BertModel, task: Task, part: Part, pooling: str = "mean") -> np.ndarray:
    """[texts or words, depth + 1, width]: pooled vectors of texts, or the vectors at the first piece of each word."""
    windows = part.flat
    order = sorted(range(len(windows)), key=lambda i: -len(windows[i].ids))
    rows: dict[int, np.ndarray] = {}
    model.eval()
    with torch.inference_mode():
        for chosen in within_budget([len(windows[i].ids) for i in order], TOKENS):
            own = [order[i] for i in chosen]
            found = _vectors(model, [windows[i] for i in own], pooling if HEADS[task.head].pooled else None)
            rows |= dict(zip(own, found, strict=True))
    parts = [rows[number] for number in range(len(windows))]
    if not HEADS[task.head].pooled:
        return np.concatenate([row[list(w.detail.positions)] for row, w in zip(parts, windows, strict=True)])
    owners = np.array([window.example for window in windows])
    firsts = np.flatnonzero(np.r_[True, owners[1:] != owners[:-1]])
    counts = np.diff(np.r_[firsts, len(owners)])
    means: np.ndarray = np.add.reduceat(np.stack(parts), firsts, axis=0) / counts[:, None, None]
    return means


def gold(task: Task, part: Part) -> np.ndarray:
    """The number of each text's label, or of each word's tag, in the order of `layer_features`."""
    if not HEADS[task.head].pooled:
        return np.array([window.target[place] for window in part.flat for place in window.detail.positions])
    return np.array([own[0].target for own in part.windows])


def regress_classes(train: np.ndarray, known: np.ndarray, dev: np.ndarray) -> np.ndarray:
    """What a logistic regression on the training vectors says about the dev vectors."""
    said: np.ndarray = fit_classes(train, known).predict(dev)
    return said


def fit_classes(train: np.ndarray, known: np.ndarray) -> Pipeline:
    """A logistic regression on vectors that are brought to mean 0 and deviation 1."""
    return new_regression().fit(train, known)


def new_regression() -> Pipeline:
    """The regression before it is fitted."""
    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000, C=0.1))


def mix_classes(train: np.ndarray, known: np.ndarray, dev: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same on a learned mixture of layers: (what it says, each layer's weight).

    The mean of a mixture is the mixture of the means, so pooled vectors are all that is needed.
    """
    center, spread = train.mean(axis=0), train.std(axis=0) + 1e-6
    features, others = (torch.tensor((x - center) / spread, dtype=torch.float32) for x in (train, dev))
    labels = int(known.max()) + 1
    mix, out = ScalarMix(train.shape[1]), nn.Linear(train.shape[2], labels)
    with torch.no_grad():
        out.weight.zero_()
        out.bias.zero_()
    optimizer = torch.optim.AdamW([*mix.parameters(), *out.parameters()], lr=0.02, weight_decay=0.1)
    target = torch.tensor(known)
    for _ in range(MIX_STEPS):
        optimizer.zero_grad()
        F.cross_entropy(out(_mixed(mix, features)), target).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    with torch.no_grad():
        said = out(_mixed(mix, others)).argmax(dim=-1).numpy()
        return said, mix.weights.softmax(0).numpy()


def _mixed(mix: ScalarMix, features_NLD: Tensor) -> Tensor:
    mixed: Tensor = mix(list(features_NLD.unbind(dim=1)))
    return mixed


def _vectors(model: BertModel, windows: Sequence[Window], pooling: str | None) -> list[np.ndarray]:
    """For each window [layers, width], or without pooling [tokens, layers, width]."""
    batch = pack(windows, model.config).to(model.device)
    states = model.encoder.hidden_states(batch)
    if pooling is not None:
        return list(torch.stack([pool(state, batch, pooling) for state in states], dim=1).cpu().numpy())
    return [part.cpu().numpy() for part in batch.split(torch.stack(states, dim=1))]


def doubtful_labels(model: BertModel, prepared: Prepared, most: int = 2000) -> list[tuple[LabelError, str]]:
    """Training labels that an untaught encoder's features speak against, judged in folds that did not see them.

    Only for classes that have five examples or more among the first `most`; otherwise nothing is said.
    """
    if not isinstance(prepared.task, Classify):
        return []
    part = Part(prepared.train.examples[:most], prepared.train.windows[:most])
    known = gold(prepared.task, part)
    if np.bincount(known, minlength=len(prepared.task.labels)).min() < FOLDS:
        return []
    features = StandardScaler().fit_transform(layer_features(model, prepared.task, part)[:, -1])
    judge = LogisticRegression(max_iter=200, C=0.1)
    chances = cross_val_predict(judge, features, known, cv=FOLDS, method="predict_proba")
    texts = [example.text for example in part.examples if isinstance(example, TextExample)]
    return [(error, texts[error.example]) for error in likely_label_errors(chances, known, prepared.task.labels)]
