"""Corpus → vocabulary: count the words once, and train on the counts."""

import json
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.errors import RequestError
from bertkit.files import whole_folder
from bertkit.progress import ShowProgress, silent
from bertkit.text.corpus import corpus_files, corpus_size
from bertkit.text.vocabulary.merges import FastPairCounts
from bertkit.text.vocabulary.word_counts import CorpusCounts, count_corpus
from bertkit.text.wordpiece import SPECIALS, by_count, character_counts, train


@dataclass(frozen=True, kw_only=True)
class VocabularySettings:
    """Settings of a new vocabulary; the defaults are those of the released uncased BERT."""

    size: int = 30522
    lowercase: bool = True
    min_count: int = 2  # a rarer pair is not merged
    alphabet_limit: int = 1000  # words with rarer characters become [UNK]

    def __post_init__(self) -> None:
        for name in ("size", "min_count", "alphabet_limit"):
            if getattr(self, name) < 1:
                raise RequestError(f"{name}={getattr(self, name)} must be at least 1")


@dataclass(frozen=True)
class Vocabulary:
    """The pieces in the order of their ids, and a report that can be written as JSON."""

    pieces: list[str]
    lowercase: bool
    report: dict[str, Any]

    def save(self, out: Path | str) -> None:
        """Write vocab.txt, the tokenizer's files and report.json to a new folder."""
        from bertkit.text.tokenizer import Tokenizer

        with whole_folder(out) as folder:
            Tokenizer.from_vocab(self.pieces, lowercase=self.lowercase).save(folder)
            (folder / "report.json").write_text(json.dumps(self.report, indent=2) + "\n", encoding="utf-8")


def make_vocabulary(
    texts: Sequence[Path | str] | Path,
    settings: VocabularySettings,
    *,
    show: ShowProgress = silent,
) -> Vocabulary:
    """Count the words of the texts, and train on the counts."""
    started = time.monotonic()
    with show("counting words", corpus_size(corpus_files(texts))) as meter:
        corpus = count_corpus(texts, lowercase=settings.lowercase, watch=meter.update)
    counting_done = time.monotonic()
    with show("merging pieces", settings.size) as meter:
        pieces = train(
            corpus.words.counts,
            settings.size,
            alphabet_limit=settings.alphabet_limit,
            min_count=settings.min_count,
            watch=meter.update,
            count_pairs=FastPairCounts,
        )
    seconds = {
        "counting": round(counting_done - started, 1),
        "merging": round(time.monotonic() - counting_done, 1),
    }
    report = {
        **asdict(settings),
        "pieces": kinds_of_pieces(pieces),
        "alphabet": _alphabet_report(corpus.words.counts, settings.alphabet_limit),
        "corpus": _corpus_report(corpus),
        "seconds": seconds,
        "peak_memory_bytes": _peak_memory(),
    }
    return Vocabulary(pieces, settings.lowercase, report)


def kinds_of_pieces(pieces: Sequence[str], specials: Sequence[str] = SPECIALS) -> dict[str, int]:
    """The numbers of special pieces, single characters, continuations and whole words."""
    kinds = Counter({"special": 0, "characters": 0, "continuations": 0, "whole_words": 0})
    for piece in pieces:
        if piece in specials or piece.startswith("[unused"):
            kinds["special"] += 1
        elif piece.startswith("##") and len(piece) > 2:
            kinds["continuations"] += 1
        else:
            kinds["whole_words" if len(piece) > 1 else "characters"] += 1
    return dict(kinds)


def _alphabet_report(word_counts: Mapping[str, int], limit: int) -> dict[str, Any]:
    counts = character_counts(word_counts)
    cut = by_count(counts)[limit:]
    share = sum(counts[char] for char in cut) / max(counts.total(), 1)
    return {
        "kept": len(counts) - len(cut),
        "cut": len(cut),
        "cut_share_of_text": share,
        "first_cut": cut[:20],
    }


def _corpus_report(corpus: CorpusCounts) -> dict[str, Any]:
    report, words = corpus.report, corpus.words
    lengths = np.array(sorted(corpus.sentences_by_length.items()), np.int64)
    middle = np.searchsorted(np.cumsum(lengths[:, 1]), (report.sentences or 0) / 2)
    return {
        **asdict(report),
        "mean_words_per_sentence": round((report.words or 0) / (report.sentences or 1), 2),
        "median_words_per_sentence": int(lengths[middle, 0]),
        "words_trained_on": len(words.counts),
        "rare_words_left_out": words.unique - len(words.counts),
        "share_of_text_left_out": 1 - sum(words.counts.values()) / max(words.total, 1),
    }


def _peak_memory() -> int | None:
    """The peak memory of this process in bytes; None on systems that do not report it.

    On Linux a child process starts with its parent's peak, so this is an upper bound.
    """
    if sys.platform == "win32":
        return None
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
