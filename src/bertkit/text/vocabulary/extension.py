"""Corpus → more pieces for an existing vocabulary: words become pieces if that saves the most pieces."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertkit.errors import RequestError
from bertkit.files import whole_folder
from bertkit.progress import ShowProgress, silent
from bertkit.text.corpus import corpus_files, corpus_size
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.vocabulary.word_counts import count_corpus

WORDS_PER_BATCH = 100_000  # tokenized at once


@dataclass(frozen=True)
class Extension:
    """A tokenizer with additional pieces, and a report that can be written as JSON."""

    tokenizer: Tokenizer
    pieces: Sequence[str]  # the new ones, in the order of their ids
    report: dict[str, Any]

    def save(self, out: Path | str) -> None:
        """Write the tokenizer's files and report.json to a new folder."""
        with whole_folder(out) as folder:
            self.tokenizer.save(folder)
            (folder / "report.json").write_text(json.dumps(self.report, indent=2) + "\n", encoding="utf-8")


def extend_vocabulary(
    texts: Sequence[Path | str] | Path,
    tokenizer: Tokenizer,
    size: int,
    *,
    min_count: int = 2,
    show: ShowProgress = silent,
) -> Extension:
    """The tokenizer with whole words of the texts after its own pieces, `size` pieces in total."""
    if size <= tokenizer.size:
        raise RequestError(f"size={size:,} must be over the {tokenizer.size:,} pieces that the vocabulary has already")
    tokenizer.with_pieces([])  # refuses a tokenizer that cannot be extended, before the work
    with show("counting words", corpus_size(corpus_files(texts))) as meter:
        corpus = count_corpus(texts, lowercase=tokenizer.lowercase, watch=meter.update)
    counts = corpus.words.counts
    lengths = pieces_of_words(tokenizer, list(counts))
    pieces = most_useful(counts, lengths, size - tokenizer.size, min_count)
    extended = tokenizer.with_pieces(pieces)
    _refuse_unreachable(extended, pieces)
    words = max(1, sum(counts.values()))
    after = pieces_of_words(extended, list(counts))
    report = {
        "size": extended.size,
        "kept": tokenizer.size,
        "added": len(pieces),
        "first_added": pieces[:20],
        "min_count": min_count,
        "words": sum(counts.values()),
        "unique_words": len(counts),
        "pieces_per_word_before": round(sum(counts[word] * lengths[word] for word in counts) / words, 4),
        "pieces_per_word_after": round(sum(counts[word] * after[word] for word in counts) / words, 4),
    }
    return Extension(extended, pieces, report)


def pieces_of_words(tokenizer: Tokenizer, words: Sequence[str]) -> dict[str, int]:
    """The number of pieces of each word; for an unknown word, its characters plus one."""
    lengths: dict[str, int] = {}
    for start in range(0, len(words), WORDS_PER_BATCH):
        batch = words[start : start + WORDS_PER_BATCH]
        for word, ids in zip(batch, tokenizer.encode_ids(batch), strict=True):
            unknown = tokenizer.unknown_id in ids
            lengths[word] = 1 + len(word) if unknown else len(ids)  # over 1 for a single character, too
    return lengths


def most_useful(counts: Mapping[str, int], lengths: Mapping[str, int], number: int, min_count: int) -> list[str]:
    """The `number` words that save the most pieces over the whole text if they are pieces; ties in code point order."""
    saved = {
        word: count * (lengths[word] - 1) for word, count in counts.items() if lengths[word] > 1 and count >= min_count
    }
    if len(saved) < number:
        raise RequestError(
            f"these texts have {len(saved):,} words of several pieces that occur {min_count} times or more, and "
            f"{number:,} new pieces were asked for; lower the size by {number - len(saved):,}, give more text or "
            "lower the minimum count"
        )
    return sorted(saved, key=lambda word: (-saved[word], word))[:number]


def _refuse_unreachable(tokenizer: Tokenizer, pieces: Sequence[str]) -> None:
    """Refuse a tokenizer that does not normalize as BERT does, and so never produces some of the new pieces."""
    for piece, ids in zip(pieces, tokenizer.encode_ids(pieces), strict=True):
        if ids != [tokenizer.vocab[piece]]:
            raise RequestError(
                f"this tokenizer cuts {piece!r} after making it one piece: it cleans text otherwise than BERT's, "
                "so its vocabulary cannot be extended"
            )
