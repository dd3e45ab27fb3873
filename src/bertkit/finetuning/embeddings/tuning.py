"""Tunes a model's embeddings for similarity and search, on texts, pairs, scored pairs or a teacher's vectors."""

import hashlib
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertkit.checkpoint.save_load import Checkpoint, load_checkpoint
from bertkit.checkpoint.tensors import fingerprint as tensor_fingerprint
from bertkit.checkpoint.text_vectors import text_vectors, tokenizer_of
from bertkit.config import BertConfig
from bertkit.data.tables import Columns, ending
from bertkit.errors import RequestError
from bertkit.files import refuse_to_overwrite, whole_file
from bertkit.finetuning.batches import EpochPlan
from bertkit.finetuning.embeddings.data import NO_TEXT, TextRows, read_pairs, read_texts, scaled
from bertkit.finetuning.embeddings.kinds import KINDS, prompts
from bertkit.finetuning.embeddings.losses import LOSSES, VectorLearner
from bertkit.finetuning.embeddings.session import SPEARMAN, Encoded, VectorData, VectorSession
from bertkit.finetuning.embeddings.settings import TOKENS, VectorTuning
from bertkit.finetuning.learner import freeze_below
from bertkit.finetuning.result import FineTuned, result_from_json
from bertkit.finetuning.run_state import begin_folder, finished, locked_folder
from bertkit.model.model import new_model
from bertkit.progress import ShowProgress, silent
from bertkit.report.page import REPORT_FILE
from bertkit.train.distributed import Ranks, process_group, stop_requests
from bertkit.train.low_rank import LowRank
from bertkit.train.report import write_report
from bertkit.train.runs import Progress, Run

TOKENIZED_TOGETHER = 65_536  # texts
TWINS_DROPOUT = 0.1  # the two encodings of a text must differ
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
    """Tune a model's embeddings on texts, pairs or scored pairs; the model is in `out/model` at the end.

    With a `teacher`, a folder with any tokenizer and width, its similarities of texts are the target. The best model on
    the scored pairs of `dev_file` is kept, without these the last one. SIGTERM and Ctrl-C save and stop; `resume`
    continues from there.
    """
    run, files = Run(Path(out)), [train_files] if isinstance(train_files, Path) else list(train_files)
    named = {"from": str(model), "train": " ".join(map(str, files)), "dev": str(dev_file), "teacher": str(teacher)}
    description: dict[str, Any] = {"task": "vectors", **named, "settings": settings.flat()}
    with locked_folder(run.folder):
        if resume and (done := finished(run, description)):
            if not (run.folder / REPORT_FILE).exists():  # killed before the report was written
                write_report(run.folder)
            return result_from_json(done)
        if not resume:
            refuse_to_overwrite(run.folder)  # before the files are read
        refuse_mismatch(settings.objective, teacher)
        start, loaded_teacher = load_checkpoint(model), load_checkpoint(teacher) if teacher else None
        rows = read_rows(settings, files, columns)
        dev = read_pairs(dev_file, _dev_columns(files[0], dev_file, columns), scored=True) if dev_file else None
        objective = objective_of(settings, rows, teacher)
        data = encoded_data(start, rows, dev, objective, settings.max_length, show)
        config_with_dropout(start.model.config, settings, data.objective)  # may refuse, before a folder is made
        settings.prefixes(start.model.config.width)
        refuse_kind(data, start, settings)
        begin_folder(run, {**description, "data": fingerprint(data)}, resume=resume)
        result = _run(run, data, start, loaded_teacher, settings, device, show)
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
    """Train in an existing run folder, from its latest checkpoint if it has one."""
    with process_group(device) as ranks, stop_requests(ranks) as stop:
        if teacher:
            data = _with_teacher(data, teacher, run, settings, ranks, show)
        session, progress = open_vectors(run, data, start, settings, ranks)
        with show("tuning vectors", 1.0) as meter:
            result = session.train(progress, meter, stop)
    if result.finished:
        for vectors in run.folder.glob("teacher-*.npy"):
            vectors.unlink()
    return result


