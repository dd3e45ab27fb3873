"""The trained module: a model with the task's head and loss, its initial weights, and which parameters are trained."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint as gradient_checkpoint

from bertkit.checkpoint.adapters import adaptable
from bertkit.checkpoint.save_load import Checkpoint, folder_config
from bertkit.config import BertConfig, Parts
from bertkit.errors import RequestError
from bertkit.finetuning.settings import FineTuneSettings
from bertkit.model.batch import Batch
from bertkit.model.heads import HEADS
from bertkit.model.model import BertModel, new_model
from bertkit.tasks.folder import task_name
from bertkit.tasks.shared.fixed_batch import FixedBatch, fixed_loss, window_segments
from bertkit.tasks.task import LossSettings, Task, Window
from bertkit.train.loop import LossModule, Sums
from bertkit.train.low_rank import MODEL, LowRank

TASK = "task"  # the name of the loss in metrics.jsonl
UPDATE_RATE = 30.0  # learning rate of low-rank updates, relative to that of whole matrices
ONE_LOSS = MappingProxyType({TASK: 1.0})


class Learner(LossModule):
    """A model with the loss of a task."""

    weights = ONE_LOSS

    def __init__(self, model: BertModel, task: Task, loss: LossSettings) -> None:
        super().__init__()
        self.model = model
        self.task = task
        self.loss_settings = loss

    def forward(self, batch: Batch | FixedBatch, windows: Sequence[Window] = ()) -> Sums:
        """(sum of losses, number of targets, 0): correct predictions are not counted. A fixed batch has no windows."""
        if isinstance(batch, FixedBatch):
            return self._fixed(batch.to(self.model.device))
        logits = task_logits(self.model, self.task, batch, windows)
        total, count = self.task.loss(logits.float(), batch, windows, self.loss_settings)
        return {TASK: (total, count, torch.zeros_like(count))}

    def _fixed(self, fixed: FixedBatch) -> Sums:
        batch = fixed.batch()
        logits = self.task.fixed_logits(self.model, batch, fixed.targets).float()
        total, count = fixed_loss(self.task, logits, batch, fixed.targets, self.loss_settings)
        return {TASK: (total, count, torch.zeros_like(count))}


def pack(windows: Sequence[Window], config: BertConfig) -> Batch:
    """The windows as a packed batch."""
    return Batch.pack([window.ids for window in windows], window_segments(windows, config))


def task_logits(
    model: BertModel, task: Task, batch: Batch, windows: Sequence[Window], hidden_TD: Tensor | None = None
) -> Tensor:
    """The head's outputs: a row for each window for pooled heads, a row for each token for others.

    `hidden_TD`: the last layer's vectors, if they are already computed.
    """
    hidden_TD = model(batch) if hidden_TD is None else hidden_TD
    if not task.joins_windows:
        return task.read_head(model, hidden_TD, batch, windows)
    return joined_logits(model, task.head, batch, windows, hidden_TD)


def joined_logits(model: BertModel, head: str, batch: Batch, windows: Sequence[Window], hidden_TD: Tensor) -> Tensor:
    """The `hierarchical` policy: the mean vector of an example's windows goes through the pooler and the head."""
    assert model.pooler is not None  # only pooled heads join windows
    vectors = model.pooler.reduce(hidden_TD, batch)
    examples = torch.tensor([window.example for window in windows], device=vectors.device)
    _, owner, counts = torch.unique(examples, return_inverse=True, return_counts=True)
    sums = torch.zeros(len(counts), vectors.shape[1], dtype=vectors.dtype, device=vectors.device)
    means = sums.index_add(0, owner, vectors) / counts[:, None]
    logits: Tensor = model.heads[head](model.pooler.transform(means))
    return logits[owner]


def load_start(base: Checkpoint, task: Task, settings: FineTuneSettings) -> Checkpoint:
    """The checkpoint to train: the encoder of `base`, and its head if task and labels are the same."""
    config, seed = config_for_task(base.model.config, task, settings), settings.learning.seed
    # Without bertkit.json, center and spread of a regression head are unknown, so such a head is not used.
    same_labels = base.labels == task.labels if task.labels else bool(base.task) or not task.row.saved_fields
    keep_head = task_name(base) == task.name and same_labels and task.head in base.model.heads
    model = with_config(base.model, config, {task.head: task.outputs}, seed=seed, keep_head=keep_head)
    if not keep_head:
        shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
        copied = task.start_weights(base.model.state_dict())
        fitting = {name: tensor for name, tensor in copied.items() if shapes.get(name) == tensor.shape}
        model.load_state_dict(fitting, strict=False)
    return replace(base, model=model, labels=task.labels, embed=None)


def start_at_prior(model: BertModel, task: Task, bias: Sequence[float]) -> None:
    """Initialize the bias of a new head, if it has one, with `Task.prior_bias`: the frequencies of the labels.

    From a bias of zero, the first hundred steps would fit these frequencies by shifting the vectors of all texts.
    """
    head_bias: Tensor | None = model.heads[task.head].out.bias  # type: ignore[assignment, union-attr]
    with torch.no_grad():
        if head_bias is not None and not head_bias.any():  # a trained head keeps its bias
            head_bias.copy_(torch.tensor(bias))


def random_start(start: Checkpoint, task: Task, settings: FineTuneSettings) -> Checkpoint:
    """The same architecture and tokenizer with random weights, as a baseline for pre-training."""
    heads: dict[str, int | None] = {task.head: task.outputs}
    return replace(start, model=new_model(start.model.config, heads, seed=settings.learning.seed + 1))


