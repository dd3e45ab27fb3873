"""The data of a page as JSON: queries and keys of every layer, from which the page computes attention weights.

Weights are not stored: 512 tokens in 144 heads have 38 million of them, but only 9 million numbers in queries and keys,
and weights computed from these are exact. Thumbnails of all heads are stored, for the model view.
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

from bertkit._version import __version__
from bertkit.inside.look.heads import catalogue
from bertkit.inside.look.reading import Reading, SourceText, states
from bertkit.inside.look.table import check_head
from bertkit.model.attention import AttentionWindow
from bertkit.model.encoder import LayerTrace
from bertkit.model.layer import SelfAttention
from bertkit.model.model import BertModel
from bertkit.predict.bert import Bert
from bertkit.text.tokenizer import Tokenizer

MAX_FLOAT32_BYTES = 16_000_000  # queries and keys over this size are stored in float16
THUMBNAIL_SIZE = 32  # pixels; more is not visible in a grid of 12 x 12
MAX_TEXT = 20_000  # characters of the text above the views
END = "⏹"  # the token after the last one of a target
LENS_WORDS = 5  # stored for each token and layer
DTYPES = {"float32": np.float32, "float16": np.float16, "uint32": np.uint32, "uint8": np.uint8}


@dataclass(frozen=True)
class Movement:
    """Cosines between the vectors of one token at two layers, and of different tokens at one layer."""

    cosines: Tensor  # L N N, where N counts the embeddings and every layer
    likeness: Tensor  # N: mean cosine between two different tokens; near 1 all vectors have about one direction


@dataclass(frozen=True)
class Lens:
    """The best words of the masked-word head for every token at every layer: the logit lens."""

    ids: Tensor  # L N W
    probabilities: Tensor  # L N W
    words: dict[int, str]  # the text of each id


def movement(reading: Reading) -> Movement:
    """How the vectors change from layer to layer."""
    vectors_NLD = F.normalize(torch.stack(states(reading)).float(), dim=-1)
    cosines = torch.einsum("nld,mld->lnm", vectors_NLD, vectors_NLD)
    length = vectors_NLD.shape[1]
    # The squared norm of the sum contains every pair twice and every token with itself once.
    pairs = vectors_NLD.sum(dim=1).square().sum(dim=-1) - length
    return Movement(cosines, pairs / max(length * (length - 1), 1))


def lens(model: BertModel, tokenizer: Tokenizer, reading: Reading, top: int = LENS_WORDS) -> Lens | None:
    """The words that the masked-word head predicts from each layer; None for a model without that head."""
    if not model.fills:
        return None
    top = min(top, tokenizer.size)
    best = []
    *early, last = states(reading)
    with torch.inference_mode():
        for state in [*(model.encoder.norm(state) for state in early), last]:  # the head expects normalized vectors
            logits_LV = model.read("masked_word", state.to(model.encoder.dtype), reading.batch)
            best.append(logits_LV[:, : tokenizer.size].float().softmax(dim=-1).topk(top))
    ids = torch.stack([layer.indices for layer in best], dim=1).cpu()
    probabilities = torch.stack([layer.values for layer in best], dim=1).cpu()
    words = {token_id: tokenizer.written(token_id) for token_id in sorted(set(ids.flatten().tolist()))}
    return Lens(ids, probabilities, words)


def page_data(bert: Bert, reading: Reading, *, head: tuple[int, int] | None = None) -> dict[str, Any]:
    """The data for `mount(element, data)` of the page, which begins with `head` (layer and head, counted from 1)."""
    decoder, trace = bert.model.decoder if reading.source else None, reading.trace
    stack = bert.model.encoder if decoder is None else decoder.stack
    config, heads = stack.config, len(trace.layers[0].weights)  # 0: recurrent layers
    if head is not None:
        check_head(reading, *head)
    numbers = 2 * config.depth * config.width * len(reading.tokens)
    dtype = "float32" if 4 * numbers <= MAX_FLOAT32_BYTES else "float16"
    part = "" if decoder is None else "the decoder of "
    rows = zip(trace.layers, stack.stack, strict=True) if heads else ()
    return {
        "name": bert.checkpoint.name or "in memory",
        "madeWith": f"bertkit {__version__}",
        "model": f"{part}{config.family}, {config.depth} layers of {config.width}, {heads} heads",
        "text": reading.text[:MAX_TEXT],
        "pair": None if reading.pair is None else reading.pair[:MAX_TEXT],
        "cutFrom": reading.cut_from,
        "tokens": list(reading.tokens),
        "special": list(reading.encoding.special),
        "parts": list(reading.parts),
        "heads": heads,
        "start": None if head is None else dict(zip(("layer", "head"), head, strict=True)),
        "precision": dtype,
        "layers": [_layer(traced, layer.attention, dtype) for traced, layer in rows],
        "thumbnails": pack(_thumbnails(trace.layers), "uint8") if heads else None,
        "source": None if reading.source is None else _source(reading, reading.source),
        "movement": _movement(reading),
        "lens": _lens(lens(bert.model, bert.tokenizer, reading)),
        "catalogue": [
            {name: round(value, 4) if isinstance(value, float) else value for name, value in asdict(row).items()}
            for row in (catalogue([reading]) if heads else ())
        ],
    }


def _source(reading: Reading, source: SourceText) -> dict[str, Any]:
    """A decoder's weights over the tokens of the source, H L S for each layer; row i leads to token `written[i]`."""
    crossed = [layer.cross_weights for layer in reading.trace.layers if layer.cross_weights is not None]
    return {
        "text": source.text[:MAX_TEXT],
        "tokens": list(source.tokens),
        "written": [*reading.tokens[1:], END],
        "heads": len(crossed[0]),
        "layers": [{"weights": pack(weights, "float32")} for weights in crossed],
    }


