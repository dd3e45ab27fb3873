"""scikit-learn's estimators on BERT models: vectors, and labels of texts, numbers of texts, tags of words.

An estimator takes texts, in a list, an array or a column of a frame. What it learns is a model like any other: `save`
writes a folder that `bertkit.load`, `bertkit predict` and `bertkit serve` take.
"""

import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, RegressorMixin
from sklearn.base import TransformerMixin as Transformer
from sklearn.utils.validation import check_is_fitted

from bertkit.api import evaluate, finetune
from bertkit.calls import Layers
from bertkit.checkpoint.bundled import embedding_model
from bertkit.checkpoint.save_load import Checkpoint
from bertkit.data.examples import Example, TextExample
from bertkit.data.tables import Location
from bertkit.errors import RequestError
from bertkit.finetuning.explore.features import Features, layer_features
from bertkit.finetuning.explore.features_model import choose_layer, layer_checkpoint, saveable_layers
from bertkit.poolings import NO_POOLING, PoolingName
from bertkit.predict.bert import Bert, load
from bertkit.progress import VERBOSITY
from bertkit.tasks.classify import Classified, Classify
from bertkit.tasks.folder import build_task
from bertkit.tasks.regress import Rated, Regress
from bertkit.tasks.shared.labels import sorted_labels
from bertkit.tasks.shared.length import ReadingSettings
from bertkit.tasks.tag import Tag
from bertkit.tasks.task import Dataset
from bertkit.text_inputs import checked_labels, listed_texts, listed_words

Labels = Iterable[str | int | float | bool]
Model = Bert | Path | str | None


class _TextEstimator(BaseEstimator):  # type: ignore[misc]
    """What all estimators share: they take texts, and their parameters have types."""

    bert_: Bert  # after `fit`: the model

    def get_params(self, deep: bool = True) -> dict[str, object]:
        """The arguments by name, as scikit-learn's tools read them."""
        return dict(super().get_params(deep))

    def set_params(self, **params: object) -> Self:
        """Change arguments by name."""
        super().set_params(**params)
        return self

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.one_d_array, tags.input_tags.two_d_array = True, True, False
        return tags


