"""Tune a model until texts that mean the same have vectors that are near: for similarity and search."""

import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.checkpoint.save_load import Checkpoint, load_checkpoint
from bertkit.checkpoint.text_vectors import tokenizer_of
from bertkit.config import BertConfig
from bertkit.data.tables import Columns, ending
from bertkit.errors import RequestError
from bertkit.files import refuse_to_overwrite
from bertkit.finetuning.batches import EpochPlan
from bertkit.finetuning.embeddings.contrast import VectorLearner
from bertkit.finetuning.embeddings.data import TextRows, read_pairs, read_texts, scaled
from bertkit.finetuning.embeddings.low_rank import LowRank
from bertkit.finetuning.embeddings.session import SPEARMAN, Encoded, VectorData, VectorSession
from bertkit.finetuning.embeddings.settings import VectorTuning
from bertkit.finetuning.embeddings.teacher import teacher_vectors
from bertkit.finetuning.learner import freeze_below
from bertkit.finetuning.result import FineTuned, result_from_json
from bertkit.finetuning.run_state import begin_folder, finished, locked_folder
from bertkit.model.model import new_model
from bertkit.progress import ShowProgress, silent
from bertkit.report.page import REPORT_FILE
from bertkit.train.distributed import Ranks, process_group, stop_requests
from bertkit.train.report import write_report
from bertkit.train.runs import Progress, Run

BLOCK = 65_536  # texts tokenized together
TWINS_DROPOUT = 0.1  # two readings of a text must differ in something
TEACHER = "teacher"


def tune_vectors(
    settings: VectorTuning,
    model: Path,
    train_files: Path | Sequence[Path],
    dev_file: Path | None,
    out: Path,
    *,
    columns: Columns | None = None,
    teacher: Path | None = None,
    resume: bool = False,
    device: str | None = None,
    show: ShowProgress = silent,
) -> FineTuned:
    """Tune a model's vectors on texts, pairs or scored pairs; the model is in `out/model` at the end.

    With a `teacher`, a folder with any tokenizer and width, its nearness of texts is learned. The best on the scored
    pairs of `dev_file` is kept, or else the last. SIGTERM and Ctrl-C save and stop; `resume` goes on from there.
    """
    run, files = Run(Path(out)), [train_files] if isinstance(train_files, Path) else list(train_files)
    named = {"from": str(model), "train": " ".join(map(str, files)), "dev": str(dev_file), "teacher": str(teacher)}
    asked: dict[str, Any] = {"task": "vectors", **named, "settings": settings.flat()}
    with locked_folder(run.folder):
        if resume and (done := finished(run, asked)):
            if not (run.folder / REPORT_FILE).exists():  # it was killed right before
                write_report(run.folder)
            return result_from_json(done)
        if not resume:
            refuse_to_overwrite(run.folder)  # before the work of reading
        refuse_mismatch(settings.objective, teacher)
        start, listened = load_checkpoint(model), load_checkpoint(teacher) if teacher else None
        rows = read_rows(settings, files, columns)
        dev = read_pairs(dev_file, _dev_columns(files[0], dev_file, columns), scored=True) if dev_file else None
        data = VectorData(objective_of(rows, teacher), rows, encode(start, rows.texts, settings.max_length, show), dev)
        tuned_config(start.model.config, settings, data.objective)  # refused before a folder is made
        begin_folder(run, {**asked, "data": fingerprint(data)}, resume=resume)
        result = _run(run, data, start, listened, settings, device, show)
        write_report(run.folder)
        return result


def _run(
    run: Run,
    data: VectorData,
    start: Checkpoint,
    teacher: Checkpoint | None,
    settings: VectorTuning,
    device: str | None,
    show: ShowProgress,
) -> FineTuned:
    """Train in a run's folder that is there; goes on where the folder stands."""
    with process_group(device) as ranks, stop_requests(ranks) as stop:
        if teacher:
            data = _with_teacher(data, teacher, run, settings, ranks, show)
        session, progress = open_vectors(run, data, start, settings, ranks)
        with show("tuning vectors", 1.0) as meter:
            result = session.train(progress, meter, stop)
    if result.finished:
        for leftover in run.folder.glob("teacher-*.npy"):
            leftover.unlink()
    return result


def read_rows(settings: VectorTuning, files: Sequence[Path], columns: Columns | None) -> TextRows:
    """What the training files hold, with scores from 0 to 1."""
    kind = "auto" if settings.objective == TEACHER else settings.objective
    rows = read_texts(files, columns, kind=kind, most=settings.most)
    return rows if rows.scores is None else replace(rows, scores=scaled(rows.scores, files[0]))


