"""Recurrent encoders: what each direction sees, dropout of weights and words, alignment, and what they refuse."""

from dataclasses import replace

import pytest
import torch

from bertkit.checkpoint.save_load import Checkpoint, load_checkpoint, save_checkpoint
from bertkit.config import family_config, override, read_config
from bertkit.errors import RequestError
from bertkit.families.family import FAMILIES
from bertkit.model.batch import Batch
from bertkit.model.model import new_model, parameter_count
from bertkit.model.operations import Source
from bertkit.settings import flat, toml_lines
from bertkit.train.speed import layer_parameters

RECURRENT = [name for name in FAMILIES if family_config(name).recurrent]
BOTH_WAYS = [name for name in RECURRENT if family_config(name).directions == 2]
TEXTS = [[5, 6, 7], [8] * 31, [9, 10], [3], list(range(20, 52))]
HEADS = {"elmo": "masked_word", "awd-lstm": "masked_word", "rnn": "decoder"}


def tiny(family, **settings):
    return family_config(family, "tiny", **{"vocab_size": 60, "max_length": 64, "init_std": 0.1} | settings)


def model_of(family, heads=None, **settings):
    return new_model(tiny(family, **settings), heads or {HEADS[family]: None}, seed=3).eval()


def test_the_rows():
    assert set(RECURRENT) == set(HEADS)
    assert BOTH_WAYS == ["elmo", "rnn"]
    assert [family_config(name, "large").depth for name in RECURRENT] == [2, 3, 1], "depth is not a matter of size"


@pytest.mark.parametrize("family", BOTH_WAYS)
def test_each_half_sees_one_side_only(family):
    encoder = model_of(family).encoder
    plain, first, last = ([4, 5, 6, 7, 8], [9, 5, 6, 7, 8], [4, 5, 6, 7, 9])
    with torch.no_grad():
        states, left, right = (encoder.hidden_states(Batch.pack([ids])) for ids in (plain, first, last))
    half = encoder.config.width // 2
    for layer in range(1, encoder.config.depth + 1):
        forward, backward = states[layer][:, :half], states[layer][:, half:]
        assert torch.equal(left[layer][1:, half:], backward[1:]), "backward states do not see a token on the left"
        assert torch.equal(right[layer][:4, :half], forward[:4]), "forward states do not see a token on the right"
        assert not torch.isclose(left[layer][1:, :half], forward[1:]).all(-1).any()
        assert not torch.isclose(right[layer][:4, half:], backward[:4]).all(-1).any()


@pytest.mark.parametrize("family", RECURRENT)
def test_a_fixed_layout_gives_the_same(family):
    encoder, batch = model_of(family).encoder, Batch.pack(TEXTS)
    with torch.no_grad():
        torch.testing.assert_close(encoder(batch.laid_out(longest=40, sequences=9)), encoder(batch))


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_a_cell_is_torch_s_own(kind):
    """Without dropout, a layer of two directions is one bidirectional module of torch."""
    model = model_of("rnn", {"tag": 2}, layer=kind, width=16, inner=8)
    cells = model.encoder.layers[0].cells
    theirs = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[kind](8, 8, bidirectional=True)
    for cell, ending in zip(cells, ("", "_reverse"), strict=True):
        state = {f"{name}{ending}": tensor for name, tensor in cell.rnn.state_dict().items()}
        theirs.load_state_dict(state, strict=False)
    ids = torch.tensor([3, 9, 4, 1])
    with torch.no_grad():
        expected, _ = theirs(model.encoder.embeddings.word(ids))
        torch.testing.assert_close(model(Batch.pack([ids.tolist()])), expected)


def test_weights_and_words_are_dropped_in_training_only():
    still = {"dropout": 0.0, "weight_dropout": 0.0, "word_dropout": 0.0}
    batch = Batch.pack(TEXTS)
    for name, settings in {"weights": {"weight_dropout": 0.5}, "words": {"word_dropout": 0.5}}.items():
        model = model_of("awd-lstm", **still | settings)
        with torch.no_grad():
            expected = model(batch)
            assert torch.equal(model(batch), expected), name
            assert not torch.allclose(model.train()(batch), expected), name
    calm = model_of("awd-lstm", **still)
    with torch.no_grad():
        assert torch.equal(calm.train()(batch), calm.eval()(batch))


