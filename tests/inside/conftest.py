import pytest
import torch

from bertkit.checkpoint.save_load import Checkpoint
from bertkit.config import family_config
from bertkit.model.model import new_model
from bertkit.predict.bert import Bert
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.wordpiece import SPECIALS

LETTERS = "abcdefghijklmnopqrstuvwxyz"
PIECES = [*SPECIALS, *LETTERS, *(f"##{letter}" for letter in LETTERS)]


@pytest.fixture(scope="session")
def tiny_bert():
    """`tiny_bert("bert", heads=...)`: a random model of a family over single letters."""

    def make(family: str = "bert", heads: tuple[str, ...] = ("masked_word",), max_length: int = 64, **shape) -> Bert:
        torch.manual_seed(0)
        config = family_config(family, "tiny", vocab_size=len(PIECES), max_length=max_length, init_std=0.3, **shape)
        model = new_model(config, dict.fromkeys(heads)).eval()
        return Bert(Checkpoint(model=model, tokenizer=Tokenizer.from_vocab(PIECES), max_length=max_length))

    return make


@pytest.fixture(scope="session")
def bert(tiny_bert) -> Bert:
    return tiny_bert()
