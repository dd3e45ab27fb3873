"""The model as a graph of fixed steps: a padded rectangle in, named answers out. What ONNX can say.

The layers, norms and heads are the model's own; only what asks for lengths is written anew over rectangles: the
operation `attend`, and pooling. Padding may stand anywhere: the mask alone says which cells count, and positions are
counted over those.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.model.attention import AttentionPattern, AttentionWindow
from bertkit.model.batch import Batch, Layout
from bertkit.model.heads import HEADS, Pooler
from bertkit.model.model import BertModel
from bertkit.model.operations import Operations
from bertkit.model.pooling import EmbedSettings, PackedTokens
from bertkit.poolings import POOLINGS

VECTORS = "vectors"  # the answer that no head gives
LOWEST = torch.finfo(torch.float32).min  # not -inf: a cell that sees nothing would become NaN


@dataclass(frozen=True)
class Rectangle(Batch):
    """N L cells, each of them a token to the layers; padding is seen by no token that counts."""

    real: Tensor = field(kw_only=True)  # N L bool: which cells count
    places: Tensor = field(kw_only=True)  # N L: each cell's position among those that count

    @classmethod
    def of(cls, ids_NL: Tensor, mask_NL: Tensor, segments_NL: Tensor) -> "Rectangle":
        """From the inputs of the graph."""
        places, length = (mask_NL.cumsum(dim=1) - 1).clamp(min=0), ids_NL.shape[1]
        layout = Layout(mask_NL.new_zeros(1), places.flatten(), length, fixed=True)  # offsets are not read
        return cls(ids_NL.flatten(), segments_NL.flatten(), (), layout, real=mask_NL.bool(), places=places)

    def __post_init__(self) -> None:
        """Nothing to check: the mask stands for the lengths."""

    @property
    def mask(self) -> Tensor:
        """N L bool: which cells count."""
        return self.real

    def rows(self, x_T: Tensor) -> Tensor:
        """T ... -> N L ..."""
        return x_T.view(*self.real.shape, *x_T.shape[1:])

    def seen(self, window: AttentionWindow) -> Tensor:
        """N 1 (1 or L) L bool: which cells a token may see."""
        seen = self.real[:, None, None, :]
        before = self.places[:, None, :, None] - self.places[:, None, None, :]
        if window.radius is not None:
            seen = seen & (before.abs() <= window.radius)
        return seen & (before >= 0) if window.causal else seen


class PaddedOperations(Operations):
    """Torch's operations, with the formula of attention over rectangles: what ONNX can say."""

    def attend(self, qkv_TX: Tensor, batch: Batch, pattern: AttentionPattern, dropout: float) -> Tensor:
        """T 3D -> T D."""
        assert isinstance(batch, Rectangle)
        qkv = pattern.split(qkv_TX, batch).unbind(dim=1)
        queries, keys, values = (batch.rows(x_THK).transpose(1, 2) for x_THK in qkv)
        scores_NHLL = queries @ keys.mT / math.sqrt(queries.shape[-1])
        weights = scores_NHLL.masked_fill(~batch.seen(pattern.window), LOWEST).softmax(dim=-1)
        return (weights @ values).transpose(1, 2).flatten(-2).flatten(0, 1)


PADDED = PaddedOperations()


@dataclass(frozen=True, slots=True)
class PaddedTokens(PackedTokens):
    """The cells of a rectangle that are tokens, as `Tokens`: x is N L D, weights and scores are N L."""

    batch: Rectangle

    @property
    def positions(self) -> Tensor:
        """N L."""
        return self.batch.places + 1

    def first(self, x_NLD: Tensor) -> Tensor:
        """N D."""
        return self._at(x_NLD, torch.zeros_like(self.batch.places[:, :1]))

    def last(self, x_NLD: Tensor) -> Tensor:
        """N D."""
        return self._at(x_NLD, self.batch.mask.sum(dim=1, keepdim=True) - 1)

    def mean(self, x_NLD: Tensor) -> Tensor:
        """N D."""
        mask_NL1 = self.batch.mask[:, :, None].to(x_NLD.dtype)
        return (x_NLD * mask_NL1).sum(dim=1) / mask_NL1.sum(dim=1).clamp(min=1)

    def maximum(self, x_NLD: Tensor) -> Tensor:
        """N D."""
        return x_NLD.masked_fill(~self.batch.mask[:, :, None], LOWEST).amax(dim=1)

    def weighted_sum(self, x_NLD: Tensor, weights_NL: Tensor) -> Tensor:
        """N D."""
        return (x_NLD * weights_NL[:, :, None]).sum(dim=1)

    def shares(self, weights_NL: Tensor) -> Tensor:
        """N L."""
        masked_NL = weights_NL * self.batch.mask
        return masked_NL / masked_NL.sum(dim=1, keepdim=True).clamp(min=1)

    def softmax(self, scores_NL: Tensor) -> Tensor:
        """N L."""
        return scores_NL.masked_fill(~self.batch.mask, LOWEST).softmax(dim=1)

    def concatenate(self, parts: Sequence[Tensor]) -> Tensor:
        """N (D + D + ...)."""
        return torch.cat(list(parts), dim=-1)

    def _at(self, x_NLD: Tensor, place_N1: Tensor) -> Tensor:
        """N D: the vector at one place of each sequence, wherever its padding stands."""
        chosen_NL = self.batch.mask & (self.batch.places == place_N1)
        return (x_NLD * chosen_NL[:, :, None].to(x_NLD.dtype)).sum(dim=1)


