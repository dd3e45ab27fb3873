"""What a kind of tokenizer is, and the special tokens that every kind places around texts."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, processors
from tokenizers import Tokenizer as Backend


@dataclass(frozen=True)
class SpecialTokens:
    """How a vocabulary writes its five special tokens."""

    pad: str
    unk: str
    cls: str
    sep: str
    mask: str


BERT_TOKENS = SpecialTokens("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ROBERTA_TOKENS = SpecialTokens("<pad>", "<unk>", "<s>", "</s>", "<mask>")

Loaded = tuple[Backend, SpecialTokens]
State = Mapping[str, Any]  # tokenizer.json as an object
Rebuilt = tuple[Backend, dict[str, Any]]


def _no_files(model: State) -> dict[str, str]:
    return {}


def _no_class(state: State, tokens: SpecialTokens) -> Rebuilt | None:
    return None


def register_special_tokens(backend: Backend, tokens: SpecialTokens) -> None:
    """Make the special tokens known in running text; RoBERTa's mask takes the space before it."""
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    takes_space = tokens == ROBERTA_TOKENS
    added = [
        AddedToken(name, special=True, normalized=False, lstrip=takes_space and name == tokens.mask)
        for name in asdict(tokens).values()
        if name not in known
    ]
    backend.add_special_tokens(added)


def place_bert_tokens(backend: Backend, tokens: SpecialTokens) -> None:
    """[CLS] A [SEP] B [SEP], where B and the last [SEP] are segment 1."""
    _place(backend, tokens, f"{tokens.cls}:0 $A:0 {tokens.sep}:0 $B:1 {tokens.sep}:1")


def add_bert_tokens(backend: Backend, tokens: SpecialTokens) -> None:
    """Register the special tokens, and place them as BERT does."""
    register_special_tokens(backend, tokens)
    place_bert_tokens(backend, tokens)


def place_roberta_tokens(backend: Backend, tokens: SpecialTokens) -> None:
    """<s> A </s></s> B </s>, all in segment 0."""
    _place(backend, tokens, f"{tokens.cls}:0 $A:0 {tokens.sep}:0 {tokens.sep}:0 $B:0 {tokens.sep}:0")


def _place(backend: Backend, tokens: SpecialTokens, pair: str) -> None:
    vocab = backend.get_vocab()
    backend.post_processor = processors.TemplateProcessing(
        single=f"{tokens.cls}:0 $A:0 {tokens.sep}:0",
        pair=pair,
        special_tokens=[(name, vocab[name]) for name in (tokens.cls, tokens.sep)],
    )


@dataclass(frozen=True, kw_only=True)
class TokenizerKind:
    """One row of TOKENIZER_KINDS: a model type of tokenizer.json, and the other files that such a model comes in."""

    name: str  # the model's type in tokenizer.json
    word_start: str | None  # the character that starts a word's first piece; None: other pieces start with ##
    load: Mapping[str, Callable[[Path], Loaded]]  # file name -> reader, for folders without a tokenizer.json
    place_special_tokens: Callable[[Backend, SpecialTokens], None] = place_bert_tokens  # where a pipeline has none
    vocabulary_files: Callable[[State], dict[str, str]] = field(default=_no_files)  # model -> text of each file
    # The pipeline that a class of transformers builds from these files, with the class's settings.
    transformers_class: Callable[[State, SpecialTokens], Rebuilt | None] = field(default=_no_class)
