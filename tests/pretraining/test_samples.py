"""Filled blanks for the record: the right words in the right rows, and the model as it was."""

import pytest
import torch

from bertkit.config import BertConfig
from bertkit.model.batch import Batch
from bertkit.model.model import new_model
from bertkit.pretraining.samples import SENTENCES, fill_samples
from bertkit.text.tokenizer import Tokenizer

WORDS = ["the", "a", "dog", "cat", "runs", "sleeps", "house", ".", "in", "on"]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
MIXED = ["the [MASK] runs .", "a dog .", "[MASK] in the [MASK] .", "the cat [MASK] on a house ."]


@pytest.fixture
def tokenizer() -> Tokenizer:
    return Tokenizer.from_vocab(PIECES)


@pytest.fixture
def model(tokenizer):
    config = BertConfig(vocab_size=tokenizer.size + 3, width=16, depth=2, heads=2, inner=32, max_length=12)
    return new_model(config, {"masked_word": None})


def slow_fill(model, tokenizer, sentence, top):
    """The twin: one sentence at a time, every position through the head."""
    encoding = tokenizer.encode(sentence)
    batch = Batch.pack([encoding.ids])
    with torch.no_grad():
        logits = model.eval().logits(batch, "masked_word")[:, : tokenizer.size]
    rows = [place for place, token in enumerate(encoding.ids) if token == tokenizer.mask_id]
    return [
        {"text": sentence, "words": tokenizer.tokens(logits[row].argsort(descending=True)[:top].tolist())}
        for row in rows
    ]


def test_equals_one_sentence_at_a_time(model, tokenizer):
    together = fill_samples(model, tokenizer, MIXED, 4)
    apart = [entry for sentence in MIXED for entry in slow_fill(model, tokenizer, sentence, 4)]
    assert together == apart
    assert [entry["text"] for entry in together] == [MIXED[0], MIXED[2], MIXED[2], MIXED[3]]
    assert all(len(entry["words"]) == 4 for entry in together)


def test_rows_beyond_the_vocabulary_are_no_words(model, tokenizer):
    with torch.no_grad():
        model.heads["masked_word"].decoder.bias[tokenizer.size :] = 100.0
        model.heads["masked_word"].decoder.bias[PIECES.index("house")] = 50.0
    [entry] = fill_samples(model, tokenizer, ["the [MASK] runs"], top=99)
    assert entry["words"][0] == "house"
    assert sorted(entry["words"]) == sorted(PIECES)


@pytest.mark.parametrize("training", [True, False])
def test_the_model_keeps_its_mode_its_weights_and_the_random_stream(model, tokenizer, training):
    model.train(training)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    first = fill_samples(model, tokenizer, MIXED)
    assert fill_samples(model, tokenizer, MIXED) == first  # dropout is off while filling
    assert model.training is training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_fault_inside_leaves_the_mode_too(model, tokenizer):
    headless = new_model(model.config).train()
    with pytest.raises(ValueError, match="masked_word"):
        fill_samples(headless, tokenizer, MIXED)
    assert headless.training


@pytest.mark.parametrize("sentences", [[], ["no blank here"], [""], ["the dog " * 20 + "[MASK]"]])
def test_nothing_to_fill_gives_nothing(model, tokenizer, sentences):
    assert fill_samples(model, tokenizer, sentences) == []


def test_too_long_sentences_do_not_shift_the_others(model, tokenizer):
    kept = "a [MASK] ."
    alone = fill_samples(model, tokenizer, [kept])
    assert fill_samples(model, tokenizer, ["the dog " * 20 + "[MASK]", kept]) == alone


def test_own_sentences_have_one_blank_each(uncased_vocab):
    tokenizer = Tokenizer.from_vocab(uncased_vocab)
    config = BertConfig(vocab_size=tokenizer.size, width=16, depth=1, heads=2, inner=32, max_length=32)
    filled = fill_samples(new_model(config, {"masked_word": None}), tokenizer)
    assert [entry["text"] for entry in filled] == list(SENTENCES)
    assert all(len(entry["words"]) == 5 for entry in filled)
    assert tokenizer.unknown_id not in [i for text in SENTENCES for i in tokenizer.encode(text).ids]
