"""RoBERTa's byte-level BPE: bytes merged by pairs; a space is part of the piece after it."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from bertkit.errors import RequestError
from bertkit.text.tokenizer_files import (
    GPT2_TOKENS,
    ROBERTA_TOKENS,
    Loaded,
    Rebuilt,
    SpecialTokens,
    State,
    TokenizerKind,
    check_added_tokens,
    check_special_tokens,
    is_one_line,
    json_text,
    place_bert_tokens,
    read_flag,
    read_json,
    read_pieces,
    read_settings,
    register_special_tokens,
    special_tokens,
)


def byte_level_backend(
    vocab: Mapping[str, int],
    merges: Sequence[tuple[str, str]],
    tokens: SpecialTokens,
    *,
    add_prefix_space: bool,
) -> Backend:
    """RoBERTa's pipeline over a vocabulary that has been checked."""
    backend = Backend(models.BPE(dict(vocab), list(merges), continuing_subword_prefix="", end_of_word_suffix=""))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    backend.decoder = decoders.ByteLevel()
    register_special_tokens(backend, tokens)
    _place_special_tokens(backend, tokens, add_prefix_space)
    return backend


def train_byte_level(texts: Iterable[str], size: int, tokens: SpecialTokens) -> Backend:
    """A pipeline whose vocabulary is made of these texts, by the tokenizers library; a space is put before a text."""
    backend = byte_level_backend(
        {name: number for number, name in enumerate(asdict(tokens).values())}, [], tokens, add_prefix_space=True
    )
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(asdict(tokens).values()),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    model = json.loads(backend.to_str())["model"]
    return byte_level_backend(
        model["vocab"], [(first, second) for first, second in model["merges"]], tokens, add_prefix_space=True
    )


def _place_special_tokens(backend: Backend, tokens: SpecialTokens, add_prefix_space: bool = False) -> None:
    """Place special tokens as BERT or RoBERTa does; RoBERTa's also excludes the space from each piece's offsets."""
    if tokens != ROBERTA_TOKENS:
        place_bert_tokens(backend, tokens)
        return
    cls, sep = ((name, backend.get_vocab()[name]) for name in (tokens.cls, tokens.sep))
    backend.post_processor = processors.RobertaProcessing(sep, cls, True, add_prefix_space)


def _load_vocab_json(path: Path) -> Loaded:
    settings, vocab = read_settings(path.parent), read_json(path)
    tokens = special_tokens(settings, GPT2_TOKENS if GPT2_TOKENS.cls in vocab else ROBERTA_TOKENS)
    ids = {number for number in vocab.values() if type(number) is int}
    if not all(map(is_one_line, vocab)) or ids != set(range(len(vocab))):
        raise RequestError(f"{path} is no vocabulary: it must give each of its {len(vocab)} pieces an id from 0 upward")
    check_special_tokens(vocab, tokens, str(path))
    check_added_tokens(path.with_name("added_tokens.json"), vocab)
    merges = _read_merges(path.with_name("merges.txt"), vocab)
    space = read_flag(settings, "add_prefix_space", False)
    return byte_level_backend(vocab, merges, tokens, add_prefix_space=space), tokens


def _read_merges(path: Path, vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    """The pairs of a merges.txt; both halves and their concatenation must be pieces."""
    merges: list[tuple[str, str]] = []
    for number, line in enumerate(read_pieces(path), start=1):
        if number == 1 and line.startswith("#version"):
            continue
        pair = line.split(" ")
        if len(pair) != 2 or not all(half in vocab for half in (*pair, "".join(pair))):
            raise RequestError(f"{path}, line {number}: {line!r} is no pair of pieces of the vocab.json beside it")
        merges.append((pair[0], pair[1]))
    return merges


def _vocab_json(model: State) -> dict[str, str]:
    merges = "".join(f"{first} {second}\n" for first, second in model["merges"])
    return {"vocab.json": json_text(model["vocab"]), "merges.txt": f"#version: 0.2\n{merges}"}


def _roberta_tokenizer(state: State, tokens: SpecialTokens) -> Rebuilt | None:
    if state["normalizer"] is not None or tokens != ROBERTA_TOKENS:
        return None
    space = bool((state["pre_tokenizer"] or {}).get("add_prefix_space"))
    merges = [(first, second) for first, second in state["model"]["merges"]]
    mask = {"__type": "AddedToken", "content": tokens.mask, "lstrip": True, "special": True, "normalized": False}
    settings = {"tokenizer_class": "RobertaTokenizer", "add_prefix_space": space, "mask_token": mask}
    return byte_level_backend(state["model"]["vocab"], merges, tokens, add_prefix_space=space), settings


BYTE_LEVEL_BPE = TokenizerKind(
    name="BPE",
    word_start="\u0120",
    load=_load_vocab_json,
    place_special_tokens=_place_special_tokens,
    vocabulary_files=_vocab_json,
    transformers_class=_roberta_tokenizer,
)
