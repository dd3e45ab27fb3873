"""The blanks of a text, with probabilities."""

import warnings
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bertkit.engine.batches import Passage, last_layer, truncate, window_passages
from bertkit.engine.threads import threads_for
from bertkit.errors import BertkitWarning, RequestError
from bertkit.model.model import BertModel
from bertkit.text.length import LengthReport, TooLong, report_lengths
from bertkit.text.tokenizer import Encoding, Tokenizer
from bertkit.text.windows import window_cuts

MOST_BLANKS = 1000  # every candidate carries the whole text


@dataclass(frozen=True)
class Filled:
    """One candidate for one blank."""

    word: str
    probability: float
    text: str  # the text with this blank filled
    blank: int = 0  # which blank of the text, from the left


@dataclass(frozen=True)
class Blanks:
    """The blanks of a text, and in which sequences the model is shown which of them."""

    text: str
    encoding: Encoding
    places: list[int]  # of the blanks, as tokens
    report: LengthReport

    @cached_property
    def views(self) -> list[tuple[Passage, list[tuple[int, int]]]]:
        """What the model reads, each with its blanks: (number, place in it)."""
        return _views(self.encoding, self.places, self.report.limit, self.report.policy)


def fill(model: BertModel, tokenizer: Tokenizer, text: str, *, top: int, limit: int, too_long: TooLong) -> list[Filled]:
    """The `top` words for each blank, blank by blank, best first."""
    blanks = find_blanks(model, tokenizer, text, top=top, limit=limit, too_long=too_long)
    if blanks.report.long:
        warnings.warn(str(blanks.report), BertkitWarning, stacklevel=3)
    best = [
        _best(model, passage, [place for _, place in inside], top, tokenizer.size) for passage, inside in blanks.views
    ]
    return fill_blanks(tokenizer, blanks, [(chances.tolist(), tokens.tolist()) for chances, tokens in best])


def find_blanks(
    model: BertModel, tokenizer: Tokenizer, text: str, *, top: int, limit: int, too_long: TooLong
) -> Blanks:
    """Where the blanks are and what the model has to read; a request that cannot be filled stops here."""
    if "masked_word" not in model.heads:
        raise RequestError(
            "this model has no masked-word head, so it cannot fill; load one that was saved with its head"
        )
    if not model.fills:
        raise RequestError(
            "this model reads from left to right, so it cannot fill a blank from the words after it; "
            "load one that was pre-trained with objective=mlm"
        )
    if isinstance(top, bool) or not isinstance(top, int) or not 1 <= top <= tokenizer.size:
        raise RequestError(f"top={top} must be from 1 to the vocabulary's {tokenizer.size}")
    encoding = tokenizer.encode(text)
    places = [place for place, token in enumerate(encoding.ids) if token == tokenizer.mask_id]
    if not places:
        raise RequestError(f"the text has no blank: write {tokenizer.mask_token} where a word is missing")
    if len(places) > MOST_BLANKS:
        raise RequestError(f"the text has {len(places):,} blanks; at most {MOST_BLANKS:,} are filled at a time")
    report = report_lengths([len(encoding.ids)], limit, too_long)
    return Blanks(text, encoding, places, report)


def fill_blanks(
    tokenizer: Tokenizer, blanks: Blanks, best: Sequence[tuple[list[list[float]], list[list[int]]]]
) -> list[Filled]:
    """Candidates from the best (probabilities, ids) of each view, [blanks, top] each."""
    filled = []
    for (_, inside), (probabilities, tokens) in zip(blanks.views, best, strict=True):
        for (blank, _), row, words in zip(inside, probabilities, tokens, strict=True):
            span = blanks.encoding.offsets[blanks.places[blank]]
            filled += [put_in(tokenizer, blanks.text, span, *pair, blank) for pair in zip(words, row, strict=True)]
    return sorted(filled, key=lambda candidate: candidate.blank)  # stable: best first within each blank


def _views(
    encoding: Encoding, places: Sequence[int], limit: int, too_long: TooLong
) -> list[tuple[Passage, list[tuple[int, int]]]]:
    """What the model reads, and which blanks it shows where: the whole text, its beginning, or some of its windows."""
    if len(encoding.ids) <= limit or too_long == "truncate":
        passage = truncate(encoding, limit)
        lost = [place for place in places if place >= len(passage.ids) - (len(encoding.ids) > limit)]
        if lost:
            raise RequestError(
                f"the blank at token {lost[0]} is beyond the {limit} that are kept; use windows or shorten the text"
            )
        return [(passage, list(enumerate(places)))]
    passages, spans = window_passages(encoding, limit)
    cuts = window_cuts(spans)
    shown: dict[int, list[tuple[int, int]]] = {}
    for blank, place in enumerate(places):
        window = bisect_right(cuts, place - 1, hi=len(spans)) - 1
        shown.setdefault(window, []).append((blank, place - spans[window][0]))
    return [(passages[window], inside) for window, inside in shown.items()]


def _best(model: BertModel, passage: Passage, places: Sequence[int], top: int, known: int) -> tuple[Tensor, Tensor]:
    """Probabilities and ids, [blanks, top] each; rows of the table beyond the vocabulary are no words."""
    with torch.inference_mode(), threads_for(len(passage.ids), model.device):
        batch, hidden_TD = last_layer(model.encoder, [passage], model.device)
        logits_NV = model.read("masked_word", hidden_TD[list(places)], batch)[:, :known].float()
        best = logits_NV.softmax(dim=-1).topk(top)
        return best.values.cpu(), best.indices.cpu()


def put_in(
    tokenizer: Tokenizer, text: str, span: tuple[int, int], token: int, probability: float, blank: int
) -> Filled:
    """One candidate; a piece that continues a word is written ##piece and joined to what stands before the blank."""
    word = tokenizer.decode([token]).strip().removeprefix("##") or tokenizer.tokens([token])[0]
    start, end = span
    start += len(text[start:end]) - len(text[start:end].lstrip())  # some vocabularies' blanks take the space before
    if tokenizer.starts_word(token):
        return Filled(word, probability, text[:start] + word + text[end:], blank)
    return Filled(f"##{word}", probability, text[:start].rstrip() + word + text[end:], blank)
