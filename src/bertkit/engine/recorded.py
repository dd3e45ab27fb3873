"""Forward passes recorded as CUDA graphs: one launch replaces about a hundred kernel launches.

A small encoder's kernels end sooner than Python launches them, and at every launch a server's other threads may take
the interpreter. So a batch is padded to one of a few shapes, and the pass over each shape is recorded as a CUDA graph,
together with the copies to the GPU and back. The slow twin is the same pass launched kernel by kernel, which also runs
where there are no graphs; `tests/engine/test_recorded.py` compares it with plain batches, `benchmarks/kernels_gpu.py`
the graphs on a GPU.

A graph reads weights at their addresses: it sees new values, but not tensors that were moved. So recordings belong to
the owner of a model that stays in place, such as the server, and not to the model.
"""

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
from bertkit.errors import warn
from bertkit.model.batch import Batch
from bertkit.model.encoder import Encoder

MAX_RECORDINGS = 128  # of one encoder; the least recently used one is dropped
RECORD_AFTER = 4  # requests for a shape before it is recorded, which takes as long as many passes
RETRY_AFTER_OOM = 1000  # further requests before a shape is recorded for which there was no memory
MAX_COUNTED = 4096  # shapes whose requests are counted
MIN_TOKENS = 32  # of a shape
MIN_LONGEST = 64  # shapes do not differ by the longest sequence up to this many tokens
# Up to TOKEN_STEP tokens a batch is padded to a power of two. Above it a GPU is busy with the tokens themselves, so it
# is padded to a multiple of TOKEN_STEP, and from 8,192 on to one of four sizes in each doubling: an eighth on average.
TOKEN_STEP = 1024
STEPS_PER_DOUBLING = 4


