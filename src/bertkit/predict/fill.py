"""The blanks of a text, with probabilities."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bertkit.errors import RequestError
from bertkit.model.model import BertModel
from bertkit.predict.engine import cut, make_batch, window_passages
from bertkit.predict.length import TooLong, best_window, report_lengths
from bertkit.text.tokenizer import Encoding, Tokenizer


@dataclass(frozen=True)
class Filled:
    """One candidate for one blank."""

    word: str
    probability: float
    text: str  # the text with this blank filled
    blank: int = 0  # which blank of the text, from the left


def fill(model: BertModel, tokenizer: Tokenizer, text: str, *, top: int, limit: int, too_long: TooLong) -> list[Filled]:
    """The `top` words for each blank, blank by blank, best first."""
    if "masked_word" not in model.heads:
        raise RequestError(
            "this model has no masked-word head, so it cannot fill; load one that was saved with its head"
        )
    if not 1 <= top <= model.config.vocab_size:
        raise RequestError(f"top={top} must be from 1 to the vocabulary's {model.config.vocab_size}")
    encoding = tokenizer.encode(text)
    places = [place for place, token in enumerate(encoding.ids) if token == tokenizer.mask_id]
    if not places:
        raise RequestError(f"the text has no blank: write {tokenizer.mask_token} where a word is missing")
    report_lengths([len(encoding.ids)], limit, too_long)
    with torch.inference_mode():
        logits_NV = torch.stack([_logits(model, encoding, place, limit, too_long) for place in places])
    best = logits_NV.softmax(dim=-1).topk(top)
    filled = []
    for blank, place in enumerate(places):
        for probability, token in zip(best.values[blank].tolist(), best.indices[blank].tolist(), strict=True):
            word = tokenizer.decode([token]).strip() or tokenizer.tokens([token])[0]
            filled.append(Filled(word, probability, _filled_text(text, encoding.offsets[place], word), blank))
    return filled


def _logits(model: BertModel, encoding: Encoding, place: int, limit: int, too_long: TooLong) -> Tensor:
    """V: the head at one position, seen whole, cut, or in the window that shows most around it."""
    passage = cut(encoding, limit)
    if len(encoding.ids) > limit and too_long == "window":
        passages, spans = window_passages(encoding, limit)
        window = best_window(spans, place - 1)
        passage, place = passages[window], place - spans[window][0]
    elif place >= len(passage.ids) - 1:
        raise RequestError(
            f"the blank is token {place}, beyond the {limit} that are kept; use windows or shorten the text"
        )
    batch = make_batch([passage], next(model.parameters()).device)
    logits: Tensor = model.read("masked_word", model(batch)[place : place + 1], batch)[0]
    return logits.float().cpu()


def _filled_text(text: str, span: Sequence[int], word: str) -> str:
    """A continuation piece (##ing) is joined to what stands before it."""
    start, end = span
    before = text[:start]
    if word.startswith("##"):
        before, word = before.rstrip(), word.removeprefix("##")
    return before + word + text[end:]
