"""Tiny random models of every family and head, in transformers: what the table FAMILIES lists, and nothing by hand."""

import json
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from bertkit.checkpoint.hugging_face import config_to_json
from bertkit.config import BertConfig, family_config
from bertkit.families.family import FAMILIES
from bertkit.model.attention import CLS_SEGMENT
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.tokenizer_files import BERT_TOKENS, ROBERTA_TOKENS
from bertkit.text.tokenizer_kinds.byte_level_bpe import byte_level_backend

VOCAB, LENGTHS, LABELS = 99, (1, 7, 64), 5

SHAPE = {
    "vocab_size": VOCAB,
    "width": 48,
    "depth": 3,
    "heads": 4,
    "inner": 80,
    "max_length": 64,
    "init_std": 0.1,  # five times the usual, so that a wrong connection shows
}
NARROW = {"embedding_width": 16}
LOCAL = {"window": 10}

# (family, transformers' class, our heads); more heads than a class of ELECTRA has are for saving only.
ROWS = [
    (name, getattr(transformers, kind), heads)
    for name, family in FAMILIES.items()
    for heads, kind in family.classes.items()
    if heads == next(first for first, other in family.classes.items() if other == kind)
] + [
    (name, getattr(transformers, family.causal_class), ("masked_word",))
    for name, family in FAMILIES.items()
    if family.kind == "decoder" and family.published
]
CAUSAL_ROWS = [
    (name, getattr(transformers, family.causal_class), ("masked_word",))
    for name, family in FAMILIES.items()
    if family.causal_class and family.kind == "encoder"
]
PUBLISHED = {name: family for name, family in FAMILIES.items() if family.published}
ENCODERS = [name for name, family in PUBLISHED.items() if family.kind == "encoder"]
BASE_ROWS = [row for row in ROWS if not row[2]]


def tiny_config(name: str) -> BertConfig:
    """A small shape of a family: narrow embeddings and local layers where the family can have them."""
    family = FAMILIES[name]
    narrow = NARROW if "embedding_width" in family.config_fields else {}
    local = LOCAL if "window" in family.settings else {}
    decoder = {"decoder_depth": 2} if family.kind == "encoder-decoder" else {}
    coarse = {"relative_buckets": 8} if family.settings.get("relative") == "disentangled" else {}
    inner = {"inner": 4 * SHAPE["width"]} if name == "openai-gpt" else {}  # its config has no field for it
    return family_config(name, **SHAPE | inner, **narrow, **local, **coarse, **decoder)


def their_config(name: str) -> transformers.PreTrainedConfig:
    """The same shape as transformers' config class has it."""
    kind = getattr(transformers, f"{FAMILIES[name].class_stem}Config")
    labels = {} if FAMILIES[name].kind == "encoder-decoder" else {"num_labels": LABELS}
    config = kind(**config_to_json(tiny_config(name)), **labels)
    part = getattr(config, "encoder", config)  # of two configs in one
    shape = (part.vocab_size, part.hidden_size, part.num_hidden_layers, part.num_attention_heads)
    assert shape == (VOCAB, 48, 3, 4), f"{name}: transformers reads another shape"
    return config


def config_for(family: str, heads: tuple[str, ...]):
    """The family's config; classes with a fixed number of outputs get it."""
    config = their_config(family)
    if heads == ("answer",) or "next_sentence" in heads:
        config.num_labels = 2
    return config