@dataclass(frozen=True)
class BatchShape:
    """The sizes that a recording is made for; a batch is padded to them with sequences of padding tokens."""

    tokens: int
    sequences: int
    longest: int

    @classmethod
    def of(cls, lengths: Sequence[int], limit: int) -> "BatchShape":
        """The smallest shape for sequences of these lengths; no sequence, padding or not, is longer than `limit`."""
        longest = min(max(MIN_LONGEST, _power_of_two(max(lengths))), limit)
        tokens = _rounded_up(sum(lengths))
        padding_sequences = -(-(tokens - sum(lengths)) // longest)
        return cls(tokens, _power_of_four(len(lengths) + padding_sequences), longest)

    def padded(self, lengths: Sequence[int]) -> NDArray[np.int32]:
        """These lengths, followed by those of the sequences of padding that take the remaining tokens."""
        full, rest = divmod(self.tokens - sum(lengths), self.longest)
        return np.array([*lengths, *[self.longest] * full, *[rest] * (rest > 0)], dtype=np.int32)

    def holds(self, lengths: Sequence[int]) -> bool:
        """Whether a batch of these lengths can be padded to this shape."""
        padding = self.tokens - sum(lengths)
        room = self.sequences - len(lengths)
        return padding >= 0 and max(lengths) <= self.longest and -(-padding // self.longest) <= room


_Key = tuple[RowReader, BatchShape]


class RecordedPasses:
    """An encoder's recorded passes by reader and batch shape.

    `record` turns a pass into one launch; without it, as where there are no CUDA graphs, kernels are launched one by
    one.
    """

    def __init__(
        self,
        encoder: Encoder,
        record: Recorder | None = None,
        *,
        max_recordings: int = MAX_RECORDINGS,
        record_after: int = RECORD_AFTER,
    ) -> None:
        self.encoder = encoder
        self._record, self._max_recordings, self._record_after = record, max_recordings, record_after
        self._recordings: OrderedDict[_Key, _Recording] = OrderedDict()
        self._requests: Counter[_Key] = Counter()
        self._failed = False
        self._lock = Lock()  # graphs share their memory, so only one may run at a time

    def __len__(self) -> int:
        return len(self._recordings)

    def __call__(self, passages: Sequence[Passage], read: RowReader) -> NDArray[np.float32] | None:
        """N R: a row for each passage; None where there is no recording for such a batch, or not yet."""
        lengths = [len(passage.ids) for passage in passages]
        with self._lock, torch.inference_mode():
            shape = self._shape(lengths, read)
            return None if shape is None else self._recordings[read, shape](passages, shape.padded(lengths))

    def _shape(self, lengths: Sequence[int], read: RowReader) -> BatchShape | None:
        """The shape of a recording for this batch: its own once that is requested often, else a larger one's."""
        if max(lengths) > self.encoder.config.max_length:
            return None  # the encoder will refuse it
        shape = BatchShape.of(lengths, self.encoder.config.max_length)
        if (read, shape) not in self._recordings and self._is_due(read, shape):
            self._add(read, shape)
        if (read, shape) not in self._recordings:
            holding = [known for reader, known in self._recordings if reader == read and known.holds(lengths)]
            larger = [known for known in holding if known.tokens <= 2 * shape.tokens]
            if not larger:
                return None
            shape = min(larger, key=lambda known: (known.tokens, known.longest, known.sequences))
        self._recordings.move_to_end((read, shape))
        return shape

    def _is_due(self, read: RowReader, shape: BatchShape) -> bool:
        """Count a request for a shape that is not recorded, and say whether it has been requested often enough."""
        if self._failed:
            return False
        if len(self._requests) > MAX_COUNTED:  # a client that sends a new reader each time must not fill the memory
            self._requests.clear()
        self._requests[read, shape] += 1
        return self._requests[read, shape] >= self._record_after

    def _add(self, read: RowReader, shape: BatchShape) -> None:
        encoder = self.encoder  # not `self`: then recordings would keep themselves alive

        def run(batch: Batch) -> Tensor:
            return read.rows(layer_vectors(encoder, batch, read.layers), batch)

        del self._requests[read, shape]  # after it is dropped, it is counted from 0 again
        device = encoder.embeddings.word.weight.device
        try:
            self._recordings[read, shape] = _Recording(shape, run, device, self._record)
        except RuntimeError as error:
            if "out of memory" in str(error).lower():
                self._requests[read, shape] = -RETRY_AFTER_OOM
                return
            self._failed = True  # a kernel that cannot be part of a graph
            reason = str(error).strip().splitlines()[0]
            warn(f"batches are launched one kernel at a time, which is slower ({reason})")
        if len(self._recordings) > self._max_recordings:
            self._recordings.popitem(last=False)


class _Recording:
    """The pass over batches of one shape: token ids in CPU memory to rows in CPU memory."""

    def __init__(
        self, shape: BatchShape, run: Callable[[Batch], Tensor], device: torch.device, record: Recorder | None
    ) -> None:
        sizes = [shape.tokens, shape.tokens, shape.sequences + 1, shape.tokens]  # as in `Batch.tensors`
        self._device, pinned = device, device.type == "cuda"
        inputs = torch.zeros(sum(sizes), dtype=torch.int32, pin_memory=pinned)
        device_inputs = inputs.to(device)
        zeros = torch.zeros(shape.tokens, dtype=torch.int32)
        pattern = Batch(zeros, zeros, tuple(shape.padded([]).tolist())).laid_out(shape.longest, shape.sequences)
        self._fields = [part.numpy() for part in torch.split(inputs, sizes)]
        self._indices = np.arange(shape.tokens, dtype=np.int32)
        for field, tensor in zip(self._fields, pattern.tensors, strict=True):
            field[:] = tensor.numpy()

        def once() -> Tensor:
            # A new batch for each pass: what a batch caches of its layout would be that of the one before.
            return run(pattern.refilled(torch.split(device_inputs.copy_(inputs, non_blocking=True), sizes)))

        rows = torch.zeros(once().shape, dtype=torch.float32, pin_memory=pinned)

        def with_copies() -> Tensor:
            return rows.copy_(once(), non_blocking=True)

        self._rows, self._pass = rows, with_copies  # keep alive the memory that a graph reads and writes
        self._replay = with_copies if record is None else record(with_copies)[0]

    def __call__(self, passages: Sequence[Passage], lengths: NDArray[np.int32]) -> NDArray[np.float32]:
        self._write(passages, lengths)
        self._replay()
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        rows: NDArray[np.float32] = self._rows[: len(passages)].numpy().copy()
        return rows

    def _write(self, passages: Sequence[Passage], lengths: NDArray[np.int32]) -> None:
        """Write the next batch to the inputs; `lengths` are those of the passages and of the padding sequences."""
        ids, segments, offsets, positions = self._fields
        tokens = int(lengths[: len(passages)].sum())  # without padding
        ends = lengths.cumsum(dtype=np.int32)
        ids[:tokens] = np.fromiter(chain.from_iterable(passage.ids for passage in passages), np.int32, tokens)
        segments[:tokens] = np.fromiter(chain.from_iterable(passage.segments for passage in passages), np.int32, tokens)
        ids[tokens:] = segments[tokens:] = 0
        offsets[1 : len(ends) + 1] = ends
        offsets[len(ends) + 1 :] = ends[-1]
        np.subtract(self._indices, np.repeat(ends - lengths, lengths), out=positions)


def _power_of_two(number: int) -> int:
    """The smallest power of two that is not under a number."""
    return 1 << (number - 1).bit_length()


def _power_of_four(number: int) -> int:
    """The smallest power of four that is not under a number; programs for sequences that do not exist end at once."""
    return 1 << 2 * -(-(number - 1).bit_length() // 2)


def _rounded_up(tokens: int) -> int:
    """The number of tokens of the smallest shape that holds so many."""
    if tokens <= TOKEN_STEP:
        return max(MIN_TOKENS, _power_of_two(tokens))
    step = max(TOKEN_STEP, _power_of_two(tokens) // 2 // STEPS_PER_DOUBLING)
    return -(-tokens // step) * step
