"""A task built for training, written to bertkit.json, and built again from a folder."""

import math
from collections.abc import Mapping
from typing import Any

from bertkit.checkpoint.save_load import Checkpoint
from bertkit.errors import RequestError
from bertkit.settings import pick
from bertkit.tasks.row import TaskRow
from bertkit.tasks.shared.decision import Decision
from bertkit.tasks.shared.length import LengthPolicy, ReadingSettings
from bertkit.tasks.table import TASKS, task_heads
from bertkit.tasks.task import Task, task_class

LONGEST = 512  # tokens in a sequence unless more are asked for: models that take 8,192 would be slow by default


def build_task(name: str, checkpoint: Checkpoint, reading: ReadingSettings, **content: Any) -> Task:
    """A task for a model: `content` is what the data decide (labels; center and spread of numbers)."""
    if checkpoint.tokenizer is None:
        raise RequestError("this model's folder holds no tokenizer; put its vocab.txt or tokenizer.json there")
    limit = min(checkpoint.max_length, reading.max_length or LONGEST)
    row = pick(TASKS, name, "task")
    return task_class(row)(tokenizer=checkpoint.tokenizer, limit=limit, length=_policy(row, reading), **content)


def _policy(row: TaskRow, reading: ReadingSettings) -> LengthPolicy:
    own = row.length
    kind: Any = reading.length or own.kind
    stride = own.stride if reading.stride is None else reading.stride  # 0 shares nothing, and is a choice
    return LengthPolicy(kind, stride=stride, pool=reading.window_pool)


def task_json(task: Task, decision: Decision, record: Mapping[str, Any]) -> dict[str, Any]:
    """All that a folder needs to answer as it was measured, for bertkit.json."""
    content: dict[str, Any] = {"name": task.name, "limit": task.limit}
    if task.labels:
        content["labels"] = list(task.labels)
    return content | {
        **task.saved,
        "length_policy": task.length.to_json(),
        "decision": decision.to_json(),
        "record": dict(record),
    }


def read_task(checkpoint: Checkpoint) -> tuple[Task, Decision]:
    """The task of a fine-tuned folder, and how its scores become answers; folders of others have the defaults."""
    if checkpoint.tokenizer is None:
        raise RequestError("this folder holds no tokenizer; pass one: bertkit.load(path, tokenizer='vocab.txt')")
    saved = _checked(checkpoint.task) or {"name": _name_by_head(checkpoint)}
    row = pick(TASKS, saved["name"], "task")
    policy = LengthPolicy.from_json(saved["length_policy"]) if "length_policy" in saved else row.length
    limit = min(checkpoint.max_length, int(saved.get("limit", checkpoint.max_length)))
    decision = Decision.from_json(saved["decision"]) if "decision" in saved else Decision()
    content = row.restored(saved, checkpoint.labels)
    task = task_class(row)(tokenizer=checkpoint.tokenizer, limit=limit, length=policy, **content)
    if "labels" in saved and tuple(saved["labels"]) != task.labels:
        raise RequestError(
            f"bertkit.json has the labels {', '.join(saved['labels'])} but config.json has {', '.join(task.labels)}; "
            "they belong to different models"
        )
    return task, decision


def task_name(checkpoint: Checkpoint) -> str | None:
    """What a model was fine-tuned for: as bertkit.json says, or else as its head shows; None where it has none."""
    known = any(head in checkpoint.model.heads for head in task_heads())
    return str(checkpoint.task["name"]) if checkpoint.task else _name_by_head(checkpoint) if known else None


def _checked(saved: Mapping[str, Any]) -> dict[str, Any]:
    """A folder's task with numbers and labels where they belong; whoever wrote the file."""

    def number(name: str, least: float) -> bool:
        value = saved.get(name, 1)
        return isinstance(value, int | float) and not isinstance(value, bool) and least < value < math.inf

    labels = saved.get("labels", [])
    wrong = {"limit": not number("limit", 2) if "limit" in saved else False}
    wrong |= {"center": not number("center", -math.inf), "spread": not number("spread", 0)}
    wrong["labels"] = not isinstance(labels, list) or not all(isinstance(label, str) for label in labels)
    for name in wrong:
        if wrong[name]:
            raise RequestError(f"bertkit.json: {name}={saved[name]!r} is not as bertkit writes it; restore the file")
    return dict(saved)


def _name_by_head(checkpoint: Checkpoint) -> str:
    """As the head, Hugging Face's problem type and the number of outputs show."""
    head = next((head for head in task_heads() if head in checkpoint.model.heads), None)
    if head is None:
        raise RequestError(
            "this model has no head for a task; fine-tune it: bertkit finetune TASK --from MODEL --train F --dev F"
        )
    rows = [row for row in TASKS.values() if row.head == head]
    problem = checkpoint.settings.get("problem_type")
    by_type = [row for row in rows if row.problem_type == problem] if problem else []
    numeric = [row for row in rows if row.numeric and len(checkpoint.labels) == 1]
    return (by_type or numeric or rows)[0].name
