"""The pipelines a tokenizer is built as: BERT's WordPiece and RoBERTa's byte-level BPE, with their wiring."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend


@dataclass(frozen=True)
class SpecialNames:
    """What a vocabulary calls its five special pieces."""

    pad: str
    unk: str
    cls: str
    sep: str
    mask: str


@dataclass(frozen=True)
class Cleaning:
    """What happens to a text before WordPiece cuts it; `strip_accents=None` means: as `lowercase` says."""

    lowercase: bool = True
    strip_accents: bool | None = None
    split_cjk: bool = True


BERT_NAMES = SpecialNames("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ROBERTA_NAMES = SpecialNames("<pad>", "<unk>", "<s>", "</s>", "<mask>")


def wordpiece_backend(pieces: Sequence[str], names: SpecialNames, cleaning: Cleaning) -> Backend:
    """BERT's pipeline over a vocabulary that has been checked."""
    vocab = {piece: number for number, piece in enumerate(pieces)}
    backend = Backend(models.WordPiece(vocab, unk_token=names.unk))
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=cleaning.split_cjk,
        strip_accents=cleaning.strip_accents,
        lowercase=cleaning.lowercase,
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    add_specials(backend, names)
    wire(backend, names)
    return backend


def byte_level_backend(
    vocab: Mapping[str, int],
    merges: Sequence[tuple[str, str]],
    names: SpecialNames,
    *,
    add_prefix_space: bool,
) -> Backend:
    """RoBERTa's pipeline: byte-level BPE."""
    backend = Backend(models.BPE(dict(vocab), list(merges), continuing_subword_prefix="", end_of_word_suffix=""))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    backend.decoder = decoders.ByteLevel()
    add_specials(backend, names)
    wire(backend, names, add_prefix_space)
    return backend


def add_specials(backend: Backend, names: SpecialNames) -> None:
    """Make the special pieces known in running text; RoBERTa's mask swallows the space before it."""
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    swallows = names == ROBERTA_NAMES
    tokens = [
        AddedToken(name, special=True, normalized=False, lstrip=swallows and name == names.mask)
        for name in asdict(names).values()
        if name not in known
    ]
    backend.add_special_tokens(tokens)


def wire(backend: Backend, names: SpecialNames, add_prefix_space: bool = False) -> None:
    """[CLS] A [SEP] B [SEP], the last [SEP] in segment 1; or <s> A </s></s> B </s>, all in segment 0."""
    vocab = backend.get_vocab()
    cls, sep = ((name, vocab[name]) for name in (names.cls, names.sep))
    if isinstance(backend.model, models.BPE) and names == ROBERTA_NAMES:
        backend.post_processor = processors.RobertaProcessing(sep, cls, True, add_prefix_space)
    else:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{names.cls}:0 $A:0 {names.sep}:0",
            pair=f"{names.cls}:0 $A:0 {names.sep}:0 $B:1 {names.sep}:1",
            special_tokens=[cls, sep],
        )
