"""Fine-tuning on all GLUE tasks (and some others) of a folder, with a table of scores next to published ones."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bertkit.errors import RequestError
from bertkit.finetuning.explore.seeds import Seeds, run_seeds
from bertkit.finetuning.fine_tuning import fine_tune
from bertkit.finetuning.result import FineTuned
from bertkit.finetuning.run_state import locked_folder, write_json
from bertkit.finetuning.settings import FineTuneSettings
from bertkit.progress import ShowProgress, silent


@dataclass(frozen=True)
class GlueTask:
    """A task of the benchmark: its task in bertkit, and the metric that tables show."""

    name: str
    task: str
    metric: str


# In the order of published tables, then other common tasks.
GLUE_TASKS: dict[str, GlueTask] = {
    "mnli": GlueTask("MNLI", "classify", "accuracy"),
    "qqp": GlueTask("QQP", "classify", "f1"),
    "qnli": GlueTask("QNLI", "classify", "accuracy"),
    "sst2": GlueTask("SST-2", "classify", "accuracy"),
    "cola": GlueTask("CoLA", "classify", "matthews"),
    "stsb": GlueTask("STS-B", "regress", "spearman"),
    "mrpc": GlueTask("MRPC", "classify", "f1"),
    "rte": GlueTask("RTE", "classify", "accuracy"),
    "wnli": GlueTask("WNLI", "classify", "accuracy"),
    "conll2003": GlueTask("CoNLL-2003", "tag", "f1"),
    "goemotions": GlueTask("GoEmotions", "multilabel", "macro_f1"),
    "commonsenseqa": GlueTask("CommonsenseQA", "choose", "accuracy"),
}

# Published scores on GLUE test: Devlin et al. 2018 (MRPC and QQP: F1) and the small models of Turc et al. 2019.
# ELECTRA-Small: median on dev, from its repository (MRPC and QQP: accuracy). CoNLL: F1 on dev.
_NAMES = ("MNLI", "QQP", "QNLI", "SST-2", "CoLA", "STS-B", "MRPC", "RTE", "CoNLL-2003")


def _row(*scores: float | None) -> dict[str, float]:
    return {name: score for name, score in zip(_NAMES, scores, strict=True) if score is not None}


PUBLISHED: Mapping[str, Mapping[str, float]] = {
    "BERT-large": _row(86.7, 72.1, 92.7, 94.9, 60.5, 86.5, 89.3, 70.1, 96.6),
    "BERT-base": _row(84.6, 71.2, 90.5, 93.5, 52.1, 85.8, 88.9, 66.4, 96.4),
    "ELECTRA-Small (dev)": _row(81.3, 89.0, 88.4, 91.2, 57.0, 87.5, 88.0, 66.7, None),
    "BERT-Medium 8/512": _row(80.0, 69.6, 87.7, 89.6, 38.0, 78.4, 86.6, 62.2, None),
    "BERT-Small 4/512": _row(77.6, 68.1, 86.4, 89.7, 27.8, 77.0, 83.4, 61.8, None),
    "BERT-Mini 4/256": _row(74.8, 66.4, 84.1, 85.9, 0.0, 73.3, 81.1, 57.9, None),
    "BERT-Tiny 2/128": _row(70.2, 62.2, 81.5, 83.2, 0.0, 73.6, 81.1, 57.2, None),
}


FILE_WORDS = {"train": {"train"}, "dev": {"dev", "valid", "validation", "testa"}}


@dataclass(frozen=True)
class GlueFiles:
    """A task and its files."""

    task: GlueTask
    train: Path
    dev: Path


def find_tasks(folder: Path) -> list[GlueFiles]:
    """The tasks whose folder has a training and a dev file, in the order of GLUE_TASKS."""
    if not folder.is_dir():
        raise RequestError(f"{folder} is not a folder; give one with a folder for each task, such as SST-2/train.tsv")
    folders = {
        re.sub(r"[^a-z0-9]", "", path.name.lower().removeprefix("glue")): path for path in sorted(folder.iterdir())
    }
    tasks = []
    for key, task in GLUE_TASKS.items():
        if key in folders and folders[key].is_dir():
            train, dev = (_file(folders[key], part) for part in ("train", "dev"))
            tasks += [GlueFiles(task, train, dev)] if train and dev else []
    if not tasks:
        names = ", ".join(task.name for task in GLUE_TASKS.values())
        raise RequestError(f"{folder} holds no folder of a known task with a train and a dev file; known: {names}")
    return tasks


def _file(folder: Path, part: str) -> Path | None:
    """The first file of a part by name; `dev_matched` comes before `dev_mismatched`."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    named = (path for path in files if FILE_WORDS[part] & set(re.split(r"[^a-z]+", path.name.lower())))
    return next(named, None)


def run_glue(
    tasks: Sequence[GlueFiles],
    model: Path,
    settings: FineTuneSettings,
    out: Path,
    *,
    seeds: int = 1,
    show: ShowProgress = silent,
) -> dict[str, Seeds]:
    """Runs of all tasks, each in its folder in `out`; finished ones are not repeated."""
    with locked_folder(out):
        return _run_glue(tasks, model, settings, out, seeds, show)


def _run_glue(
    tasks: Sequence[GlueFiles], model: Path, settings: FineTuneSettings, out: Path, seeds: int, show: ShowProgress
) -> dict[str, Seeds]:
    results = {}
    for files in tasks:

        def train(changed: FineTuneSettings, folder: Path, files: GlueFiles = files) -> FineTuned:
            return fine_tune(files.task.task, changed, model, files.train, files.dev, folder, resume=True, show=show)

        results[files.task.name] = run_seeds(train, settings, seeds, out / files.task.name)
        if not results[files.task.name].results[-1].finished:
            raise KeyboardInterrupt
        write_json(out / "glue.json", {name: seeds.to_json() for name, seeds in results.items()})
    return results


def glue_table(results: Mapping[str, Seeds], name: str) -> str:
    """A text table of the scores of this model, times 100, and of published ones on the same tasks."""
    metrics = {task.name: task.metric for task in GLUE_TASKS.values()}
    model_scores = [_format_score(seeds, metrics[task]) for task, seeds in results.items()]
    rows = [("", *results), (f"{name} (dev)", *model_scores)]
    rows.append(("95 % interval", *(_format_interval(seeds, metrics[task]) for task, seeds in results.items())))
    if any(len(seeds.results) > 1 for seeds in results.values()):
        medians = (f"{100 * seeds.medians[metrics[task]]:.1f}" for task, seeds in results.items())
        rows.insert(2, ("median of seeds", *medians))
    for published, scores in PUBLISHED.items():
        if set(scores) & set(results):
            rows.append((published, *(f"{scores[task]:.1f}" if task in scores else "" for task in results)))
    rows.append(("metric", *(metrics[task] for task in results)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _format_interval(seeds: Seeds, metric: str) -> str:
    """Of the median run, over the dev examples."""
    interval = seeds.results[seeds.median].intervals.get(metric)
    return "–" if interval is None else "–".join(f"{100 * bound:.1f}" for bound in interval)


def _format_score(seeds: Seeds, metric: str) -> str:
    mean = 100 * seeds.means[metric]
    return f"{mean:.1f}" if len(seeds.results) == 1 else f"{mean:.1f} ± {100 * seeds.deviations[metric]:.1f}"