def config_for_task(config: BertConfig, task: Task, settings: FineTuneSettings) -> BertConfig:
    """The model's config with the pooling and dropout of the settings, and what the task needs."""
    pooling, dropout = _pooling(config, task, settings), settings.learning.dropout
    parts = replace(config.parts, pooling=pooling)
    config = task.model_config(replace(config, parts=linear_on_mean(parts) if settings.learning.few else parts))
    attention = settings.learning.attention_dropout
    attention = dropout if attention is None else attention
    config = config if dropout is None else replace(config, dropout=dropout)
    return config if attention is None else replace(config, attention_dropout=attention)


def linear_on_mean(parts: Parts) -> Parts:
    """The parts with a head that is a linear map of the mean over tokens, which a logistic regression gives."""
    return replace(parts, pooler="none", pooler_norm=False, pooling="mean")


def _pooling(config: BertConfig, task: Task, settings: FineTuneSettings) -> Any:
    """The pooling of the settings, or of the model's family; `mean` instead of `first` for a causal model."""
    setting = settings.reading.pooling
    pooling = config.parts.pooling if setting == "model" else setting
    if pooling != "first" or not config.parts.causal or not HEADS[task.head].pooled:
        return pooling
    if setting == "first":
        raise RequestError(
            "pooling=first reads [CLS] alone, which sees no other token in a model that reads from left to right; "
            "leave it out or set pooling=mean"
        )
    return "mean"


def with_config(
    model: BertModel, config: BertConfig, heads: dict[str, int | None], *, seed: int = 0, keep_head: bool = False
) -> BertModel:
    """A model with this config and the weights of another: its encoder, its pooler if both have one, maybe its head."""
    new = new_model(config, heads, seed=seed)
    weights = model.state_dict()
    copied = ("encoder.", "pooler.", "heads.") if keep_head else ("encoder.", "pooler.")
    state = {name: weights[name] for name in new.state_dict() if name in weights and name.startswith(copied)}
    new.load_state_dict(state, strict=False)
    return new


def layer_number(name: str, depth: int) -> int:
    """The layer of a parameter: 0 for embeddings, 1 to `depth` for layers, depth + 1 for pooler and heads."""
    words = name.split(".")
    if "layers" in words:
        return 1 + int(words[words.index("layers") + 1])
    return 0 if "embeddings" in words else depth + 1


def freeze_below(model: BertModel, lowest: int) -> None:
    """Train only the parameters of layer `lowest` and above (see `layer_number`)."""
    depth = len(model.encoder.layers)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(layer_number(name, depth) >= lowest)


def low_rank(learner: Learner, settings: FineTuneSettings) -> LowRank:
    """The learner with low-rank updates of the layers' linear maps; else only heads are trained.

    Queries, keys and values are one matrix here, and have an update each, as PEFT's have.
    """
    model, (rank, alpha) = learner.model, settings.adapter.scaling
    depth, kind = len(model.encoder.layers), settings.adapter.matrices
    _, native = folder_config(model)
    maps = adaptable(model, native=native)
    if not maps:
        raise RequestError(f"rank={rank}: this {model.config.family} has no linear maps with updates; leave rank out")
    parts = {
        f"{MODEL}{name}": len(rows)
        for name, rows in maps.items()
        if (kind == "all" or (".attention." in name) == (kind == "attention"))
        and layer_number(name, depth) > settings.learning.frozen
    }
    sides = [
        min(len(learner.get_parameter(n)) // count, learner.get_parameter(n).shape[1]) for n, count in parts.items()
    ]
    if rank > min(sides, default=rank):
        raise RequestError(f"rank={rank} is larger than a matrix with a side of {min(sides)}; choose a smaller one")
    model.requires_grad_(True).encoder.requires_grad_(False)
    return LowRank(learner, rank, seed=settings.learning.seed, scale=alpha / rank, parts=parts)


def lowest_trainable(settings: FineTuneSettings, depth: int, progress: float) -> int:
    """The lowest layer that is trained when the fraction `progress` of the run is done, see the setting `unfreeze`."""
    frozen = min(settings.learning.frozen, depth)
    lowest = frozen + 1 if frozen else 0
    unfreeze = settings.learning.unfreeze
    if not unfreeze or progress >= unfreeze:
        return lowest
    return max(lowest, depth + 1 - int((depth + 2) * progress / unfreeze))


def rate_scales(model: BertModel, layer_decay: float) -> dict[str, float]:
    """The learning rate of each parameter relative to the head's: `layer_decay` to the power of the layers between."""
    depth = len(model.encoder.layers)
    return {name: layer_decay ** (depth + 1 - layer_number(name, depth)) for name, _ in model.named_parameters()}


def trained_scales(module: Learner | LowRank, model: BertModel, layer_decay: float) -> dict[str, float]:
    """The same for what is trained; low-rank updates have UPDATE_RATE times the learning rate of their matrix."""
    scales = {f"{MODEL}{name}": scale for name, scale in rate_scales(model, layer_decay).items()}
    if not isinstance(module, LowRank):
        return scales
    rates = {part.key: UPDATE_RATE * scales[part.matrix] for part in module.parts}
    updates = {f"{side}.{key}": rate for key, rate in rates.items() for side in ("up", "down")}
    return {f"module.{name}": scale for name, scale in scales.items()} | updates


def use_gradient_checkpointing(model: BertModel) -> None:
    """Gradient checkpointing: layers keep only their inputs and are computed again in the backward pass."""
    for layer in model.encoder.layers:
        layer.forward = partial(gradient_checkpoint, layer.forward, use_reentrant=False)
