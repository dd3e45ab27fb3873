"""BLiMP: of two sentences that differ in one point of grammar, how often a model prefers the right one.

    python benchmarks/blimp.py --model MODEL --data DIR/blimp --out RESULT.json [--pairs 1000]

A sentence's score is the sum of its tokens' log probabilities: each given the tokens before it (causal models), given
those before it and again given those after it (ELMo), or given all others with itself masked (masked models and XLNet).
ELECTRA has no word head; its score is the log probability that no token was replaced. The result is the mean over the
67 sets; ties count as wrong. `--pairs` takes the first so many of each set.
"""

import argparse
import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from finetune_tasks import find_file
from torch import Tensor

from bertkit.checkpoint.save_load import Checkpoint, load_checkpoint
from bertkit.data.tables import Columns, open_table
from bertkit.engine.batches import fastest
from bertkit.files import whole_file
from bertkit.model.batch import Batch
from bertkit.model.model import BertModel

TOKENS = {"cuda": 65_536, "cpu": 2_048}  # in one forward pass
MOST_LOGITS = 2**29  # floats over the vocabulary in one forward pass
HOW = {
    "causal": "each token from those before it",
    "both ways": "each token from those before it, and again from those after it",
    "masked": "each token, masked, from all others",
    "replaced": "that no token was replaced",
}


def scored_how(model: BertModel) -> str | None:
    """A key of HOW; None for a model that cannot score a sentence."""
    config = model.config
    if "masked_word" in model.heads:
        return "causal" if config.parts.causal else "both ways" if config.two_way_words else "masked"
    return "replaced" if "replaced_token" in model.heads else None


def blimp(checkpoint: Checkpoint, data: Path, pairs: int | None = None) -> dict[str, Any] | None:
    """Percent right: the mean over the sets, and each set's."""
    model, how = checkpoint.model.eval(), scored_how(checkpoint.model)
    if how is None:
        return None
    assert checkpoint.tokenizer is not None
    sets: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for row in open_table(find_file(data, "blimp.jsonl"), Columns()).rows:
        if pairs is None or len(sets[row.values["UID"]]) < pairs:
            sets[row.values["UID"]].append((row.values["sentence_good"], row.values["sentence_bad"]))
    texts = [text for both in sets.values() for pair in both for text in pair]
    sequences = [ids for ids, _ in checkpoint.tokenizer.encode_plain(texts)]
    scores = iter(sentence_scores(model, sequences, how, checkpoint.tokenizer.mask_id))
    right = {name: 100 * statistics.fmean(next(scores) > next(scores) for _ in both) for name, both in sets.items()}
    rounded = {name: round(share, 1) for name, share in sorted(right.items())}
    return {"score": round(statistics.fmean(right.values()), 2), "by": HOW[how], "pairs": len(texts) // 2, **rounded}


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
    hidden_NLD = hidden_states(model, ids_NL)[:, :-1]
    return log_probabilities(model.heads["masked_word"](hidden_NLD), ids_NL[:, 1:]).sum(dim=1)


def both_ways(model: BertModel, ids_NL: Tensor, mask_id: int) -> Tensor:
    forward_NLE, backward_NLE = hidden_states(model, ids_NL).chunk(2, dim=-1)
    head: Any = model.heads["masked_word"]
    size = model.config.vocab_size
    sides = ((forward_NLE[:, :-1], ids_NL[:, 1:]), (backward_NLE[:, 1:], ids_NL[:, :-1]))
    return sum(log_probabilities(head.one_way(half)[..., :size], ids).sum(dim=1) for half, ids in sides)


def masked(model: BertModel, ids_NL: Tensor, mask_id: int) -> Tensor:
    """All tokens but [CLS] and [SEP], one masked at a time."""
    count, length = ids_NL.shape
    places_M = torch.arange(1, length - 1, device=ids_NL.device)
    copies_NML = ids_NL[:, None].repeat(1, len(places_M), 1)
    copies_NML[:, places_M - 1, places_M] = mask_id
    hidden_XLD = hidden_states(model, copies_NML.flatten(0, 1))
    asked_XD = hidden_XLD[torch.arange(len(hidden_XLD), device=ids_NL.device), places_M.repeat(count)]
    logits_NMV = model.heads["masked_word"](asked_XD).view(count, len(places_M), -1)
    return log_probabilities(logits_NMV, ids_NL[:, 1:-1]).sum(dim=1)


def replaced(model: BertModel, ids_NL: Tensor, mask_id: int) -> Tensor:
    return F.logsigmoid(-model.heads["replaced_token"](hidden_states(model, ids_NL)).float()).sum(dim=1)


WAYS = {"causal": causal, "both ways": both_ways, "masked": masked, "replaced": replaced}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model", "data", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--pairs", type=int)
    options = parser.parse_args()
    checkpoint = load_checkpoint(options.model)
    checkpoint.model.to("cuda" if torch.cuda.is_available() else "cpu")
    result = blimp(checkpoint, options.data, options.pairs)
    with whole_file(options.out) as draft:
        draft.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