def test_a_dropped_word_is_dropped_in_all_its_places():
    model = model_of("awd-lstm", dropout=0.0, word_dropout=0.5).train()
    words = model.encoder.embeddings(Batch.pack([[7, 8] * 20, [7, 9]]))
    kept = [words[torch.tensor([*[7, 8] * 20, 7, 9]) == token].any(-1) for token in (7, 8, 9)]
    assert all(each.all() or not each.any() for each in kept)


def test_a_dropout_mask_is_the_same_at_every_step_of_a_sequence():
    layer = new_model(tiny("awd-lstm", dropout=0.5)).train().encoder.layers[0]
    batch = Batch.pack([[1] * 5, [1] * 9])
    dropped = layer._drop(torch.ones(14, 128), batch)
    for part in batch.split(dropped):
        assert (part == part[0]).all()
    assert not torch.equal(dropped[0], dropped[-1])


def test_a_decoder_s_alignment_is_in_its_trace():
    model = model_of("rnn", decoder_depth=2)
    read, target = Batch.pack([[5, 6, 7, 8]]), Batch.pack([[1, 2, 3]])
    with torch.no_grad():
        source = Source(model(read), read)
        trace = model.decoder.stack.trace(target, source)
        torch.testing.assert_close(trace.output, model.decoder(target, source))
    assert [layer.cross_weights.shape for layer in trace.layers] == [(1, 3, 4)] * 2
    for layer in trace.layers:
        torch.testing.assert_close(layer.cross_weights.sum(-1), torch.ones(1, 3))
        assert layer.weights.shape == (0, 3, 3), "no heads of its own"


def test_a_decoder_reads_padded_sources_as_one_by_one():
    model = model_of("rnn")
    sources, targets = [[5, 6, 7, 8], [9], [10, 11]], [[1, 2, 3], [4, 5, 6, 7], [8]]

    def written(sources, targets):
        read, target = Batch.pack(sources), Batch.pack(targets)
        return model.decoder(target, Source(model(read), read))

    with torch.no_grad():
        alone = torch.cat([written([a], [b]) for a, b in zip(sources, targets, strict=True)])
        torch.testing.assert_close(written(sources, targets), alone)


@pytest.mark.parametrize("family", RECURRENT)
def test_every_weight_has_a_gradient(family):
    model = model_of(family, dropout=0.0).train()
    batch = Batch.pack(TEXTS)
    if model.decoder is not None:
        loss = model.decoder.words(model.decoder(batch, Source(model(batch), batch))).square().mean()
    else:
        loss = model.logits(batch, "masked_word").square().mean()
    loss.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


@pytest.mark.parametrize("family", RECURRENT)
def test_saved_and_loaded(family, tmp_path):
    model = model_of(family)
    save_checkpoint(Checkpoint(model=model, tokenizer=None, max_length=64), tmp_path / "model")
    loaded = load_checkpoint(tmp_path / "model").model
    assert loaded.config == model.config
    assert all(torch.equal(tensor, loaded.state_dict()[name]) for name, tensor in model.state_dict().items())
    (tmp_path / "model.toml").write_text(toml_lines(flat(model.config)))
    assert read_config(tmp_path / "model.toml") == model.config


@pytest.mark.parametrize("family", RECURRENT)
def test_parameters_are_counted(family):
    encoder = model_of(family).encoder
    matrices = sum(p.numel() for p in encoder.layers.parameters() if p.dim() == 2)
    assert layer_parameters(encoder.config) * encoder.config.depth == matrices
    assert matrices < parameter_count(encoder)


@pytest.mark.parametrize(
    ("family", "change", "message"),
    [
        ("elmo", "width=129", "width=129 must divide evenly by heads"),
        ("elmo", "inner=63", "inner=63, the width of an LSTM's cell, must be 64 or more"),
        ("elmo", "embedding_width=32", "no embedding_width"),
        ("elmo", "position=rotary", "set position=none"),
        ("awd-lstm", "window=8", "leave out window and relative"),
        ("awd-lstm", "weight_dropout=1", "weight_dropout"),
        ("bert", "layer=rnn", "unknown layer 'rnn'; choose from: attention, lstm, gru"),
    ],
)
def test_wrong_settings_are_refused(family, change, message):
    with pytest.raises(RequestError, match=message):
        override(tiny(family), change)


def test_attention_is_refused():
    with pytest.raises(RequestError, match="layers are recurrent and have no attention heads"):
        _ = model_of("elmo").encoder.stack


def test_an_odd_width_is_refused():
    with pytest.raises(RequestError, match="needs an even width=129"):
        replace(tiny("elmo"), width=129, heads=1)