class Graph(nn.Module):
    """A copy of the model, in float32 on the CPU, that answers rectangles: the names of `outputs`, in their order."""

    def __init__(self, model: BertModel, answers: Sequence[str], embed: EmbedSettings) -> None:
        super().__init__()
        self.model = copy.deepcopy(model).float().cpu().eval()
        self.answers = tuple(answers)
        self.embed = replace(embed, layers=tuple(layer % (model.config.depth + 1) for layer in embed.layers))

    @property
    def inputs(self) -> tuple[str, ...]:
        """As Hugging Face's exports name them: a family without a second segment has no token_type_ids."""
        both = ("input_ids", "attention_mask")
        return (*both, "token_type_ids") if self.model.config.segments > 1 else both

    @property
    def outputs(self) -> tuple[str, ...]:
        """As Hugging Face's exports name them; several heads that would share a name are called as they are here."""
        alone = len(self.answers) == 1
        return tuple(name for answer in self.answers for name in _output_names(answer, alone))

    @property
    def choosing(self) -> bool:
        """Whether each row is a question with several choices: inputs N C L, as Hugging Face's."""
        return len(self.answers) == 1 and self.answers[0] in HEADS and HEADS[self.answers[0]].grouped

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> list[Tensor]:
        """Every output of every answer."""
        segments = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        cells = (input_ids, attention_mask, segments)
        batch = Rectangle.of(*(each.flatten(0, -2) for each in cells))
        states = self._states(batch)
        found = [output for answer in self.answers for output in self._answer(answer, states, batch)]
        return [output.view(input_ids.shape[:2]) for output in found] if self.choosing else found

    def _states(self, batch: Rectangle) -> list[Tensor]:
        if VECTORS in self.answers:
            return self.model.encoder.hidden_states(batch, ops=PADDED)
        return [self.model.encoder(batch, ops=PADDED)]

    def _answer(self, answer: str, states: list[Tensor], batch: Rectangle) -> list[Tensor]:
        if answer == VECTORS:
            return [batch.rows(states[-1]), self._sentence(states, batch)]
        return named_outputs(answer, self._logits(answer, states[-1], batch))

    def _sentence(self, states: list[Tensor], batch: Rectangle) -> Tensor:
        x_TD = torch.cat([states[layer] for layer in self.embed.layers], dim=-1)
        pooled = POOLINGS[self.embed.one_vector().pooling].pool(batch.rows(x_TD), PaddedTokens(batch))
        return F.normalize(pooled, dim=-1) if self.embed.normalize else pooled

    def _logits(self, head: str, hidden_TD: Tensor, batch: Rectangle) -> Tensor:
        """As `BertModel.read`, with the pooling of rectangles."""
        reader, pooler = self.model.heads[head], self.model.pooler
        if reader.reads == "pooled":
            assert pooler is not None  # made with the head
            pooled: Tensor = reader(pooler.transform(_reduce(pooler, hidden_TD, batch)))
            return pooled
        return batch.rows(self.model.read(head, hidden_TD, batch))


def _reduce(pooler: Pooler, hidden_TD: Tensor, batch: Rectangle) -> Tensor:
    """N D: what the pooler's dense map reads of each sequence."""
    x_NLD = batch.rows(hidden_TD)
    scores_NL = None if pooler.query is None else pooler.query(x_NLD).squeeze(-1)
    return POOLINGS[pooler.pooling].pool(x_NLD, PaddedTokens(batch, scores_NL))


def _output_names(answer: str, alone: bool) -> tuple[str, ...]:
    if answer == VECTORS:
        return ("last_hidden_state", "sentence_embedding")
    head = HEADS[answer]
    return head.onnx if alone or len(head.onnx) > 1 else (head.onnx_beside or f"{answer}_logits",)


def named_outputs(head: str, logits: Tensor) -> list[Tensor]:
    """A head's outputs as the file names them: all in one, or each by itself."""
    return list(logits.unbind(dim=-1)) if len(HEADS[head].onnx) > 1 else [logits]
