"""What happens to a token's vector from layer to layer: how far it moves, and which word it would fill."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bertkit.inside.look.reading import Reading, states
from bertkit.model.model import BertModel
from bertkit.text.tokenizer import Tokenizer

TOP = 5  # words kept for each token and layer


@dataclass(frozen=True)
class Movement:
    """Cosines between one token's vectors at any two layers, and between different tokens at one layer."""

    cosines: Tensor  # L N N, where N counts the embeddings and every layer
    likeness: Tensor  # N: mean cosine between two different tokens; near 1, all vectors point one way


@dataclass(frozen=True)
class Lens:
    """The masked-word head's best words for every token at every layer: the logit lens."""

    ids: Tensor  # L N TOP
    probabilities: Tensor  # L N TOP
    words: dict[int, str]  # how each id is written


def movement(reading: Reading) -> Movement:
    """How the vectors turn on their way up."""
    vectors_NLD = F.normalize(torch.stack(states(reading)).float(), dim=-1)
    cosines = torch.einsum("nld,mld->lnm", vectors_NLD, vectors_NLD)
    length = vectors_NLD.shape[1]
    # The square of the sum holds every pair twice and every token with itself once.
    pairs = vectors_NLD.sum(dim=1).square().sum(dim=-1) - length
    return Movement(cosines, pairs / max(length * (length - 1), 1))


def lens(model: BertModel, tokenizer: Tokenizer, reading: Reading, top: int = TOP) -> Lens | None:
    """What the model would fill if it stopped at each layer; None for a model that cannot fill blanks."""
    if not model.fills:
        return None
    top = min(top, tokenizer.size)
    best = []
    *early, last = states(reading)
    with torch.inference_mode():
        for state in [*(model.encoder.norm(state) for state in early), last]:  # the head is used to normalized vectors
            logits_LV = model.read("masked_word", state.to(model.encoder.dtype), reading.batch)
            best.append(logits_LV[:, : tokenizer.size].float().softmax(dim=-1).topk(top))
    ids = torch.stack([each.indices for each in best], dim=1).cpu()
    probabilities = torch.stack([each.values for each in best], dim=1).cpu()
    known = sorted(set(ids.flatten().tolist()))
    return Lens(ids, probabilities, {number: tokenizer.written(number) for number in known})
