"""`bertkit.Classifier`: a text classifier with scikit-learn's interface, on the vectors of a frozen encoder.

Only a logistic regression is trained, in seconds and from few examples. The result is a model like any other: `save`
writes a folder that `bertkit.load`, `bertkit predict` and `bertkit serve` take.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from bertkit.checkpoint.bundled import embedding_model
from bertkit.checkpoint.save_load import Checkpoint
from bertkit.data.examples import Example, TextExample
from bertkit.data.tables import Location
from bertkit.errors import RequestError
from bertkit.finetuning.explore.features import Features, layer_features
from bertkit.finetuning.explore.features_model import choose_layer, layer_checkpoint, saveable_layers
from bertkit.predict.bert import Bert, load
from bertkit.tasks.classify import Classified, Classify
from bertkit.tasks.folder import build_task
from bertkit.tasks.shared.labels import sorted_labels
from bertkit.tasks.shared.length import ReadingSettings
from bertkit.tasks.task import Dataset
from bertkit.text_inputs import is_missing, listed_texts

Labels = Iterable[str | int | float | bool]


class Classifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """One label for each text, by a logistic regression on the vectors of a model that stays as it is.

    `model` is a Bert, or names one; by default it is the bundled variant for sentences. `layer` is where vectors
    are read, from 1; -1 is the last layer. With None it is chosen on the training texts, by cross-validation.
    """

    classes_: np.ndarray  # after `fit`: the different labels, sorted
    bert_: Bert  # after `fit`: the model, as `save` writes it

    def __init__(self, model: Bert | Path | str | None = None, *, layer: int | None = -1) -> None:
        self.model = model
        self.layer = layer

    def fit(self, texts: Sequence[str], labels: Labels) -> Self:
        """Train on texts and their labels, which may be of any type."""
        listed = listed_texts(texts)
        self.classes_, numbers = np.unique(_checked(labels, len(listed)), return_inverse=True)
        if len(self.classes_) < 2:
            raise RequestError("every text has the same label; at least two labels are needed")
        start, names = self._start(), [self._names[number] for number in numbers]
        task = build_task(Classify.row.name, start, ReadingSettings(), labels=sorted_labels(self._names))
        source = Location(Path("texts"), 0, "row")
        examples: list[Example] = [
            TextExample(text, None, name, source) for text, name in zip(listed, names, strict=True)
        ]
        windows = [task.windows(example, number) for number, example in enumerate(examples)]
        vectors = layer_features(start.model, task, Dataset(examples, windows))
        ids = np.array([task.label_ids[name] for name in names])
        features = Features(vectors, ids, vectors[:0], ids[:0])
        self.bert_ = Bert(layer_checkpoint(start, task, features, self._layer(features, start)))
        return self

    def predict(self, texts: Sequence[str]) -> np.ndarray:
        """The most probable label of each text, of the type that `fit` was given."""
        best = self.predict_proba(texts).argmax(axis=1)
        labels: np.ndarray = self.classes_[best]
        return labels

    def predict_proba(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """[texts, labels]: probabilities, in the order of `classes_`."""
        check_is_fitted(self)
        found = [each for each in self.bert_.classify(listed_texts(texts)) if isinstance(each, Classified)]
        rows = [[each.probabilities[name] for name in self._names] for each in found]
        return np.array(rows, dtype=np.float64).reshape(len(rows), len(self.classes_))

    def score(self, texts: Sequence[str], labels: Labels, sample_weight: np.ndarray | None = None) -> float:
        """The accuracy."""
        predicted = self.predict(texts)
        return float(np.average(predicted == _checked(labels, len(predicted)), weights=sample_weight))

    def save(self, path: Path | str) -> None:
        """Write the classifier as a model folder."""
        check_is_fitted(self)
        self.bert_.save(path)

    def get_params(self, deep: bool = True) -> dict[str, object]:
        """The arguments by name, as scikit-learn's tools read them."""
        return dict(super().get_params(deep))

    def set_params(self, **params: object) -> Self:
        """Change arguments by name."""
        super().set_params(**params)
        return self

    @property
    def _names(self) -> list[str]:
        """The labels as a model folder names them."""
        return [str(label) for label in self.classes_.tolist()]

    def _start(self) -> Checkpoint:
        if isinstance(self.model, Bert):
            return self.model.checkpoint
        return load(embedding_model() if self.model is None else self.model).checkpoint

    def _layer(self, features: Features, start: Checkpoint) -> int:
        """The number of the layer, from 1."""
        possible, depth = saveable_layers(start.model.config), start.model.config.depth
        if self.layer is None:
            return choose_layer(features, possible)
        layer = self.layer + depth + 1 if self.layer < 0 else self.layer
        if layer not in possible:
            raise RequestError(f"layer={self.layer} must be one of {', '.join(map(str, possible))}; -1 is the last")
        return layer

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.one_d_array, tags.input_tags.two_d_array = True, True, False
        return tags


def _checked(labels: Labels, count: int) -> np.ndarray:
    """The labels as an array of `count`."""
    listed = list(labels)
    missing = [number for number, label in enumerate(listed) if is_missing(label)]
    if missing:
        raise RequestError(f"labels[{missing[0]}] is a missing value; leave such rows out")
    if len(listed) != count:
        raise RequestError(f"{count} texts came with {len(listed)} labels; give one label for each text")
    return np.asarray(listed)
