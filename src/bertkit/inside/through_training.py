"""`bertkit look --runs`: what a model knows at each checkpoint of its training, as curves over steps.

At every checkpoint: how many heads of each kind there are, which words fill the blanks, and, with annotated sentences,
what a linear probe reads off each layer. So one sees when heads find their neighbors, and when syntax appears.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bertkit.errors import RequestError
from bertkit.inside.look.heads import catalogue
from bertkit.inside.look.reading import read
from bertkit.inside.probes.data import ProbeData, ProbeSettings, read_probe_files
from bertkit.inside.probes.labels import fit_and_say, label_task
from bertkit.inside.probes.word_vectors import cut_sentences, word_vectors
from bertkit.inside.through_training_page import CheckpointView, Course
from bertkit.predict.bert import Bert, load
from bertkit.pretraining.samples import BLANK, SENTENCES, fill_samples
from bertkit.progress import ShowProgress, silent
from bertkit.train.records import read_records
from bertkit.train.runs import Run, read_progress

SENTENCES_PROBED = 1000  # that a probe is trained on at every checkpoint; more give a smoother curve


@dataclass(frozen=True)
class Moment:
    """A model during training: its step, or its number in a list of models."""

    step: int
    folder: Path


@dataclass(frozen=True, kw_only=True)
class CourseSettings:
    """What is measured at every checkpoint."""

    texts: tuple[str, ...] = SENTENCES  # blanks in them are filled; heads are named by all of them
    probe: tuple[Path, ...] = ()  # CoNLL-U files: probes train on all but the last and are tested on the last
    sentences: int = SENTENCES_PROBED
    seed: int = 0


def find_moments(folders: Sequence[Path | str]) -> list[Moment]:
    """The checkpoints of a run's folder, or model folders in the order they are given; two or more."""
    paths = [Path(folder) for folder in folders]
    if len(paths) > 1:
        return [Moment(number, path) for number, path in enumerate(paths, start=1)]
    [folder] = paths
    if not folder.is_dir():
        raise RequestError(f"{folder} is not a folder; give the --out of bertkit pretrain")
    kept = Run(folder).checkpoints()
    if len(kept) < 2:
        has = f"has one checkpoint, {kept[0].name}" if kept else "has no checkpoints"
        raise RequestError(
            f"{folder} {has}; a course needs two or more: pre-train with keep=20 and a smaller save_every, "
            "or name model folders in order, each with --runs"
        )
    return [Moment(read_progress(path).step, path / "model") for path in kept]


def through_training(
    folders: Sequence[Path | str], settings: CourseSettings | None = None, *, show: ShowProgress = silent
) -> Course:
    """Look at every checkpoint of a run, or at a list of models."""
    settings, moments = settings or CourseSettings(), find_moments(folders)
    data = _probe_data(settings)
    records = read_records(Run(Path(folders[0])).metrics)
    alone = len(folders) == 1
    stages = []
    with show("looking at checkpoints", len(moments)) as meter:
        for done, moment in enumerate(moments, start=1):
            stages.append(_stage(moment, settings, data))
            meter.update(done, {"step": moment.step})
    return Course(
        title=Path(folders[0]).absolute().name if alone else f"{len(moments)} models",
        along="step" if alone else "model",
        stages=tuple(stages),
        held_out=records.evaluated() if alone else {},
        notes=() if data is None else data.notes,
    )


def _probe_data(settings: CourseSettings) -> ProbeData | None:
    if not settings.probe:
        return None
    return read_probe_files(settings.probe, _probing(settings))


def _probing(settings: CourseSettings) -> ProbeSettings:
    return ProbeSettings(what="pos", sentences=settings.sentences, seed=settings.seed)


def _stage(moment: Moment, settings: CourseSettings, data: ProbeData | None) -> CheckpointView:
    bert = load(moment.folder)
    texts = [text.replace(BLANK, bert.tokenizer.mask_token) for text in settings.texts]
    kinds = Counter(head.kind for head in catalogue(read(bert, text) for text in texts))
    filled = fill_samples(bert.model, bert.tokenizer, settings.texts) if bert.model.fills else []
    accuracy = None if data is None else probe_accuracy(bert, data, _probing(settings))
    return CheckpointView(moment.step, dict(kinds), tuple(filled), accuracy)


def probe_accuracy(bert: Bert, data: ProbeData, settings: ProbeSettings) -> tuple[float, ...]:
    """Accuracy of a linear probe on the embeddings and on every layer: `bertkit probe` without its baselines."""
    sides = data.train, data.test
    cut = [cut_sentences(bert, [sentence.words for sentence in side]) for side in sides]
    train, test = ([side[n] for n in own.kept] for side, own in zip(sides, cut, strict=True))
    fold: Callable[[str], str] = str.lower if bert.tokenizer.lowercase else str
    task = label_task(train, test, settings.seed, fold)
    vectors = word_vectors(bert, cut[0]), word_vectors(bert, cut[1])
    _, right, _ = fit_and_say(task, vectors, settings, "plain", silent)
    return tuple(right[0].tolist())
