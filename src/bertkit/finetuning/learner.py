"""What is trained: a model with the task's head, the loss over it, and which of its tensors may move."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint as gradient_checkpoint

from bertkit.checkpoint.save_load import Checkpoint
from bertkit.config import BertConfig
from bertkit.errors import RequestError
from bertkit.finetuning.settings import FineTuneSettings
from bertkit.model.batch import Batch
from bertkit.model.heads import HEADS
from bertkit.model.model import BertModel, new_model
from bertkit.tasks.folder import task_name
from bertkit.tasks.shared.fixed_batch import FixedBatch, fixed_loss, window_segments
from bertkit.tasks.task import LossSettings, Task, Window
from bertkit.train.loop import LossModule, Sums

TASK = "task"  # the loss's name in the log
ONE_LOSS = MappingProxyType({TASK: 1.0})


class Learner(LossModule):
    """A model and a task: windows in, the sum of their losses out."""

    weights = ONE_LOSS

    def __init__(self, model: BertModel, task: Task, loss: LossSettings) -> None:
        super().__init__()
        self.model = model
        self.task = task
        self.loss_settings = loss

    def forward(self, batch: Batch | FixedBatch, windows: Sequence[Window] = ()) -> Sums:
        """(sum, count, 0) of the task's loss; what was right is for `score` to say. A fixed batch needs no windows."""
        if isinstance(batch, FixedBatch):
            return self._fixed(batch.to(self.model.device))
        logits = task_logits(self.model, self.task, batch, windows)
        total, count = self.task.loss(logits.float(), batch, windows, self.loss_settings)
        return {TASK: (total, count, torch.zeros_like(count))}

    def _fixed(self, fixed: FixedBatch) -> Sums:
        batch = fixed.batch()
        logits = self.model.logits(batch, self.task.head).float()
        total, count = fixed_loss(self.task, logits, batch, fixed.asked, self.loss_settings)
        return {TASK: (total, count, torch.zeros_like(count))}


def pack(windows: Sequence[Window], config: BertConfig) -> Batch:
    """Windows end to end; a family without a second segment reads both texts of a pair as the first."""
    return Batch.pack([window.ids for window in windows], window_segments(windows, config))


def task_logits(
    model: BertModel, task: Task, batch: Batch, windows: Sequence[Window], hidden_TD: Tensor | None = None
) -> Tensor:
    """The head's numbers: a row for each window from pooled heads, a row for each token from the others.

    `hidden_TD`: the last layer's vectors, where they are there already.
    """
    hidden_TD = model(batch) if hidden_TD is None else hidden_TD
    if not task.joins_windows:
        return model.read(task.head, hidden_TD, batch)
    return joined_logits(model, task.head, batch, windows, hidden_TD)


def joined_logits(model: BertModel, head: str, batch: Batch, windows: Sequence[Window], hidden_TD: Tensor) -> Tensor:
    """Hierarchical reading: an example's windows give one vector, their mean, before the pooler's map and the head."""
    assert model.pooler is not None  # only pooled heads join windows
    vectors = model.pooler.reduce(hidden_TD, batch)
    numbers = torch.tensor([window.example for window in windows], device=vectors.device)
    _, owner, counts = torch.unique(numbers, return_inverse=True, return_counts=True)
    sums = torch.zeros(len(counts), vectors.shape[1], dtype=vectors.dtype, device=vectors.device)
    means = sums.index_add(0, owner, vectors) / counts[:, None]
    logits: Tensor = model.heads[head](model.pooler.transform(means))
    return logits[owner]


def load_start(found: Checkpoint, task: Task, settings: FineTuneSettings) -> Checkpoint:
    """The model to train: the found one's encoder, and its head too where task and labels are the same."""
    config, seed = fitted_config(found.model.config, task, settings), settings.learning.seed
    # A number's head from elsewhere has no center and spread of its own: it would begin far off.
    same = task_name(found) == task.name and (
        found.labels == task.labels if task.labels else bool(found.task) or not task.row.saved
    )
    model = with_config(found.model, config, {task.head: task.outputs}, seed=seed, keep_head=same)
    return replace(found, model=model, labels=task.labels, embed=None)


