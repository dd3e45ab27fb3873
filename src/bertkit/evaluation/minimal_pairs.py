"""Minimal pairs (BLiMP): of two sentences that differ in one point of grammar, how often the right one scores higher.

A sentence's score is the sum of its tokens' log probabilities: each given the tokens before it (causal models), given
those before it and again given those after it (ELMo), or given all others with itself masked (masked models and XLNet).
A model without a word head (ELECTRA) scores by the log probability that no token was replaced. Ties count as wrong.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bertkit.data.tables import Columns
from bertkit.engine.batches import fastest
from bertkit.errors import RequestError
from bertkit.evaluation.yardstick import RowScore, Yardstick, texts_of
from bertkit.model.batch import Batch
from bertkit.model.model import BertModel
from bertkit.predict.bert import Bert

TOKENS = {"cuda": 65_536, "cpu": 2_048}  # in one forward pass
MOST_LOGITS = 2**29  # floats over the vocabulary in one forward pass
HOW = {
    "causal": "each token from those before it",
    "both ways": "each token from those before it, and again from those after it",
    "masked": "each token, masked, from all others",
    "replaced": "that no token was replaced",
}


class MinimalPairs(Yardstick):
    """Pairs of a right and a wrong sentence."""

    name, metric = "minimal-pairs", "accuracy"
    columns = "sentence_good, sentence_bad, UID (optional: groups)"

    def read(self, path: Path, columns: Columns) -> list[Any]:
        """(right, wrong, group) of each row."""
        return texts_of(path, columns, ("sentence_good", "sentence_bad"), "UID")

    def ask(self, bert: Bert, rows: Sequence[Any]) -> list[RowScore]:
        """1 or 0: the right sentence has the higher score."""
        texts = [text for row in rows for text in row[:2]]
        sequences = [ids for ids, _ in bert.tokenizer.encode_plain(texts)]
        scores = sentence_scores(bert.model, sequences, scored_how(bert.model), bert.tokenizer.mask_id)
        pairs = zip(scores[::2], scores[1::2], rows, strict=True)
        return [RowScore({"accuracy": float(good > bad)}, row[2]) for good, bad, row in pairs]

    def note(self, bert: Bert, rows: Sequence[Any]) -> str:
        """How sentences are scored."""
        return f"a sentence is scored by {HOW[scored_how(bert.model)]}"


def scored_how(model: BertModel) -> str:
    """A key of HOW."""
    config = model.config
    if "masked_word" in model.heads:
        return "causal" if config.parts.causal else "both ways" if config.two_way_words else "masked"
    if "replaced_token" in model.heads:
        return "replaced"
    raise RequestError(
        "this model has no head that can score a sentence (masked words, next words or replaced tokens); "
        "load one as it was pre-trained"
    )


def sentence_scores(model: BertModel, sequences: list[list[int]], how: str, mask_id: int) -> list[float]:
    """The score of each sequence of ids, [CLS] and [SEP] included; sequences of one length are read together."""
    by_length: dict[int, list[int]] = defaultdict(list)
    for number, ids in enumerate(sequences):
        by_length[len(ids)].append(number)
    scores = [0.0] * len(sequences)
    for length, numbers in by_length.items():
        tokens, logits = (length * length, length) if how == "masked" else (length, 2 * length)
        size = max(1, min(TOKENS[model.device.type] // tokens, MOST_LOGITS // (logits * model.config.vocab_size)))
        for start in range(0, len(numbers), size):
            chosen = numbers[start : start + size]
            ids_NL = torch.tensor([sequences[number] for number in chosen], device=model.device)
            with torch.inference_mode():
                found = WAYS[how](model, ids_NL, mask_id).tolist()
            for number, score in zip(chosen, found, strict=True):
                scores[number] = score
    return scores


def hidden_states(model: BertModel, ids_NL: Tensor) -> Tensor:
    """N L D."""
    return fastest(model.encoder)(Batch.from_padded(ids_NL)).view(*ids_NL.shape, -1)


def log_probabilities(logits: Tensor, ids: Tensor) -> Tensor:
    """Of each id, from logits over the vocabulary."""
    return -F.cross_entropy(logits.float().flatten(0, -2), ids.flatten(), reduction="none").view(ids.shape)


def causal(model: BertModel, ids_NL: Tensor, mask_id: int) -> Tensor:
    """N: each token given those before it."""
    hidden_NLD = hidden_states(model, ids_NL)[:, :-1]
    return log_probabilities(model.heads["masked_word"](hidden_NLD), ids_NL[:, 1:]).sum(dim=1)


def both_ways(model: BertModel, ids_NL: Tensor, mask_id: int) -> Tensor:
    """N: each token given those before it, and again given those after it."""
    forward_NLE, backward_NLE = hidden_states(model, ids_NL).chunk(2, dim=-1)
    head: Any = model.heads["masked_word"]
    size = model.config.vocab_size
    sides = ((forward_NLE[:, :-1], ids_NL[:, 1:]), (backward_NLE[:, 1:], ids_NL[:, :-1]))
    ahead_N, back_N = (log_probabilities(head.one_way(half)[..., :size], ids).sum(dim=1) for half, ids in sides)
    return ahead_N + back_N


def masked(model: BertModel, ids_NL: Tensor, mask_id: int) -> Tensor:
    """N: each token given all others; one is masked at a time, but never [CLS] or [SEP]."""
    count, length = ids_NL.shape
    places_M = torch.arange(1, length - 1, device=ids_NL.device)
    copies_NML = ids_NL[:, None].repeat(1, len(places_M), 1)
    copies_NML[:, places_M - 1, places_M] = mask_id
    hidden_XLD = hidden_states(model, copies_NML.flatten(0, 1))
    asked_XD = hidden_XLD[torch.arange(len(hidden_XLD), device=ids_NL.device), places_M.repeat(count)]
    logits_NMV = model.heads["masked_word"](asked_XD).view(count, len(places_M), -1)
    return log_probabilities(logits_NMV, ids_NL[:, 1:-1]).sum(dim=1)


def replaced(model: BertModel, ids_NL: Tensor, mask_id: int) -> Tensor:
    """N: that no token was replaced."""
    return F.logsigmoid(-model.heads["replaced_token"](hidden_states(model, ids_NL)).float()).sum(dim=1)


WAYS = {"causal": causal, "both ways": both_ways, "masked": masked, "replaced": replaced}
