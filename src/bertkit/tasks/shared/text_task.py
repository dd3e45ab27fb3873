"""Base classes of the tasks on a text or a pair of texts, and helpers for their targets and labels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertkit.data.examples import Example, TextExample
from bertkit.errors import RequestError
from bertkit.model.model import BertModel
from bertkit.settings import pick
from bertkit.tasks.shared.decision import Decision
from bertkit.tasks.shared.explain import (
    ExplainedTokens,
    Request,
    Target,
    pooled_probability,
    read_pooled,
    refuse_windows,
    refuse_word,
    text_tokens,
)
from bertkit.tasks.shared.length import Seen, count_seen, refuse_too_long, select_tokens, sequence_positions
from bertkit.tasks.task import Dataset, FixedSize, HeadOutputs, Predict, Prediction, Task, Window, by_example


@dataclass(frozen=True, kw_only=True)
class TextTask(Task):
    """One prediction per text; the logits of its windows are pooled, or their vectors are averaged before the head."""

    pools_windows = True

    @property
    def joins_windows(self) -> bool:
        """Whether the windows of a text are averaged to one vector before the head."""
        return self.length.kind == "hierarchical"

    def windows(self, example: Example, number: int) -> list[Window]:
        """One sequence, or one for each window of a long text."""
        assert isinstance(example, TextExample)
        encoding = self.tokenizer.encode(example.text, example.pair)
        sequences = sequence_positions(encoding, self.limit, self.length)
        refuse_too_long(
            example.location, len(encoding), len(sequences), self.limit, "split it, or use length=head-tail"
        )
        target, seen = self.target(example), count_seen(encoding, sequences)
        return [Window(*select_tokens(encoding, positions), number, target, seen) for positions in sequences]

    def target(self, example: TextExample) -> object:
        """The target of the loss; None if unlabeled."""
        raise NotImplementedError

    def pool_windows(self, logits_NK: Tensor, windows: Sequence[Window]) -> tuple[Tensor, list[Any]]:
        """(logits pooled over the windows of each text, targets of the texts)."""
        counts, targets = [], []
        for _, group in groupby(windows, key=lambda window: window.example):
            text_windows = list(group)
            counts.append(len(text_windows))
            targets.append(text_windows[0].target)
        if len(counts) == len(windows):
            return logits_NK, targets
        lengths = torch.tensor(counts, device=logits_NK.device)
        return torch.segment_reduce(logits_NK, self.length.pool, lengths=lengths), targets

    def pool_outputs(self, outputs: HeadOutputs) -> np.ndarray:
        """As `pool_windows`, for the windows of one text as NumPy arrays."""
        stacked = np.stack(outputs).astype(np.float64)
        pooled: np.ndarray = stacked.max(axis=0) if self.length.pool == "max" else stacked.mean(axis=0)
        return pooled

    def decode_one(
        self, example: Example, windows: Sequence[Window], outputs: HeadOutputs, decision: Decision
    ) -> Prediction:
        """The prediction from the logits pooled over the windows of the text."""
        return self.decide(self.pool_outputs(outputs), windows[0].detail, decision)

    def decide(self, logits: np.ndarray, seen: Seen, decision: Decision) -> Prediction:
        """The prediction for a text with these logits."""
        raise NotImplementedError

    def text_logits(self, dataset: Dataset, outputs: HeadOutputs) -> np.ndarray:
        """[texts, outputs]: logits pooled over the windows of each text."""
        groups = by_example(dataset.examples, dataset.flat, outputs)
        return np.stack([self.pool_outputs(text_outputs) for _, _, text_outputs in groups])

    def explained_tokens(self, model: BertModel, request: Request) -> ExplainedTokens:
        """The tokens of a text to explain that the model reads by the length policy."""
        refuse_word(request)
        encoding = self.tokenizer.encode(request.text, request.pair)
        sequences = sequence_positions(encoding, self.limit, self.length)
        refuse_windows(len(sequences))
        return text_tokens(model, self.tokenizer, request, sequences[0])


@dataclass(frozen=True, kw_only=True)
class LabelTask(TextTask):
    """A task with one output for each label."""

    def explain(self, model: BertModel, request: Request, predict: Predict) -> Target:
        """The logit of the named label, or of the most probable one."""
        label = request.target
        tokens = self.explained_tokens(model, request)
        if label is None:
            [prediction] = predict(self.row.examples(texts=[request.text], pairs=request.pair and [request.pair]))
            label = str(likeliest(prediction.probabilities))
        index = pick(self.label_ids, label, "label")
        probability = pooled_probability(model, self.head, index, exclusive=self.row.exclusive)
        return Target(f"the label '{label}'", "logit", tokens, read_pooled(model, self.head, index), probability)


def likeliest(probabilities: Mapping[str, float]) -> str:
    """The label with the highest probability."""
    return max(probabilities, key=probabilities.__getitem__)


def label_id(label_ids: Mapping[str, int], label: str, example: Example) -> int:
    """The index of a label among the outputs; a label that is not in the training data is refused."""
    if label not in label_ids:
        labels = ", ".join(list(label_ids)[:20])
        raise RequestError(
            f"{example.location}: the label '{label}' is not among those of the training data ({labels}); "
            "correct it, or add examples of it to the training data"
        )
    return label_ids[label]


def display_text(example: TextExample) -> str:
    """A text or pair as shown in reports."""
    return example.text if example.pair is None else f"{example.text} — {example.pair}"


def pad_to(size: int, values: Sequence[float], padding: float = 0) -> Tensor:
    """The values as a tensor of `size` elements, padded at the end."""
    return torch.tensor([*values, *[padding] * (size - len(values))])


def sequence_weights(count: int, size: FixedSize) -> Tensor:
    """1 for each of `count` sequences of a fixed batch, 0 for padding."""
    return pad_to(size.sequences, [1.0] * count, 0.0)