class BertVectorizer(ClassNamePrefixFeaturesOutMixin, Transformer, _TextEstimator):  # type: ignore[misc]
    """A vector for each text, as `Bert.embed` makes it; by default those of the bundled variant for sentences.

    Nothing is learned from the texts; `fit` loads the model. `set_output(transform="pandas")` gives frames.
    """

    def __init__(
        self,
        model: Model = None,
        *,
        pooling: PoolingName | None = None,
        layers: Layers | None = None,
        normalize: bool | None = None,
    ) -> None:
        self.model = model
        self.pooling = pooling
        self.layers = layers
        self.normalize = normalize

    def fit(self, texts: Sequence[str], y: object = None) -> Self:
        """Load the model and check the texts."""
        first = listed_texts(texts)[:1]
        self.bert_ = _loaded(self.model)
        self._n_features_out = self._vectors(first or [""]).shape[1]
        return self

    def transform(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """float32 [texts, width]."""
        check_is_fitted(self)
        return self._vectors(listed_texts(texts))

    def _vectors(self, texts: list[str]) -> NDArray[np.float32]:
        if str(self.pooling) == NO_POOLING:
            raise RequestError("pooling=none gives a vector for each token; choose one that gives a vector for a text")
        return self.bert_.embed(texts, pooling=self.pooling, layers=self.layers, normalize=self.normalize)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []  # vectors are float32, whatever the texts come in
        return tags


class _Saveable(_TextEstimator):
    """An estimator whose result is a fine-tuned model."""

    task: ClassVar[str]

    def save(self, path: Path | str) -> None:
        """Write what was learned as a model folder."""
        check_is_fitted(self)
        self.bert_.save(path)


class _FineTuned(_Saveable):
    """An estimator that fine-tunes all layers, by `bertkit.finetune`.

    A tenth of the rows is held out: it chooses the weights (but not with few rows a label) and calibrates.
    """

    scores_: Mapping[str, float]  # after `fit`: on the rows that were held out
    notes_: tuple[str, ...]  # after `fit`: what was chosen, cut and fitted

    def __init__(
        self,
        model: Model = None,
        *,
        epochs: int | None = None,
        batch: int | None = None,
        learning_rate: float | None = None,
        seed: int | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        self.model = model
        self.epochs = epochs
        self.batch = batch
        self.learning_rate = learning_rate
        self.seed = seed
        self.settings = settings

    def _tune(self, inputs: Sequence[object], outputs: Sequence[object]) -> None:
        """Fine-tune on rows of two columns."""
        named = {name: getattr(self, name) for name in ("epochs", "batch", "learning_rate", "seed")}
        settings = {name: value for name, value in named.items() if value is not None} | dict(self.settings or {})
        names = self._columns
        rows = [dict(zip(names, row, strict=True)) for row in zip(inputs, outputs, strict=True)]
        columns = {"text": names[0], "label": names[1]}
        with _quiet(), _folder_of(self.model) as model:
            run = finetune(self.task, rows, model=model, **{**columns, **settings})
            self.bert_, self.scores_, self.notes_ = run.model, run.scores, run.notes

    @property
    def _columns(self) -> tuple[str, str]:
        return "text", "label"


class _LabelEstimator(ClassifierMixin, _Saveable):  # type: ignore[misc]
    """What both classifiers share: labels keep their types, and a model with a `classify` head answers."""

    task = Classify.row.name
    classes_: np.ndarray  # after `fit`: the different labels, sorted

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
        return float(np.average(predicted == np.asarray(checked_labels(labels, len(predicted))), weights=sample_weight))

    def _read(self, texts: Sequence[str], labels: Labels) -> tuple[list[str], list[str]]:
        """The texts, and their labels as a model folder names them; sets `classes_`."""
        listed = listed_texts(texts)
        self.classes_, numbers = np.unique(checked_labels(labels, len(listed)), return_inverse=True)
        if len(self.classes_) < 2:
            raise RequestError("every text has the same label; at least two labels are needed")
        return listed, [self._names[number] for number in numbers]

    @property
    def _names(self) -> list[str]:
        """The labels as a model folder names them."""
        return [str(label) for label in self.classes_.tolist()]


class Classifier(_LabelEstimator):
    """One label for each text, by a logistic regression on the vectors of a model that stays as it is.

    `model` is a Bert, or names one; by default it is the bundled variant for sentences. `layer` is where vectors
    are read, from 1; -1 is the last layer. With None it is chosen on the training texts, by cross-validation.
    """

    def __init__(self, model: Model = None, *, layer: int | None = -1) -> None:
        self.model = model
        self.layer = layer

    def fit(self, texts: Sequence[str], labels: Labels) -> Self:
        """Train on texts and their labels, which may be of any type."""
        listed, names = self._read(texts, labels)
        start = _loaded(self.model).checkpoint
        task = build_task(self.task, start, ReadingSettings(), labels=sorted_labels(self._names))
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

    def _layer(self, features: Features, start: Checkpoint) -> int:
        """The number of the layer, from 1."""
        possible, depth = saveable_layers(start.model.config), start.model.config.depth
        if self.layer is None:
            return choose_layer(features, possible)
        layer = self.layer + depth + 1 if self.layer < 0 else self.layer
        if layer not in possible:
            raise RequestError(f"layer={self.layer} must be one of {', '.join(map(str, possible))}; -1 is the last")
        return layer


class BertClassifier(_LabelEstimator, _FineTuned):
    """One label for each text, by fine-tuning; with few rows a label as `few=true` does it (docs/few-labels.md).

    `fine_tune=False` leaves the model as it is and fits a logistic regression on its vectors, as `Classifier` does.
    `settings` are further ones of `bertkit.finetune`.
    """

    def __init__(
        self,
        model: Model = None,
        *,
        fine_tune: bool = True,
        epochs: int | None = None,
        batch: int | None = None,
        learning_rate: float | None = None,
        seed: int | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(model, epochs=epochs, batch=batch, learning_rate=learning_rate, seed=seed, settings=settings)
        self.fine_tune = fine_tune

    def fit(self, texts: Sequence[str], labels: Labels) -> Self:
        """Train on texts and their labels, which may be of any type."""
        if self.fine_tune:
            self._tune(*self._read(texts, labels))
        else:
            frozen = Classifier(self.model).fit(texts, labels)
            self.bert_, self.classes_ = frozen.bert_, frozen.classes_
        return self


class BertRegressor(RegressorMixin, _FineTuned):  # type: ignore[misc]
    """A number for each text, by fine-tuning; `score` is R²."""

    task = Regress.row.name

    def fit(self, texts: Sequence[str], numbers: Sequence[float]) -> Self:
        """Train on texts and their numbers."""
        listed = listed_texts(texts)
        self._tune(listed, _finite(checked_labels(np.ravel(numbers).tolist(), len(listed), "numbers")))
        return self

    def predict(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """The number of each text."""
        check_is_fitted(self)
        found = self.bert_.classify(listed_texts(texts))
        return np.array([each.value for each in found if isinstance(each, Rated)], dtype=np.float64)


class BertTagger(_FineTuned):
    """A tag for each word of a sentence, by fine-tuning. A sentence is a list of words; tags may be BIO or plain."""

    task = Tag.row.name

    def fit(self, sentences: Sequence[Sequence[str]], tags: Sequence[Sequence[str]]) -> Self:
        """Train on sentences and the tags of their words."""
        self._tune(*listed_words(sentences, tags))
        return self

    def predict(self, sentences: Sequence[Sequence[str]]) -> list[list[str]]:
        """The tags of each sentence's words."""
        check_is_fitted(self)
        return [list(each.tags) for each in self.bert_.tag(listed_words(sentences)[0])]

    def score(self, sentences: Sequence[Sequence[str]], tags: Sequence[Sequence[str]]) -> float:
        """The main metric of tagging: F1 of spans for BIO tags."""
        check_is_fitted(self)
        rows = [dict(zip(self._columns, row, strict=True)) for row in zip(*listed_words(sentences, tags), strict=True)]
        with _quiet():
            return evaluate(self.bert_, rows).score

    @property
    def _columns(self) -> tuple[str, str]:
        return "words", "tags"


def _loaded(model: Model) -> Bert:
    """A model by its name; without one, the bundled variant for sentences."""
    return model if isinstance(model, Bert) else load(embedding_model() if model is None else model)


@contextmanager
def _folder_of(model: Model) -> Iterator[Path | str | None]:
    """What `finetune` starts from: for a loaded model a folder with its weights."""
    if not isinstance(model, Bert):
        yield model
        return
    with tempfile.TemporaryDirectory(prefix="bertkit-") as folder:
        model.save(Path(folder) / "start")
        yield Path(folder) / "start"


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress is shown: searches and cross-validation fit many times."""
    before = VERBOSITY.set(-1)
    try:
        yield
    finally:
        VERBOSITY.reset(before)


def _finite(values: Sequence[Any]) -> list[float]:
    """The numbers as floats; infinite ones and what is no number are refused."""
    try:
        numbers = [float(value) for value in values]
    except (TypeError, ValueError) as error:
        raise RequestError(f"numbers hold what is no number ({error}); BertClassifier learns labels") from error
    if infinite := [number for number, value in enumerate(numbers) if math.isinf(value)]:
        raise RequestError(f"numbers[{infinite[0]}] is infinite; leave such rows out")
    return numbers
