"""A file through a model into a file: any size, in order, each row once, whatever happens on the way."""

import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from bertkit.predict.files.resume import ROWS, State, draft_of
from bertkit.predict.files.rows import Item, RowBlock, Source, items_of, row_blocks
from bertkit.predict.files.workers import Pool, cluster, processes
from bertkit.progress import ShowProgress
from bertkit.settings import pick
from bertkit.text.corpus import STDIN

Begun = TypeVar("Begun")
SKIPPED = "skipped"  # the stream that becomes out.skipped.txt
PRINTED_FAULTS = 20


@dataclass(frozen=True)
class Hardware:
    """Device and dtype of a model."""

    device: str
    dtype: str

    @classmethod
    def chosen(cls, device: str | None, dtype: str | None) -> "Hardware":
        """What was asked for; else a GPU if there is one, and there bfloat16, as on a CPU float32. int8 is for CPUs."""
        device = device or ("cuda" if torch.cuda.is_available() and dtype != "int8" else "cpu")
        return cls(device, dtype or ("bfloat16" if device.startswith("cuda") else "float32"))

    @property
    def numbers(self) -> str:
        """What the last digits depend on; int8 has fewer steps on some CPUs."""
        if self.dtype != "int8":
            return f"{self.dtype} on {self.device}"
        from bertkit.engine.int8 import levels

        return f"int8 of {levels()} steps on {self.device}"

    def load(self, model: Path | None) -> Bert:
        """A model folder there; None means the model inside the package."""
        bert = load(model)
        try:
            return bert.to(self.device, self.dtype)
        except (RuntimeError, AssertionError) as error:
            raise RequestError(f"the model cannot be put on '{self.device}': {str(error).splitlines()[0]}") from error


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Execution options: resuming, faulty rows, processes, device, dtype."""

    resume: bool = False
    on_error: str = "stop"
    workers: int = 0  # processes; 0: this one
    cluster: bool = False
    device: str | None = None  # None: a GPU if there is one, unless several processes work
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
        """Whether rows that cannot be used are left out."""
        return self.on_error == "skip"


@dataclass(frozen=True)
class Computed:
    """What a block became: bytes for each stream of the output, and what the state counts."""

    parts: Mapping[str, bytes]
    written: int
    faults: tuple[str, ...] = ()
    long: tuple[tuple[str, int], ...] = ()  # place and tokens of each text over the limit


@dataclass(frozen=True)
class Job(ABC):
    """How rows become bytes of the output: small, and the same for all blocks, so that it is sent to workers."""

    model: Path | None  # None: the bundled one
    hardware: Hardware
    skip: bool  # whether rows that cannot be used are left out

    @abstractmethod
    def kept(self, row: Row) -> Mapping[str, Any]:
        """What goes on from a row of the input to the output."""

    @abstractmethod
    def compute(self, bert: Bert, items: Sequence[Item]) -> Computed:
        """A block of rows as bytes of the output."""

    @property
    @abstractmethod
    def head(self) -> bytes:
        """How the stream of rows begins."""

    @abstractmethod
    def finish(self, stream: Path, rows: int) -> Path:
        """The finished file, of so many rows: the stream itself, or one beside it."""


@dataclass(frozen=True)
class Output:
    """Where the output goes: its file, files beside it by stream, and what a run that resumes must have in common."""

    title: str
    path: Path
    settings: Mapping[str, str]
    sides: Mapping[str, Path] = field(default_factory=dict)


def run_file(source: Source, job: Job, bert: Bert, output: Output, how: RunOptions, show: ShowProgress) -> State:
    """Every row through the job into the output, in order; where the work ended. `bert` is the job's model, loaded."""
    again = source.table.path is not STDIN
    if how.resume and not again:
        raise RequestError("standard input cannot be read again, so there is nothing to --resume; name a file")
    streams = {ROWS: output.path, SKIPPED: skipped_file(output.path), **output.sides}
    with draft_of(output.path, streams, output.settings, resume=how.resume, again=again) as draft:
        blocks = row_blocks(source.table.rows)
        _pass_finished(blocks, draft.state, source)
        draft.cut()
        if not draft.state.blocks:
            draft.append({ROWS: job.head})
        with show(output.title, source.total) as meter, _pool(job, bert, how) as pool:
            state = draft.state
            for block, faults, computed in _computed(blocks, source, job, pool):
                faults = [*faults, *computed.faults]
                state = _after(state, block, computed, len(faults))
                draft.append({**computed.parts, SKIPPED: _listed(faults)})
                # The last block, if short, is never counted: were the file to grow, it would have been a longer one.
                if block.full:
                    draft.save(state)
                meter.update(source.done(state.rows), {"rows": f"{state.rows:,}"})
        draft.flush()
        draft.publish(job.finish(draft.path(ROWS), state.written))
    return state


def _pool(job: Job, bert: Bert, how: RunOptions) -> AbstractContextManager[Pool[Sequence[Item], Computed]]:
    """Where blocks are computed: here, when the result is asked for, in several processes, or on a cluster."""
    if how.cluster:
        return cluster(partial(_compute_in_worker, job))
    if how.workers:
        return processes(partial(_compute_in_worker, job), how.workers, partial(_loaded, job))
    return nullcontext(((lambda items: partial(job.compute, bert, items)), 0))


