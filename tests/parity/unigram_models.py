"""Small Unigram tokenizers with SentencePiece's normalizer, as XLM-RoBERTa and CamemBERT have them."""

import math
import struct
from collections import Counter
from functools import cache
from pathlib import Path

import transformers

CORPUS = Path(__file__).parents[1] / "golden" / "corpus.txt"
# A few rules of SentencePiece's nmt_nfkc: spaces, ligatures, widths, a letter with its accent, what is deleted.
REPLACED = {
    **dict.fromkeys("\t\n\r\u00a0\u2003\u3000", " "),
    **{"\ufb01": "fi", "\u2460": "1", "\uff21": "A", "\u00bd": "1\u20442", "\u2026": "...", "e\u0301": "\u00e9"},
    **{"\u200b": " ", "\u00ad": "", "\x07": "", "\ufdfa": "\u0635\u0644\u0649 \u0627\u0644\u0644\u0647"},
}
LETTERS = "\u00e9\u00e8\u00fc\u0437\u0434\u0440\u0430\u4e2d\u6587\ud55c\u0627\u0644"  # of other scripts
REFERENCES = {"xlm-roberta": transformers.XLMRobertaTokenizer, "camembert": transformers.CamembertTokenizer}


def charsmap(replaced: dict[str, str]) -> bytes:
    """SentencePiece's precompiled table: a double-array trie over UTF-8, then the replacements, each closed by NUL.

    Each node has a block of 256 units for itself: large, but plain.
    """
    strings, values = b"", {}
    for source, target in replaced.items():
        values[source.encode()] = len(strings)
        strings += target.encode() + b"\0"
    nodes = {b"": 256}
    for source in values:
        for length in range(1, len(source) + 1):
            nodes.setdefault(source[:length], 256 * (len(nodes) + 1))
    units = [0] * 256 * (len(nodes) + 1)
    for prefix, block in nodes.items():
        position = nodes[prefix[:-1]] ^ prefix[-1] if prefix else 0
        units[position] = (position ^ block) << 10 | (prefix in values) << 8 | (prefix[-1] if prefix else 0)
        if prefix in values:
            units[block] = values[prefix] | 1 << 31
    trie = struct.pack(f"<{len(units)}I", *units)
    return struct.pack("<I", len(trie)) + trie + strings


@cache
def scored_pieces() -> tuple[tuple[str, float], ...]:
    """600 pieces with log-probabilities: the most frequent substrings of the words of the golden corpus."""
    words = [f"\u2581{word}" for word in CORPUS.read_text(encoding="utf-8").split()]
    words += [f"\u2581{letter}{letter}" for letter in LETTERS]
    counts = Counter(
        word[start:end] for word in words for start in range(len(word)) for end in range(start + 1, len(word) + 1)
    )
    counts += Counter({letter: 1 for word in words for letter in word})
    total = counts.total()
    return tuple((piece, math.log(count / total)) for piece, count in counts.most_common(600))


def reference(family: str) -> transformers.PreTrainedTokenizerFast:
    """transformers' own tokenizer of a family over these pieces, with the ids of the published ones."""
    first = ["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED", "<s>", "</s>"]
    specials = first if family == "camembert" else ["<s>", "<pad>", "</s>", "<unk>"]
    vocab = [*((name, 0.0) for name in specials), *scored_pieces(), ("<mask>", 0.0)]
    return REFERENCES[family](vocab=vocab, _spm_precompiled_charsmap=charsmap(REPLACED))
