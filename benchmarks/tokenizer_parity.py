"""The fast tokenizer, its readable twin and transformers, compared token for token; and the wrapper's speed.

    python benchmarks/tokenizer_parity.py --data DIR        prints and saves counts; the differences must be 0

DIR holds vocab/NAME/vocab.txt for the five released vocabularies and corpus/heldout.txt.zst.
"""

import argparse
import json
import os
import platform
import random
import sys
import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

import pyarrow
import tokenizers
import transformers

from bertkit.files import whole_file
from bertkit.text.tokenizer import Encoding, Tokenizer
from bertkit.text.wordpiece import SPECIALS, wordpieces

RESULTS = Path(__file__).parent / "results"
# The Chinese model is released both ways: Google lowercases, transformers' settings for it do not.
VOCABULARIES = (
    ("bert-base-uncased", True),
    ("bert-base-cased", False),
    ("bert-base-multilingual-cased", False),
    ("bert-base-chinese", False),
    ("bert-base-chinese", True),
    ("scibert-scivocab-uncased", True),
)
BATCH = 1000
WORDS = "the Embeddings ensurance unaffable Straße naïve ΟΔΥΣΣΕΥΣ İstanbul don't e-mail 3.14 ##ing x² 中文字 한국어"
# Basic and extended Latin, Greek and Cyrillic, Hebrew to Syriac, India, Thai to Georgian, Hangul letters, Kana,
# ideographs, Hangul syllables, compatibility ideographs, rare ideographs, private use, emoji, full-width forms.
BLOCKS = (
    *((0x20, 0x7F), (0xA0, 0x250), (0x370, 0x530), (0x590, 0x700), (0x900, 0xE00), (0xE00, 0x1100)),
    *((0x1100, 0x1200), (0x3040, 0x3100), (0x3400, 0xA000), (0xAC00, 0xD7A4), (0xF900, 0xFB00)),
    *((0x20000, 0x2FA20), (0xE000, 0xE100), (0x1F300, 0x1FAFF), (0xFF00, 0xFFF0)),
)


@dataclass(frozen=True)
class Agreement:
    """What one vocabulary gave: how much was compared and how much of it differed."""

    vocabulary: str
    lowercase: bool
    strings: int
    tokens: int
    differences: int


def property_strings(count: int, seed: int) -> list[str]:
    """Strings that try a tokenizer: every script and kind of character, long words, special pieces written out."""
    rng = random.Random(seed)
    makers = list(_chunk_makers(rng))
    return ["".join(rng.choice(makers)() for _ in range(rng.randint(1, 12))) for _ in range(count)]


def differences(
    texts: Sequence[str], tokenizer: Tokenizer, theirs: transformers.BertTokenizer, lowercase: bool
) -> Iterator[str]:
    """One line for each text on which the fast tokenizer, the twin and transformers do not all agree."""
    encodings = tokenizer.encode_batch(texts)
    reference = theirs(list(texts), return_offsets_mapping=True)
    for i, (text, ours) in enumerate(zip(texts, encodings, strict=True)):
        expected = Encoding(
            tuple(reference["input_ids"][i]),
            tuple(reference["token_type_ids"][i]),
            tuple(reference["offset_mapping"][i]),
            tuple(reference.word_ids(i)),
        )
        if ours != expected:
            yield f"transformers differs on {text!a}: {ours} against {expected}"
        twin = slow_encoding(text, tokenizer, lowercase)
        if ours != twin:
            yield f"the twin differs on {text!a}: {ours} against {twin}"


def slow_encoding(text: str, tokenizer: Tokenizer, lowercase: bool) -> Encoding:
    """What `Tokenizer.encode` should give, by the readable algorithm."""
    pieces = wordpieces(text, tokenizer.vocab, lowercase=lowercase)
    return Encoding(
        (tokenizer.cls_id, *(tokenizer.vocab[piece.text] for piece in pieces), tokenizer.sep_id),
        (0,) * (len(pieces) + 2),
        ((0, 0), *((piece.start, piece.end) for piece in pieces), (0, 0)),
        (None, *(piece.word for piece in pieces), None),
    )


