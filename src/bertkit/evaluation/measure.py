"""Scores of a model on examples, by its task or by a yardstick, and two models on the same examples."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Any

from bertkit.data.examples import Example
from bertkit.data.tables import Columns
from bertkit.errors import RequestError
from bertkit.evaluation.yardstick import recognized, yardstick
from bertkit.files import refuse_taken
from bertkit.finetuning.scored import Scored, baseline_scores, evaluation_page
from bertkit.predict.bert import Bert, load
from bertkit.progress import progress
from bertkit.report.page import REPORT_FILE, save_page
from bertkit.report.tables import html_table
from bertkit.tasks.folder import trained_columns
from bertkit.tasks.metrics.intervals import Score, format_interval, paired_test, score_intervals
from bertkit.tasks.read import data_checksum, read_examples
from bertkit.tasks.task import Dataset

EXAMPLES_AT_ONCE = 1024  # between updates of the progress bar


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The other model of an evaluation on the same examples, and how the main metric differs: the model minus it."""

    model: str
    scores: Mapping[str, float]  # of the other model
    difference: float
    interval: tuple[float, float]  # 95 %, by paired bootstrap over the examples
    p_value: float  # two-sided
    resamples: int

    def __str__(self) -> str:
        scores = ", ".join(f"{name} {score:.4f}" for name, score in self.scores.items())
        lowest = self.p_value <= 2 / (self.resamples + 1)  # that so many resamples can say
        p_value = f"p {'≤' if lowest else '='} {self.p_value:.3f}"
        interval = f"95 % interval {format_interval(self.interval)}, {p_value}"
        difference = f"{self.difference:+.4f}".replace("-", "−")  # the sign that the interval has
        how = f"paired bootstrap, {self.resamples:,} resamples"
        return f"{self.model}: {scores}\ndifference {difference} ({interval}; {how})"


@dataclass(frozen=True, kw_only=True)
class EvaluationResult:
    """The scores of a model on examples; a notebook shows them as a table."""

    task: str  # of the model, or the yardstick
    examples: int
    metric: str  # the main metric of the task
    scores: Mapping[str, float]
    note: str  # which columns were read
    groups: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # of each label or group of examples
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # 95 %, by resampling the examples
    against: Comparison | None = None  # with another model, if one was given

    @property
    def score(self) -> float:
        """The main metric."""
        return self.scores[self.metric]

    def to_json(self) -> dict[str, object]:
        """All fields as JSON values."""
        return asdict(self)

    def _repr_html_(self) -> str:
        return f"{html_table(('score', 'value'), self.scores.items())}{self._notes}"

    @property
    def _notes(self) -> str:
        return "".join(f"<p>{escape(str(note))}</p>" for note in (self.note, self.against) if note)

    def __str__(self) -> str:
        names = [self.metric, *(name for name in self.scores if name != self.metric)]
        shown = [f"{name} {self.scores[name]:.4f}" for name in names]
        if self.metric in self.intervals:
            shown[0] += f" (95 % interval {format_interval(self.intervals[self.metric])})"
        lines = [*filter(None, [self.note]), ", ".join(shown)]
        width = max((len(label) for label in self.groups), default=0)
        for label, values in self.groups.items():
            numbers = "  ".join(
                f"{name} {value:{'.3f' if isinstance(value, float) else ','}}" for name, value in values.items()
            )
            lines.append(f"{label:<{width}}  {numbers}")
        lines += [f"against {self.against}"] if self.against else []
        return "\n".join(lines)


@dataclass(frozen=True)
class Measured:
    """What a model got, what it was asked, and how to score a part of it."""

    name: str
    result: EvaluationResult
    score: Score
    examples: Sequence[Example] = ()  # of a fine-tuned model: another one may read other columns


def measure(
    model: Bert | Path | str | None,
    path: Path,
    columns: Columns,
    by: str | None,
    seeds: int | None,
    report: Path | None,
) -> Measured:
    """Score one model: a fine-tuned one by its task, unless a yardstick is named; any other by a yardstick."""
    bert = model if isinstance(model, Bert) else load(model)
    if by is None and bert.checkpoint.task and not path.is_dir():
        if seeds is not None:
            raise RequestError(f"seeds={seeds}: a fine-tuned model is scored as it is; leave it out")
        return _by_task(bert, path, columns, report)
    if report is not None:
        raise RequestError(f"report={report} goes with a fine-tuned model and labeled examples; leave it out")
    return _by_yardstick(bert, path, columns, by, seeds)


