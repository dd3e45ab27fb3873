"""A word's vector is the mean of its pieces' vectors, or one of them, whatever batch or window they were read in."""

import numpy as np
import pytest
import torch

from bertkit.errors import RequestError
from bertkit.inside.probes.data import MAX_SEED
from bertkit.inside.probes.probe import untrained
from bertkit.inside.probes.word_vectors import tokenize_sentences, word_vectors
from bertkit.model.batch import Batch

SENTENCES = [["a", "cab", "up"], ["dig"], ["zebra", "b"] * 9, ["[SEP]", "🙂", "née"], ["x"] * 30]
pytestmark = pytest.mark.usefixtures("_one_thread")


def alone(bert, words, pieces):
    """Slow and obvious: one sentence, one word, one layer at a time."""
    encoding = bert.tokenizer.encode_words(words)
    with torch.inference_mode():
        states = bert.model.encoder.hidden_states(Batch.pack([encoding.ids]))
    rows = []
    for state in states:
        for word in range(len(words)):
            own = [state[place] for place, number in enumerate(encoding.words) if number == word]
            rows.append({"mean": torch.stack(own).mean(dim=0), "first": own[0], "last": own[-1]}[pieces])
    return torch.stack(rows).view(len(states), len(words), -1).numpy()


@pytest.mark.parametrize("family", ["bert", "albert", "modernbert"])
@pytest.mark.parametrize("pieces", ["mean", "first", "last"])
def test_vectors_are_those_of_each_sentence_alone(tiny_bert, family, pieces):
    bert = tiny_bert(family)
    cut = tokenize_sentences(bert, SENTENCES)
    vectors = word_vectors(bert, cut, pieces)
    assert vectors.values.dtype == np.float16
    assert vectors.starts == (0, 3, 4, 22, 25, 55)
    for number, words in enumerate(SENTENCES):
        found = vectors.values[:, vectors.starts[number] : vectors.starts[number + 1]]
        assert found == pytest.approx(alone(bert, words, pieces), rel=2e-3, abs=0.01)


def test_words_are_counted(bert):
    counts = tokenize_sentences(bert, SENTENCES).counts
    assert (counts.sentences, counts.words, counts.windowed, counts.left_out) == (5, 55, 0, 0)
    assert counts.split == 2 + 1 + 9 + 1  # cab, up, dig, nine zebras, née; 🙂 is one unknown piece
    assert str(counts) == "5 sentences, 55 words, 13 of them split into pieces (23.6%)"


@pytest.mark.filterwarnings("ignore::bertkit.errors.BertkitWarning")  # of the twin
def test_a_long_sentence_is_read_through_windows_and_counted(bert):
    words = [letter * 2 for letter in "abcdefghijklmnopqrstuvwxyz"] * 4  # 208 pieces for 64 places
    cut = tokenize_sentences(bert, [["a"], words])
    assert cut.counts.windowed == 1
    assert "1 over the model's length, read through windows" in str(cut.counts)
    vectors = word_vectors(bert, cut)
    tokens = bert.embed([" ".join(words)], pooling="none", layers=[1], normalize=False, too_long="window")[0][1:-1]
    assert vectors.values[1, 1:] == pytest.approx(tokens.reshape(len(words), 2, -1).mean(axis=1), abs=0.01)


def test_a_word_that_is_nothing_takes_its_sentence_out(bert):
    cut = tokenize_sentences(bert, [["a", "\x7f"], ["b"], ["​", "c"]])
    assert cut.kept == (1,)
    assert cut.counts.left_out == 2
    assert "2 sentences left out: the tokenizer gives no token for one of their words" in str(cut.counts)
    with pytest.raises(RequestError, match="gives no tokens for these sentences"):
        tokenize_sentences(bert, [["\x7f"]])


def test_the_untrained_encoder_has_the_shape_and_other_weights(bert):
    one, same, other = untrained(bert, 1), untrained(bert, 1), untrained(bert, MAX_SEED)
    first, second, third = (each.model.encoder.embeddings.word.weight for each in (one, same, other))
    assert torch.equal(first, second)
    assert not torch.equal(first, third)
    assert first.shape == bert.model.encoder.embeddings.word.weight.shape
    assert not torch.equal(first, bert.model.encoder.embeddings.word.weight)


def test_large_numbers_fit(bert):
    fresh = untrained(bert)
    with torch.no_grad():
        fresh.model.encoder.embeddings.norm.weight.fill_(1e6)
    values = word_vectors(fresh, tokenize_sentences(fresh, [["a", "b"]])).values
    assert np.isfinite(values).all()
    assert np.abs(values[0]).max() == 65504


def test_a_damaged_model_is_refused(bert):
    fresh = untrained(bert)
    with torch.no_grad():
        fresh.model.encoder.layers[1].feed_forward.down.bias[3] = torch.nan
    with pytest.raises(
        RequestError, match="the vectors of layer 2 are not finite; the weights of the model are damaged"
    ):
        word_vectors(fresh, tokenize_sentences(fresh, [["a", "b"]]))
