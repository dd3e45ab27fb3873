"""Before the Transformer: ELMo, ULMFiT's AWD-LSTM, and the RNN encoder-decoder with additive attention.

transformers has no classes for them; they are saved in bertkit's own layout.
"""

from collections.abc import Mapping
from typing import Any, Literal

from bertkit.families.family import Family

# Embeddings have no norm, so that they start as large as in AWD-LSTM.
SETTINGS = {"position": "none", "embedding_norm": False, "segments": 0, "init_std": 0.1}


def _family(
    name: str, kind: Literal["encoder", "decoder", "encoder-decoder"], depths: Mapping[str, int], **settings: Any
) -> Family:
    return Family(
        name=name,
        class_stem=name,
        kind=kind,
        tokenizer="WordPiece",
        settings={**SETTINGS, **settings},
        every_size=depths,
        config_fields={},
        config_defaults={},
        prefix="",
        encoder={},
        heads={"": {}},
        tied={},
        class_endings={},
    )


# Peters 2018: two language models, forward and backward, that share the embeddings; size "large" is the published one.
ELMO = _family(
    "elmo", "encoder", {"depth": 2}, layer="lstm", skip=True, word_head="linear", pooler="none", pooling="max"
)
# Merity 2017 and Howard 2018. Their layers are 400, 1150, 1150 and 400 wide; here every LSTM has a cell of `inner` and
# an output of `width`, so that all layers can be compared.
AWD_LSTM = _family(
    "awd-lstm",
    "decoder",
    {"depth": 3},
    layer="lstm",
    causal=True,
    weight_dropout=0.2,
    word_dropout=0.02,
    word_head="linear",
    pooler="relu",
    pooling="last-max-mean",
)
# Bahdanau 2014 (RNNsearch): a GRU in both directions reads, a GRU that attends to all its states writes.
RNN = _family(
    "rnn",
    "encoder-decoder",
    {"depth": 1, "decoder_depth": 1},
    layer="gru",
    activation="relu",
    pooler="none",
    pooling="max",
)