def read_rows(settings: VectorTuning, files: Sequence[Path], columns: Columns | None) -> TextRows:
    """The rows of the training files, with scores scaled to [0, 1]."""
    kind = LOSSES[settings.objective].rows if settings.objective in LOSSES else settings.objective
    rows = read_texts(files, columns, kind=kind, most=settings.most)
    return rows if rows.scores is None else replace(rows, scores=scaled(rows.scores, files[0]))


def refuse_mismatch(objective: str, teacher: Path | None) -> None:
    """Refuse an objective that does not go with the teacher, or with none."""
    if objective == TEACHER and teacher is None:
        raise RequestError("objective=teacher needs a teacher; name one with --teacher FOLDER")
    if objective not in (TEACHER, "auto") and teacher is not None:
        raise RequestError(f"objective={objective} does not use a teacher; leave objective= or --teacher out")


def refuse_kind(data: VectorData, start: Checkpoint, settings: VectorTuning) -> None:
    """Refuse data, and settings, that do not go with the kind of vectors."""
    kind = KINDS[settings.vectors](start, settings)
    if kind.any_loss:
        return
    if not LOSSES[data.objective].counts or settings.dimensions:
        what = "dimensions=" if settings.dimensions else f"objective={data.objective}"
        raise RequestError(f"{what} does not go with vectors={settings.vectors}, which learn from pairs of texts only")
    if data.dev is not None:
        raise RequestError(f"scored dev pairs do not go with vectors={settings.vectors}; leave --dev out")


def objective_of(settings: VectorTuning, rows: TextRows, teacher: object | None) -> str:
    """The key of LOSSES: a teacher if there is one, else the setting, else by the kind of the rows."""
    if teacher is not None:
        return TEACHER
    if settings.objective in LOSSES:
        return settings.objective
    return "pairs" if rows.kind == "neighbors" else rows.kind


def encoded_data(
    start: Checkpoint, rows: TextRows, dev: TextRows | None, objective: str, length: int, show: ShowProgress = silent
) -> VectorData:
    """Texts after the default prompt of the start's folder; of a table of pairs, queries and documents after theirs."""
    first = second = start.embed_settings().prefix
    if rows.kind == "pairs":
        first, second = prompts(start).values()
    texts = [first + text for text in rows.texts]
    more = [second + text for text in rows.texts] if second != first else []
    encoded = encode(start, [*texts, *more], length, show)
    return VectorData(objective, rows, encoded, dev, shift=len(texts) if more else 0)


def encode(start: Checkpoint, texts: Sequence[str], length: int, show: ShowProgress = silent) -> Encoded:
    """The token ids of all texts; those over `length` are cut to their first tokens and [SEP]."""
    tokenizer, limit = tokenizer_of(start), min(length, start.max_length)
    ids, segments, lengths = [], [], []
    with show("reading the texts", len(texts)) as meter:
        for begin in range(0, len(texts), TOKENIZED_TOGETHER):
            for text_ids, text_segments in tokenizer.encode_plain(texts[begin : begin + TOKENIZED_TOGETHER]):
                too_long = len(text_ids) > limit
                ids.append(np.array([*text_ids[: limit - 1], text_ids[-1]] if too_long else text_ids, dtype=np.int32))
                segments.append(np.array(text_segments[:limit], dtype=np.uint8))
                lengths.append(len(ids[-1]))
            meter.update(min(begin + TOKENIZED_TOGETHER, len(texts)))
    return Encoded(np.concatenate(ids), np.concatenate(segments), np.concatenate(([0], np.cumsum(lengths))))


