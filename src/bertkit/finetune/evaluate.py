"""Windows through the model and back as the head's numbers: the one way for evaluation and prediction."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from bertkit.finetune.batches import within_budget
from bertkit.finetune.decision import Decision
from bertkit.finetune.examples import Example
from bertkit.finetune.learner import pack, task_logits
from bertkit.finetune.task import LossSettings, Prediction, Task, Window
from bertkit.model.batch import Batch
from bertkit.model.heads import PooledHead
from bertkit.model.model import BertModel

TOKENS = 8192  # through the model at once, unless one example has more


@dataclass(frozen=True)
class Outputs:
    """The head's numbers for each window, in the order of the windows, and the mean loss where all have targets."""

    rows: list[np.ndarray]
    loss: float | None = None


def run_model(
    model: BertModel, task: Task, windows: Sequence[Window], *, tokens: int = TOKENS, half: bool = False
) -> Outputs:
    """Every window through the model, examples of about equal length together."""
    groups = [list(run) for _, run in groupby(range(len(windows)), key=lambda i: windows[i].example)]
    groups.sort(key=lambda group: -sum(len(windows[i].ids) for i in group))
    lengths = [sum(len(windows[i].ids) for i in group) for group in groups]
    rows: dict[int, np.ndarray] = {}
    total, count = 0.0, 0
    labelled = bool(windows) and all(window.target is not None for window in windows)
    training = model.training
    model.eval()
    with torch.inference_mode(), torch.autocast(model.device.type, torch.bfloat16, enabled=half):
        for chosen in within_budget(lengths, tokens):
            indices = [i for group in chosen for i in groups[group]]
            own = [windows[i] for i in indices]
            batch = pack(own, model.config).to(model.device)
            logits = task_logits(model, task, batch, own).float()
            rows |= dict(zip(indices, _split(model, task, logits, batch), strict=True))
            if labelled:
                loss, losses = task.loss(logits, batch, own, LossSettings())
                total, count = total + float(loss), count + int(losses)
    model.train(training)
    return Outputs([rows[i] for i in range(len(windows))], total / max(count, 1) if labelled else None)


def predict(
    model: BertModel, task: Task, examples: Sequence[Example], decision: Decision | None = None
) -> list[Prediction]:
    """A prediction for each example."""
    windows = make_windows(task, examples)
    return task.decode(examples, windows, run_model(model, task, windows).rows, decision or Decision())


def make_windows(task: Task, examples: Sequence[Example]) -> list[Window]:
    """The windows of all examples, in their order."""
    return [window for number, example in enumerate(examples) for window in task.windows(example, number)]


def _split(model: BertModel, task: Task, logits: Tensor, batch: Batch) -> list[np.ndarray]:
    """A row for each window from heads that read one vector, rows for each of its tokens from the others."""
    numbers = logits.cpu()
    parts = list(numbers) if isinstance(model.heads[task.head], PooledHead) else list(batch.split(numbers))
    return [part.numpy() for part in parts]
