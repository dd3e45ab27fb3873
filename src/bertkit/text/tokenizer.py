"""The fast tokenizer: text to ids by the `tokenizers` library; wordpiece.py and unigram.py are its readable twins.

Nothing is truncated or padded here. [CLS] and [SEP] are always added.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tokenizers import Encoding as BackendEncoding
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordPiece

from bertkit.errors import RequestError
from bertkit.text.tokenizer_files import (
    BERT_TOKENS,
    ROBERTA_TOKENS,
    TOKENIZER_KINDS,
    SpecialTokens,
    check_pieces,
    load_backend,
    read_pieces,
    save_backend,
    tokenizer_kind,
)

if TYPE_CHECKING:
    import numpy as np

# Fields of tokenizer.json, of byte-level BPE and of Unigram, that put a space before a text.
PREFIX_SPACE = {"add_prefix_space": True, "prepend_scheme": "always"}


@dataclass(frozen=True, slots=True)
class Encoding:
    """One text, or a pair, as ids with [CLS] and [SEP]; every tuple has one entry for each token."""

    ids: tuple[int, ...]
    segments: tuple[int, ...]
    offsets: tuple[tuple[int, int], ...]  # characters [start, end) in the token's text; (0, 0) if special
    words: tuple[int | None, ...]  # index of the word in its text; None if special

    def __len__(self) -> int:
        return len(self.ids)

    def truncated(self, limit: int) -> "Encoding":
        """At most `limit` tokens: the first ones and the last one, [SEP]."""
        if len(self) <= limit:
            return self
        kept = [*range(limit - 1), len(self) - 1]
        columns: list[Sequence[Any]] = [self.ids, self.segments, self.offsets, self.words]
        return Encoding(*(tuple(column[position] for position in kept) for column in columns))

    @property
    def special(self) -> tuple[bool, ...]:
        """True for the [CLS] and [SEP] that were added to the text."""
        return tuple(word is None for word in self.words)

    @property
    def part(self) -> tuple[int | None, ...]:
        """Which text of a pair a token is from: 0, 1, or None for a special token."""
        parts: list[int | None] = []
        specials = 0
        for word in self.words:
            specials += word is None
            parts.append(None if word is None else int(specials > 1))  # [CLS] first [SEP] second
        return tuple(parts)


class Tokenizer:
    """Text to ids and back, over a WordPiece, byte-level BPE or Unigram vocabulary."""

    def __init__(self, backend: Backend, special_tokens: SpecialTokens) -> None:
        _make_forks_safe()
        self._backend = backend
        self._special_tokens = special_tokens

    def __reduce__(self) -> tuple[Any, ...]:
        return Tokenizer, (self._backend, self._special_tokens)

    def __repr__(self) -> str:
        return f"Tokenizer({self.size} entries{', lowercase' if self.lowercase else ''})"

    @classmethod
    def from_vocab(
        cls,
        pieces: Sequence[str] | Path,
        *,
        lowercase: bool = True,
        strip_accents: bool | None = None,
        split_cjk: bool = True,
    ) -> "Tokenizer":
        """A WordPiece tokenizer from a vocabulary: the pieces in the order of their ids, or a vocab.txt."""
        from bertkit.text.tokenizer_kinds.bert_wordpiece import Cleaning, wordpiece_backend

        if isinstance(pieces, str | Path):
            where, unit, pieces = str(pieces), "line", read_pieces(Path(pieces))
        else:
            where, unit = "the vocabulary", "entry"
        check_pieces(pieces, BERT_TOKENS, where, unit)
        cleaning = Cleaning(lowercase, strip_accents, split_cjk)
        return cls(wordpiece_backend(pieces, BERT_TOKENS, cleaning), BERT_TOKENS)

    @classmethod
    def train_bytes(cls, texts: Iterable[str], size: int) -> "Tokenizer":
        """A byte-level BPE tokenizer of at most `size` pieces made of these texts: any text is decoded as it was."""
        from bertkit.text.tokenizer_kinds.byte_level_bpe import train_byte_level

        return cls(train_byte_level(texts, size, ROBERTA_TOKENS), ROBERTA_TOKENS)

    @classmethod
    def load(cls, path: Path | str) -> "Tokenizer":
        """The tokenizer of a model folder, or of a vocab.txt with the tokenizer_config.json beside it."""
        return cls(*load_backend(Path(path)))

    def with_pieces(self, pieces: Sequence[str]) -> "Tokenizer":
        """A tokenizer with more pieces after those of this one, which keep their ids; only for WordPiece."""
        state = json.loads(self._backend.to_str())
        if state["model"]["type"] != "WordPiece":
            raise RequestError(
                f"only a WordPiece vocabulary can be extended, and this is a {state['model']['type']} one"
            )
        state["model"]["vocab"] = dict(self.vocab) | {piece: self.size + i for i, piece in enumerate(pieces)}
        if len(state["model"]["vocab"]) != len(self.vocab) + len(pieces):
            known = next(piece for i, piece in enumerate(pieces) if piece in self.vocab or piece in pieces[:i])
            raise RequestError(f"the piece {known!r} is in the vocabulary already; leave it out")
        return Tokenizer(Backend.from_str(json.dumps(state)), self._special_tokens)

    def save(self, folder: Path | str, *, cls_last: bool = False) -> None:
        """Write the files from which `load` and transformers' AutoTokenizer rebuild this tokenizer.

        With `cls_last` transformers' puts [CLS] after the text, as XLNet reads it.
        """
        save_backend(self._backend, self._special_tokens, Path(folder), cls_last=cls_last)

    def encode(self, text: str, pair: str | None = None) -> Encoding:
        """One text, or a pair, as ids."""
        _check_text(text, "the text")
        if pair is not None:
            _check_text(pair, "the pair")
        return _encoding(self._backend.encode(text, pair))

    def encode_batch(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[Encoding]:
        """Many texts, or pairs, as ids; each equals the result of `encode`."""
        texts = _checked_texts(texts, "texts")
        if pairs is None:
            return [_encoding(raw) for raw in self._backend.encode_batch(texts)]
        pairs = _checked_texts(pairs, "pairs")
        if len(texts) != len(pairs):
            raise RequestError(f"{len(texts)} texts came with {len(pairs)} pairs; give as many of both")
        text_pairs = list(zip(texts, pairs, strict=True))
        return [_encoding(raw) for raw in self._backend.encode_batch(text_pairs)]

    def encode_plain(self, texts: Sequence[str]) -> list[tuple[list[int], list[int]]]:
        """Ids and segments with [CLS] and [SEP], which a model reads; without offsets and words."""
        texts = _checked_texts(texts, "texts")
        return [(raw.ids, raw.type_ids) for raw in self._backend.encode_batch_fast(texts)]

    def encode_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids without [CLS] and [SEP]; the fastest method, for a whole corpus."""
        texts = _checked_texts(texts, "texts")
        return [raw.ids for raw in self._backend.encode_batch_fast(texts, add_special_tokens=False)]

    def count(self, texts: Sequence[str]) -> list[int]:
        """The number of tokens of each text, [CLS] and [SEP] included."""
        return [len(raw) for raw in self._backend.encode_batch_fast(_checked_texts(texts, "texts"))]

    def encode_words(self, words: Sequence[str]) -> Encoding:
        """A text that is split into words: `words` are their indices, offsets are characters within each word."""
        checked = _checked_texts(words, "words")
        return _encoding(self._backend_for_words.encode(checked, is_pretokenized=True))

    def encode_words_batch(self, sentences: Sequence[Sequence[str]]) -> list[Encoding]:
        """Many texts that are split into words; each equals the result of `encode_words`."""
        checked = [_checked_texts(words, f"sentences[{number}]") for number, words in enumerate(sentences)]
        return [_encoding(raw) for raw in self._backend_for_words.encode_batch(checked, is_pretokenized=True)]

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The ids as text; normalization is not undone."""
        return str(self._backend.decode(self._checked_ids(ids), skip_special_tokens=skip_special))

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The piece of each id."""
        return [self._pieces[number] for number in self._checked_ids(ids)]

    def shown(self, encoding: Encoding, text: str, pair: str | None = None) -> list[str]:
        """Tokens for display: WordPiece's as they are, those of BPE and Unigram as the characters of the text."""
        pieces, model = self.tokens(encoding.ids), self._backend.model
        if isinstance(model, WordPiece) and model.continuing_subword_prefix == "##":
            return pieces
        texts = (text, pair or "")
        return [
            piece if part is None else texts[part][slice(*span)].strip() or piece
            for piece, part, span in zip(pieces, encoding.part, encoding.offsets, strict=True)
        ]

    def written(self, number: int) -> str:
        """A piece as a person writes it; ##piece if it continues a word of WordPiece."""
        [piece] = self.tokens([number])
        return piece if piece.startswith("##") else self.decode([number]).strip() or piece

    def starts_word(self, number: int) -> bool:
        """Whether a piece starts a word; else it continues the one before (##ing, or no mark of a space)."""
        [piece] = self.tokens([number])
        if self._word_start:
            return piece.startswith(self._word_start) or piece in asdict(self._special_tokens).values()
        return not piece.startswith("##")

    @cached_property
    def _word_start(self) -> str | None:
        """The character that marks a space before a piece; None for WordPiece."""
        model = type(self._backend.model).__name__
        return tokenizer_kind(model).word_start if model in TOKENIZER_KINDS else None

    @property
    def marks_spaces(self) -> bool:
        """Whether a token says by a mark that a space is before it; else, as in WordPiece, that it continues a word."""
        return self._word_start is not None

    @cached_property
    def word_starts(self) -> "np.ndarray":
        """[size] bool: the tokens that start a word; special tokens do not."""
        mark = self._word_start
        return self._tokens_that(lambda piece: piece.startswith(mark) if mark else not piece.startswith("##"))

    @cached_property
    def word_tokens(self) -> "np.ndarray":
        """[size] bool: the tokens that words are made of: all but special ones."""
        return self._tokens_that(lambda _: True)

    def _tokens_that(self, true: Callable[[str], bool]) -> "np.ndarray":
        """[size] bool: the tokens, but for special ones, for which the function is true."""
        import numpy as np  # late: the table of tasks is read without it

        found = np.zeros(self.size, bool)
        found[[number for piece, number in self.vocab.items() if true(piece)]] = True
        found[[self.pad_id, self.unknown_id, self.cls_id, self.sep_id, self.mask_id]] = False
        return found

    @cached_property
    def vocab(self) -> Mapping[str, int]:
        """Every piece and its id."""
        return MappingProxyType(self._backend.get_vocab())

    @cached_property
    def size(self) -> int:
        """The number of rows that an embedding table needs: the largest id plus one."""
        return max(self.vocab.values()) + 1

    @property
    def pad_id(self) -> int:
        """The id of [PAD]."""
        return self.vocab[self._special_tokens.pad]

    @property
    def unknown_id(self) -> int:
        """The id of [UNK]."""
        return self.vocab[self._special_tokens.unk]

    @property
    def cls_id(self) -> int:
        """The id of [CLS], the first token of every encoding."""
        return self.vocab[self._special_tokens.cls]

    @property
    def sep_id(self) -> int:
        """The id of [SEP], the last token of every encoding."""
        return self.vocab[self._special_tokens.sep]

    @property
    def mask_id(self) -> int:
        """The id of [MASK]."""
        return self.vocab[self._special_tokens.mask]

    @property
    def mask_token(self) -> str:
        """The mask token of the vocabulary: [MASK] or <mask>."""
        return self._special_tokens.mask

    @cached_property
    def lowercase(self) -> bool:
        """Whether text is lowercased before it is tokenized."""
        normalizer = self._backend.normalizer
        return normalizer is not None and normalizer.normalize_str("A") == "a"

    @cached_property
    def hash(self) -> str:
        """SHA-256 of everything that determines the ids, whichever files the tokenizer was read from."""
        state = json.loads(self._backend.to_str())
        parts = {key: state[key] for key in ("normalizer", "pre_tokenizer", "model", "added_tokens")}
        empty = self.encode("", "")
        content = json.dumps([parts, asdict(self._special_tokens), empty.ids, empty.segments], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()

    @cached_property
    def _backend_for_words(self) -> Backend:
        """The backend for words, which puts a space before each: byte-level and Unigram pieces mark it."""
        state = json.loads(self._backend.to_str())
        for part in ("pre_tokenizer", "post_processor"):
            state[part] = _with_spaces(state[part])
        return Backend.from_str(json.dumps(state))

    @cached_property
    def _pieces(self) -> Mapping[int, str]:
        return {number: piece for piece, number in self.vocab.items()}

    def _checked_ids(self, ids: Iterable[int]) -> list[int]:
        numbers = list(ids)
        for index, number in enumerate(numbers):
            if number not in self._pieces:
                raise RequestError(f"ids[{index}] is {number!r}, which no piece of this vocabulary of {self.size} has")
        return [int(number) for number in numbers]


def _with_spaces(part: Any) -> Any:
    """A part of a pipeline, with the parts inside it, changed to put a space before its text."""
    if isinstance(part, list):
        return [_with_spaces(inner) for inner in part]
    if isinstance(part, dict):
        return {key: PREFIX_SPACE.get(key) or _with_spaces(value) for key, value in part.items()}
    return part


def _encoding(raw: BackendEncoding) -> Encoding:
    return Encoding(tuple(raw.ids), tuple(raw.type_ids), tuple(raw.offsets), tuple(raw.word_ids))


def _checked_texts(texts: Sequence[str], name: str) -> list[str]:
    if isinstance(texts, str):
        raise RequestError(f"{name} is one str where a list belongs; put it in a list, or each character is a text")
    texts = list(texts)
    for number, text in enumerate(texts):
        _check_text(text, f"{name}[{number}]")
    return texts


def _check_text(text: str, name: str) -> None:
    if not isinstance(text, str):
        raise RequestError(f"{name} is {text!r:.40}, a {type(text).__name__}; give a str")
    try:
        text.isascii() or text.encode()  # isascii() is fast, and ASCII needs no check
    except UnicodeEncodeError as error:
        code = f"U+{ord(text[error.start]):04X}"
        raise RequestError(
            f"{name} holds the lone surrogate {code} at character {error.start}; "
            "read the input as UTF-8 with errors='replace'"
        ) from error


@cache
def _make_forks_safe() -> None:
    """Make forked children tokenize in one thread: the library's threads do not survive a fork, and it warns."""
    if not hasattr(os, "register_at_fork"):
        return
    setting = "TOKENIZERS_PARALLELISM"
    before: dict[str, str] = {}

    def hide() -> None:
        before.update({setting: os.environ[setting]} if setting in os.environ else {})
        os.environ[setting] = "false"

    def restore() -> None:
        del os.environ[setting]
        os.environ.update(before)
        before.clear()

    os.register_at_fork(before=hide, after_in_parent=restore)