def open_vectors(
    run: Run, data: VectorData, start: Checkpoint, settings: VectorTuning, ranks: Ranks
) -> tuple[VectorSession, Progress]:
    """A session with the progress of the run's folder: that of its latest checkpoint, or the start."""
    kind = KINDS[settings.vectors](start, settings)
    model = new_model(config_with_dropout(start.model.config, settings, data.objective), dict(kind.heads))
    model.encoder.load_state_dict(start.model.encoder.state_dict())
    for name, head in model.heads.items():
        head.load_state_dict(start.model.heads[name].state_dict())
    model.to(ranks.device).train()
    freeze_below(model, settings.frozen + 1 if settings.frozen else 0)
    prefixes = settings.prefixes(model.config.width)
    learner = VectorLearner(model, data.objective, settings.temperature, prefixes, kind.to(ranks.device))
    module = LowRank(learner, settings.rank, seed=settings.seed) if settings.rank else learner
    rows = data.train.rows
    shifts = data.shift * (np.arange(rows.shape[1]) > 0)
    lengths = (data.encoded.lengths[rows + shifts] * (rows != NO_TEXT)).sum(axis=1)
    lengths = lengths * (2 if data.objective == "twins" else 1)
    tokens = settings.tokens or TOKENS.get(ranks.device.type, TOKENS["cpu"])
    plan = EpochPlan(tuple(lengths.tolist()), settings.batch, settings.seed, tokens)
    session = VectorSession(
        run=run, ranks=ranks, module=module, start=start, plan=plan, metric=SPEARMAN, data=data, settings=settings
    )
    return session, session.restore_latest()


def fingerprint(data: VectorData) -> int:
    """A checksum of texts, pairs, scores and their order."""
    rows, encoded = data.train, data.encoded
    texts = zlib.crc32(encoded.ids.tobytes(), zlib.crc32(encoded.starts.tobytes()))
    scores = b"" if rows.scores is None else rows.scores.tobytes()
    return zlib.crc32(scores, zlib.crc32(np.ascontiguousarray(rows.rows).tobytes(), texts))


def _dev_columns(train: Path, dev: Path, columns: Columns | None) -> Columns | None:
    """The named columns, if the dev file has the ending of the training file; a corpus has no columns."""
    return columns if ending(train) == ending(dev) else None


def _with_teacher(
    data: VectorData, teacher: Checkpoint, run: Run, settings: VectorTuning, ranks: Ranks, show: ShowProgress
) -> VectorData:
    folder = Path(settings.cache) if settings.cache else run.folder
    vectors = teacher_vectors(teacher, data.train.texts, settings.max_length, folder, ranks.device, show=show)
    return replace(data, teacher=vectors)


def config_with_dropout(config: BertConfig, settings: VectorTuning, objective: str) -> BertConfig:
    """The model's config with the dropout of the settings; `twins` needs some, as two encodings must differ."""
    dropout = settings.dropout
    if dropout is None and objective == "twins" and not config.dropout:
        dropout = TWINS_DROPOUT
    if objective == "twins" and dropout == 0:
        raise RequestError("objective=twins needs dropout to encode a text in two ways; give dropout=0.1, or pairs")
    return config if dropout is None else replace(config, dropout=dropout, attention_dropout=dropout)


def teacher_vectors(
    teacher: Checkpoint,
    texts: Sequence[str],
    length: int,
    folder: Path,
    device: torch.device,
    *,
    show: ShowProgress = silent,
) -> NDArray[np.float16]:
    """float16 [texts, width], memory-mapped from a file in `folder`, which is written if it does not exist.

    The file name contains a hash of the teacher's weights and settings, the texts and the length.
    """
    path = folder / f"teacher-{_vectors_key(teacher, texts, length)}.npy"
    if not path.is_file():
        teacher.model.to(device)
        vectors = text_vectors(teacher, texts, length=length, kind="float16", show=show)
        with whole_file(path) as draft, draft.open("wb") as file:
            np.save(file, vectors)
    return _map_vectors(path, len(texts))


def _vectors_key(teacher: Checkpoint, texts: Sequence[str], length: int) -> str:
    digest = hashlib.sha256(tensor_fingerprint(teacher.model.state_dict()).encode())
    digest.update(f"{teacher.embed} {length} {len(texts)}\0".encode())
    for text in texts:
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()[:16]


def _map_vectors(path: Path, count: int) -> NDArray[np.float16]:
    try:
        vectors: NDArray[np.float16] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise RequestError(f"{path} is damaged ({error}); remove it, and it will be made again") from error
    if vectors.ndim != 2 or len(vectors) != count or vectors.dtype != np.float16:
        raise RequestError(f"{path} does not hold {count:,} vectors in 16 bits; remove it, and it will be made again")
    return vectors
