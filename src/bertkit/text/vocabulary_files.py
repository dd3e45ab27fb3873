"""The small files of a tokenizer's folder: vocabularies, merges and settings, read with every fault named."""

import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bertkit.errors import RequestError
from bertkit.text.tokenizer_kinds.kind import SpecialTokens


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
    """Refuse pieces that only an added_tokens.json knows: without them the text would be cut differently."""
    added = [piece for piece in (read_json(path) if path.is_file() else ()) if piece not in vocab]
    if added:
        raise RequestError(
            f"{path} adds {added[0]!r} to the vocabulary, which bertkit reads from a tokenizer.json only; "
            "transformers' AutoTokenizer writes one with save_pretrained"
        )


def read_pieces(path: Path) -> list[str]:
    """The lines of a vocab.txt, LF or CRLF; blank ones at the end do not count, one between is a piece."""
    lines = [line.removesuffix("\r") for line in _read_text(path).split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def pieces_by_id(vocab: Mapping[str, int]) -> list[str]:
    """The pieces in the order of their ids."""
    return sorted(vocab, key=vocab.__getitem__)


def read_settings(folder: Path) -> dict[str, Any]:
    """What special_tokens_map.json and tokenizer_config.json say; where they differ, the second counts."""
    settings: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            settings |= read_json(folder / name)
    return settings


def special_tokens(settings: Mapping[str, Any], default: SpecialTokens) -> SpecialTokens:
    """The special tokens that a tokenizer's settings name, the usual ones for the others."""
    names: dict[str, str] = {}
    for role, usual in asdict(default).items():
        given = settings.get(f"{role}_token") or usual
        name = given.get("content") if isinstance(given, dict) else given
        if not isinstance(name, str):
            raise RequestError(f"the tokenizer's settings give {name!r} as {role}_token; give a str")
        names[role] = name
    return SpecialTokens(**names)


def read_flag(settings: Mapping[str, Any], name: str, default: bool) -> bool:
    """A setting that is true or false; null counts as missing."""
    value = default if settings.get(name) is None else settings[name]
    if not isinstance(value, bool):
        raise RequestError(f"the tokenizer's settings give {value!r} as {name}; give true or false")
    return value


def read_json(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds."""
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
