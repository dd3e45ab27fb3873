"""The model as a module that ONNX can express: padded input of static rank, named outputs.

Layers, norms and heads are the model's own. Only what depends on sequence lengths is implemented for padded batches:
the operation `attend`, and pooling. Padding may be anywhere: the attention mask says which cells are tokens, and
positions count only these.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from bertkit.model.attention import AttentionPattern, AttentionWindow, Places
from bertkit.model.batch import Batch, Layout
from bertkit.model.heads import HEADS, Pooler
from bertkit.model.model import BertModel
from bertkit.model.operations import Operations
from bertkit.model.pooling import EmbedSettings, PackedTokens, cut_vectors
from bertkit.poolings import POOLINGS

VECTORS = "vectors"  # the answer that needs no head: embeddings
LOWEST = torch.finfo(torch.float32).min  # not -inf: the softmax of a fully masked row would be NaN


@dataclass(frozen=True)
class Rectangle(Batch):
    """A padded batch of N L cells. The layers compute all cells; no token attends to padding."""

    is_token: Tensor = field(kw_only=True)  # N L bool: the attention mask
    token_positions: Tensor = field(kw_only=True)  # N L: each cell's position among the tokens of its row

    @classmethod
    def of(cls, ids_NL: Tensor, mask_NL: Tensor, segments_NL: Tensor) -> "Rectangle":
        """From the inputs of the graph."""
        positions, length = (mask_NL.cumsum(dim=1) - 1).clamp(min=0), ids_NL.shape[1]
        layout = Layout(mask_NL.new_zeros(1), positions.flatten(), length, fixed=True)  # offsets are not read
        cells = {"is_token": mask_NL.bool(), "token_positions": positions}
        return cls(ids_NL.flatten(), segments_NL.flatten(), (), layout, **cells)

    def __post_init__(self) -> None:
        """Nothing to check: the mask replaces the lengths."""

    @property
    def mask(self) -> Tensor:
        """N L bool: which cells are tokens."""
        return self.is_token

    def rows(self, x_T: Tensor) -> Tensor:
        """T ... -> N L ..."""
        return x_T.view(*self.is_token.shape, *x_T.shape[1:])

    def attention_mask(self, window: AttentionWindow) -> Tensor:
        """N 1 (1 or L) L bool: which cells a token attends to."""
        mask, positions = self.is_token[:, None, None, :], self.token_positions
        distance = positions[:, None, :, None] - positions[:, None, None, :]
        if window.radius is not None:
            mask = mask & (distance.abs() <= window.radius)
        return mask & (distance >= 0) if window.causal else mask


class PaddedOperations(Operations):
    """Torch's operations, with attention over padded batches as matrix products that ONNX has."""

    def attend(self, qkv_TX: Tensor, batch: Batch, pattern: AttentionPattern, dropout: float) -> Tensor:
        """T 3D -> T D."""
        assert isinstance(batch, Rectangle)
        qkv = pattern.split(qkv_TX, batch).unbind(dim=1)
        queries, keys, values = (batch.rows(x_THK).transpose(1, 2) for x_THK in qkv)
        scale = 1 / math.sqrt(queries.shape[-1]) if pattern.bias is None else pattern.bias.scale
        scores_NHLL = queries @ keys.mT * scale
        if pattern.bias is not None:
            places = Places(batch.token_positions, batch.rows(batch.segments))
            scores_NHLL = scores_NHLL + pattern.bias(queries, keys, places)
        weights = scores_NHLL.masked_fill(~batch.attention_mask(pattern.window), LOWEST).softmax(dim=-1)
        return (weights @ values).transpose(1, 2).flatten(-2).flatten(0, 1)


PADDED = PaddedOperations()


@dataclass(frozen=True, slots=True)
class PaddedTokens(PackedTokens):
    """The tokens of a padded batch, as `Tokens`: x is N L D, weights and scores are N L."""

    batch: Rectangle

    @property
    def positions(self) -> Tensor:
        """N L."""
        return self.batch.token_positions + 1

    def first(self, x_NLD: Tensor) -> Tensor:
        """N D."""
        return self._at(x_NLD, torch.zeros_like(self.batch.token_positions[:, :1]))

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

    def _at(self, x_NLD: Tensor, position_N1: Tensor) -> Tensor:
        """N D: the vector of one token of each sequence, wherever its padding is."""
        chosen_NL = self.batch.mask & (self.batch.token_positions == position_N1)
        return (x_NLD * chosen_NL[:, :, None].to(x_NLD.dtype)).sum(dim=1)


