"""Multiple choice: each choice is read together with the question, with a softmax over the scores."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from bertkit.data.examples import ChoiceExample, Example
from bertkit.errors import BertkitError, RequestError
from bertkit.model.batch import Batch
from bertkit.tasks.metrics.table import choice_scores
from bertkit.tasks.rows.choose import ChooseRow
from bertkit.tasks.shared.decision import Decision
from bertkit.tasks.shared.length import Seen, positions_by_part, select_tokens, truncate
from bertkit.tasks.shared.losses import MASKED_LOGIT, choice_loss, choice_losses, divergence
from bertkit.tasks.shared.text_task import pad_to
from bertkit.tasks.task import (
    Dataset,
    FixedSize,
    HeadOutputs,
    LossSettings,
    Mistake,
    Task,
    Window,
    by_example,
)
from bertkit.text.tokenizer import Encoding


@dataclass(frozen=True)
class Chosen:
    """The index and the text of the most probable choice; None if the model abstains."""

    choice: int | None
    text: str | None
    probability: float  # of the most probable choice
    probabilities: tuple[float, ...]
    seen: Seen = field(repr=False)  # over the sequences of all choices; `windows` is their number


@dataclass(frozen=True)
class ChoiceWindow:
    """The number of choices of the question that a sequence belongs to."""

    choices: int
    seen: Seen


@dataclass(frozen=True, kw_only=True)
class Choose(Task):
    """One score for each (question, choice); examples may have different numbers of choices."""

    row = ChooseRow()
    outputs = 1

    def windows(self, example: Example, number: int) -> list[Window]:
        """A sequence for each choice; the question is cut before the choice."""
        assert isinstance(example, ChoiceExample)
        count = len(example.choices)
        if not count:
            raise RequestError(f"{example.location}: the question has no choices; give two or more")
        if example.label is not None and not 0 <= example.label < count:
            raise RequestError(
                f"{example.location}: label {example.label} is none of the {count} choices, counted from 0"
            )
        windows = []
        for encoding in self.tokenizer.encode_batch([example.question] * count, example.choices):
            positions = self._positions(encoding)
            seen = Seen(len(encoding) - sum(encoding.special), len(encoding) - len(positions))
            tokens = select_tokens(encoding, positions)
            windows.append(Window(*tokens, number, example.label, ChoiceWindow(count, seen)))
        return windows

    def loss_sum(self, logits: Tensor, batch: Batch, windows: Sequence[Window], weights: LossSettings) -> Tensor:
        """Sum of the cross-entropies over the choices of each example; logits are N 1."""
        groups = [list(group) for _, group in groupby(windows, key=lambda window: window.example)]
        if any(len(group) != group[0].detail.choices for group in groups):
            raise BertkitError("the choices of a question are in different batches; put all of them into one")
        target = torch.tensor([group[0].target for group in groups], device=logits.device)
        rows = torch.split(logits.flatten(), [len(group) for group in groups])
        padded_NC = pad_sequence(list(rows), batch_first=True, padding_value=-torch.inf)
        return choice_loss(padded_NC, target, weights.label_smoothing)

    def fixed_targets(self, windows: Sequence[Window], size: FixedSize, weights: LossSettings) -> tuple[Tensor, ...]:
        """For each example the indices of its sequences (-1 is padding), the correct choice, and the weight."""
        groups = [
            [index for index, _ in group] for _, group in groupby(enumerate(windows), key=lambda pair: pair[1].example)
        ]
        choices = max(map(len, groups))
        padding = [[0] * choices] * (size.examples - len(groups))
        indices = torch.tensor([*(group + [-1] * (choices - len(group)) for group in groups), *padding])
        gold = [windows[group[0]].target for group in groups]
        return indices, pad_to(size.examples, gold), pad_to(size.examples, [1.0] * len(groups))

    def fixed_loss(self, logits: Tensor, batch: Batch, targets: Sequence[Tensor], smoothing: float) -> Tensor:
        """Sum of the cross-entropies over the choices of the examples with weight 1."""
        indices_NC, gold, row_weights = targets
        selected_NC = logits.flatten().index_select(0, indices_NC.flatten().clamp_min(0)).view_as(indices_NC)
        logits_NC = selected_NC.masked_fill(indices_NC < 0, -torch.inf)
        return (choice_losses(logits_NC, gold, smoothing) * row_weights).sum()

    def distillation_loss(
        self, teacher: Task, logits: Tensor, target: Tensor, batch: Batch, windows: Sequence[Window], temperature: float
    ) -> Tensor:
        """Sum of the divergences between the choice probabilities of each question."""
        counts = [len(list(group)) for _, group in groupby(windows, key=lambda window: window.example)]
        student, target = (
            pad_sequence(list(torch.split(values.flatten(), counts)), batch_first=True, padding_value=MASKED_LOGIT)
            for values in (logits, target)
        )
        return divergence(student, target, temperature)

    def decode_one(
        self, example: Example, windows: Sequence[Window], outputs: HeadOutputs, decision: Decision
    ) -> Chosen:
        """The most probable choice."""
        assert isinstance(example, ChoiceExample)
        probabilities = decision.class_probabilities(_choice_logits(outputs))
        best = int(probabilities.argmax())
        confident = decision.is_confident(float(probabilities[best]))
        choice, text = (best, example.choices[best]) if confident else (None, None)
        return Chosen(choice, text, float(probabilities[best]), tuple(probabilities.tolist()), _total_seen(windows))

    def score(self, examples: Sequence[Example], predictions: Sequence[Chosen]) -> dict[str, float]:
        """The accuracy of the most probable choices, also where the model abstains."""
        gold = [e.label for e in examples if isinstance(e, ChoiceExample) and e.label is not None]
        return choice_scores(gold, [int(np.argmax(prediction.probabilities)) for prediction in predictions])

    def constant_outputs(self, train: Dataset) -> tuple[float, ...]:
        """Equal numbers: always the first choice."""
        return (0.0,)

    def calibration_table(self, dev: Dataset, outputs: HeadOutputs) -> tuple[np.ndarray, np.ndarray] | None:
        """(logits, correct choices) of the questions; None if they differ in the number of choices."""
        rows = [_choice_logits(group) for _, _, group in by_example(dev.examples, dev.flat, outputs)]
        if len({len(row) for row in rows}) > 1:
            return None
        return np.stack(rows), np.array([windows[0].target for windows in dev.windows])

    def answer_pairs(self, example: Example, prediction: Chosen, decision: Decision) -> list[tuple[str, str]]:
        """The correct choice and the most probable one."""
        assert isinstance(example, ChoiceExample)
        return [(f"choice {example.label}", f"choice {int(np.argmax(prediction.probabilities))}")]

    def mistake(self, example: Example, prediction: Chosen) -> Mistake | None:
        """A choice that is not the correct one."""
        assert isinstance(example, ChoiceExample)
        best = int(np.argmax(prediction.probabilities))
        if example.label is None or best == example.label:
            return None
        truth, predicted = example.choices[example.label], example.choices[best]
        return Mistake(prediction.probability, example.question, truth, predicted)

    def _positions(self, encoding: Encoding) -> list[int]:
        if len(encoding) <= self.limit:
            return list(range(len(encoding)))
        special, question, choice = positions_by_part(encoding)
        room = self.limit - len(special)
        choice = choice[:room]
        selected = truncate(len(question), room - len(choice), self.length.kind)
        return sorted((*special, *(question[position] for position in selected), *choice))


def _choice_logits(outputs: HeadOutputs) -> np.ndarray:
    return np.concatenate([np.ravel(row) for row in outputs])


def _total_seen(windows: Sequence[Window]) -> Seen:
    parts = [window.detail.seen for window in windows]
    return Seen(sum(seen.tokens for seen in parts), sum(seen.cut for seen in parts), len(parts))