def refuse_mismatch(objective: str, teacher: Path | None) -> None:
    """An objective and a teacher must go together, where both are named."""
    if objective == TEACHER and teacher is None:
        raise RequestError("objective=teacher needs a teacher; name one with --teacher FOLDER")
    if objective not in (TEACHER, "auto") and teacher is not None:
        raise RequestError(f"objective={objective} has no use for a teacher; leave objective= or --teacher out")


def objective_of(rows: TextRows, teacher: object | None) -> str:
    """Which loss goes with what is given: a teacher's word, else scores, else contrast."""
    if teacher is not None:
        return TEACHER
    return "pairs" if rows.kind == "neighbors" else rows.kind


def encode(start: Checkpoint, texts: Sequence[str], length: int, show: ShowProgress = silent) -> Encoded:
    """All texts as tokens, those over `length` cut to their first ones and [SEP]."""
    tokenizer, limit = tokenizer_of(start), min(length, start.max_length)
    ids, segments, lengths = [], [], []
    with show("reading the texts", len(texts)) as meter:
        for begin in range(0, len(texts), BLOCK):
            for own, kinds in tokenizer.encode_plain(texts[begin : begin + BLOCK]):
                over = len(own) > limit
                ids.append(np.array([*own[: limit - 1], own[-1]] if over else own, dtype=np.int32))
                segments.append(np.array(kinds[:limit], dtype=np.uint8))
                lengths.append(len(ids[-1]))
            meter.update(min(begin + BLOCK, len(texts)))
    return Encoded(np.concatenate(ids), np.concatenate(segments), np.concatenate(([0], np.cumsum(lengths))))


def open_vectors(
    run: Run, data: VectorData, start: Checkpoint, settings: VectorTuning, ranks: Ranks
) -> tuple[VectorSession, Progress]:
    """A session where the run's folder stands: at its latest checkpoint, or at the beginning."""
    model = new_model(tuned_config(start.model.config, settings, data.objective), {})
    model.encoder.load_state_dict(start.model.encoder.state_dict())
    model.to(ranks.device).train()
    freeze_below(model, settings.frozen + 1 if settings.frozen else 0)
    plain = VectorLearner(model, data.objective, settings.temperature)
    learner = LowRank(plain, settings.rank, seed=settings.seed) if settings.rank else plain
    lengths = data.encoded.lengths[data.train.rows].sum(axis=1) * (2 if data.objective == "twins" else 1)
    plan = EpochPlan(tuple(lengths.tolist()), settings.batch, settings.seed, settings.tokens)
    session = VectorSession(
        run=run, ranks=ranks, module=learner, start=start, plan=plan, metric=SPEARMAN, data=data, settings=settings
    )
    return session, session.restore_latest()


def fingerprint(data: VectorData) -> int:
    """Changes when a text, a pair, a score or their order changes."""
    rows, encoded = data.train, data.encoded
    found = zlib.crc32(encoded.ids.tobytes(), zlib.crc32(encoded.starts.tobytes()))
    scores = b"" if rows.scores is None else rows.scores.tobytes()
    return zlib.crc32(scores, zlib.crc32(np.ascontiguousarray(rows.rows).tobytes(), found))


def _dev_columns(train: Path, dev: Path, columns: Columns | None) -> Columns | None:
    """Columns were named for both files if they are of one kind; a corpus has none."""
    return columns if ending(train) == ending(dev) else None


def _with_teacher(
    data: VectorData, teacher: Checkpoint, run: Run, settings: VectorTuning, ranks: Ranks, show: ShowProgress
) -> VectorData:
    folder = Path(settings.cache) if settings.cache else run.folder
    vectors = teacher_vectors(teacher, data.train.texts, settings.max_length, folder, ranks.device, show=show)
    return replace(data, teacher=vectors)


def tuned_config(config: BertConfig, settings: VectorTuning, objective: str) -> BertConfig:
    """The model's shape with the dropout that was asked for; twins without any would be the same twice."""
    dropout = settings.dropout
    if dropout is None and objective == "twins" and not config.dropout:
        dropout = TWINS_DROPOUT
    if objective == "twins" and dropout == 0:
        raise RequestError("twins are told apart by dropout alone; give dropout=0.1, or pairs to learn from")
    return config if dropout is None else replace(config, dropout=dropout, attention_dropout=dropout)
