"""One direction of a recurrent layer on torch's LSTM and GRU, and the cell that attends to a source at every step."""

import warnings
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.config import BertConfig
from bertkit.model.batch import Batch
from bertkit.model.operations import Source

State = tuple[Tensor, ...]  # N H each: what a cell has read so far (hidden state; of an LSTM, its cell's state too)

# What torch says of cells, and nobody can mend: a CPU computes projections without oneDNN; on CUDA weights that were
# changed at this call (half precision, dropout) are first copied to one place, 10 MB in microseconds.
EXPECTED_WARNINGS = ("LSTM with projections is not supported", "RNN module weights are not part of single contiguous")


class Memory(NamedTuple):
    """The source as additive attention reads it: the encoder's vectors in padded form, and their projections."""

    values: Tensor  # N S D
    keys: Tensor  # N S A
    mask: Tensor  # N S: true where there is a token


class Cell(nn.Module):
    """Reads sequences of vectors in one direction; an LSTM's output is projected if its cell is wider (`inner`).

    Weights are read anew at every call: training in half precision replaces them, weight dropout changes them.
    """

    def __init__(self, config: BertConfig, inputs: int, width: int, *, backward: bool = False) -> None:
        super().__init__()
        for message in EXPECTED_WARNINGS:
            warnings.filterwarnings("ignore", message=message)
        self.backward, self.weight_dropout = backward, config.parts.weight_dropout
        self.rnn: nn.LSTM | nn.GRU
        if config.parts.layer == "lstm":
            projected = width if config.inner > width else 0
            self.rnn = nn.LSTM(inputs, config.inner, proj_size=projected, batch_first=True)
        else:
            self.rnn = nn.GRU(inputs, width, batch_first=True)

    def forward(
        self, x_TI: Tensor, batch: Batch, source: Source | None = None, weights: list[Tensor] | None = None
    ) -> Tensor:
        """T D for each token: what was read up to it, from the left or (`backward`) from the right.

        Sequences are padded at their ends, which are read last and change no token.
        """
        x_NLI = batch.pad(x_TI)
        memory = None if source is None else self.memory(source)
        if not self.backward:
            return batch.unpad(self.run(x_NLI, None, memory, weights)[0])
        return batch.unpad(_reversed(self.run(_reversed(x_NLI, batch))[0], batch))

    def run(
        self,
        x_NLI: Tensor,
        state: State | None = None,
        memory: Memory | None = None,
        weights: list[Tensor] | None = None,
    ) -> tuple[Tensor, State]:
        """N L D, and the state after the last token; `state` is that before the first one, zeros by default."""
        return self._read(x_NLI, self.zeros(x_NLI) if state is None else state, self._weights())

    def memory(self, source: Source) -> Memory | None:
        """What `run` needs of a source: nothing; see AttendingCell."""
        return None

    def zeros(self, x_NLI: Tensor) -> State:
        """The state before the first token."""
        hidden = x_NLI.new_zeros(len(x_NLI), self.rnn.proj_size or self.rnn.hidden_size)
        if isinstance(self.rnn, nn.GRU):
            return (hidden,)
        return hidden, x_NLI.new_zeros(len(x_NLI), self.rnn.hidden_size)

    def _weights(self) -> list[Tensor]:
        """The tensors in torch's order, those between states with dropout (Merity 2017)."""
        weights = {name: getattr(self.rnn, name) for name, _ in self.rnn.named_parameters()}
        weights["weight_hh_l0"] = F.dropout(weights["weight_hh_l0"], self.weight_dropout, self.training)
        return list(weights.values())

    def _read(self, x_NLI: Tensor, state: State, weights: list[Tensor]) -> tuple[Tensor, State]:
        gradients = self.training or torch.is_grad_enabled()  # cuDNN has a backward pass only if it is told so before
        before = [part[None].contiguous() for part in state]
        how = (True, 1, 0.0, gradients, False, True)  # biases, layers, dropout, training, bidirectional, batch first
        if isinstance(self.rnn, nn.LSTM):
            out, *after = torch.lstm(x_NLI, before, weights, *how)
        else:
            out, *after = torch.gru(x_NLI, before[0], weights, *how)
        # Under autocast cuDNN computes in float16, whatever half precision was asked for.
        return out.to(x_NLI.dtype), tuple(part[0].to(x_NLI.dtype) for part in after)


class AttendingCell(Cell):
    """Bahdanau 2014: at each step the state asks the source, and the answer is read with the next token.

    The score of a source token is score . tanh(query(state) + key(token)); their softmax is the alignment.
    """

    def __init__(self, config: BertConfig) -> None:
        width = config.width
        super().__init__(config, 2 * width, width)
        self.first = nn.Linear(width, width)
        self.query = nn.Linear(width, config.inner, bias=False)
        self.key = nn.Linear(width, config.inner)
        self.score = nn.Linear(config.inner, 1, bias=False)

    def memory(self, source: Source) -> Memory:
        """The source in padded form, with the keys of its tokens."""
        values = source.batch.pad(source.hidden_SD)
        return Memory(values, self.key(values), source.batch.mask)

    def run(
        self,
        x_NLI: Tensor,
        state: State | None = None,
        memory: Memory | None = None,
        weights: list[Tensor] | None = None,
    ) -> tuple[Tensor, State]:
        """N L D and the last state; each step's alignment, N S, is added to `weights`."""
        assert memory is not None  # a decoder always has a source
        state = self._start(x_NLI, memory) if state is None else state
        matrices, outputs = self._weights(), []
        for x_NI in x_NLI.unbind(dim=1):
            weights_NS = self.align(state[0], memory)
            context_ND = torch.einsum("ns,nsd->nd", weights_NS, memory.values)
            out_N1D, state = self._read(torch.cat((x_NI, context_ND), dim=-1)[:, None], state, matrices)
            outputs.append(out_N1D)
            if weights is not None:
                weights.append(weights_NS)
        return torch.cat(outputs, dim=1), state

    def align(self, state_ND: Tensor, memory: Memory) -> Tensor:
        """N S: how much of each source token is read; every row sums to 1."""
        asked_NSA = torch.tanh(self.query(state_ND)[:, None] + memory.keys)
        scores_NS: Tensor = self.score(asked_NSA).squeeze(-1).float()
        return scores_NS.masked_fill(~memory.mask, -torch.inf).softmax(dim=-1).to(state_ND.dtype)

    def _start(self, x_NLI: Tensor, memory: Memory) -> State:
        """The first state: a projection of the source's first token, whose backward half has read the whole source."""
        return (torch.tanh(self.first(memory.values[:, 0])), *self.zeros(x_NLI)[1:])


def _reversed(x_NLD: Tensor, batch: Batch) -> Tensor:
    """Each sequence from its last token to its first, padding still at the end; twice is the sequence itself."""
    last_N1 = batch.offsets.diff()[:, None] - 1
    order_NL = (last_N1 - torch.arange(x_NLD.shape[1], device=x_NLD.device)).clamp(min=0)
    return x_NLD.gather(1, order_NL[:, :, None].expand_as(x_NLD).long())
