"""A file through a model into a file: any size, in order, each row once, whatever happens on the way."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from bertkit._version import __version__
from bertkit.checkpoint.delta import fingerprint
from bertkit.checkpoint.save_load import Checkpoint
from bertkit.data.tables import Row
from bertkit.engine.int8 import levels
from bertkit.errors import RequestError
from bertkit.predict.bert import Bert, load
from bertkit.predict.files.resume import ROWS, State, draft_of
from bertkit.predict.files.rows import Item, RowBlock, Source, items_of, row_blocks
from bertkit.predict.files.workers import Compute, Computed, Job, Pool, cluster, here, ordered, processes
from bertkit.progress import ShowProgress
from bertkit.settings import pick
from bertkit.text.corpus import STDIN

SKIPPED = "skipped"  # the stream that becomes out.skipped.txt
TOLD = 20  # faults that are printed


@dataclass(frozen=True)
class Hardware:
    """Where a model computes, and in which numbers."""

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
        steps = f" of {levels()} steps" if self.dtype == "int8" else ""
        return f"{self.dtype}{steps} on {self.device}"

    def load(self, model: Path | None) -> Bert:
        """A model folder there; None means the model inside the package."""
        bert = load(model)
        try:
            return bert.to(self.device, self.dtype)
        except (RuntimeError, AssertionError) as error:
            raise RequestError(f"the model cannot be put on '{self.device}': {str(error).splitlines()[0]}") from error


@dataclass(frozen=True, kw_only=True)
class HowToRun:
    """What changes nothing in the output."""

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
        """Where the model computes, and in which numbers."""
        several = bool(self.workers) or self.cluster
        return Hardware.chosen(self.device or ("cpu" if several else None), self.dtype)

    @property
    def skip(self) -> bool:
        """Whether rows that cannot be used are left out."""
        return self.on_error == "skip"


@dataclass(frozen=True)
class Plan:
    """One file's work: what is kept of a row, how the output begins and ends, and what must not change."""

    title: str
    out: Path
    keep: Callable[[Row], Mapping[str, Any]]
    head: bytes  # how the stream of rows begins
    finish: Callable[[Path, State], Path]  # the stream of rows to the finished file
    settings: Mapping[str, str]
    sides: Mapping[str, Path]  # more streams, and the files they become


@dataclass(frozen=True)
class Work:
    """A block with its items made."""

    block: RowBlock
    items: Sequence[Item]
    faults: Sequence[str]


def run_file(
    source: Source, plan: Plan, pool: AbstractContextManager[Pool], how: HowToRun, show: ShowProgress
) -> State:
    """Every row through the pool into the output; what was done is told."""
    again = source.table.path is not STDIN
    if how.resume and not again:
        raise RequestError("standard input cannot be read again, so there is nothing to --resume; name a file")
    streams = {ROWS: plan.out, SKIPPED: skipped_file(plan.out), **plan.sides}
    with draft_of(plan.out, streams, plan.settings, resume=how.resume, again=again) as draft:
        blocks = row_blocks(source.table.rows)
        _pass_finished(blocks, draft.state, source)
        draft.cut()
        if not draft.state.blocks:
            draft.append({ROWS: plan.head})
        with show(plan.title, source.total) as meter, pool as place:
            state = draft.state
            for work, computed in ordered(_works(blocks, source, plan, how.skip), place):
                state = _after(state, work, computed)
                draft.append({**computed.parts, SKIPPED: _listed([*work.faults, *computed.faults])})
                # The last block, if short, is never counted: were the file to grow, it would have been a longer one.
                if work.block.full:
                    draft.save(state)
                meter.update(source.done(state.rows), {"rows": f"{state.rows:,}"})
        draft.flush()
        draft.publish(plan.finish(draft.path(ROWS), state))
    return state


def describe(bert: Bert, source: Source, how: HowToRun) -> dict[str, str]:
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


def pool_for(job: Job, how: HowToRun, compute: Compute) -> AbstractContextManager[Pool]:
    """Where the blocks are computed; `compute` does it here."""
    if how.cluster:
        return cluster(job)
    return processes(job, how.workers) if how.workers else nullcontext(here(compute))


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
        return [line.rstrip("\n") for line in islice(lines, TOLD)]


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


def _works(blocks: Iterator[RowBlock], source: Source, plan: Plan, skip: bool) -> Iterator[Work]:
    for block in blocks:
        made = list(items_of(block, source.make, plan.keep))
        faults = [each for each in made if isinstance(each, str)]
        if faults and not skip:
            raise RequestError(f"{faults[0]} (--on-error skip leaves such rows out)")
        yield Work(block, [each for each in made if isinstance(each, Item)], faults)


def _after(state: State, work: Work, computed: Computed) -> State:
    place, tokens = max(computed.long, key=lambda each: each[1], default=("", 0))
    further = tokens > state.longest
    return replace(
        state,
        blocks=state.blocks + 1,
        rows=state.rows + len(work.block.rows),
        written=state.written + computed.written,
        skipped=state.skipped + len(work.faults) + len(computed.faults),
        long=state.long + len(computed.long),
        longest=tokens if further else state.longest,
        longest_at=place if further else state.longest_at,
        digest=work.block.digest,
    )


def _listed(faults: Sequence[str]) -> bytes:
    return "".join(f"{' '.join(fault.split())}\n" for fault in faults).encode("utf-8", "backslashreplace")
