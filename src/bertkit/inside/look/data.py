"""What a page shows, as JSON: queries and keys of every layer, from which it computes any weight itself.

Weights are not stored: 512 tokens in 144 heads have 38 million of them, but only 9 million queries and keys, and a
number computed from these is exact where a stored byte is not. Thumbnails are stored, for the view of all heads.
"""

import base64
import math
import zlib
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bertkit.inside.look.heads import catalogue
from bertkit.inside.look.reading import Reading, states
from bertkit.model.attention import AttentionWindow
from bertkit.model.encoder import LayerTrace
from bertkit.model.model import BertModel
from bertkit.predict.bert import Bert
from bertkit.text.tokenizer import Tokenizer

EXACT_BYTES = 16_000_000  # queries and keys up to this size are kept in float32, larger ones in float16
THUMBNAIL = 32  # pixels; more is not seen in a grid of 12 x 12
MOST_TEXT = 20_000  # characters of the text shown above the views
TOP = 5  # words kept for each token and layer
DTYPES = {"float32": np.float32, "float16": np.float16, "uint32": np.uint32, "uint8": np.uint8}


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


def page_data(bert: Bert, reading: Reading) -> dict[str, Any]:
    """Everything the page's `mount(element, data)` takes."""
    config, trace = bert.model.config, reading.trace
    numbers = 2 * config.depth * config.width * len(reading.tokens)
    dtype = "float32" if 4 * numbers <= EXACT_BYTES else "float16"
    windows = [layer.attention.window for layer in bert.model.encoder.stack]
    return {
        "model": f"{config.family}, {config.depth} layers of {config.width}, {config.heads} heads",
        "text": reading.text[:MOST_TEXT],
        "pair": None if reading.pair is None else reading.pair[:MOST_TEXT],
        "cutFrom": reading.cut_from,
        "tokens": list(reading.tokens),
        "parts": list(reading.parts),
        "heads": config.heads,
        "precision": dtype,
        "layers": [_layer(layer, window, dtype) for layer, window in zip(trace.layers, windows, strict=True)],
        "thumbnails": pack(_thumbnails(trace.layers), "uint8"),
        "movement": _movement(reading),
        "lens": _lens(lens(bert.model, bert.tokenizer, reading)),
        "catalogue": [_rounded(asdict(row)) for row in catalogue([reading])],
    }


def _layer(layer: LayerTrace, window: AttentionWindow, dtype: str) -> dict[str, Any]:
    """Queries and keys, 2 H L K, and each row's normalizer, H L: weight = exp(q . k / sqrt(K) - normalizer)."""
    precision = torch.float32 if dtype == "float32" else torch.float16
    both = torch.stack([layer.queries, layer.keys]).transpose(1, 2).to(precision)
    return {
        "radius": window.radius,
        "causal": window.causal,
        "queriesKeys": pack(both, dtype),
        "normalizers": pack(_normalizers(both.float(), window), "float32"),
    }


def _normalizers(both_2HLK: Tensor, window: AttentionWindow) -> Tensor:
    """H L: log of the sum of exp(scores) over what a token may see, from the numbers that the page has."""
    queries, keys = both_2HLK
    scores_HLL = queries @ keys.transpose(1, 2) / math.sqrt(queries.shape[-1])
    seen = window.mask(queries.shape[1], queries.device)
    if seen is not None:
        scores_HLL = scores_HLL.masked_fill(~seen, float("-inf"))
    sums: Tensor = scores_HLL.logsumexp(dim=-1)
    return sums


def _thumbnails(layers: tuple[LayerTrace, ...]) -> Tensor:
    """Bytes, depth H S S: the largest weight of each patch, as a square root so that faint ones show."""
    size = min(THUMBNAIL, layers[0].weights.shape[-1])
    small = torch.stack([F.adaptive_max_pool2d(layer.weights.float(), size) for layer in layers])
    return (small.sqrt() * 255).round().to(torch.uint8)


def _movement(reading: Reading) -> dict[str, Any]:
    found = movement(reading)
    return {"cosines": pack(found.cosines, "float16"), "likeness": [round(x, 4) for x in found.likeness.tolist()]}


def _lens(found: Lens | None) -> dict[str, Any] | None:
    if found is None:
        return None
    known = {number: index for index, number in enumerate(found.words)}
    indices = found.ids.clone().apply_(known.__getitem__)
    return {
        "words": list(found.words.values()),
        "best": pack(indices, "uint32"),
        "probabilities": pack(found.probabilities, "float32"),
    }


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in row.items()}


def pack(tensor: Tensor | np.ndarray, dtype: str) -> dict[str, Any]:
    """An array of any shape as {dtype, shape, data}.

    All first bytes come first, then all second bytes, little-endian: the exponents of neighbors are alike, and
    deflate finds that only when they stand together (a random BERT-base's in float16: 85 %, not 92 %).
    """
    array = tensor.detach().cpu().numpy() if isinstance(tensor, torch.Tensor) else tensor
    array = np.ascontiguousarray(array, dtype=np.dtype(DTYPES[dtype]).newbyteorder("<"))
    planes = np.ascontiguousarray(array.reshape(-1).view(np.uint8).reshape(-1, array.itemsize).T)
    data = base64.b64encode(zlib.compress(planes.tobytes(), level=6)).decode("ascii")
    return {"dtype": dtype, "shape": list(array.shape), "data": data}


def unpack(packed: dict[str, Any]) -> np.ndarray:
    """The way back: what the page does, in Python."""
    kind = np.dtype(DTYPES[packed["dtype"]]).newbyteorder("<")
    planes = np.frombuffer(zlib.decompress(base64.b64decode(packed["data"])), dtype=np.uint8)
    planes = planes.reshape(kind.itemsize, -1)
    return np.ascontiguousarray(planes.T).view(kind).reshape(packed["shape"])