def compared(one: Measured, other: Measured) -> EvaluationResult:
    """The result of the first model with the comparison; both must have answered the same questions."""
    result, metric = one.result, one.result.metric
    if (result.task, metric) != (other.result.task, other.result.metric):
        raise RequestError(
            f"{one.name} is scored as {result.task} and {other.name} as {other.result.task}: "
            "compare two models of one task, or name a yardstick for both with by="
        )
    if list(one.examples) != list(other.examples):
        raise RequestError(
            f"{one.name} and {other.name} read other columns or labels of the file ({result.note!r}, "
            f"{other.result.note!r}); name the columns: text=... label=..."
        )
    test = paired_test(one.score, other.score, metric, result.examples)
    difference = result.score - other.result.score
    return replace(
        result, against=Comparison(model=other.name, scores=other.result.scores, difference=difference, **asdict(test))
    )


def _by_yardstick(bert: Bert, path: Path, columns: Columns, name: str | None, seeds: int | None) -> Measured:
    if name is None:
        row, rows = recognized(path, columns, seeds)
    else:
        row = yardstick(name, seeds)
        rows = row.read(path, columns)
    asked = row.ask(bert, rows)

    def score(picked: Sequence[int]) -> Mapping[str, float]:
        return row.total([asked[number] for number in picked])

    scores = row.total(asked)
    groups = {
        name: row.total([each for each in asked if each.group == name]) for name in {each.group: 0 for each in asked}
    }
    result = EvaluationResult(
        task=row.name,
        examples=len(asked),
        metric=row.metric,
        scores=scores,
        note=row.note(bert, rows),
        groups=groups if len(groups) > 1 else {},
        intervals=score_intervals(score, len(asked), scores),
    )
    return Measured(bert.name, result, score)


def _by_task(bert: Bert, path: Path, columns: Columns, report: Path | None) -> Measured:
    if report is not None:
        refuse_taken(report, REPORT_FILE)
    answers, task = bert.answers, bert.answers.task
    file = read_examples(task.name, path, columns, trained=trained_columns(bert.checkpoint))
    predictions: list[Any] = []
    with progress("evaluating", len(file.examples)) as meter:
        for start in range(0, len(file.examples), EXAMPLES_AT_ONCE):
            predictions += answers.predict(file.examples[start : start + EXAMPLES_AT_ONCE])
            meter.update(len(predictions))
    scored = Scored(task, file.examples, predictions, task.score(file.examples, predictions), task.main_metric)
    notes = [file.summary, *task.score_notes, *_seen_note(bert, path)]
    if report is not None:
        data = Dataset(file.examples, [task.windows(task.preprocess(each), n) for n, each in enumerate(file.examples)])
        content = replace(scored, baseline=baseline_scores(task, data, data))
        save_page(evaluation_page(f"{bert.name} on {path.name}", content, notes), report)
    result = EvaluationResult(
        task=task.name,
        examples=len(file.examples),
        metric=task.main_metric,
        scores=scored.scores,
        note="\n".join(notes),
        groups={
            label: {"precision": score.precision, "recall": score.recall, "f1": score.f1, "examples": score.gold}
            for label, score in task.label_scores(Dataset(file.examples, []), predictions).items()
        },
        intervals=scored.intervals,
    )
    return Measured(bert.name, result, task.scorer(file.examples, predictions), file.examples)


def _seen_note(bert: Bert, path: Path) -> list[str]:
    """A sentence if training has read this file, by the checksums in the model's training record."""
    known = bert.checkpoint.task.get("record", {}).get("sha256", {})
    roles = {checksum: role for role, checksum in reversed(known.items())}
    role = roles.get(data_checksum(path)) if roles else None
    if role is None:
        return []
    use = "was trained on this file" if role == "train" else "was chosen by its score on this file"
    return [f"note: the model {use}; score it on other examples to know how good it is on new ones"]
