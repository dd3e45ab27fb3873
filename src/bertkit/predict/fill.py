"""Masked words: the most probable words for each blank, a [MASK], of a text."""

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from bertkit.engine.batches import Passage, last_layer, truncate, window_passages
from bertkit.engine.threads import threads_for
from bertkit.errors import RequestError, warn
from bertkit.model.model import BertModel
from bertkit.text.characters import in_word
from bertkit.text.length import LengthReport, TooLong, report_lengths
from bertkit.text.tokenizer import Encoding, Tokenizer
from bertkit.text.windows import window_cuts

BLANK = re.compile(r"_{2,}|<mask>|\[mask\]", re.IGNORECASE)  # ways to write a blank besides the model's own token
BlankKind = Literal["word", "rest", "any"]  # what may be filled in: a whole word, the rest of one, or either
MAX_BLANKS = 1000  # of one text: every candidate carries the whole text


@dataclass(frozen=True)
class Filled:
    """One candidate for one blank."""

    word: str
    probability: float
    text: str  # the text with this blank filled
    blank: int = 0  # which blank of the text, from the left


@dataclass(frozen=True)
class Blanks:
    """The blanks of a text, and the sequences in which the model reads them."""

    text: str
    encoding: Encoding
    positions: list[int]  # token positions of the blanks
    kinds: tuple[BlankKind, ...] | None  # of the blanks; None: every token is a candidate
    report: LengthReport

    @cached_property
    def views(self) -> list[tuple[Passage, list[tuple[int, int]]]]:
        """The sequences that the model reads, each with its blanks: (number of the blank, position in the sequence)."""
        return _views(self.encoding, self.positions, self.report.limit, self.report.policy)

    def kinds_in(self, inside: Sequence[tuple[int, int]]) -> tuple[BlankKind, ...] | None:
        """The kinds of the blanks of a view."""
        return None if self.kinds is None else tuple(self.kinds[blank] for blank, _ in inside)


def fill(model: BertModel, tokenizer: Tokenizer, blanks: Blanks, top: int) -> list[Filled]:
    """The `top` words for each blank, blank by blank, best first."""
    if blanks.report.long:
        warn(str(blanks.report))
    best = [_read_blanks(model, tokenizer, blanks, *view, top) for view in blanks.views]
    return fill_blanks(tokenizer, blanks, [(values.tolist(), tokens.tolist()) for values, tokens in best])


def find_blanks(
    model: BertModel,
    tokenizer: Tokenizer,
    text: str,
    *,
    top: int,
    limit: int,
    too_long: TooLong,
    whole_words: bool = True,
) -> Blanks:
    """The blanks of a text; a model, text or `top` that cannot work is refused here."""
    if "masked_word" not in model.heads:
        raise RequestError(
            "this model has no masked-word head, so it cannot fill; load one that was saved with its head"
        )
    if not model.fills:
        reads = "reads from left to right" if model.config.parts.causal else "reads each side apart"
        raise RequestError(
            f"this model {reads}, so it cannot fill a blank from the words before and after it; load one "
            "that was pre-trained with objective=mlm"
        )
    if isinstance(top, bool) or not isinstance(top, int) or not 1 <= top <= tokenizer.size:
        raise RequestError(f"top={top} must be from 1 to the vocabulary's {tokenizer.size}")
    text = mark_blanks(text, tokenizer.mask_token)
    encoding = tokenizer.encode(text)
    positions = [position for position, token in enumerate(encoding.ids) if token == tokenizer.mask_id]
    if not positions:
        raise RequestError(f"the text has no blank: write {tokenizer.mask_token} or ___ where a word is missing")
    if len(positions) > MAX_BLANKS:
        raise RequestError(f"the text has {len(positions):,} blanks; at most {MAX_BLANKS:,} are filled at a time")
    report = report_lengths([len(encoding.ids)], limit, too_long)
    kinds = blank_kinds(tokenizer, text, encoding, positions) if whole_words else None
    return Blanks(text, encoding, positions, kinds, report)


def blank_kinds(tokenizer: Tokenizer, text: str, encoding: Encoding, positions: Sequence[int]) -> tuple[BlankKind, ...]:
    """The kind of each blank by what is directly before it: after a letter or digit it is the rest of a word.

    Vocabularies with a mark for the space before a token read a blank alike with and without a space before it, and
    the first word of a text has no mark: then it may be either.
    """
    spans = [word_span(text, encoding.offsets[position]) for position in positions]
    ends = {end for _, end in spans}

    def kind(start: int) -> BlankKind:
        before = text[:start][-1:]
        if start in ends or (tokenizer.marks_spaces and not before.isspace()):
            return "any"
        return "rest" if before and in_word(before) else "word"

    return tuple(kind(start) for start, _ in spans)


def word_span(text: str, span: tuple[int, int]) -> tuple[int, int]:
    """Characters of a blank, without the space before it that some mask tokens include."""
    start, end = span
    return end - len(text[start:end].lstrip()), end


