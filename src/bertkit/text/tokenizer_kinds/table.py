"""TOKENIZER_KINDS: the models of tokenizer.json that bertkit reads, by the name of their type."""

from bertkit.text.tokenizer_kinds.bert_wordpiece import WORDPIECE
from bertkit.text.tokenizer_kinds.byte_level_bpe import BYTE_LEVEL_BPE
from bertkit.text.tokenizer_kinds.kind import TokenizerKind
from bertkit.text.tokenizer_kinds.sentencepiece_unigram import UNIGRAM

TOKENIZER_KINDS: dict[str, TokenizerKind] = {kind.name: kind for kind in (WORDPIECE, BYTE_LEVEL_BPE, UNIGRAM)}