def start_at_prior(model: BertModel, task: Task, logits: Sequence[float]) -> None:
    """Let a new head start with what is known without reading: how frequent each label is.

    From zero, the first hundred steps would fit the label frequencies by moving the vectors of all texts to one side.
    """
    bias: Tensor = model.heads[task.head].out.bias  # type: ignore[assignment, union-attr]
    with torch.no_grad():
        if not bias.any():  # a trained head keeps its own
            bias.copy_(torch.tensor(logits))


def random_start(start: Checkpoint, task: Task, settings: FineTuneSettings) -> Checkpoint:
    """The same shape and tokenizer with fresh weights: what pre-training is compared with."""
    heads: dict[str, int | None] = {task.head: task.outputs}
    return replace(start, model=new_model(start.model.config, heads, seed=settings.learning.seed + 1))


def fitted_config(config: BertConfig, task: Task, settings: FineTuneSettings) -> BertConfig:
    """The model's shape with the pooling and dropout that were asked for."""
    pooling, dropout = _pooling(config, task, settings), settings.learning.dropout
    config = replace(config, parts=replace(config.parts, pooling=pooling))
    return config if dropout is None else replace(config, dropout=dropout, attention_dropout=dropout)


def _pooling(config: BertConfig, task: Task, settings: FineTuneSettings) -> Any:
    """What the head reads of a text: as asked for, or as the model's family does it where that is possible."""
    asked = settings.reading.pooling
    found = config.parts.pooling if asked == "model" else asked
    if found != "first" or not config.parts.causal or not HEADS[task.head].pooled:
        return found
    if asked == "first":
        raise RequestError(
            "pooling=first reads [CLS] alone, which sees no other token in a model that reads from left to right; "
            "leave it out or set pooling=mean"
        )
    return "mean"


def with_config(
    model: BertModel, config: BertConfig, heads: dict[str, int | None], *, seed: int = 0, keep_head: bool = False
) -> BertModel:
    """A model of this shape with the other's encoder, its pooler where both have one, and on request its head."""
    fresh = new_model(config, heads, seed=seed)
    known = model.state_dict()
    kept = ("encoder.", "pooler.", "heads.") if keep_head else ("encoder.", "pooler.")
    state = {name: known[name] for name in fresh.state_dict() if name in known and name.startswith(kept)}
    fresh.load_state_dict(state, strict=False)
    return fresh


def layer_number(name: str, depth: int) -> int:
    """How high a parameter stands: 0 embeddings, 1 to `depth` the layers, depth + 1 what reads them."""
    words = name.split(".")
    if "layers" in words:
        return 1 + int(words[words.index("layers") + 1])
    return 0 if "embeddings" in words else depth + 1


def freeze_below(model: BertModel, lowest: int) -> None:
    """Only parameters that stand at `lowest` or higher learn."""
    depth = len(model.encoder.layers)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(layer_number(name, depth) >= lowest)


def lowest_trainable(settings: FineTuneSettings, depth: int, progress: float) -> int:
    """The lowest layer that learns when `progress` of the run is done: frozen ones never, others from the top down."""
    frozen = min(settings.learning.frozen, depth)
    least = frozen + 1 if frozen else 0
    share = settings.learning.unfreeze
    if not share or progress >= share:
        return least
    return max(least, depth + 1 - int((depth + 2) * progress / share))


def rate_scales(model: BertModel, layer_decay: float) -> dict[str, float]:
    """Each parameter's multiple of the learning rate: 1 at the head, times `layer_decay` for each layer below."""
    depth = len(model.encoder.layers)
    return {name: layer_decay ** (depth + 1 - layer_number(name, depth)) for name, _ in model.named_parameters()}


def use_gradient_checkpointing(model: BertModel) -> None:
    """Gradient checkpointing: layers keep only their input and are computed again on the way back."""
    for layer in model.encoder.layers:
        layer.forward = partial(gradient_checkpoint, layer.forward, use_reentrant=False)