def random_model(family: str, kind: type, heads: tuple[str, ...], seed: int = 0, settings: dict | None = None):
    """A model of transformers with every tensor random: norms, biases and padding rows too."""
    torch.manual_seed(seed)
    config = config_for(family, heads)
    for name, value in (settings or {}).items():
        setattr(config, name, value)
    model = kind(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:  # not the sinusoids of Marian
                parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def inputs(family: str, length: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """Three rows: full, padded, and (for length > 1) nearly all padding; two segments where the family has them."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCAB, (3, length), generator=generator)
    lengths = torch.tensor([length, max(1, length - 3), max(1, length // 5)])
    mask = (torch.arange(length) < lengths[:, None]).long()
    if tiny_config(family).parts.two_streams:  # transformers reads the class at the last column
        mask = mask.flip(1)
    pad = tiny_config(family).pad_id
    batch = {"input_ids": ids.masked_fill(mask == 0, pad), "attention_mask": mask}
    if tiny_config(family).segments > 1:
        batch["token_type_ids"] = (torch.arange(length) >= length // 2).long().expand(3, -1) * mask
        if tiny_config(family).parts.two_streams:
            batch["token_type_ids"][:, -1] = CLS_SEGMENT
    return batch


def decoder_inputs(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A target for each source, of other lengths: the source backwards, without its first token."""
    ids = batch["input_ids"].flip(1)[:, : max(1, batch["input_ids"].shape[1] - 1)]
    lengths = torch.tensor([ids.shape[1], 1, max(1, ids.shape[1] // 2)])
    return {
        "decoder_input_ids": ids,
        "decoder_attention_mask": (torch.arange(ids.shape[1]) < lengths[:, None]).long(),
    }


def their_outputs(model, heads: tuple[str, ...], batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """transformers' logits by the name of our head; "" is the last hidden state."""
    with torch.no_grad():
        if heads == ("choose",):
            batch = {name: value[None] for name, value in batch.items()}
        if heads == ("decoder",):
            batch = batch | decoder_inputs(batch)
        out = model(**batch)
    return {
        (): lambda: {"": out.last_hidden_state},
        ("masked_word",): lambda: {"masked_word": out.logits},
        ("classify",): lambda: {"classify": out.logits},
        ("tag",): lambda: {"tag": out.logits},
        ("choose",): lambda: {"choose": out.logits.T},
        ("answer",): lambda: {"answer": torch.stack((out.start_logits, out.end_logits), dim=-1)},
        ("next_sentence",): lambda: {"next_sentence": out.logits},
        ("replaced_token",): lambda: {"replaced_token": out.logits},
        ("decoder",): lambda: {"decoder": out.logits},
        ("masked_word", "next_sentence"): lambda: {
            "masked_word": out.prediction_logits,
            "next_sentence": getattr(out, "seq_relationship_logits", getattr(out, "sop_logits", None)),
        },
    }[heads]()


LETTERS = "abcdefghijklmnopqrstuvwxyz"


def _wordpiece(folder: Path) -> Tokenizer:
    return Tokenizer.from_vocab([*vars(BERT_TOKENS).values(), *LETTERS, *(f"##{letter}" for letter in LETTERS)])


def _mpnet(folder: Path) -> Tokenizer:
    pieces = ["<s>", "<pad>", "</s>", "[UNK]", *LETTERS, *(f"##{letter}" for letter in LETTERS), "<mask>"]
    vocab = {piece: number for number, piece in enumerate(pieces)}
    transformers.MPNetTokenizer(vocab=vocab).save_pretrained(folder)
    return Tokenizer.load(folder)


def _deberta(folder: Path) -> Tokenizer:
    scores = {**dict.fromkeys(("[PAD]", "[CLS]", "[SEP]", "[UNK]"), 0.0), "\u2581": -2.0}
    scores |= {letter: -3.0 for letter in LETTERS} | {f"\u2581{letter}": -4.0 for letter in LETTERS} | {"[MASK]": 0.0}
    transformers.DebertaV2Tokenizer(vocab=list(scores.items()), unk_id=3).save_pretrained(folder)
    return Tokenizer.load(folder)


def _xlnet(folder: Path) -> Tokenizer:
    scores = dict.fromkeys(("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"), 0.0)
    scores |= {
        "\u2581": -2.0,
        **{letter: -3.0 for letter in LETTERS},
        **{f"\u2581{letter}": -4.0 for letter in LETTERS},
    }
    transformers.XLNetTokenizer(vocab=list(scores.items())).save_pretrained(folder)
    return Tokenizer.load(folder)


def _byte_level(folder: Path) -> Tokenizer:
    pieces = [*vars(ROBERTA_TOKENS).values(), *sorted(pre_tokenizers.ByteLevel.alphabet()), "\u0120a"]
    vocab = {piece: number for number, piece in enumerate(pieces)}
    backend = byte_level_backend(vocab, [("\u0120", "a")], ROBERTA_TOKENS, add_prefix_space=False)
    return Tokenizer(backend, ROBERTA_TOKENS)


def _unigram(folder: Path) -> Tokenizer:
    scores = {**dict.fromkeys(("<s>", "<pad>", "</s>", "<unk>"), 0.0), "\u2581": -2.0}
    scores |= {letter: -3.0 for letter in LETTERS} | {f"\u2581{letter}": -4.0 for letter in LETTERS} | {"<mask>": 0.0}
    backend = Backend(models.Unigram(list(scores.items()), unk_id=3))
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    backend.decoder = decoders.Metaspace()
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(json.loads(backend.to_str())), encoding="utf-8")
    return Tokenizer.load(folder)


TOKENIZERS = {"WordPiece": _wordpiece, "BPE": _byte_level, "Unigram": _unigram}  # one for each of TOKENIZER_KINDS
OWN_TOKENIZERS = {"mpnet": _mpnet, "deberta-v2": _deberta, "xlnet": _xlnet}  # families whose special tokens are others


def tokenizer_of(family: str, folder: Path) -> Tokenizer:
    """A tokenizer of letters, as the family's published ones are built; its files are written to `folder`."""
    return OWN_TOKENIZERS.get(family, TOKENIZERS[FAMILIES[family].tokenizer])(folder)