def mark_blanks(text: str, mask: str) -> str:
    """The text with every blank written as the model's mask token; one that has this token already stays as it is.

    >>> mark_blanks("Paris is the ___ of <mask>.", "[MASK]")
    'Paris is the [MASK] of [MASK].'
    """
    return text if mask in text else BLANK.sub(lambda _: mask, text)


def fill_blanks(
    tokenizer: Tokenizer, blanks: Blanks, best: Sequence[tuple[list[list[float]], list[list[int]]]]
) -> list[Filled]:
    """Candidates from the best (probabilities, ids) of each view, [blanks, top] each."""
    filled = []
    for (_, inside), (probabilities, tokens) in zip(blanks.views, best, strict=True):
        for (blank, _), row, words in zip(inside, probabilities, tokens, strict=True):
            span = blanks.encoding.offsets[blanks.positions[blank]]
            pairs = [pair for pair in zip(words, row, strict=True) if pair[1] >= 0]
            filled += [fill_in(tokenizer, blanks.text, span, *pair, blank) for pair in pairs]
    return sorted(filled, key=lambda candidate: candidate.blank)  # stable: best first within each blank


def _views(
    encoding: Encoding, positions: Sequence[int], limit: int, too_long: TooLong
) -> list[tuple[Passage, list[tuple[int, int]]]]:
    """The sequences that the model reads: the whole text, its beginning, or those of its windows that have blanks."""
    if len(encoding.ids) <= limit or too_long == "truncate":
        passage = truncate(encoding, limit)
        lost = [position for position in positions if position >= len(passage.ids) - (len(encoding.ids) > limit)]
        if lost:
            raise RequestError(
                f"the blank at token {lost[0]} is beyond the {limit} that are kept; use windows or shorten the text"
            )
        return [(passage, list(enumerate(positions)))]
    passages, spans = window_passages(encoding, limit)
    cuts = window_cuts(spans)
    by_window: dict[int, list[tuple[int, int]]] = {}
    for blank, position in enumerate(positions):
        window = bisect_right(cuts, position - 1, hi=len(spans)) - 1
        by_window.setdefault(window, []).append((blank, position - spans[window][0]))
    return [(passages[window], inside) for window, inside in by_window.items()]


def _read_blanks(
    model: BertModel, tokenizer: Tokenizer, blanks: Blanks, passage: Passage, inside: list[tuple[int, int]], top: int
) -> tuple[Tensor, Tensor]:
    """`best_tokens` of the blanks of one view."""
    with torch.inference_mode(), threads_for(len(passage.ids), model.device):
        batch, hidden_TD = last_layer(model.encoder, [passage], model.device)
        logits_NV = model.read("masked_word", hidden_TD[[position for _, position in inside]], batch)
        return best_tokens(logits_NV, tokenizer, blanks.kinds_in(inside), top)


def best_tokens(
    logits_NV: Tensor, tokenizer: Tokenizer, kinds: Sequence[BlankKind] | None, top: int
) -> tuple[Tensor, Tensor]:
    """Probabilities and ids, [blanks, top] each; a token that is no candidate for its blank has a probability of -1.

    Rows of the embedding table beyond the vocabulary are no tokens.
    """
    probabilities_NV = logits_NV[:, : tokenizer.size].float().softmax(dim=-1)
    if kinds is not None:
        masks = candidate_tokens(tokenizer)
        allowed_NV = torch.stack([masks[kind] for kind in kinds]).to(logits_NV.device)
        probabilities_NV = probabilities_NV.masked_fill(~allowed_NV, -1.0)
    best = probabilities_NV.topk(top)
    return best.values.cpu(), best.indices.cpu()


def candidate_tokens(tokenizer: Tokenizer) -> dict[BlankKind, Tensor]:
    """V bool: the candidates for each kind of blank; special tokens are never among them."""
    words, starts = map(torch.from_numpy, (tokenizer.word_tokens, tokenizer.word_starts))
    return {"word": starts, "rest": words & ~starts, "any": words}


def fill_in(
    tokenizer: Tokenizer, text: str, span: tuple[int, int], token: int, probability: float, blank: int
) -> Filled:
    """One candidate; a piece that continues a word is written ##piece, and joined to the text before the blank."""
    word = tokenizer.decode([token]).strip().removeprefix("##") or tokenizer.tokens([token])[0]
    start, end = word_span(text, span)
    before = text[:start][-1:]
    # The first word of a text, or after a bracket, has no mark of a space.
    unmarked = tokenizer.marks_spaces and not (before and (before.isspace() or in_word(before)))
    if unmarked or tokenizer.starts_word(token):
        return Filled(word, probability, text[:start] + word + text[end:], blank)
    return Filled(f"##{word}", probability, text[:start].rstrip() + word + text[end:], blank)
