"""Tokenizers on disk: Hugging Face files, read with every fault named, written so that others load them."""

import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from bertkit.errors import RequestError
from bertkit.files import whole_file
from bertkit.text.pipelines import (
    BERT_NAMES,
    ROBERTA_NAMES,
    Cleaning,
    SpecialNames,
    add_specials,
    byte_level_backend,
    wire,
    wordpiece_backend,
)

# Classes of transformers with plain WordPiece and BERT's wiring; others, the Japanese say, cut words first.
WORDPIECE_FAMILIES = (
    "Bert",
    "DistilBert",
    "Electra",
    "ConvBert",
    "MobileBert",
    "SqueezeBert",
    "LayoutLM",
    "Lxmert",
)
MODELS = ("WordPiece", "BPE", "Unigram")


def load_backend(path: Path) -> tuple[Backend, SpecialNames]:
    """The tokenizer of a folder (tokenizer.json first, then the vocabulary's files) or of one file."""
    if path.is_file():
        return LOADERS.get(path.name, _load_wordpiece)(path)
    if not path.is_dir():
        raise RequestError(f"{path} does not exist; name a folder with a tokenizer.json or vocab.txt, or a vocab.txt")
    for name, load in LOADERS.items():
        if (path / name).is_file():
            return load(path / name)
    raise RequestError(f"{path} holds no tokenizer; put a tokenizer.json, a vocab.txt or vocab.json + merges.txt there")


def check_pieces(pieces: Sequence[str], names: SpecialNames, where: str, unit: str) -> None:
    """Refuse an empty vocabulary, a piece listed twice, one with a line break, a missing special piece."""
    if not pieces:
        raise RequestError(f"{where} is empty; a vocabulary has one piece per line")
    seen: dict[str, int] = {}
    for number, piece in enumerate(pieces, start=1):
        if not _is_writable(piece):
            raise RequestError(f"{where}, {unit} {number}: {piece!r} is no text of one line; remove it")
        if piece in seen:
            raise RequestError(
                f"{where} lists {piece!r} twice, in {unit} {seen[piece]} and {unit} {number}; "
                "rename one of them, so that the ids of the others stay"
            )
        seen[piece] = number
    check_specials(seen, names, where)


def _is_writable(piece: object) -> bool:
    """Whether a piece can be a line of a vocab.txt in UTF-8."""
    if not isinstance(piece, str) or "\n" in piece or "\r" in piece:
        return False
    return piece == piece.encode("utf-8", "replace").decode()  # a lone surrogate would become "?"


def check_specials(vocab: Mapping[str, int], names: SpecialNames, where: str) -> None:
    """Refuse a vocabulary without one of its five special pieces."""
    missing = [name for name in asdict(names).values() if name not in vocab]
    if missing:
        raise RequestError(
            f"{where} has no {' and no '.join(missing)}; add what is missing, or name the special pieces "
            "of this vocabulary in a tokenizer_config.json beside it"
        )


