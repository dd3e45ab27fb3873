"""Runs windows through the model, for evaluation and prediction: the head's outputs for each window."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch

from bertkit.config import BertConfig
from bertkit.data.examples import Example
from bertkit.engine.batches import Passage, fastest, last_layer, map_batches, token_budget
from bertkit.finetuning.batches import within_budget
from bertkit.finetuning.learner import task_logits
from bertkit.model.batch import Batch
from bertkit.model.model import BertModel
from bertkit.tasks.shared.decision import Decision
from bertkit.tasks.shared.fixed_batch import window_segments
from bertkit.tasks.task import LossSettings, Prediction, Task, Window

GPU_BATCH_TOKENS = 8192  # in one batch on a GPU, unless a single example has more


@dataclass(frozen=True)
class Outputs:
    """The head's outputs for each window, in order, and the mean loss if all windows have targets."""

    rows: list[np.ndarray]
    loss: float | None = None


@dataclass(frozen=True)
class BatchOutput:
    """The outputs of one batch by the index of their window, the sum of losses and the number of targets."""

    rows: dict[int, np.ndarray]
    loss: float
    targets: int


def run_model(
    model: BertModel, task: Task, windows: Sequence[Window], *, tokens: int | None = None, half: bool = False
) -> Outputs:
    """The outputs of all windows, in batches of up to `tokens` with examples of about equal length."""
    examples = [list(group) for _, group in groupby(range(len(windows)), key=lambda i: windows[i].example)]
    # Independent ones are not kept together: a query with a thousand texts would be one batch.
    groups = [[i] for i in range(len(windows))] if task.independent_windows else list(examples)
    groups.sort(key=lambda group: -sum(len(windows[i].ids) for i in group))
    lengths = [sum(len(windows[i].ids) for i in group) for group in groups]
    labeled = bool(windows) and all(window.target is not None for window in windows)
    training, device = model.training, model.device

    def compute(chosen: list[int]) -> BatchOutput:
        indices = [i for group in chosen for i in groups[group]]
        batch_windows = [windows[i] for i in indices]
        batch, hidden_TD = last_layer(model.encoder, window_passages(batch_windows, model.config), device)
        logits = task_logits(model, task, batch, batch_windows, hidden_TD).float()
        rows = dict(zip(indices, task.window_outputs(model, logits, batch, batch_windows), strict=True))
        in_batch = labeled and not task.independent_windows
        loss, targets = task.loss(logits, batch, batch_windows, LossSettings()) if in_batch else (0.0, 0)
        return BatchOutput(rows, float(loss), int(targets))

    model.eval()
    budget = tokens or (token_budget(lengths, device) if device.type == "cpu" else GPU_BATCH_TOKENS)
    with torch.inference_mode():
        fastest(model.encoder)  # packs the weights once, not in every thread
    with torch.autocast(device.type, torch.bfloat16, enabled=half):
        outputs = map_batches(compute, list(within_budget(lengths, budget)), sum(lengths), device)
    model.train(training)
    rows = {index: row for output in outputs for index, row in output.rows.items()}
    ordered = [rows[i] for i in range(len(windows))]
    losses = [(output.loss, output.targets) for output in outputs]
    if labeled and task.independent_windows:
        losses = [_example_loss(task, [windows[i] for i in each], [rows[i] for i in each]) for each in examples]
    total, count = (sum(each[part] for each in losses) for part in (0, 1))
    return Outputs(ordered, total / max(count, 1) if labeled else None)


def _example_loss(task: Task, windows: Sequence[Window], rows: Sequence[np.ndarray]) -> tuple[float, int]:
    """(loss, number of targets) of one example from the outputs of its windows."""
    batch = Batch.pack([window.ids for window in windows])
    loss, targets = task.loss(torch.from_numpy(np.stack(rows)).float(), batch, windows, LossSettings())
    return float(loss), int(targets)


def predict(
    model: BertModel, task: Task, examples: Sequence[Example], decision: Decision | None = None
) -> list[Prediction]:
    """A prediction for each example."""
    windows = make_windows(task, examples)
    return task.decode(examples, windows, run_model(model, task, windows).rows, decision or Decision())


def make_windows(task: Task, examples: Sequence[Example]) -> list[Window]:
    """The windows of all examples, in order."""
    return [window for number, example in enumerate(examples) for window in task.windows(example, number)]


def window_passages(windows: Sequence[Window], config: BertConfig) -> list[Passage]:
    """The token and segment ids of each window."""
    segments = window_segments(windows, config)
    return [Passage(window.ids, ids) for window, ids in zip(windows, segments, strict=True)]
