"""A tokenizer's folder in Hugging Face's layout: read with every fault named, written so that others load it.

A kind of tokenizer (WordPiece, byte-level BPE, Unigram) is a row in tokenizer_kinds/; this file has what all kinds
share: special tokens, and the reading of vocabularies, merges and settings.
"""

import json
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, processors
from tokenizers import Tokenizer as Backend

from bertkit.errors import RequestError
from bertkit.files import whole_file


@dataclass(frozen=True)
class SpecialTokens:
    """The five special tokens of a vocabulary."""

    pad: str
    unk: str
    cls: str
    sep: str
    mask: str


BERT_TOKENS = SpecialTokens("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ROBERTA_TOKENS = SpecialTokens("<pad>", "<unk>", "<s>", "</s>", "<mask>")
XLNET_TOKENS = SpecialTokens("<pad>", "<unk>", "<cls>", "<sep>", "<mask>")
MPNET_TOKENS = SpecialTokens("<pad>", "[UNK]", "<s>", "</s>", "<mask>")
GPT2_TOKENS = SpecialTokens(*["<|endoftext|>"] * 5)  # the only one of its vocabulary
GPT_TOKENS = SpecialTokens(*["<unk>"] * 5)
# The first whose [CLS] a vocabulary has.
DEFAULT_TOKENS = (BERT_TOKENS, XLNET_TOKENS, ROBERTA_TOKENS, GPT2_TOKENS, GPT_TOKENS)

# XLNet's classes read [CLS] in the last column, and its segment.
CLS_LAST_SETTINGS = {
    "padding_side": "left",
    "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
}

Loaded = tuple[Backend, SpecialTokens]
State = Mapping[str, Any]  # tokenizer.json as an object
Rebuilt = tuple[Backend, dict[str, Any]]


def register_special_tokens(backend: Backend, tokens: SpecialTokens) -> None:
    """Make the backend recognize special tokens in a text; some masks, as RoBERTa's, include the space before."""
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    strips_space = tokens in (ROBERTA_TOKENS, MPNET_TOKENS, XLNET_TOKENS)
    added = [
        AddedToken(name, special=True, normalized=False, lstrip=strips_space and name == tokens.mask)
        for name in asdict(tokens).values()
        if name not in known
    ]
    backend.add_special_tokens(added)


def place_bert_tokens(backend: Backend, tokens: SpecialTokens) -> None:
    """[CLS] A [SEP] B [SEP], where B and the last [SEP] are segment 1."""
    _place(backend, tokens, f"{tokens.cls}:0 $A:0 {tokens.sep}:0 $B:1 {tokens.sep}:1")


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


def _no_files(model: State) -> dict[str, str]:
    return {}


def _no_class(state: State, tokens: SpecialTokens) -> Rebuilt | None:
    return None


@dataclass(frozen=True, kw_only=True)
class TokenizerKind:
    """A row: a model type of tokenizer.json, and the other files that such a model comes in."""

    name: str  # the model's type in tokenizer.json
    word_start: str | None  # the character that starts a word's first piece; None: other pieces start with ##
    load: Callable[[Path], Loaded]  # reads one of its VOCABULARY_FILES, in a folder without tokenizer.json
    place_special_tokens: Callable[[Backend, SpecialTokens], None] = place_bert_tokens  # for a pipeline without them
    vocabulary_files: Callable[[State], dict[str, str]] = field(default=_no_files)  # model -> text of each file
    # The pipeline that a class of transformers builds from these files, with the class's settings.
    transformers_class: Callable[[State, SpecialTokens], Rebuilt | None] = field(default=_no_class)


# Type of model in tokenizer.json -> file in tokenizer_kinds/, and the constant in it.
TOKENIZER_KINDS = {
    "WordPiece": "bert_wordpiece:WORDPIECE",
    "BPE": "byte_level_bpe:BYTE_LEVEL_BPE",
    "Unigram": "sentencepiece_unigram:UNIGRAM",
}
TOKENIZER_JSON = "tokenizer.json"
# Files that hold a vocabulary, and the kind that reads them.
VOCABULARY_FILES = {
    "vocab.txt": "WordPiece",
    "vocab.json": "BPE",
    "spiece.model": "Unigram",
    "spm.model": "Unigram",
    "sentencepiece.bpe.model": "Unigram",
}
TOKENIZER_FILES = (TOKENIZER_JSON, *VOCABULARY_FILES)  # the first one that exists is read


def tokenizer_kind(name: str) -> TokenizerKind:
    """A row by its name; its file is imported when the row is first used."""
    module, _, constant = TOKENIZER_KINDS[name].partition(":")
    kind: TokenizerKind = getattr(import_module(f"bertkit.text.tokenizer_kinds.{module}"), constant)
    return kind


def load_backend(path: Path) -> Loaded:
    """The tokenizer of a folder (tokenizer.json first, then the vocabulary's files) or of one file."""
    if path.is_file():
        return _load_file(path)
    if not path.is_dir():
        raise RequestError(f"{path} does not exist; name a folder with a tokenizer.json or vocab.txt, or a vocab.txt")
    for name in TOKENIZER_FILES:
        if (path / name).is_file():
            return _load_file(path / name)
    raise RequestError(f"{path} holds no tokenizer; put a tokenizer.json, a vocab.txt or vocab.json + merges.txt there")


def _load_file(path: Path) -> Loaded:
    """A file with an unknown name is read as a vocab.txt."""
    if path.name == TOKENIZER_JSON:
        return _load_tokenizer_json(path)
    return tokenizer_kind(VOCABULARY_FILES.get(path.name, "WordPiece")).load(path)


def save_backend(backend: Backend, tokens: SpecialTokens, folder: Path, *, cls_last: bool = False) -> None:
    """Write tokenizer.json, the vocabulary's own files and the settings that transformers reads.

    `cls_last`: others must put [CLS] after the text, as XLNet; bertkit puts it first, and the model knows.
    """
    state = json.loads(backend.to_str())
    kind = tokenizer_kind(state["model"]["type"])
    if cls_last:
        backend = _with_cls_last(backend, kind, tokens)
    more = CLS_LAST_SETTINGS if cls_last else {}
    config = {f"{role}_token": name for role, name in asdict(tokens).items()}
    texts = {
        TOKENIZER_JSON: backend.to_str(pretty=True),
        "special_tokens_map.json": json_text(config),
        "tokenizer_config.json": json_text(config | _transformers_settings(kind, state, backend, tokens) | more),
        **kind.vocabulary_files(state["model"]),
    }
    for name, text in texts.items():
        with whole_file(folder / name) as draft:
            draft.write_text(text, encoding="utf-8", newline="\n")


def _with_cls_last(backend: Backend, kind: TokenizerKind, tokens: SpecialTokens) -> Backend:
    """A [SEP] B [SEP] [CLS], where [CLS] is segment 2."""
    copy = Backend.from_str(backend.to_str())
    kind.place_special_tokens(copy, tokens)
    state = json.loads(copy.to_str())
    for name in ("single", "pair"):
        first, *rest = state["post_processor"][name]
        first["SpecialToken"]["type_id"] = 2
        state["post_processor"][name] = [*rest, first]
    return Backend.from_str(json.dumps(state))


def _load_tokenizer_json(path: Path) -> Loaded:
    backend = _read_backend(path)
    model = type(backend.model).__name__
    if model not in TOKENIZER_KINDS:
        raise RequestError(f"{path} holds a {model} model; bertkit reads {', '.join(TOKENIZER_KINDS)}")
    backend.no_truncation()  # the caller decides about length
    backend.no_padding()
    vocab = backend.get_vocab()
    if len(set(vocab.values())) < len(vocab):
        raise RequestError(f"{path} gives one id to two pieces; copy it again from its source")
    default = next((tokens for tokens in DEFAULT_TOKENS if tokens.cls in vocab), ROBERTA_TOKENS)
    tokens = special_tokens(read_settings(path.parent), default)
    check_special_tokens(vocab, tokens, str(path))
    register_special_tokens(backend, tokens)
    if backend.encode("").ids != [vocab[tokens.cls], vocab[tokens.sep]]:
        tokenizer_kind(model).place_special_tokens(backend, tokens)
    return backend, tokens


def _read_backend(path: Path) -> Backend:
    try:
        return Backend.from_str(json.dumps(read_json(path)))
    except RequestError:
        raise
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises nothing narrower, and panics outside of Exception
        raise RequestError(f"{path} is not a tokenizer.json that can be read: {error}") from error


def _transformers_settings(
    kind: TokenizerKind, state: Mapping[str, Any], backend: Backend, tokens: SpecialTokens
) -> dict[str, Any]:
    """The class of transformers that builds an equal tokenizer, with its settings; else the general class."""
    rebuilt = kind.transformers_class(state, tokens)
    if rebuilt is None or rebuilt[0].to_str() != backend.to_str():
        return {"tokenizer_class": "PreTrainedTokenizerFast"}
    return rebuilt[1]


def check_pieces(pieces: Sequence[str], tokens: SpecialTokens, where: str, unit: str) -> None:
    """Refuse an empty vocabulary, a piece listed twice, one with a line break, a missing special token."""
    if not pieces:
        raise RequestError(f"{where} is empty; a vocabulary has one piece per line")
    seen: dict[str, int] = {}
    for number, piece in enumerate(pieces, start=1):
        if not is_one_line(piece):
            raise RequestError(f"{where}, {unit} {number}: {piece!r} is no text of one line; remove it")
        if piece in seen:
            raise RequestError(
                f"{where} lists {piece!r} twice, in {unit} {seen[piece]} and {unit} {number}; "
                "rename one of them, so that the ids of the others stay"
            )
        seen[piece] = number
    check_special_tokens(seen, tokens, where)


def is_one_line(piece: object) -> bool:
    """Whether a piece can be a line of a vocab.txt in UTF-8."""
    if not isinstance(piece, str) or "\n" in piece or "\r" in piece:
        return False
    return piece == piece.encode("utf-8", "replace").decode()  # a lone surrogate would become "?"


def check_special_tokens(vocab: Mapping[str, int], tokens: SpecialTokens, where: str) -> None:
    """Refuse a vocabulary without one of its five special tokens."""
    missing = [name for name in asdict(tokens).values() if name not in vocab]
    if missing:
        raise RequestError(
            f"{where} has no {' and no '.join(missing)}; add what is missing, or name the special pieces "
            "of this vocabulary in a tokenizer_config.json beside it"
        )


def check_added_tokens(path: Path, vocab: Container[str]) -> None:
    """Refuse an added_tokens.json with pieces that are not in the vocabulary: texts would be split differently."""
    added = [piece for piece in (read_json(path) if path.is_file() else ()) if piece not in vocab]
    if added:
        raise RequestError(
            f"{path} adds {added[0]!r} to the vocabulary, which bertkit reads from a tokenizer.json only; "
            "transformers' AutoTokenizer writes one with save_pretrained"
        )


def read_pieces(path: Path) -> list[str]:
    """The lines of a vocab.txt, LF or CRLF; blank lines at the end are dropped, others are pieces."""
    lines = [line.removesuffix("\r") for line in _read_text(path).split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def pieces_by_id(vocab: Mapping[str, int]) -> list[str]:
    """The pieces in the order of their ids."""
    return sorted(vocab, key=vocab.__getitem__)


def read_settings(folder: Path) -> dict[str, Any]:
    """The fields of special_tokens_map.json and tokenizer_config.json; the latter has priority."""
    settings: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            settings |= read_json(folder / name)
    return settings


def special_tokens(settings: Mapping[str, Any], default: SpecialTokens) -> SpecialTokens:
    """The special tokens of a tokenizer's settings; where they name none, the default."""
    names: dict[str, str] = {}
    for role, default_name in asdict(default).items():
        value = settings.get(f"{role}_token") or default_name
        name = value.get("content") if isinstance(value, dict) else value
        if not isinstance(name, str):
            raise RequestError(f"the tokenizer's settings give {name!r} as {role}_token; give a str")
        names[role] = name
    return SpecialTokens(**names)


def read_flag(settings: Mapping[str, Any], name: str, default: bool) -> bool:
    """A setting that must be true or false; null is the default."""
    value = default if settings.get(name) is None else settings[name]
    if not isinstance(value, bool):
        raise RequestError(f"the tokenizer's settings give {value!r} as {name}; give true or false")
    return value


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    try:
        content = json.loads(_read_text(path))
    except json.JSONDecodeError as error:
        problem = f"{error.msg} in line {error.lineno}, column {error.colno}"
        raise RequestError(f"{path} is not whole JSON ({problem}); copy it again from its source") from error
    except (RecursionError, ValueError) as error:  # too deep, or a number of thousands of digits
        raise RequestError(f"{path} is nested too deeply to be a tokenizer's file") from error
    if not isinstance(content, dict):
        raise RequestError(f"{path} holds a JSON {type(content).__name__} where an object belongs")
    return content


def json_text(content: Mapping[str, Any]) -> str:
    """An object as the text of a JSON file."""
    return json.dumps(content, ensure_ascii=False, indent=2) + "\n"


def _read_text(path: Path) -> str:
    try:
        raw = path.read_bytes()
        if b"\0" in raw:
            line = raw.count(b"\n", 0, raw.index(b"\0")) + 1
            raise RequestError(f"{path}, line {line}: a NUL byte; this is no text file, or one in UTF-16")
        return raw.decode("utf-8-sig")
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise RequestError(f"{path}, line {line}: not UTF-8; save the file in that encoding") from error