_models: dict[tuple[Path | None, Hardware], Bert] = {}  # in a worker: the model of the job it works for


def _compute_in_worker(job: Job, items: Sequence[Item]) -> Computed:
    return job.compute(_loaded(job), items)


def _loaded(job: Job) -> Bert:
    key = (job.model, job.hardware)
    if key not in _models:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there are as many workers as cores already
        torch.set_num_threads(1)
        _models.clear()
        _models[key] = job.hardware.load(job.model)
    return _models[key]


def _computed(
    blocks: Iterator[RowBlock], source: Source, job: Job, pool: Pool[Sequence[Item], Computed]
) -> Iterator[tuple[RowBlock, Sequence[str], Computed]]:
    """Each block with the faults of its rows and what it became."""
    submit, ahead = pool
    usable = ((block, *_usable(block, source, job)) for block in blocks)
    begun = ((block, faults, submit(items)) for block, items, faults in usable)
    for block, faults, result in ordered(begun, ahead):
        yield block, faults, result()


def ordered(begun: Iterable[Begun], ahead: int) -> Iterator[Begun]:
    """What was begun, in order, at most `ahead` more under way; after an error in reading, these come first."""
    waiting: deque[Begun] = deque()
    trouble: BertkitError | None = None
    source = iter(begun)
    while trouble is None:
        try:
            waiting.append(next(source))
        except StopIteration:
            break
        except BertkitError as error:
            trouble = error
            break
        if len(waiting) > ahead:
            yield waiting.popleft()
    yield from waiting
    if trouble is not None:
        raise trouble


def _usable(block: RowBlock, source: Source, job: Job) -> tuple[list[Item], list[str]]:
    """The items of a block, and the faults of rows that cannot be used, which stop unless they are skipped."""
    made = list(items_of(block, source.make, job.kept))
    faults = [each for each in made if isinstance(each, str)]
    if faults and not job.skip:
        raise RequestError(f"{faults[0]} (--on-error skip leaves such rows out)")
    return [each for each in made if isinstance(each, Item)], faults


def describe(bert: Bert, source: Source, how: RunOptions) -> dict[str, str]:
    """What a run must have in common with the one that it resumes, whatever it makes."""
    return {
        # Sums are split between threads, so their number shows in the last digits.
        "threads": str(1 if how.workers or how.cluster else torch.get_num_threads()),
        "numbers": how.hardware.numbers,
        "version": __version__,
        "model": model_digest(bert.checkpoint),
        "columns": str(source.columns),
        "encoding": source.columns.encoding,
    }


def model_digest(checkpoint: Checkpoint) -> str:
    """Changes with anything that an answer depends on: weights, configuration, tokenizer, labels, limit and task."""
    words = None if checkpoint.tokenizer is None else checkpoint.tokenizer.hash
    settings = (checkpoint.model.config, words, checkpoint.labels, checkpoint.max_length, dict(checkpoint.task))
    told = f"{fingerprint(checkpoint.model.state_dict())} {settings}"
    return blake2b(told.encode(), digest_size=8).hexdigest()


def long_texts(state: State, done: str, limit: int) -> str:
    """One sentence on texts over the limit and what was `done` with them; empty where there were none."""
    if not state.long:
        return ""
    verb = "text was" if state.long == 1 else "texts were"
    return f"{state.long} {verb} {done} {limit} tokens; the longest, {state.longest_at}, has {state.longest}"


def skipped_file(out: Path) -> Path:
    """Where the rows are listed that were left out."""
    return out.with_name(f"{out.name}.skipped.txt")


def first_skipped(out: Path) -> list[str]:
    """The first of the rows that were left out, with the reasons."""
    path = skipped_file(out)
    if not path.is_file():
        return []
    with path.open(encoding="utf-8") as lines:
        return [line.rstrip("\n") for line in islice(lines, PRINTED_FAULTS)]


def _pass_finished(blocks: Iterator[RowBlock], state: State, source: Source) -> None:
    """Read over the blocks of an earlier run, which must be the same rows as then."""
    digest = ""
    for block in islice(blocks, state.blocks):
        digest = block.digest
    if digest != state.digest:
        raise RequestError(
            f"{source.table.path} has changed in the {state.rows:,} rows that were finished; put it back, or remove "
            "what is finished and begin again"
        )


def _after(state: State, block: RowBlock, computed: Computed, skipped: int) -> State:
    place, tokens = max(computed.long, key=lambda each: each[1], default=("", 0))
    further = tokens > state.longest
    return replace(
        state,
        blocks=state.blocks + 1,
        rows=state.rows + len(block.rows),
        written=state.written + computed.written,
        skipped=state.skipped + skipped,
        long=state.long + len(computed.long),
        longest=tokens if further else state.longest,
        longest_at=place if further else state.longest_at,
        digest=block.digest,
    )


def _listed(faults: Sequence[str]) -> bytes:
    return "".join(f"{' '.join(fault.split())}\n" for fault in faults).encode("utf-8", "backslashreplace")
