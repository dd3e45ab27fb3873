"""transformers' own heads in a plain loop: the other side of finetune_quality.py.

It reads the same windows, pads each batch to its longest, and takes the same optimizer, schedule, clipping and
precision. What it gives goes through the same `decode` and `score`.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bertkit.finetuning.prepare import Prepared
from bertkit.finetuning.settings import FineTuneSettings
from bertkit.tasks.regress import Regress
from bertkit.tasks.shared.decision import Decision
from bertkit.tasks.task import Dataset
from bertkit.train.schedule import Schedule

Windows = list[list[Any]]  # of each example in a batch


@dataclass(frozen=True)
class Peer:
    """A transformers model, and the task it does."""

    model: Any
    prepared: Prepared
    device: torch.device

    @property
    def task(self) -> Any:
        """What windows, decodes and scores."""
        return self.prepared.task

    def inputs(self, examples: Windows, *, labeled: bool) -> dict[str, Tensor]:
        """A padded batch under transformers' names, on the device."""
        windows = [window for own in examples for window in own]
        longest = max(len(window.ids) for window in windows)
        columns = {
            "input_ids": _padded([window.ids for window in windows], longest, 0),
            "token_type_ids": _padded([window.segments for window in windows], longest, 0),
            "attention_mask": _padded([[1] * len(window.ids) for window in windows], longest, 0),
        }
        if self.task.name == "choose":
            columns = {name: x.reshape(len(examples), -1, longest) for name, x in columns.items()}
        columns |= self._labels(examples, windows, longest) if labeled else {}
        return {name: torch.from_numpy(x).to(self.device, non_blocking=True) for name, x in columns.items()}

    def _labels(self, examples: Windows, windows: list[Any], longest: int) -> dict[str, np.ndarray]:
        targets = [window.target for window in windows]
        if self.task.name == "tag":
            return {"labels": _padded(targets, longest, -100)}
        if self.task.name == "answer":
            starts, ends = np.array(targets, dtype=np.int64).T
            return {"start_positions": starts.copy(), "end_positions": ends.copy()}
        if self.task.name == "multilabel":
            table = np.zeros((len(targets), len(self.task.labels)), dtype=np.float32)
            for row, own in zip(table, targets, strict=True):
                row[list(own)] = 1
            return {"labels": table}
        if isinstance(self.task, Regress):  # as its users do: the numbers as they stand
            return {"labels": np.array([t * self.task.spread + self.task.center for t in targets], dtype=np.float32)}
        return {"labels": np.array([own[0].target for own in examples], dtype=np.int64)}

    def rows(self, examples: Windows) -> list[np.ndarray]:
        """The head's numbers for each window, as `task.decode` reads them."""
        out = self.model(**self.inputs(examples, labeled=False))
        lengths = [len(window.ids) for own in examples for window in own]
        if self.task.name == "answer":
            both = torch.stack((out.start_logits, out.end_logits), dim=-1).float().cpu().numpy()
            return [row[:length] for row, length in zip(both, lengths, strict=True)]
        logits = out.logits.float().cpu().numpy()
        if self.task.name == "tag":
            return [row[:length] for row, length in zip(logits, lengths, strict=True)]
        if self.task.name == "choose":
            return list(logits.reshape(-1, 1))
        if isinstance(self.task, Regress):
            logits = (logits - self.task.center) / self.task.spread
        return list(logits)


def load_peer(folder: Path, prepared: Prepared, seed: int, device: torch.device) -> Peer:
    """The encoder of a folder under a new head of transformers' own."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    task = prepared.task
    kinds = {"tag": "TokenClassification", "answer": "QuestionAnswering", "choose": "MultipleChoice"}
    kind = getattr(transformers, f"AutoModelFor{kinds.get(task.name, 'SequenceClassification')}")
    options: dict[str, Any] = {"dtype": torch.float32}
    if task.row.problem_type:
        options |= {"problem_type": task.row.problem_type, "num_labels": task.outputs}
    elif task.name == "tag":
        options |= {"num_labels": task.outputs}
    torch.manual_seed(seed)  # of the head's first weights
    return Peer(kind.from_pretrained(folder, **options).to(device), prepared, device)


def teach_peer(peer: Peer, settings: FineTuneSettings) -> float:
    """A plain loop over shuffled batches; seconds."""
    learning, train = settings.learning, peer.prepared.train
    per_epoch = -(-len(train.examples) // learning.batch)
    total = per_epoch * learning.epochs
    schedule = Schedule(peak=learning.learning_rate, warmup=round(learning.warmup * total), decay=learning.decay)
    optimizer = torch.optim.AdamW(decay_groups(peer.model, learning.weight_decay), lr=0.0, eps=1e-6, fused=True)
    torch.manual_seed(learning.seed)
    peer.model.train()
    began = time.perf_counter()
    for step, examples in enumerate(_batches(train, settings)):
        for group in optimizer.param_groups:
            group["lr"] = schedule.rate(step, step / total)
        with torch.autocast(peer.device.type, torch.bfloat16, enabled=peer.device.type == "cuda"):
            loss = peer.model(**peer.inputs(examples, labeled=True)).loss
        loss.backward()
        nn.utils.clip_grad_norm_(peer.model.parameters(), learning.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    if peer.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def score_peer(peer: Peer, batch: int = 64) -> dict[str, float]:
    """Dev by the same rules as ours, in float32."""
    dev = peer.prepared.dev
    order = sorted(range(len(dev.examples)), key=lambda i: -max(len(window.ids) for window in dev.windows[i]))
    found: dict[int, list[np.ndarray]] = {}
    peer.model.eval()
    with torch.inference_mode():
        for at in range(0, len(order), batch):
            numbers = order[at : at + batch]
            rows = iter(peer.rows([dev.windows[i] for i in numbers]))
            found |= {i: [next(rows) for _ in dev.windows[i]] for i in numbers}
    outputs = [row for number in range(len(order)) for row in found[number]]
    scores: dict[str, float] = peer.task.score(
        dev.examples, peer.task.decode(dev.examples, dev.flat, outputs, Decision())
    )
    return scores


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Matrices decay, norms and biases do not."""
    parameters = list(model.parameters())
    return [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]


def _batches(train: Dataset, settings: FineTuneSettings) -> Iterator[Windows]:
    draw = torch.Generator().manual_seed(settings.learning.seed)
    size = settings.learning.batch
    for _ in range(settings.learning.epochs):
        order = torch.randperm(len(train.examples), generator=draw).tolist()
        for at in range(0, len(order), size):
            yield [train.windows[i] for i in order[at : at + size]]


def _padded(rows: Sequence[Sequence[int]], longest: int, fill: int) -> np.ndarray:
    table = np.full((len(rows), longest), fill, dtype=np.int64)
    for row, own in zip(table, rows, strict=True):
        row[: len(own)] = own
    return table
