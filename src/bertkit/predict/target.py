"""A source and a target through an encoder-decoder: what every layer of the decoder computed for the target."""

from dataclasses import dataclass

import torch

from bertkit.engine.batches import Passage, make_batch
from bertkit.errors import RequestError
from bertkit.model.batch import Batch
from bertkit.model.encoder import Trace
from bertkit.model.model import BertModel
from bertkit.model.operations import Source
from bertkit.text.tokenizer import Encoding, Tokenizer


@dataclass(frozen=True)
class TracedTarget:
    """The tokens of both texts, and the decoder's trace with its weights over the source (`cross_weights`)."""

    source: Encoding
    target: Encoding  # the start token, then the tokens of the target: position i predicts token i + 1
    batch: Batch  # of the target
    trace: Trace


def trace_target(
    model: BertModel, tokenizer: Tokenizer, start_id: int, limit: int, source: str, target: str
) -> TracedTarget:
    """Read the source, then follow the decoder through the target; a text over the limit is refused."""
    if model.decoder is None:
        raise RequestError("this model has no decoder; give it one text, or a pair")
    read, written = tokenizer.encode(source), _with_start(tokenizer.encode(target), start_id)
    for name, tokens in (("source", len(read)), ("target", len(written))):
        if tokens > limit:
            raise RequestError(f"the {name} has {tokens} tokens, over the limit of {limit}; shorten it")
    with torch.inference_mode():
        source_batch = make_batch([Passage(read.ids, [0] * len(read))], model.device)
        batch = make_batch([Passage(written.ids, written.segments)], model.device)
        trace = model.decoder.stack.trace(batch, Source(model.encoder(source_batch), source_batch))
    return TracedTarget(read, written, batch, trace)


def _with_start(encoding: Encoding, start_id: int) -> Encoding:
    """The tokens of a text after the decoder's start token, without other special tokens."""
    kept = [position for position, special in enumerate(encoding.special) if not special]
    return Encoding(
        (start_id, *(encoding.ids[position] for position in kept)),
        (0,) * (1 + len(kept)),
        ((0, 0), *(encoding.offsets[position] for position in kept)),
        (None, *(encoding.words[position] for position in kept)),
    )
