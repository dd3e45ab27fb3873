"""From an input file through a model to an output file: in blocks, in order, resumable, in one or more processes."""

import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import torch

from bertkit._version import __version__
from bertkit.checkpoint.save_load import Checkpoint
from bertkit.checkpoint.tensors import fingerprint
from bertkit.data.tables import Row
from bertkit.errors import BertkitError, RequestError
from bertkit.predict.bert import Bert, load
from bertkit.predict.files.resume import ROWS_STREAM, State, draft_of
from bertkit.predict.files.rows import Item, RowBlock, RowSource, items_of, row_blocks
from bertkit.predict.files.workers import Pool, cluster, processes
from bertkit.progress import ShowProgress
from bertkit.settings import pick
from bertkit.text.corpus import STDIN

Started = TypeVar("Started")
SKIPPED_STREAM = "skipped"  # becomes out.skipped.txt
MAX_PRINTED_FAULTS = 20


@dataclass(frozen=True)
class Hardware:
    """The device and dtype of a model."""

    device: str
    dtype: str

    @classmethod
    def chosen(cls, device: str | None, dtype: str | None) -> "Hardware":
        """By default a GPU if there is one, with bfloat16, else the CPU with float32; int8 is for CPUs."""
        device = device or ("cuda" if torch.cuda.is_available() and dtype != "int8" else "cpu")
        return cls(device, dtype or ("bfloat16" if device.startswith("cuda") else "float32"))

    @property
    def precision(self) -> str:
        """What the last digits of results depend on; int8 has fewer steps on some CPUs."""
        if self.dtype != "int8":
            return f"{self.dtype} on {self.device}"
        from bertkit.engine.int8 import levels

        return f"int8 of {levels()} steps on {self.device}"

    def load(self, model: Path | None) -> Bert:
        """Load a model folder onto the device; None is the bundled model."""
        return load(model).to(self.device, self.dtype)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Execution options: resuming, error handling, processes, device, dtype."""

    resume: bool = False
    on_error: str = "stop"  # or "skip", for rows that cannot be used
    workers: int = 0  # processes; 0: only this one
    cluster: bool = False
    device: str | None = None  # None: a GPU if there is one, but the CPU for several processes
    dtype: str | None = None  # None: bfloat16 on a GPU, float32 on a CPU

    def __post_init__(self) -> None:
        pick(dict.fromkeys(("stop", "skip")), self.on_error, "way with errors")
        if self.workers < 0:
            raise RequestError(f"--workers {self.workers} must be 0 or more")
        if self.cluster and self.workers:
            raise RequestError("choose one of --workers and --cluster")

    @cached_property
    def hardware(self) -> Hardware:
        """Device and dtype."""
        several = bool(self.workers) or self.cluster
        return Hardware.chosen(self.device or ("cpu" if several else None), self.dtype)

    @property
    def skip(self) -> bool:
        """Whether rows that cannot be used are skipped."""
        return self.on_error == "skip"


@dataclass(frozen=True)
class Computed:
    """The result of a block: bytes to append to each stream, and what the state counts."""

    parts: Mapping[str, bytes]
    written: int  # rows
    faults: tuple[str, ...] = ()  # messages of rows that could not be used
    long: tuple[tuple[str, int], ...] = ()  # location and tokens of each text over the limit
    predictions: Mapping[str, Any] = field(default_factory=dict)  # by location, if the job keeps them


@dataclass(frozen=True)
class Job(ABC):
    """How rows become bytes of the output: the same for all blocks, and small, since it is sent to worker processes."""

    model: Path | None  # None: the bundled one
    hardware: Hardware
    skip: bool  # whether rows that cannot be used are skipped

    @abstractmethod
    def kept_cells(self, row: Row) -> Mapping[str, Any]:
        """The cells of an input row that are copied to the output."""

    @abstractmethod
    def compute(self, bert: Bert, items: Sequence[Item]) -> Computed:
        """A block of rows as bytes of the output."""

    @property
    @abstractmethod
    def head(self) -> bytes:
        """The first bytes of the stream of rows."""

    @abstractmethod
    def finish(self, stream: Path, rows: int) -> Path:
        """Complete the stream, which has this many rows; returns it, or a finished file beside it."""


@dataclass(frozen=True)
class Output:
    """The files of the output, and the settings that a resumed run must have in common."""

    title: str  # of the progress bar
    path: Path
    settings: Mapping[str, str]
    side_files: Mapping[str, Path] = field(default_factory=dict)  # by stream


def run_file(
    source: RowSource,
    job: Job,
    bert: Bert,
    output: Output,
    options: RunOptions,
    show: ShowProgress,
    collect: Callable[[Computed], None] = lambda _: None,
) -> State:
    """Write the job's output for every row, in order; returns the final state. `bert` is the job's model, loaded.

    `collect` is called with the result of each block.
    """
    rereadable = source.table.path is not STDIN
    if options.resume and not rereadable:
        raise RequestError("standard input cannot be read again, so there is nothing to --resume; name a file")
    streams = {ROWS_STREAM: output.path, SKIPPED_STREAM: skipped_file(output.path), **output.side_files}
    with draft_of(output.path, streams, output.settings, resume=options.resume, rereadable=rereadable) as draft:
        blocks = row_blocks(source.table.rows)
        _skip_finished(blocks, draft.state, source)
        draft.cut()
        if not draft.state.blocks:
            draft.append({ROWS_STREAM: job.head})
        with show(output.title, source.total) as meter, _pool(job, bert, options) as pool:
            state = draft.state
            for block, faults, computed in _computed(blocks, source, job, pool):
                faults = [*faults, *computed.faults]
                state = _next_state(state, block, computed, len(faults))
                collect(computed)
                draft.append({**computed.parts, SKIPPED_STREAM: _fault_lines(faults)})
                # A short last block is not saved: it would be another block if the file grew before a resume.
                if block.full:
                    draft.save(state)
                meter.update(source.done(state.rows), {"rows": f"{state.rows:,}"})
        draft.flush()
        draft.publish(job.finish(draft.path(ROWS_STREAM), state.written))
    return state


def compute_rows(
    source: RowSource, job: Job, bert: Bert, options: RunOptions
) -> Iterator[tuple[Sequence[str], Computed]]:
    """The messages of the faulty rows and the result of each block, in order, for output that is not a file."""
    with _pool(job, bert, options) as pool:
        for _, faults, computed in _computed(row_blocks(source.table.rows), source, job, pool):
            yield faults, computed


def _pool(job: Job, bert: Bert, options: RunOptions) -> AbstractContextManager[Pool[Sequence[Item], Computed]]:
    """Where blocks are computed: in this process, when the result is requested, in several, or on a cluster."""
    if options.cluster:
        return cluster(partial(_compute_in_worker, job))
    if options.workers:
        return processes(partial(_compute_in_worker, job), options.workers, partial(_load_once, job))
    return nullcontext(((lambda items: partial(job.compute, bert, items)), 0))


_models: dict[tuple[Path | None, Hardware], Bert] = {}  # in a worker process: the model of its job


def _compute_in_worker(job: Job, items: Sequence[Item]) -> Computed:
    return job.compute(_load_once(job), items)


def _load_once(job: Job) -> Bert:
    key = (job.model, job.hardware)
    if key not in _models:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # each worker process has one core
        torch.set_num_threads(1)
        _models.clear()
        _models[key] = job.hardware.load(job.model)
    return _models[key]


def _computed(
    blocks: Iterator[RowBlock], source: RowSource, job: Job, pool: Pool[Sequence[Item], Computed]
) -> Iterator[tuple[RowBlock, Sequence[str], Computed]]:
    """Each block with the messages of its faulty rows and its result."""
    submit, ahead = pool
    usable = ((block, *_usable(block, source, job)) for block in blocks)
    started = ((block, faults, submit(items)) for block, items, faults in usable)
    for block, faults, result in ordered(started, ahead):
        yield block, faults, result()


def ordered(started: Iterable[Started], ahead: int) -> Iterator[Started]:
    """Started work in order, at most `ahead` more than is yielded; an error in reading is raised after all of it."""
    waiting: deque[Started] = deque()
    failure: BertkitError | None = None
    source = iter(started)
    while failure is None:
        try:
            waiting.append(next(source))
        except StopIteration:
            break
        except BertkitError as error:
            failure = error
            break
        if len(waiting) > ahead:
            yield waiting.popleft()
    yield from waiting
    if failure is not None:
        raise failure


def _usable(block: RowBlock, source: RowSource, job: Job) -> tuple[list[Item], list[str]]:
    """The items of a block, and the messages of its faulty rows; without `skip` such a row is an error."""
    results = list(items_of(block, source.make_example, job.kept_cells))
    faults = [result for result in results if isinstance(result, str)]
    if faults and not job.skip:
        raise RequestError(f"{faults[0]} (--on-error skip leaves such rows out)")
    return [result for result in results if isinstance(result, Item)], faults


def describe(bert: Bert, source: RowSource, options: RunOptions) -> dict[str, str]:
    """The settings that a run must have in common with the one that it resumes."""
    return {
        # The last digits of a sum depend on how many threads share it.
        "threads": str(1 if options.workers or options.cluster else torch.get_num_threads()),
        "precision": options.hardware.precision,
        "version": __version__,
        "model": model_digest(bert.checkpoint),
        "columns": str(source.columns),
        "encoding": source.columns.encoding,
    }


def model_digest(checkpoint: Checkpoint) -> str:
    """A digest of all that predictions depend on: weights, configuration, tokenizer, labels, limit and task."""
    vocabulary = None if checkpoint.tokenizer is None else checkpoint.tokenizer.hash
    settings = (checkpoint.model.config, vocabulary, checkpoint.labels, checkpoint.max_length, dict(checkpoint.task))
    content = f"{fingerprint(checkpoint.model.state_dict())} {settings}"
    return blake2b(content.encode(), digest_size=8).hexdigest()


def long_texts(state: State, done: str, limit: int) -> str:
    """One sentence on texts over the limit and what was `done` with them; empty if there were none."""
    if not state.long:
        return ""
    verb = "text was" if state.long == 1 else "texts were"
    return f"{state.long} {verb} {done} {limit} tokens; the longest, {state.longest_at}, has {state.longest}"


def skipped_file(out: Path) -> Path:
    """The file that lists skipped rows."""
    return out.with_name(f"{out.name}.skipped.txt")


def first_skipped(out: Path) -> list[str]:
    """The first skipped rows, with the reasons."""
    path = skipped_file(out)
    if not path.is_file():
        return []
    with path.open(encoding="utf-8") as lines:
        return [line.rstrip("\n") for line in islice(lines, MAX_PRINTED_FAULTS)]


def _skip_finished(blocks: Iterator[RowBlock], state: State, source: RowSource) -> None:
    """Read past the blocks of an earlier run, whose rows must not have changed since."""
    digest = ""
    for block in islice(blocks, state.blocks):
        digest = block.digest
    if digest != state.digest:
        raise RequestError(
            f"{source.table.path} has changed in the {state.rows:,} rows that were finished; put it back, or remove "
            "what is finished and begin again"
        )


def _next_state(state: State, block: RowBlock, computed: Computed, skipped: int) -> State:
    """The state after a block."""
    location, tokens = max(computed.long, key=lambda text: text[1], default=("", 0))
    is_longest = tokens > state.longest
    return replace(
        state,
        blocks=state.blocks + 1,
        rows=state.rows + len(block.rows),
        written=state.written + computed.written,
        skipped=state.skipped + skipped,
        long=state.long + len(computed.long),
        longest=tokens if is_longest else state.longest,
        longest_at=location if is_longest else state.longest_at,
        digest=block.digest,
    )


def _fault_lines(faults: Sequence[str]) -> bytes:
    return "".join(f"{' '.join(fault.split())}\n" for fault in faults).encode("utf-8", "backslashreplace")
