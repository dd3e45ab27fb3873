"""BERT's WordPiece: text is cleaned, split at spaces and punctuation, then into the longest pieces.

MPNet has BERT's pieces with RoBERTa's special tokens.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers

from bertkit.errors import RequestError
from bertkit.families.family import FAMILIES
from bertkit.text.tokenizer_files import (
    BERT_TOKENS,
    MPNET_TOKENS,
    Loaded,
    Rebuilt,
    SpecialTokens,
    State,
    TokenizerKind,
    check_added_tokens,
    check_pieces,
    is_one_line,
    pieces_by_id,
    place_bert_tokens,
    place_roberta_tokens,
    read_flag,
    read_pieces,
    read_settings,
    register_special_tokens,
    special_tokens,
)

# Other classes of transformers with plain WordPiece and BERT's special tokens (the Japanese ones split words first).
OTHER_CLASSES = {"ConvBert", "MobileBert", "SqueezeBert", "LayoutLM", "Lxmert"}


@dataclass(frozen=True)
class Cleaning:
    """How a text is normalized before WordPiece; `strip_accents=None` is the same as `lowercase`."""

    lowercase: bool = True
    strip_accents: bool | None = None
    split_cjk: bool = True


def wordpiece_backend(pieces: Sequence[str], tokens: SpecialTokens, cleaning: Cleaning) -> Backend:
    """BERT's pipeline over a vocabulary that has been checked."""
    vocab = {piece: number for number, piece in enumerate(pieces)}
    backend = Backend(models.WordPiece(vocab, unk_token=tokens.unk))
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=cleaning.split_cjk,
        strip_accents=cleaning.strip_accents,
        lowercase=cleaning.lowercase,
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    register_special_tokens(backend, tokens)
    _place_special_tokens(backend, tokens)
    return backend


def _place_special_tokens(backend: Backend, tokens: SpecialTokens) -> None:
    """As BERT does; MPNet as RoBERTa does: <s> A </s></s> B </s>."""
    (place_roberta_tokens if tokens == MPNET_TOKENS else place_bert_tokens)(backend, tokens)


def _load_vocab_txt(path: Path) -> Loaded:
    """A vocab.txt with the settings beside it."""
    settings = read_settings(path.parent)
    stem = str(settings.get("tokenizer_class") or "BertTokenizer").removesuffix("Fast").removesuffix("Tokenizer")
    if stem not in OTHER_CLASSES | {row.class_stem for row in FAMILIES.values() if row.tokenizer == WORDPIECE.name}:
        raise RequestError(f"{path} belongs to a {stem}Tokenizer, which bertkit reads from a tokenizer.json only")
    pieces = read_pieces(path)
    tokens = special_tokens(settings, MPNET_TOKENS if MPNET_TOKENS.cls in pieces else BERT_TOKENS)
    check_pieces(pieces, tokens, str(path), "line")
    check_added_tokens(path.with_name("added_tokens.json"), pieces)
    lowercase = read_flag(settings, "do_lower_case", not _looks_cased(pieces, tokens))
    strip_accents = None if settings.get("strip_accents") is None else read_flag(settings, "strip_accents", lowercase)
    cleaning = Cleaning(lowercase, strip_accents, read_flag(settings, "tokenize_chinese_chars", True))
    return wordpiece_backend(pieces, tokens, cleaning), tokens


def _looks_cased(pieces: Sequence[str], tokens: SpecialTokens) -> bool:
    """Whether a vocabulary is cased, which Google's folders do not say: then many pieces have capitals.

    Pieces with capitals: cased 29 %, multilingual 16 %, SciBERT uncased 0.5 %, uncased and Chinese none.
    """
    special = {*asdict(tokens).values(), *(piece for piece in pieces if piece.startswith("[unused"))}
    capitals = sum(piece != piece.lower() for piece in pieces if piece not in special)
    return capitals > 0.05 * len(pieces)


def _vocab_txt(model: State) -> dict[str, str]:
    if not all(map(is_one_line, model["vocab"])) or max(model["vocab"].values()) >= len(model["vocab"]):
        return {}  # a piece with a line break, or a gap between the ids, cannot be written as lines
    return {"vocab.txt": "".join(f"{piece}\n" for piece in pieces_by_id(model["vocab"]))}


def _bert_tokenizer(state: State, tokens: SpecialTokens) -> Rebuilt | None:
    flags = state["normalizer"]
    if (flags or {}).get("type") != "BertNormalizer":
        return None
    cleaning = Cleaning(flags["lowercase"], flags["strip_accents"], flags["handle_chinese_chars"])
    settings = {
        "tokenizer_class": "MPNetTokenizer" if tokens == MPNET_TOKENS else "BertTokenizer",
        "do_lower_case": cleaning.lowercase,
        "strip_accents": cleaning.strip_accents,
        "tokenize_chinese_chars": cleaning.split_cjk,
    }
    return wordpiece_backend(pieces_by_id(state["model"]["vocab"]), tokens, cleaning), settings


WORDPIECE = TokenizerKind(
    name="WordPiece",
    word_start=None,
    load=_load_vocab_txt,
    place_special_tokens=_place_special_tokens,
    vocabulary_files=_vocab_txt,
    transformers_class=_bert_tokenizer,
)
