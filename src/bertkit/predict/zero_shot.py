"""Classification without labelled rows: which models can do it, and a model with labels as one that was fine-tuned.

WAYS has a row for each kind of model. A row makes `Answers` of a model and the labels of a request, and these answer
as a classifier does. The scales make probabilities of scores; `benchmarks/zero_shot.py` fits them, and measures them
on tasks on which they were not fitted.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from threading import Lock
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor, nn

from bertkit.checkpoint.delta import TEXTS
from bertkit.checkpoint.save_load import Checkpoint
from bertkit.checkpoint.text_vectors import text_vectors
from bertkit.errors import RequestError
from bertkit.model.batch import Batch
from bertkit.model.heads import Pooler
from bertkit.model.model import BertModel
from bertkit.model.pooling import EmbedSettings, vectors_of
from bertkit.predict.answers import Answers
from bertkit.predict.vectors import embed_texts
from bertkit.tasks.folder import DEFAULT_MAX_LENGTH, task_name
from bertkit.tasks.given import Entailed, GivenLabels
from bertkit.tasks.shared.decision import Decision
from bertkit.tasks.shared.label_set import LabelSet

ENTAILMENT = "entailment"
INFERENCE_LABELS = {ENTAILMENT, "neutral", "contradiction", "not_entailment"}  # of models of inference, in any case
KEPT = 64  # sets of labels whose vectors a model keeps


@dataclass(frozen=True)
class Scale:
    """Scores are multiplied by the slope, and the offset is added, to be logits."""

    slope: float
    offset: float = 0.0


@dataclass(frozen=True)
class Way:
    """A row of WAYS: the models that can, how they answer, and the scales of exclusive and of independent labels."""

    able: Callable[[Checkpoint], bool]
    answers: Callable[[Checkpoint, LabelSet, Scale], Answers]
    exclusive: Scale
    independent: Scale


class TextVectors(Pooler):
    """The vector of a text, as `embed` makes it, in the place of a pooler."""

    def __init__(self, settings: EmbedSettings) -> None:
        nn.Module.__init__(self)
        self.settings = settings

    def reduce(self, x_TD: Tensor, batch: Batch) -> Tensor:
        """N D, of length 1."""
        return vectors_of(x_TD, batch, self.settings.pooling, normalize=True, dense=self.settings.dense)

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        """The same: nothing is left to transform."""
        return self.reduce(x_TD, batch)


class LabelHead(nn.Linear):
    """Cosines with the vectors of labels: a linear head whose rows are not trained."""

    reads = "pooled"

    def __init__(self, weights_KD: np.ndarray, offsets_K: np.ndarray) -> None:
        super().__init__(weights_KD.shape[1], weights_KD.shape[0])
        self.weight = nn.Parameter(torch.from_numpy(weights_KD).float(), requires_grad=False)
        self.bias = nn.Parameter(torch.from_numpy(offsets_K), requires_grad=False)


def by_vectors(checkpoint: Checkpoint, labels: LabelSet, scale: Scale) -> Answers:
    """The nearer the vector of a label's statement, the more probable the label."""
    settings = checkpoint.embed_settings(normalize=True).one_vector()
    vectors_KD = np.asarray(embed_texts(checkpoint, labels.statements, settings))
    offsets_K = np.full(len(vectors_KD), scale.offset, dtype=np.float32)
    if labels.multi_label:  # a cosine says something by itself only beside those of texts of many kinds
        usual_ND = text_vectors(checkpoint, TEXTS)
        usual_ND /= np.linalg.norm(usual_ND, axis=1, keepdims=True)
        offsets_K -= scale.slope * (usual_ND @ vectors_KD.T).mean(axis=0)
    with torch.device("meta"):
        model = BertModel(replace(checkpoint.model.config, depth=1))
    model.config, model.encoder, model.pooler = checkpoint.model.config, checkpoint.model.encoder, TextVectors(settings)
    model.heads[GivenLabels.row.head] = LabelHead(scale.slope * vectors_KD, offsets_K).to(checkpoint.model.device)
    task = GivenLabels(**_reading(checkpoint, labels), given=labels, prefix=settings.prefix)
    return Answers(model.eval(), task, Decision())


def by_entailment(checkpoint: Checkpoint, labels: LabelSet, scale: Scale) -> Answers:
    """The surer it is that a label's statement follows from the text, the more probable the label."""
    index = [_plain(name) for name in checkpoint.labels].index(ENTAILMENT)
    task = Entailed(**_reading(checkpoint, labels), given=labels, entailment=index, scale=scale.slope)
    return Answers(checkpoint.model, task, Decision())


def has_entailment(checkpoint: Checkpoint) -> bool:
    """Whether a classifier's labels are those of natural language inference."""
    names = {_plain(name) for name in checkpoint.labels}
    return ENTAILMENT in names and 2 <= len(names) <= 3 and names <= INFERENCE_LABELS and _classifies(checkpoint)


def has_vectors(checkpoint: Checkpoint) -> bool:
    """Whether the folder says how vectors of sentences are made of its last layer."""
    return checkpoint.embed is not None and checkpoint.embed.layers == (-1,) and not checkpoint.embed.per_token


# In the order in which a model is asked whether it can. Scales: benchmarks/results/2026-11-19-zero-shot.json.
WAYS: Mapping[str, Way] = MappingProxyType(
    {
        "entailment": Way(has_entailment, by_entailment, Scale(0.5), Scale(1.0)),
        "vectors": Way(has_vectors, by_vectors, Scale(20.0), Scale(8.4, -1.9)),
    }
)


class ZeroShot:
    """A model's answers for sets of labels; the last KEPT sets are kept, with their vectors."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._kept: OrderedDict[object, Answers] = OrderedDict()
        self._lock = Lock()

    @cached_property
    def way(self) -> str | None:
        """The first row of WAYS that fits the model; None: it cannot classify by labels that it was not trained on."""
        return next((name for name, way in WAYS.items() if way.able(self._checkpoint)), None)

    def answers(self, labels: LabelSet) -> Answers:
        """The model as a classifier with these labels."""
        if self.way is None:
            raise RequestError(
                "this model cannot classify by labels that it was not trained on; name one for vectors of sentences, "
                "such as 'sentences', or one that was fine-tuned to tell entailment, neutral and contradiction"
            )
        way, key = WAYS[self.way], (labels, self._state())
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                scale = way.independent if labels.multi_label else way.exclusive
                found = self._kept[key] = way.answers(self._checkpoint, labels, scale)
            self._kept.move_to_end(key)
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return found

    def _state(self) -> tuple[object, ...]:
        """What label vectors depend on: the device, the dtype, and how often weights were changed."""
        encoder = self._checkpoint.model.encoder
        return (
            encoder,
            self._checkpoint.model.device,
            encoder.dtype,
            sum(each._version for each in encoder.parameters()),
        )


def _reading(checkpoint: Checkpoint, labels: LabelSet) -> dict[str, object]:
    """What every task has: the tokenizer, the limit, the labels."""
    limit = min(checkpoint.max_length, DEFAULT_MAX_LENGTH)
    return {"tokenizer": checkpoint.required_tokenizer, "limit": limit, "labels": labels.names}


def _classifies(checkpoint: Checkpoint) -> bool:
    return task_name(checkpoint) == GivenLabels.row.name


def _plain(name: str) -> str:
    return name.casefold().replace("-", "_").replace(" ", "_").replace("non_", "not_")
