"""Tasks and model folders: a task built for training, written to bertkit.json, and read from a folder."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bertkit.checkpoint.save_load import Checkpoint
from bertkit.checkpoint.sentence_transformers import CROSS_ENCODER_FIELDS
from bertkit.data.tables import COLUMN_ROLES
from bertkit.errors import RequestError
from bertkit.model.model import BertModel
from bertkit.settings import pick
from bertkit.tasks.row import TaskRow
from bertkit.tasks.shared.decision import Decision
from bertkit.tasks.shared.length import LengthPolicy, ReadingSettings
from bertkit.tasks.table import TASKS, task_heads
from bertkit.tasks.task import Task, task_class

# Fields of config.json that say what a head is for: those of the model to start from are not of the new one.
TASK_FIELDS = ("problem_type", *CROSS_ENCODER_FIELDS)
DEFAULT_MAX_LENGTH = 512  # tokens in a sequence: models with 8,192 positions would be slow by default


def build_task(name: str, checkpoint: Checkpoint, reading: ReadingSettings, **arguments: Any) -> Task:
    """A task for a model; `arguments` come from the training data: labels, or center and spread of numbers."""
    if checkpoint.tokenizer is None:
        raise RequestError("this model's folder holds no tokenizer; put its vocab.txt or tokenizer.json there")
    limit = min(checkpoint.max_length, reading.max_length or DEFAULT_MAX_LENGTH)
    row = pick(TASKS, name, "task")
    arguments |= row.arguments_from_model(checkpoint.settings, checkpoint.tokenizer)
    return task_class(row)(tokenizer=checkpoint.tokenizer, limit=limit, length=_policy(row, reading), **arguments)


def _policy(row: TaskRow, reading: ReadingSettings) -> LengthPolicy:
    kind: Any = reading.length or row.length.kind
    stride = row.length.stride if reading.stride is None else reading.stride  # 0 is a valid setting: no overlap
    return LengthPolicy(kind, stride=stride, pool=reading.window_pool)


def task_json(task: Task, decision: Decision, record: Mapping[str, Any]) -> dict[str, Any]:
    """The content of bertkit.json: everything that predictions depend on besides the model, and a training record."""
    content: dict[str, Any] = {"name": task.name, "limit": task.limit}
    if task.labels:
        content["labels"] = list(task.labels)
    return content | {
        **task.saved_fields,
        "length_policy": task.length.to_json(),
        "decision": decision.to_json(),
        "record": dict(record),
    }


def task_checkpoint(
    start: Checkpoint, model: BertModel, task: Task, decision: Decision, record: Mapping[str, Any]
) -> Checkpoint:
    """The checkpoint of a model that was fine-tuned from `start`, to be saved as a folder."""
    kept = {name: value for name, value in start.settings.items() if name not in TASK_FIELDS}
    return replace(
        start,
        model=model,
        labels=task.labels,
        embed=None,
        retrieval=None,
        settings={**kept, **task.config_fields},
        task=task_json(task, decision, record),
        folder=None,
    )


def read_task(checkpoint: Checkpoint, route: str | None = None) -> tuple[Task, Decision]:
    """(task, decision layer) of a fine-tuned model; the defaults for a folder without bertkit.json.

    `route`: what is asked, which chooses where the folder does not say what its one output is.
    """
    if checkpoint.tokenizer is None:
        raise RequestError("this folder holds no tokenizer; pass one: bertkit.load(path, tokenizer='vocab.txt')")
    saved = _checked(checkpoint.task) or {"name": _name_by_head(checkpoint, route)}
    row = pick(TASKS, saved["name"], "task")
    policy = LengthPolicy.from_json(saved["length_policy"]) if "length_policy" in saved else row.length
    limit = min(checkpoint.max_length, int(saved.get("limit", checkpoint.max_length)))
    decision = Decision.from_json(saved["decision"]) if "decision" in saved else Decision()
    arguments = row.arguments_from_json(saved, checkpoint.labels)
    arguments |= row.arguments_from_model(checkpoint.settings, checkpoint.tokenizer)
    task = task_class(row)(tokenizer=checkpoint.tokenizer, limit=limit, length=policy, **arguments)
    if "labels" in saved and tuple(saved["labels"]) != task.labels:
        raise RequestError(
            f"bertkit.json has the labels {', '.join(saved['labels'])} but config.json has {', '.join(task.labels)}; "
            "they belong to different models"
        )
    return task, decision


def task_name(checkpoint: Checkpoint) -> str | None:
    """The task that a model was fine-tuned for, from bertkit.json or from its head; None if it has no task head."""
    if checkpoint.task:
        return str(checkpoint.task["name"])
    has_head = any(head in checkpoint.model.heads for head in task_heads())
    return _name_by_head(checkpoint) if has_head else None


def trained_columns(checkpoint: Checkpoint) -> dict[str, str]:
    """The columns of the training file by their role, from the training record; empty if it has none."""
    record = checkpoint.task.get("record")
    columns = record.get("columns") if isinstance(record, dict) else None
    known = columns if isinstance(columns, dict) else {}
    return {role: name for role, name in known.items() if role in COLUMN_ROLES and isinstance(name, str)}


def _checked(saved: Mapping[str, Any]) -> dict[str, Any]:
    """The task of bertkit.json, with the types of its numbers and labels checked."""

    def is_number_over(value: object, bound: float) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool) and bound < value < math.inf

    valid = {
        name: is_number_over(saved[name], bound)
        for name, bound in {"limit": 2, "center": -math.inf, "spread": 0}.items()
        if name in saved
    }
    labels = saved.get("labels", [])
    valid["labels"] = isinstance(labels, list) and all(isinstance(label, str) for label in labels)
    for name, is_valid in valid.items():
        if not is_valid:
            raise RequestError(f"bertkit.json: {name}={saved[name]!r} is not as bertkit writes it; restore the file")
    return dict(saved)


def _name_by_head(checkpoint: Checkpoint, route: str | None = None) -> str:
    """The task from the head, Hugging Face's problem type, the number of outputs, and what is asked."""
    head = next((head for head in task_heads() if head in checkpoint.model.heads), None)
    if head is None:
        raise RequestError(
            "this model has no head for a task; fine-tune it: bertkit finetune TASK --from MODEL --train F --dev F"
        )
    rows = [row for row in TASKS.values() if row.head == head]
    outputs = len(checkpoint.labels)
    claimed = [row for row in rows if row.claims(checkpoint.settings, outputs)]
    numeric = [row for row in rows if row.numeric and outputs == 1]
    asked = [row for row in numeric if row.route == route]
    return (claimed[-1:] or asked or numeric or rows)[0].name