def _chunk_makers(rng: random.Random) -> Iterator[Callable[[], str]]:
    for alphabet in _alphabets():
        yield lambda letters=alphabet: "".join(rng.choices(letters, k=rng.randint(1, 6)))
    words = WORDS.split()
    specials = [*SPECIALS, "[mask]", "[ MASK ]", "[MASK", "[unused1]"]
    yield lambda: rng.choice(words)
    yield lambda: f" {rng.choice(words)} "
    yield lambda: rng.choice(specials)
    yield lambda: rng.choice("aAé한") * rng.choice((99, 100, 101, 200))
    yield lambda: "".join(rng.choices("abcdefgh", k=rng.choice((99, 100, 101))))
    yield lambda: "👩\u200d🚀👍🏽❤\ufe0f🇩🇪"


def _alphabets() -> list[str]:
    """Sets of characters to draw from: scripts by their blocks, then kinds by their category."""
    everything = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    kinds = ("Mn", "Mc", "Me", "Zs", "Zl", "Zp", "Cc", "Cf", "Co", "Cn", "Pd", "Po", "Sm", "Nd", "Lu", "Lm")
    by_kind: dict[str, list[str]] = {kind: [] for kind in kinds}
    for char in everything:
        by_kind.setdefault(unicodedata.category(char), []).append(char)
    composed = [char for char in everything if unicodedata.decomposition(char)]
    spaces = "\t\n\r\v\f\x1c\x85\xa0\u1680\u2007\u2028\u3000\u200b\ufeff \ufffd\0"
    scripts = ["".join(map(chr, range(*block))) for block in BLOCKS]
    return [*scripts, *("".join(by_kind[kind]) for kind in kinds), "".join(composed), spaces, "".join(everything)]


def compare(name: str, lowercase: bool, data: Path, texts: Sequence[str]) -> Agreement:
    """All texts through one vocabulary; the first differences are printed."""
    vocabulary = data / "vocab" / name / "vocab.txt"
    tokenizer = Tokenizer.from_vocab(vocabulary, lowercase=lowercase)
    theirs = transformers.BertTokenizer(dict(tokenizer.vocab), do_lower_case=lowercase)
    tokens, found = 0, 0
    for start in range(0, len(texts), BATCH):
        batch = texts[start : start + BATCH]
        tokens += sum(tokenizer.count(batch))
        for line in differences(batch, tokenizer, theirs, lowercase):
            found += 1
            if found <= 3:
                print(line, file=sys.stderr)
    return Agreement(name, lowercase, len(texts), tokens, found)


def speeds(data: Path, texts: Sequence[str], rounds: int = 5) -> dict[str, float]:
    """Tokens per second of the bare library and of our calls on the same texts: the best of some rounds."""
    tokenizer = Tokenizer.from_vocab(data / "vocab" / "bert-base-uncased" / "vocab.txt")
    bare = tokenizer._backend
    calls = {
        "bare encode_batch": lambda: bare.encode_batch(texts),
        "Tokenizer.encode_batch": lambda: tokenizer.encode_batch(texts),
        "bare encode_batch_fast": lambda: bare.encode_batch_fast(texts, add_special_tokens=False),
        "Tokenizer.encode_ids": lambda: tokenizer.encode_ids(texts),
    }
    tokens = sum(tokenizer.count(texts))
    seconds = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):  # interleaved, so that a busy moment of the machine does not hit one of them alone
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            seconds[name] = min(seconds[name], time.perf_counter() - began)
    return {name: round(tokens / second) for name, second in seconds.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--strings", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=20261115)
    parser.add_argument("--out", type=Path, default=RESULTS / f"{date.today()}-tokenizer-parity.json")
    arguments = parser.parse_args()
    corpus = pyarrow.input_stream(str(arguments.data / "corpus" / "heldout.txt.zst")).read().decode()
    lines = corpus.removesuffix("\n").split("\n")
    texts = property_strings(arguments.strings, arguments.seed) + lines
    rows = []
    for name, lowercase in VOCABULARIES:
        rows.append(compare(name, lowercase, arguments.data, texts))
        print(rows[-1], flush=True)
    result = {
        "date": str(date.today()),
        "python": platform.python_version(),
        "unicode": unicodedata.unidata_version,
        "tokenizers": tokenizers.__version__,
        "transformers": transformers.__version__,
        "cores": os.cpu_count(),
        "property strings": arguments.strings,
        "seed": arguments.seed,
        "corpus lines": len(lines),
        "agreement": [asdict(row) for row in rows],
        "tokens per second": speeds(arguments.data, lines),
    }
    with whole_file(arguments.out) as draft:
        draft.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result["tokens per second"], indent=2))
    return int(any(row.differences for row in rows))


if __name__ == "__main__":
    sys.exit(main())
