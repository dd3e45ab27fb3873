"""SentencePiece's Unigram, from a tokenizer.json: the most probable segmentation of a word.

XLM-RoBERTa, CamemBERT and ALBERT use it. text/unigram.py is the readable twin of its algorithm.
"""

from pathlib import Path

from tokenizers import Tokenizer as Backend

from bertkit.errors import RequestError
from bertkit.text.tokenizer_files import (
    ROBERTA_TOKENS,
    Loaded,
    SpecialTokens,
    TokenizerKind,
    place_bert_tokens,
    place_roberta_tokens,
)


def _refuse(path: Path) -> Loaded:
    raise RequestError(
        f"{path} is a SentencePiece model, which bertkit does not read; put the tokenizer.json of the same "
        "model beside it (transformers' AutoTokenizer writes one with save_pretrained)"
    )


def _place_special_tokens(backend: Backend, tokens: SpecialTokens) -> None:
    place = place_roberta_tokens if tokens == ROBERTA_TOKENS else place_bert_tokens
    place(backend, tokens)


UNIGRAM = TokenizerKind(
    name="Unigram",
    word_start="\u2581",
    load=_refuse,
    place_special_tokens=_place_special_tokens,
)
