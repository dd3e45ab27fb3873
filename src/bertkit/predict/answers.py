"""Predictions of a fine-tuned model, with the same windows and decoding as in its evaluation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bertkit.checkpoint.save_load import Checkpoint
from bertkit.data.examples import Example
from bertkit.errors import RequestError
from bertkit.finetuning.evaluate import predict
from bertkit.model.model import BertModel
from bertkit.tasks.folder import read_task
from bertkit.tasks.shared.decision import Decision
from bertkit.tasks.task import Prediction, Task

EXAMPLES_PER_BLOCK = 1024  # sorted by length within a block; memory does not grow with more examples


@dataclass(frozen=True)
class Answers:
    """A model with its task and its decision layer."""

    model: BertModel
    task: Task
    decision: Decision

    @classmethod
    def of(cls, checkpoint: Checkpoint, route: str | None = None) -> "Answers":
        """From a fine-tuned folder; `route` is what is asked, where the folder does not say what its output is."""
        return cls(checkpoint.model, *read_task(checkpoint, route))

    def predict(self, examples: Sequence[Example]) -> list[Prediction]:
        """A prediction for each example, of the task's type."""
        predictions: list[Prediction] = []
        for start in range(0, len(examples), EXAMPLES_PER_BLOCK):
            ready = [self.task.preprocess(example) for example in examples[start : start + EXAMPLES_PER_BLOCK]]
            predictions += predict(self.model, self.task, ready, self.decision)
        return predictions

    def ask(self, route: str, **inputs: Any) -> list[Prediction]:
        """The model's predictions for the inputs of a request; `route` is a key of `tasks.table.routes()`."""
        if self.task.row.route != route:
            raise RequestError(f"this model was fine-tuned for '{self.task.name}'; it cannot {route}")
        return self.predict(self.task.row.examples(**inputs))
