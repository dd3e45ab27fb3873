"""Forward passes recorded as CUDA graphs: what takes a hundred kernel launches the first time takes one later.

A small encoder's kernels end sooner than Python launches them, and at every launch a server's other threads may take
the interpreter. So a batch is filled up to one of a few forms, and the pass over each form is recorded as a CUDA
graph, together with the copies to the GPU and back. The slow twin is the same pass launched kernel by kernel, which is
also what runs where there are no graphs; `tests/engine/test_recorded.py` compares the forms with plain batches there,
`benchmarks/kernels_gpu.py` the graphs on a GPU.

A graph reads weights at their addresses: it sees their values change, but not that they are moved. So recordings belong
to whoever keeps a model in place, and not to the model.
"""

import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from threading import Lock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertkit.engine.batches import Passage, RowReader, layer_vectors
from bertkit.engine.cuda_graph import Recorder
from bertkit.errors import BertkitWarning
from bertkit.model.batch import Batch
from bertkit.model.encoder import Encoder

KEPT = 128  # recordings of one encoder: the one that was not used for longest goes
OFTEN = 4  # so many times a form is asked for until it is recorded, which takes as long as many passes
LATER = 1000  # times more, where there was no memory for it
COUNTED = 4096  # forms that are not recorded
LEAST = 32  # tokens of the smallest form
SHORT = 64  # tokens of a sequence up to which forms do not differ
# A batch is filled up to a power of two; where it has so many tokens that a GPU is busy with them, to a multiple of
# `FINE`, and from 8,192 on to one of four sizes between two powers: by an eighth, on average.
FINE = 1024
STEPS = 4


