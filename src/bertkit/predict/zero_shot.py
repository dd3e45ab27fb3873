"""Classification without labelled rows: which models can do it, and a model with labels as one that was fine-tuned.

WAYS has a row for each kind of model. A row makes `Answers` of a model and the labels of a request, and these answer
as a classifier does. The scales make probabilities of scores; `benchmarks/zero_shot.py` fits them, and measures them
on tasks on which they were not fitted.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from threading import Lock
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from bertkit.checkpoint.delta import TEXTS
from bertkit.checkpoint.save_load import Checkpoint
from bertkit.errors import RequestError
from bertkit.finetuning.evaluate import make_windows, run_model
from bertkit.model.batch import Batch
from bertkit.model.heads import Pooler
from bertkit.model.model import BertModel
from bertkit.model.pooling import EmbedSettings, pool, vectors_of
from bertkit.poolings import NO_POOLING
from bertkit.predict.answers import Answers
from bertkit.predict.vectors import embed_texts
from bertkit.tasks.folder import DEFAULT_MAX_LENGTH, task_name
from bertkit.tasks.given import Entailed, GivenLabels
from bertkit.tasks.shared.decision import Decision
from bertkit.tasks.shared.label_set import LabelSet

ENTAILMENT = "entailment"
INFERENCE_LABELS = {ENTAILMENT, "neutral", "contradiction", "not_entailment"}  # of models of inference, in any case
Array = NDArray[np.float32]
KEPT = 16  # sets of labels whose vectors a model keeps


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


class Nearness(Pooler):
    """How near a text is to the statement of each label, in the place of a pooler: the mean of three cosines.

    They are that of the vectors of both, of each token of the text with the nearest one of the statement, and of each
    token of the statement with the nearest one of the text (as BERTScore compares texts).
    """

    def __init__(self, settings: EmbedSettings, vectors_KD: Array, tokens: Sequence[Array]) -> None:
        nn.Module.__init__(self)
        self.settings = settings
        self.lengths = [len(each) for each in tokens]
        self.vectors_KD = nn.Parameter(torch.from_numpy(vectors_KD), requires_grad=False)
        self.tokens_SD = nn.Parameter(torch.from_numpy(np.concatenate(tokens)), requires_grad=False)

    def reduce(self, x_TD: Tensor, batch: Batch) -> Tensor:
        """N K."""
        pooling, dense = self.settings.pooling, self.settings.dense
        whole_NK = vectors_of(x_TD, batch, pooling, normalize=True, dense=dense) @ self.vectors_KD.T
        cosines_TS = F.normalize(x_TD.float(), dim=-1) @ self.tokens_SD.T
        of_text_TK = torch.stack([each.amax(dim=1) for each in torch.split(cosines_TS, self.lengths, dim=1)], dim=1)
        of_label_NS = pool(cosines_TS, batch, "max")
        of_label_NK = torch.stack([each.mean(dim=1) for each in torch.split(of_label_NS, self.lengths, dim=1)], dim=1)
        return (whole_NK + pool(of_text_TK, batch, "mean") + of_label_NK) / 3

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        """The same: nothing is left to transform."""
        return self.reduce(x_TD, batch)


class ScaleHead(nn.Module):
    """The logits of labels from how near they are."""

    reads = "pooled"

    def __init__(self, scale: Scale) -> None:
        super().__init__()
        self.slope, self.offset = scale.slope, torch.tensor(scale.offset)

    def forward(self, near_NK: Tensor) -> Tensor:
        """N K."""
        return near_NK * self.slope + self.offset.to(near_NK.device)


def by_vectors(checkpoint: Checkpoint, labels: LabelSet, scale: Scale) -> Answers:
    """The nearer a label's statement, the more probable the label."""
    settings = checkpoint.embed_settings(normalize=True).one_vector()
    whole, parts = (embed_texts(checkpoint, labels.statements, each) for each in (settings, _of_tokens(settings)))
    with torch.device("meta"):
        model = BertModel(replace(checkpoint.model.config, depth=1))
    model.config, model.encoder = checkpoint.model.config, checkpoint.model.encoder
    model.pooler = Nearness(settings, np.asarray(whole), list(parts)).to(model.device)
    head = model.heads[GivenLabels.row.head] = ScaleHead(scale)
    task = GivenLabels(**_reading(checkpoint, labels), given=labels, prefix=settings.prefix)
    if labels.multi_label:  # a cosine says something by itself only beside those of texts of many kinds
        windows = make_windows(task, [task.preprocess(each) for each in task.row.examples(texts=TEXTS)])
        usual_K = np.mean(run_model(model, task, windows).rows, axis=0)  # with the offset, which must not count twice
        head.offset = head.offset - torch.from_numpy(usual_K) + scale.offset
    return Answers(model.eval(), task, Decision())


def _of_tokens(settings: EmbedSettings) -> EmbedSettings:
    """A vector for each token, of length 1."""
    return settings.changed(pooling=NO_POOLING)


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
        "entailment": Way(has_entailment, by_entailment, Scale(1.0), Scale(1.0)),
        "vectors": Way(has_vectors, by_vectors, Scale(31.0), Scale(10.0, -1.8)),
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


def _reading(checkpoint: Checkpoint, labels: LabelSet) -> dict[str, Any]:
    """What every task has: the tokenizer, the limit, the labels."""
    limit = min(checkpoint.max_length, DEFAULT_MAX_LENGTH)
    return {"tokenizer": checkpoint.required_tokenizer, "limit": limit, "labels": labels.names}


def _classifies(checkpoint: Checkpoint) -> bool:
    return task_name(checkpoint) == GivenLabels.row.name


def _plain(name: str) -> str:
    return name.casefold().replace("-", "_").replace(" ", "_").replace("non_", "not_")
