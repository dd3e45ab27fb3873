"""What every layer computed for a text or a pair; of an encoder-decoder, what the decoder computed for a target."""

from dataclasses import dataclass

import torch

from bertkit.checkpoint.save_load import Checkpoint
from bertkit.engine.batches import Passage, known_segments, make_batch
from bertkit.errors import RequestError
from bertkit.model.batch import Batch
from bertkit.model.encoder import Trace
from bertkit.model.operations import Source
from bertkit.text.length import report_lengths
from bertkit.text.tokenizer import Encoding


@dataclass(frozen=True, repr=False)
class TextTrace(Trace):
    """Every layer's tensors for one text, and its tokens."""

    tokens: tuple[str, ...]
    source: tuple[str, ...] = ()  # of a decoder's trace: the tokens that `cross_weights` are over

    def __repr__(self) -> str:
        return f"TextTrace({len(self.tokens)} tokens, {len(self.layers)} layers of {self.output.shape[-1]})"


@dataclass(frozen=True)
class TracedTarget:
    """The tokens of both texts, and the decoder's trace with its weights over the source (`cross_weights`)."""

    source: Encoding
    target: Encoding  # the start token, then the tokens of the target: position i predicts token i + 1
    batch: Batch  # of the target
    trace: Trace


def trace_text(checkpoint: Checkpoint, text: str, pair: str | None = None) -> TextTrace:
    """The encoder's trace for a text or pair; the decoder's, if there is one, for a source and its target."""
    model, tokenizer = checkpoint.model, checkpoint.required_tokenizer
    if pair is not None and model.decoder is not None:
        traced = trace_target(checkpoint, text, pair)
        tokens, source = (tuple(tokenizer.tokens(each.ids)) for each in (traced.target, traced.source))
        return TextTrace(traced.trace.embeddings, traced.trace.layers, traced.trace.output, tokens, source)
    encoding = tokenizer.encode(text, pair)
    report_lengths([len(encoding.ids)], checkpoint.max_length, "refuse")
    with torch.inference_mode():
        passage = Passage(encoding.ids, known_segments(model.config, encoding.segments))
        trace = model.encoder.trace(make_batch([passage], model.device))
    return TextTrace(trace.embeddings, trace.layers, trace.output, tuple(tokenizer.tokens(encoding.ids)))


def trace_target(checkpoint: Checkpoint, source: str, target: str) -> TracedTarget:
    """Read the source, then follow the decoder through the target; a text over the limit is refused."""
    from bertkit.predict.write import Writer

    model, tokenizer = checkpoint.model, checkpoint.required_tokenizer
    if model.decoder is None:
        raise RequestError("this model has no decoder; give it one text, or a pair")
    read, written = tokenizer.encode(source), _with_start(tokenizer.encode(target), Writer(checkpoint).start_id)
    for name, tokens in (("source", len(read)), ("target", len(written))):
        if tokens > checkpoint.max_length:
            raise RequestError(f"the {name} has {tokens} tokens, over the limit of {checkpoint.max_length}; shorten it")
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
