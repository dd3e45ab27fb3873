"""Tiny random models of every family and head, in transformers, for parity tests."""

import torch
import transformers

VOCAB, LENGTHS, LABELS = 99, (1, 7, 64), 5

SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 80,
    "max_position_embeddings": 64,
    "initializer_range": 0.1,  # five times the usual, so that a wrong wire shows
    "num_labels": LABELS,
}
CONFIGS = {
    "bert": lambda: transformers.BertConfig(**SHAPE),
    "roberta": lambda: transformers.RobertaConfig(**SHAPE | {"max_position_embeddings": 66, "type_vocab_size": 1}),
    "albert": lambda: transformers.AlbertConfig(**SHAPE, embedding_size=16),
    "electra": lambda: transformers.ElectraConfig(**SHAPE, embedding_size=16),
    "distilbert": lambda: transformers.DistilBertConfig(
        vocab_size=VOCAB, dim=48, n_layers=3, n_heads=4, hidden_dim=80, max_position_embeddings=64,
        initializer_range=0.1, num_labels=LABELS,
    ),
    "modernbert": lambda: transformers.ModernBertConfig(
        **SHAPE, local_attention=10, pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2
    ),
}  # fmt: skip

# (family, transformers' class, our heads)
ROWS = [
    (family, getattr(transformers, name), heads)
    for family, stem in [
        ("bert", "Bert"), ("roberta", "Roberta"), ("albert", "Albert"),
        ("electra", "Electra"), ("distilbert", "DistilBert"), ("modernbert", "ModernBert"),
    ]
    for name, heads in [
        (f"{stem}Model", ()),
        (f"{stem}ForMaskedLM", ("masked_word",)),
        (f"{stem}ForSequenceClassification", ("classify",)),
        (f"{stem}ForTokenClassification", ("tag",)),
        (f"{stem}ForQuestionAnswering", ("answer",)),
        (f"{stem}ForMultipleChoice", ("choose",)),
    ]
] + [
    ("bert", transformers.BertForPreTraining, ("masked_word", "next_sentence")),
    ("bert", transformers.BertForNextSentencePrediction, ("next_sentence",)),
    ("albert", transformers.AlbertForPreTraining, ("masked_word", "next_sentence")),
    ("electra", transformers.ElectraForPreTraining, ("replaced_token",)),
]  # fmt: skip


def config_for(family: str, heads: tuple[str, ...]):
    """The family's config; classes with a fixed number of outputs get it."""
    config = CONFIGS[family]()
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
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def inputs(family: str, length: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """Three rows: full, padded, and (for length > 1) nearly all padding; two segments where the family has them."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, VOCAB, (3, length), generator=generator)
    lengths = torch.tensor([length, max(1, length - 3), max(1, length // 5)])
    mask = (torch.arange(length) < lengths[:, None]).long()
    pad = CONFIGS[family]().pad_token_id
    batch = {"input_ids": ids.masked_fill(mask == 0, pad), "attention_mask": mask}
    if family in ("bert", "albert", "electra"):
        batch["token_type_ids"] = (torch.arange(length) >= length // 2).long().expand(3, -1) * mask
    return batch


def their_outputs(model, heads: tuple[str, ...], batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """transformers' logits by the name of our head; "" is the last hidden state."""
    with torch.no_grad():
        if heads == ("choose",):
            batch = {name: value[None] for name, value in batch.items()}
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
        ("masked_word", "next_sentence"): lambda: {
            "masked_word": out.prediction_logits,
            "next_sentence": getattr(out, "seq_relationship_logits", getattr(out, "sop_logits", None)),
        },
    }[heads]()