def read_pieces(path: Path) -> list[str]:
    """The lines of a vocab.txt, LF or CRLF; blank ones at the end do not count, one between is a piece."""
    lines = [line.removesuffix("\r") for line in _read_text(path).split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def save_backend(backend: Backend, names: SpecialNames, folder: Path) -> None:
    """Write tokenizer.json, the vocabulary's own files and the settings that transformers reads."""
    state = json.loads(backend.to_str())
    config = {f"{role}_token": name for role, name in asdict(names).items()}
    texts = {
        "tokenizer.json": backend.to_str(pretty=True),
        "special_tokens_map.json": _json_text(config),
        "tokenizer_config.json": _json_text(config | _settings_to_save(state, backend, names)),
        **_vocabulary_files(state["model"]),
    }
    for name, text in texts.items():
        with whole_file(folder / name) as draft:
            draft.write_text(text, encoding="utf-8", newline="\n")


def _load_json(path: Path) -> tuple[Backend, SpecialNames]:
    try:
        backend = Backend.from_str(json.dumps(_read_json(path)))
    except RequestError:
        raise
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises nothing narrower, and panics outside of Exception
        raise RequestError(f"{path} is not a tokenizer.json that can be read: {error}") from error
    kind = type(backend.model).__name__
    if kind not in MODELS:
        raise RequestError(f"{path} holds a {kind} model; bertkit reads {', '.join(MODELS)}")
    backend.no_truncation()  # nothing is cut or padded here: how long a text may be is decided elsewhere
    backend.no_padding()
    vocab = backend.get_vocab()
    if len(set(vocab.values())) < len(vocab):
        raise RequestError(f"{path} gives one id to two pieces; copy it again from its source")
    names = _names(_settings(path.parent), BERT_NAMES if BERT_NAMES.cls in vocab else ROBERTA_NAMES)
    check_specials(vocab, names, str(path))
    add_specials(backend, names)
    if backend.encode("").ids != [vocab[names.cls], vocab[names.sep]]:
        wire(backend, names)
    return backend, names


def _load_wordpiece(path: Path) -> tuple[Backend, SpecialNames]:
    settings = _settings(path.parent)
    family = str(settings.get("tokenizer_class") or "BertTokenizer").removesuffix("Fast").removesuffix("Tokenizer")
    if family not in WORDPIECE_FAMILIES:
        raise RequestError(f"{path} belongs to a {family}Tokenizer, which bertkit reads from a tokenizer.json only")
    names = _names(settings, BERT_NAMES)
    pieces = read_pieces(path)
    check_pieces(pieces, names, str(path), "line")
    _check_added(path.with_name("added_tokens.json"), pieces)
    lowercase = _flag(settings, "do_lower_case", not _looks_cased(pieces, names))
    strip_accents = None if settings.get("strip_accents") is None else _flag(settings, "strip_accents", lowercase)
    cleaning = Cleaning(lowercase, strip_accents, _flag(settings, "tokenize_chinese_chars", True))
    return wordpiece_backend(pieces, names, cleaning), names


def _looks_cased(pieces: Sequence[str], names: SpecialNames) -> bool:
    """Google's folders do not say; lowercased text never reaches a capital, so a cased vocabulary has many.

    Pieces with capitals: cased 29 %, multilingual 16 %, SciBERT uncased 0.5 %, uncased and Chinese none.
    """
    special = {*asdict(names).values(), *(piece for piece in pieces if piece.startswith("[unused"))}
    capitals = sum(piece != piece.lower() for piece in pieces if piece not in special)
    return capitals > 0.05 * len(pieces)


def _load_byte_level(path: Path) -> tuple[Backend, SpecialNames]:
    settings = _settings(path.parent)
    names = _names(settings, ROBERTA_NAMES)
    vocab = _read_json(path)
    ids = {number for number in vocab.values() if type(number) is int}
    if not all(map(_is_writable, vocab)) or ids != set(range(len(vocab))):
        raise RequestError(f"{path} is no vocabulary: it must give each of its {len(vocab)} pieces an id from 0 upward")
    check_specials(vocab, names, str(path))
    _check_added(path.with_name("added_tokens.json"), vocab)
    merges = _read_merges(path.with_name("merges.txt"), vocab)
    space = _flag(settings, "add_prefix_space", False)
    return byte_level_backend(vocab, merges, names, add_prefix_space=space), names


def _check_added(path: Path, vocab: Container[str]) -> None:
    """Refuse pieces that only an added_tokens.json knows: without them the text would be cut differently."""
    added = [piece for piece in (_read_json(path) if path.is_file() else ()) if piece not in vocab]
    if added:
        raise RequestError(
            f"{path} adds {added[0]!r} to the vocabulary, which bertkit reads from a tokenizer.json only; "
            "transformers' AutoTokenizer writes one with save_pretrained"
        )


def _refuse_sentencepiece(path: Path) -> tuple[Backend, SpecialNames]:
    raise RequestError(
        f"{path} is a SentencePiece model, which bertkit does not read; put the tokenizer.json of the same "
        "model beside it (transformers' AutoTokenizer writes one with save_pretrained)"
    )


LOADERS = {
    "tokenizer.json": _load_json,
    "vocab.txt": _load_wordpiece,
    "vocab.json": _load_byte_level,
    "spiece.model": _refuse_sentencepiece,
    "sentencepiece.bpe.model": _refuse_sentencepiece,
}


def _settings(folder: Path) -> dict[str, Any]:
    """What special_tokens_map.json and tokenizer_config.json say; the second has the last word."""
    settings: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            settings |= _read_json(folder / name)
    return settings


def _names(settings: Mapping[str, Any], default: SpecialNames) -> SpecialNames:
    names: dict[str, str] = {}
    for role, usual in asdict(default).items():
        given = settings.get(f"{role}_token") or usual
        name = given.get("content") if isinstance(given, dict) else given
        if not isinstance(name, str):
            raise RequestError(f"the tokenizer's settings give {name!r} as {role}_token; give a str")
        names[role] = name
    return SpecialNames(**names)


def _flag(settings: Mapping[str, Any], name: str, default: bool) -> bool:
    value = default if settings.get(name) is None else settings[name]
    if not isinstance(value, bool):
        raise RequestError(f"the tokenizer's settings give {value!r} as {name}; give true or false")
    return value


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


def _read_json(path: Path) -> dict[str, Any]:
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


def _read_merges(path: Path, vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    """The pairs of a merges.txt; each half and their sum must be pieces."""
    merges: list[tuple[str, str]] = []
    for number, line in enumerate(read_pieces(path), start=1):
        if number == 1 and line.startswith("#version"):
            continue
        pair = line.split(" ")
        if len(pair) != 2 or not all(half in vocab for half in (*pair, "".join(pair))):
            raise RequestError(f"{path}, line {number}: {line!r} is no pair of pieces of the vocab.json beside it")
        merges.append((pair[0], pair[1]))
    return merges


def _settings_to_save(state: Mapping[str, Any], backend: Backend, names: SpecialNames) -> dict[str, Any]:
    """The class of transformers that rebuilds this tokenizer, with its settings; else the general one."""
    kind = (state["normalizer"] or {}).get("type"), state["model"]["type"]
    rebuilt: Backend | None = None
    settings: dict[str, Any] = {}
    if kind == ("BertNormalizer", "WordPiece"):
        rebuilt, settings = _as_bert(state, names)
    elif kind == (None, "BPE") and names == ROBERTA_NAMES:
        rebuilt, settings = _as_roberta(state, names)
    if rebuilt is None or rebuilt.to_str() != backend.to_str():
        return {"tokenizer_class": "PreTrainedTokenizerFast"}
    return settings


def _as_bert(state: Mapping[str, Any], names: SpecialNames) -> tuple[Backend, dict[str, Any]]:
    flags = state["normalizer"]
    cleaning = Cleaning(flags["lowercase"], flags["strip_accents"], flags["handle_chinese_chars"])
    settings = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": cleaning.lowercase,
        "strip_accents": cleaning.strip_accents,
        "tokenize_chinese_chars": cleaning.split_cjk,
    }
    return wordpiece_backend(_by_id(state["model"]["vocab"]), names, cleaning), settings


def _as_roberta(state: Mapping[str, Any], names: SpecialNames) -> tuple[Backend, dict[str, Any]]:
    space = bool((state["pre_tokenizer"] or {}).get("add_prefix_space"))
    merges = [(first, second) for first, second in state["model"]["merges"]]
    mask = {
        "__type": "AddedToken",
        "content": names.mask,
        "lstrip": True,
        "special": True,
        "normalized": False,
    }
    settings = {"tokenizer_class": "RobertaTokenizer", "add_prefix_space": space, "mask_token": mask}
    return byte_level_backend(state["model"]["vocab"], merges, names, add_prefix_space=space), settings


def _vocabulary_files(model: Mapping[str, Any]) -> dict[str, str]:
    if model["type"] == "WordPiece":
        if not all(map(_is_writable, model["vocab"])) or max(model["vocab"].values()) >= len(model["vocab"]):
            return {}  # lines cannot say it: a piece with a line break, or a gap between the ids
        return {"vocab.txt": "".join(f"{piece}\n" for piece in _by_id(model["vocab"]))}
    if model["type"] == "BPE":
        merges = "".join(f"{first} {second}\n" for first, second in model["merges"])
        return {"vocab.json": _json_text(model["vocab"]), "merges.txt": f"#version: 0.2\n{merges}"}
    return {}  # Unigram: its scores live in tokenizer.json


def _by_id(vocab: Mapping[str, int]) -> list[str]:
    return sorted(vocab, key=vocab.__getitem__)


def _json_text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False, indent=2) + "\n"