class Graph(nn.Module):
    """A copy of the model, in float32 on the CPU, for padded inputs; it returns its `outputs`, in their order."""

    def __init__(self, model: BertModel, answers: Sequence[str], embed: EmbedSettings) -> None:
        super().__init__()
        self.model = copy.deepcopy(model).float().cpu().eval()
        self.answers = tuple(answers)
        self.dense = copy.deepcopy(embed.dense)  # registered as a module
        self.embed = replace(embed, layers=tuple(layer % (model.config.depth + 1) for layer in embed.layers))

    @property
    def inputs(self) -> tuple[str, ...]:
        """As Hugging Face's exports name them: a family without a second segment has no token_type_ids."""
        names = ("input_ids", "attention_mask")
        return (*names, "token_type_ids") if self.model.config.segments > 1 else names

    @property
    def outputs(self) -> tuple[str, ...]:
        """As Hugging Face's exports name them; with several heads, whose names would be the same, by the head."""
        single = len(self.answers) == 1
        return tuple(name for answer in self.answers for name in _output_names(answer, single))

    @property
    def choosing(self) -> bool:
        """Whether each row is a question with several choices: inputs N C L, as Hugging Face's."""
        return len(self.answers) == 1 and self.answers[0] in HEADS and HEADS[self.answers[0]].grouped

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> list[Tensor]:
        """Every output of every answer."""
        segments = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        cells = (input_ids, attention_mask, segments)
        batch = Rectangle.of(*(cell.flatten(0, -2) for cell in cells))
        states = self._hidden_states(batch)
        outputs = [output for answer in self.answers for output in self._answer(answer, states, batch)]
        return [output.view(input_ids.shape[:2]) for output in outputs] if self.choosing else outputs

    def _hidden_states(self, batch: Rectangle) -> list[Tensor]:
        """Of all layers where embeddings may need them, else of the last one."""
        if VECTORS in self.answers:
            return self.model.encoder.hidden_states(batch, ops=PADDED)
        return [self.model.encoder(batch, ops=PADDED)]

    def _answer(self, answer: str, states: list[Tensor], batch: Rectangle) -> list[Tensor]:
        if answer == VECTORS:
            return [batch.rows(states[-1]), self._sentence_embedding(states, batch)]
        return named_outputs(answer, self._logits(answer, states[-1], batch))

    def _sentence_embedding(self, states: list[Tensor], batch: Rectangle) -> Tensor:
        x_TD = torch.cat([states[layer] for layer in self.embed.layers], dim=-1)
        pooled = POOLINGS[self.embed.one_vector().pooling].pool(batch.rows(x_TD), PaddedTokens(batch))
        pooled = pooled if self.dense is None else self.dense(pooled)
        return cut_vectors(pooled, self.embed.dimensions, normalize=self.embed.normalize)

    def _logits(self, head: str, hidden_TD: Tensor, batch: Rectangle) -> Tensor:
        """As `BertModel.read`, with pooling over a padded batch."""
        reader, pooler = self.model.heads[head], self.model.pooler
        if reader.reads == "pooled":
            assert pooler is not None  # made with the head
            pooled: Tensor = reader(pooler.transform(_reduce(pooler, hidden_TD, batch)))
            return pooled
        return batch.rows(self.model.read(head, hidden_TD, batch))


def _reduce(pooler: Pooler, hidden_TD: Tensor, batch: Rectangle) -> Tensor:
    """N D: the input of the pooler's dense layer."""
    x_NLD = batch.rows(hidden_TD)
    scores_NL = None if pooler.query is None else pooler.query(x_NLD).squeeze(-1)
    return POOLINGS[pooler.pooling].pool(x_NLD, PaddedTokens(batch, scores_NL))


def _output_names(answer: str, single: bool) -> tuple[str, ...]:
    if answer == VECTORS:
        return ("last_hidden_state", "sentence_embedding")
    head = HEADS[answer]
    return head.onnx if single or len(head.onnx) > 1 else (head.onnx_beside or f"{answer}_logits",)


def named_outputs(head: str, logits: Tensor) -> list[Tensor]:
    """A head's outputs as the file has them: one tensor, or one for each named output."""
    return list(logits.unbind(dim=-1)) if len(HEADS[head].onnx) > 1 else [logits]