@dataclass(frozen=True)
class Form:
    """What batches have in common that one recording serves."""

    tokens: int
    sequences: int
    longest: int

    @classmethod
    def of(cls, lengths: Sequence[int], limit: int) -> "Form":
        """The smallest form for sequences of these lengths; neither they nor what fills up are over `limit`."""
        longest = min(max(SHORT, _power(max(lengths))), limit)
        tokens = _rounded(sum(lengths))
        spare = -(-(tokens - sum(lengths)) // longest)
        return cls(tokens, _power_of_four(len(lengths) + spare), longest)

    def filled(self, lengths: Sequence[int]) -> NDArray[np.int32]:
        """These lengths, and those of sequences of nothing that take the tokens which are left."""
        whole, rest = divmod(self.tokens - sum(lengths), self.longest)
        return np.array([*lengths, *[self.longest] * whole, *[rest] * (rest > 0)], dtype=np.int32)

    def holds(self, lengths: Sequence[int]) -> bool:
        """Whether a batch of these lengths can be filled up to this form."""
        spare = self.tokens - sum(lengths)
        room = self.sequences - len(lengths)
        return spare >= 0 and max(lengths) <= self.longest and -(-spare // self.longest) <= room


_Key = tuple[RowReader, Form]


class RecordedPasses:
    """An encoder's passes by reader and form.

    `record` makes one launch of a pass; without it, as where there are no graphs, the pass is launched as ever.
    """

    def __init__(
        self, encoder: Encoder, record: Recorder | None = None, *, kept: int = KEPT, often: int = OFTEN
    ) -> None:
        self.encoder = encoder
        self._record, self._kept, self._often = record, kept, often
        self._found: OrderedDict[_Key, _Recording] = OrderedDict()
        self._asked: Counter[_Key] = Counter()
        self._broken = False
        self._one = Lock()  # at a time: they share their memory

    def __len__(self) -> int:
        return len(self._found)

    def __call__(self, passages: Sequence[Passage], read: RowReader) -> NDArray[np.float32] | None:
        """A row for each passage; None where there is no recording for such a batch, or not yet."""
        lengths = [len(passage.ids) for passage in passages]
        with self._one, torch.inference_mode():
            form = self._form(lengths, read)
            return None if form is None else self._found[read, form](passages, form.filled(lengths))

    def _form(self, lengths: Sequence[int], read: RowReader) -> Form | None:
        """The form of a recording for this batch: its own, where that is asked for often, or else a larger one."""
        if max(lengths) > self.encoder.config.max_length:
            return None  # the encoder will refuse it
        form = Form.of(lengths, self.encoder.config.max_length)
        if (read, form) not in self._found and self._is_due(read, form):
            self._add(read, form)
        if (read, form) not in self._found:
            holding = [each for own, each in self._found if own == read and each.holds(lengths)]
            larger = [each for each in holding if each.tokens <= 2 * form.tokens]
            if not larger:
                return None
            form = min(larger, key=lambda each: (each.tokens, each.longest, each.sequences))
        self._found.move_to_end((read, form))
        return form

    def _is_due(self, read: RowReader, form: Form) -> bool:
        """Whether a form that is not recorded has been asked for often enough."""
        if self._broken:
            return False
        if len(self._asked) > COUNTED:  # whoever asks for something else each time is not to fill the memory
            self._asked.clear()
        self._asked[read, form] += 1
        return self._asked[read, form] >= self._often

    def _add(self, read: RowReader, form: Form) -> None:
        encoder = self.encoder  # not `self`: these recordings are to go when it goes

        def run(batch: Batch) -> Tensor:
            return read.numbers(layer_vectors(encoder, batch, read.layers), batch)

        del self._asked[read, form]  # one that goes is counted anew
        device = encoder.embeddings.word.weight.device
        try:
            self._found[read, form] = _Recording(form, run, device, self._record)
        except RuntimeError as error:
            if "out of memory" in str(error).lower():
                self._asked[read, form] = -LATER
                return
            self._broken = True  # a kernel that no graph can hold
            first = str(error).strip().splitlines()[0]
            warnings.warn(f"batches are launched one kernel at a time, which is slower ({first})", BertkitWarning)
        if len(self._found) > self._kept:
            self._found.popitem(last=False)


class _Recording:
    """The pass over batches of one form, from numbers in the computer's memory to rows there."""

    def __init__(
        self, form: Form, run: Callable[[Batch], Tensor], device: torch.device, record: Recorder | None
    ) -> None:
        sizes = [form.tokens, form.tokens, form.sequences + 1, form.tokens]  # as in `Batch.tensors`
        self._device, pinned = device, device.type == "cuda"
        given = torch.zeros(sum(sizes), dtype=torch.int32, pin_memory=pinned)
        there = given.to(device)
        nothing = torch.zeros(form.tokens, dtype=torch.int32)
        pattern = Batch(nothing, nothing, tuple(form.filled([]).tolist())).laid_out(form.longest, form.sequences)
        self._fields = [part.numpy() for part in torch.split(given, sizes)]
        self._places = np.arange(form.tokens, dtype=np.int32)
        for field, tensor in zip(self._fields, pattern.tensors, strict=True):
            field[:] = tensor.numpy()

        def once() -> Tensor:
            # A batch of its own for each pass: what it computes of its layout and keeps would be another batch's.
            return run(pattern.refilled(torch.split(there.copy_(given, non_blocking=True), sizes)))

        rows = torch.zeros(once().shape, dtype=torch.float32, pin_memory=pinned)

        def whole() -> Tensor:
            return rows.copy_(once(), non_blocking=True)

        self._rows, self._whole = rows, whole  # which holds the memory that a graph reads and writes
        self._replay = whole if record is None else record(whole)[0]

    def __call__(self, passages: Sequence[Passage], lengths: NDArray[np.int32]) -> NDArray[np.float32]:
        self._write(passages, lengths)
        self._replay()
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        found: NDArray[np.float32] = self._rows[: len(passages)].numpy().copy()
        return found

    def _write(self, passages: Sequence[Passage], lengths: NDArray[np.int32]) -> None:
        """The batch that is computed next; `lengths` are those of the passages and of what fills up."""
        ids, segments, offsets, positions = self._fields
        real = int(lengths[: len(passages)].sum())
        ends = lengths.cumsum(dtype=np.int32)
        ids[:real] = np.fromiter(chain.from_iterable(passage.ids for passage in passages), np.int32, real)
        segments[:real] = np.fromiter(chain.from_iterable(passage.segments for passage in passages), np.int32, real)
        ids[real:] = segments[real:] = 0
        offsets[1 : len(ends) + 1] = ends
        offsets[len(ends) + 1 :] = ends[-1]
        np.subtract(self._places, np.repeat(ends - lengths, lengths), out=positions)


def _power(number: int) -> int:
    """The next power of two."""
    return 1 << (number - 1).bit_length()


def _power_of_four(number: int) -> int:
    """The next one: programs for sequences that are not there end at once."""
    return 1 << 2 * -(-(number - 1).bit_length() // 2)


def _rounded(tokens: int) -> int:
    """The next size of a form."""
    if tokens <= FINE:
        return max(LEAST, _power(tokens))
    step = max(FINE, _power(tokens) // 2 // STEPS)
    return -(-tokens // step) * step
