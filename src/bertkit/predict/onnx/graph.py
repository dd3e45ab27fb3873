"""The model as a graph of fixed steps: a padded rectangle in, named answers out. What ONNX can say.

The layers, norms and heads are the model's own; only what asks for lengths is written anew over rectangles: the
operation `attend`, and pooling. Padding may stand anywhere: the mask alone says which cells count, and positions are
counted over those.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertkit.model.attention_pattern import AttentionPattern, AttentionWindow
from bertkit.model.batch import Batch, Layout
from bertkit.model.heads import Pooler
from bertkit.model.model import BertModel
from bertkit.model.operations import Operations
from bertkit.model.pooling import EmbedSettings
from bertkit.settings import pick

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


def _mean(x_NLD: Tensor, batch: Rectangle) -> Tensor:
    mask_NL1 = batch.mask[:, :, None].to(x_NLD.dtype)
    return (x_NLD * mask_NL1).sum(dim=1) / mask_NL1.sum(dim=1).clamp(min=1)


def _maximum(x_NLD: Tensor, batch: Rectangle) -> Tensor:
    return x_NLD.masked_fill(~batch.mask[:, :, None], LOWEST).amax(dim=1)


def _first(x_NLD: Tensor, batch: Rectangle) -> Tensor:
    return _at(x_NLD, batch, torch.zeros_like(batch.places[:, :1]))


def _last(x_NLD: Tensor, batch: Rectangle) -> Tensor:
    return _at(x_NLD, batch, batch.mask.sum(dim=1, keepdim=True) - 1)


def _mean_max(x_NLD: Tensor, batch: Rectangle) -> Tensor:
    return torch.cat((_mean(x_NLD, batch), _maximum(x_NLD, batch)), dim=-1)


def _at(x_NLD: Tensor, batch: Rectangle, place_N1: Tensor) -> Tensor:
    """N D: the vector at one place of each sequence, wherever its padding stands."""
    chosen_NL = batch.mask & (batch.places == place_N1)
    return (x_NLD * chosen_NL[:, :, None].to(x_NLD.dtype)).sum(dim=1)


# The twins of model/pooling.py.
POOLINGS: dict[str, Callable[[Tensor, Rectangle], Tensor]] = {
    "cls": _first,
    "first": _first,
    "last": _last,
    "mean": _mean,
    "max": _maximum,
    "mean-max": _mean_max,
}


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
        return self.answers == ("choose",)

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
        logits = self._logits(answer, states[-1], batch)
        return list(logits.unbind(dim=-1)) if answer == "answer" else [logits]

    def _sentence(self, states: list[Tensor], batch: Rectangle) -> Tensor:
        x_TD = torch.cat([states[layer] for layer in self.embed.layers], dim=-1)
        pooled = pick(POOLINGS, self.embed.pooling, "pooling of one vector per text")(batch.rows(x_TD), batch)
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
    if pooler.query is None:
        return POOLINGS[pooler.pooling](x_NLD, batch)
    scores_NL1 = pooler.query(x_NLD).masked_fill(~batch.mask[:, :, None], LOWEST)
    weighed: Tensor = scores_NL1.softmax(dim=1) * x_NLD
    return weighed.sum(dim=1)


def _output_names(answer: str, alone: bool) -> tuple[str, ...]:
    if answer == VECTORS:
        return ("last_hidden_state", "sentence_embedding")
    if answer == "answer":
        return ("start_logits", "end_logits")
    together = {"masked_word": "prediction_logits", "next_sentence": "seq_relationship_logits"}
    return ("logits",) if alone else (together.get(answer, f"{answer}_logits"),)
