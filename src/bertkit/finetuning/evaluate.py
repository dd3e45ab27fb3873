"""Windows through the model and back as the head's numbers: the one way for evaluation and prediction."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from bertkit.config import BertConfig
from bertkit.data.examples import Example
from bertkit.engine.batches import Passage, each_batch, last_layer, token_budget
from bertkit.engine.forward import quickest
from bertkit.finetuning.batches import within_budget
from bertkit.finetuning.learner import task_logits
from bertkit.model.batch import Batch
from bertkit.model.heads import PooledHead
from bertkit.model.model import BertModel
from bertkit.tasks.shared.decision import Decision
from bertkit.tasks.shared.fixed_batch import window_segments
from bertkit.tasks.task import LossSettings, Prediction, Task, Window

TOKENS = 8192  # through the model at once on a GPU, unless one example has more


@dataclass(frozen=True)
class Outputs:
    """The head's numbers for each window, in the order of the windows, and the mean loss where all have targets."""

    rows: list[np.ndarray]
    loss: float | None = None


@dataclass(frozen=True)
class BatchOutput:
    """What one batch gave: rows by the number of their window, the sum of losses and how many these were."""

    rows: dict[int, np.ndarray]
    loss: float
    losses: int


def run_model(
    model: BertModel, task: Task, windows: Sequence[Window], *, tokens: int | None = None, half: bool = False
) -> Outputs:
    """Every window through the model, examples of about equal length together, up to `tokens` at once."""
    groups = [list(run) for _, run in groupby(range(len(windows)), key=lambda i: windows[i].example)]
    groups.sort(key=lambda group: -sum(len(windows[i].ids) for i in group))
    lengths = [sum(len(windows[i].ids) for i in group) for group in groups]
    labeled = bool(windows) and all(window.target is not None for window in windows)
    training, device = model.training, model.device

    def compute(chosen: list[int]) -> BatchOutput:
        indices = [i for group in chosen for i in groups[group]]
        own = [windows[i] for i in indices]
        batch, hidden_TD = last_layer(model.encoder, window_passages(own, model.config), device)
        logits = task_logits(model, task, batch, own, hidden_TD).float()
        rows = dict(zip(indices, _split(model, task, logits, batch), strict=True))
        loss, losses = task.loss(logits, batch, own, LossSettings()) if labeled else (0.0, 0)
        return BatchOutput(rows, float(loss), int(losses))

    model.eval()
    budget = tokens or (token_budget(lengths, device) if device.type == "cpu" else TOKENS)
    with torch.inference_mode():
        quickest(model.encoder)  # packed once, and not by every thread
    with torch.autocast(device.type, torch.bfloat16, enabled=half):
        found = each_batch(compute, list(within_budget(lengths, budget)), sum(lengths), device)
    model.train(training)
    rows = {index: row for part in found for index, row in part.rows.items()}
    total, count = sum(part.loss for part in found), sum(part.losses for part in found)
    return Outputs([rows[i] for i in range(len(windows))], total / max(count, 1) if labeled else None)


def predict(
    model: BertModel, task: Task, examples: Sequence[Example], decision: Decision | None = None
) -> list[Prediction]:
    """A prediction for each example."""
    windows = make_windows(task, examples)
    return task.decode(examples, windows, run_model(model, task, windows).rows, decision or Decision())


def make_windows(task: Task, examples: Sequence[Example]) -> list[Window]:
    """The windows of all examples, in their order."""
    return [window for number, example in enumerate(examples) for window in task.windows(example, number)]


def window_passages(windows: Sequence[Window], config: BertConfig) -> list[Passage]:
    """What goes through the encoder for each window."""
    segments = window_segments(windows, config)
    return [Passage(window.ids, own) for window, own in zip(windows, segments, strict=True)]


def _split(model: BertModel, task: Task, logits: Tensor, batch: Batch) -> list[np.ndarray]:
    """A row for each window from heads that read one vector, rows for each of its tokens from the others."""
    numbers = logits.cpu()
    parts = list(numbers) if isinstance(model.heads[task.head], PooledHead) else list(batch.split(numbers))
    return [part.numpy() for part in parts]
