"""Unigram segmentation in plain Python, the readable twin of the fast tokenizer's.

A Unigram vocabulary gives each piece a log-probability. Of all segmentations of a word, the one with the largest sum is
taken, by Viterbi's algorithm from left to right.
"""

from collections.abc import Mapping
from dataclasses import dataclass

UNKNOWN_PENALTY = 10.0  # log-probability of an unknown character under that of the rarest piece


@dataclass(frozen=True, slots=True)
class _Path:
    """The best segmentation of a word's first characters: its score, and the start of its last piece."""

    score: float
    start: int
    known: bool  # whether the last piece is in the vocabulary


def segment(word: str, scores: Mapping[str, float], unknown: str = "<unk>") -> list[str]:
    """The most probable pieces of a word; neighboring unknown characters are joined to one piece.

    >>> segment("abab?!", {"<unk>": 0.0, "a": -2.0, "b": -2.0, "ab": -2.5, "aba": -4.0})
    ['ab', 'ab', '?!']
    """
    paths: list[_Path | None] = [_Path(0.0, 0, True), *[None] * len(word)]  # one for each end
    lowest, longest = min(scores.values()) - UNKNOWN_PENALTY, max(map(len, scores))
    for start in range(len(word)):
        before = paths[start]
        assert before is not None, "each character is a piece, known or not"
        for end in range(start + 1, min(start + longest, len(word)) + 1):
            piece = word[start:end]
            known = piece in scores
            if not known and len(piece) > 1:
                continue
            score = before.score + (scores[piece] if known else lowest)
            best = paths[end]
            if best is None or score > best.score:
                paths[end] = _Path(score, start, known and piece != unknown)
    return _pieces(word, [path for path in paths if path is not None])


def _pieces(word: str, paths: list[_Path]) -> list[str]:
    """The pieces of the best path, from the end of the word; neighboring unknown ones are joined."""
    pieces: list[tuple[str, bool]] = []
    end = len(word)
    while end > 0:
        path = paths[end]
        piece = word[path.start : end]
        if pieces and not path.known and not pieces[-1][1]:
            pieces[-1] = (piece + pieces[-1][0], False)
        else:
            pieces.append((piece, path.known))
        end = path.start
    return [piece for piece, _ in reversed(pieces)]
