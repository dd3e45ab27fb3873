"""GLUE-style folders: the model is fine-tuned on each task with several seeds; the median run is scored on dev.

Settings are the defaults of `bertkit finetune`, the same for every model, and the weights are those of the last step:
nothing is chosen on dev but the median of the seeds.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertkit.data.tables import Columns
from bertkit.errors import RequestError
from bertkit.evaluation.yardstick import OtherColumns, RowScore, Yardstick
from bertkit.finetuning.explore.glue import GlueFiles, find_tasks, run_glue
from bertkit.finetuning.settings import read_settings
from bertkit.predict.bert import Bert, load
from bertkit.progress import progress
from bertkit.tasks.folder import trained_columns
from bertkit.tasks.read import read_examples


class Glue(Yardstick):
    """Folders of tasks with a training and a dev file; the score is the mean over tasks."""

    name, metric, reads_folders, seeds = "glue", "score", True, 3
    columns = "a folder with folders of GLUE's tasks, such as SST-2/train.tsv and SST-2/dev.tsv"

    def read(self, path: Path, columns: Columns) -> list[Any]:
        """The files of each task."""
        try:
            return list(find_tasks(path))
        except RequestError as error:
            raise OtherColumns(str(error)) from error

    def ask(self, bert: Bert, rows: Sequence[Any]) -> list[RowScore]:
        """The dev examples of all tasks with the predictions of the median run."""
        if bert.path is None:
            raise RequestError("glue fine-tunes a model from its folder, and this one has none; save it, and load that")
        with tempfile.TemporaryDirectory(prefix="bertkit-") as folder:
            return [score for files in rows for score in self.fine_tuned(bert.path, files, Path(folder))]

    def fine_tuned(self, model: Path, files: GlueFiles, folder: Path) -> list[RowScore]:
        """Fine-tune on one task and predict its dev examples."""
        name, metric = files.task.name, files.task.metric
        run_glue(
            [files], model, read_settings("keep=last", f"metric={metric}"), folder, seeds=self.seeds, show=progress
        )
        median = load(folder / name / "model")
        task, trained = median.answers.task, trained_columns(median.checkpoint)
        examples = read_examples(task.name, files.dev, trained=trained).examples
        pairs = zip(examples, median.answers.predict(examples), strict=True)
        return [RowScore({"task": task, "metric": metric, "pair": pair}, name) for pair in pairs]

    def note(self, bert: Bert, rows: Sequence[Any]) -> str:
        """How many tasks and runs."""
        return f"{len(rows)} tasks, the median of {self.seeds} seeds each, weights of the last step"

    def total(self, scores: Sequence[RowScore]) -> dict[str, float]:
        """The mean over tasks of each one's metric."""
        tasks: dict[str, list[RowScore]] = {}
        for score in scores:
            tasks.setdefault(score.group, []).append(score)
        found = [_task_score(rows) for rows in tasks.values()]
        return {"score": sum(found) / len(found)}


def _task_score(rows: Sequence[RowScore]) -> float:
    examples, predictions = zip(*(row.values["pair"] for row in rows), strict=True)
    scores = rows[0].values["task"].score(list(examples), list(predictions))
    return float(scores[rows[0].values["metric"]])