def _layer(layer: LayerTrace, attention: SelfAttention, dtype: str) -> dict[str, Any]:
    """Queries and keys, 2 H L K, and each row's normalizer, H L: weight = exp(q . k / sqrt(K) - normalizer).

    Where relative positions change the scores, the weights themselves are stored, too.
    """
    window = attention.window
    biased = {} if attention.relative is None else {"weights": pack(layer.weights, "float16")}
    precision = torch.float32 if dtype == "float32" else torch.float16
    both = torch.stack([layer.queries, layer.keys]).transpose(1, 2).to(precision)
    return {
        "radius": window.radius,
        "causal": window.causal,
        "queriesKeys": pack(both, dtype),
        "normalizers": pack(_normalizers(both.float(), window), "float32"),
        **biased,
    }


def _normalizers(both_2HLK: Tensor, window: AttentionWindow) -> Tensor:
    """H L: log-sum-exp of the scores over the tokens that a token attends to, from the stored queries and keys."""
    queries, keys = both_2HLK
    scores_HLL = queries @ keys.transpose(1, 2) / math.sqrt(queries.shape[-1])
    seen = window.mask(queries.shape[1], queries.device)
    if seen is not None:
        scores_HLL = scores_HLL.masked_fill(~seen, float("-inf"))
    sums: Tensor = scores_HLL.logsumexp(dim=-1)
    return sums


def _thumbnails(layers: tuple[LayerTrace, ...]) -> Tensor:
    """Bytes, depth H S S: the square root, so that small weights are visible, of the largest weight in each patch."""
    size = min(THUMBNAIL_SIZE, layers[0].weights.shape[-1])
    small = torch.stack([F.adaptive_max_pool2d(layer.weights.float(), size) for layer in layers])
    return (small.sqrt() * 255).round().to(torch.uint8)


def _movement(reading: Reading) -> dict[str, Any]:
    vectors = movement(reading)
    return {"cosines": pack(vectors.cosines, "float16"), "likeness": [round(x, 4) for x in vectors.likeness.tolist()]}


def _lens(words: Lens | None) -> dict[str, Any] | None:
    if words is None:
        return None
    index_of = {token_id: index for index, token_id in enumerate(words.words)}
    indices = words.ids.clone().apply_(index_of.__getitem__)
    return {
        "words": list(words.words.values()),
        "best": pack(indices, "uint32"),
        "probabilities": pack(words.probabilities, "float32"),
    }


def pack(tensor: Tensor | np.ndarray, dtype: str) -> dict[str, Any]:
    """An array of any shape as {dtype, shape, data}, compressed.

    All first bytes come first, then all second bytes, little-endian: exponents of neighbors are alike, and compress
    better side by side (a random BERT-base in float16: to 85 % instead of 92 %).
    """
    array = tensor.detach().cpu().numpy() if isinstance(tensor, torch.Tensor) else tensor
    array = np.ascontiguousarray(array, dtype=np.dtype(DTYPES[dtype]).newbyteorder("<"))
    planes = np.ascontiguousarray(array.reshape(-1).view(np.uint8).reshape(-1, array.itemsize).T)
    data = base64.b64encode(zlib.compress(planes.tobytes(), level=6)).decode("ascii")
    return {"dtype": dtype, "shape": list(array.shape), "data": data}


def unpack(packed: dict[str, Any]) -> np.ndarray:
    """The inverse of `pack`, as the page does it."""
    kind = np.dtype(DTYPES[packed["dtype"]]).newbyteorder("<")
    planes = np.frombuffer(zlib.decompress(base64.b64decode(packed["data"])), dtype=np.uint8)
    planes = planes.reshape(kind.itemsize, -1)
    return np.ascontiguousarray(planes.T).view(kind).reshape(packed["shape"])
