"""A tokenizer's folder: Hugging Face's files, read with every fault named, written so that others load them."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from bertkit.errors import RequestError
from bertkit.files import whole_file
from bertkit.text.tokenizer_kinds.bert_wordpiece import load_vocab_txt
from bertkit.text.tokenizer_kinds.kind import (
    BERT_TOKENS,
    ROBERTA_TOKENS,
    Loaded,
    SpecialTokens,
    TokenizerKind,
    register_special_tokens,
)
from bertkit.text.tokenizer_kinds.table import TOKENIZER_KINDS
from bertkit.text.vocabulary_files import check_special_tokens, json_text, read_json, read_settings, special_tokens


def load_backend(path: Path) -> Loaded:
    """The tokenizer of a folder (tokenizer.json first, then the vocabulary's files) or of one file."""
    if path.is_file():
        return LOADERS.get(path.name, load_vocab_txt)(path)
    if not path.is_dir():
        raise RequestError(f"{path} does not exist; name a folder with a tokenizer.json or vocab.txt, or a vocab.txt")
    for name, load in LOADERS.items():
        if (path / name).is_file():
            return load(path / name)
    raise RequestError(f"{path} holds no tokenizer; put a tokenizer.json, a vocab.txt or vocab.json + merges.txt there")


def save_backend(backend: Backend, tokens: SpecialTokens, folder: Path) -> None:
    """Write tokenizer.json, the vocabulary's own files and the settings that transformers reads."""
    state = json.loads(backend.to_str())
    kind = TOKENIZER_KINDS[state["model"]["type"]]
    config = {f"{role}_token": name for role, name in asdict(tokens).items()}
    texts = {
        "tokenizer.json": backend.to_str(pretty=True),
        "special_tokens_map.json": json_text(config),
        "tokenizer_config.json": json_text(config | _transformers_settings(kind, state, backend, tokens)),
        **kind.vocabulary_files(state["model"]),
    }
    for name, text in texts.items():
        with whole_file(folder / name) as draft:
            draft.write_text(text, encoding="utf-8", newline="\n")


def _load_tokenizer_json(path: Path) -> Loaded:
    backend = _read_backend(path)
    model = type(backend.model).__name__
    if model not in TOKENIZER_KINDS:
        raise RequestError(f"{path} holds a {model} model; bertkit reads {', '.join(TOKENIZER_KINDS)}")
    backend.no_truncation()  # nothing is cut or padded here: how long a text may be is decided elsewhere
    backend.no_padding()
    vocab = backend.get_vocab()
    if len(set(vocab.values())) < len(vocab):
        raise RequestError(f"{path} gives one id to two pieces; copy it again from its source")
    usual = BERT_TOKENS if BERT_TOKENS.cls in vocab else ROBERTA_TOKENS
    tokens = special_tokens(read_settings(path.parent), usual)
    check_special_tokens(vocab, tokens, str(path))
    register_special_tokens(backend, tokens)
    if backend.encode("").ids != [vocab[tokens.cls], vocab[tokens.sep]]:
        TOKENIZER_KINDS[model].place_special_tokens(backend, tokens)
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
    """The class of transformers that rebuilds this tokenizer, with its settings; else the general one."""
    rebuilt = kind.transformers_class(state, tokens)
    if rebuilt is None or rebuilt[0].to_str() != backend.to_str():
        return {"tokenizer_class": "PreTrainedTokenizerFast"}
    return rebuilt[1]


# Files that hold a tokenizer: the first one that exists is read.
LOADERS: dict[str, Callable[[Path], Loaded]] = {
    "tokenizer.json": _load_tokenizer_json,
    **{name: load for kind in TOKENIZER_KINDS.values() for name, load in kind.load.items()},
}
