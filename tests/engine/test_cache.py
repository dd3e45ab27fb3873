"""Tokens that are computed one by one with the key-value cache equal those of a pass over the whole sequence."""

import pytest
import torch
from family_rows import tiny_config

from bertkit.engine.batches import Passage, fastest
from bertkit.engine.writing.decoder import CachedDecoder
from bertkit.families.family import FAMILIES
from bertkit.model.batch import Batch
from bertkit.model.model import new_model
from bertkit.model.operations import TORCH, Source

GENERATORS = [name for name, family in FAMILIES.items() if family.kind != "encoder"]


def model_of(family):
    kind = FAMILIES[family].kind
    return new_model(tiny_config(family), {"decoder" if kind == "encoder-decoder" else "masked_word": None}).eval()


def whole_pass(model, sequences, sources):
    """N V: the scores after each sequence, by torch's operations and without a cache."""
    batch = Batch.pack(sequences)
    last = batch.offsets[1:].long() - 1
    if model.decoder is None:
        return model.heads["masked_word"](model.encoder(batch)[last])
    read = Batch.pack(sources)
    source = Source(model.encoder(read), read)
    return model.decoder.words(model.decoder(batch, source)[last])


@pytest.mark.parametrize("family", GENERATORS)
@pytest.mark.parametrize("lengths", [(4,), (4, 4), (1, 5, 3)], ids=["one", "equal", "unequal"])
def test_cached_equals_uncached(family, lengths):
    model, generator = model_of(family), torch.Generator().manual_seed(1)
    draw = lambda length: torch.randint(5, 99, (length,), generator=generator).tolist()  # noqa: E731
    sequences, sources = [draw(length) for length in lengths], [draw(length + 2) for length in reversed(lengths)]
    passages = [Passage(ids, [0] * len(ids)) for ids in sources] if model.decoder is not None else None
    with torch.inference_mode():
        decoder = CachedDecoder(model, sequences, 12, passages)
        scores = decoder.start()
        for step in range(12):
            torch.testing.assert_close(scores, whole_pass(model, sequences, sources), atol=1e-5, rtol=1e-5)
            ids = scores.argmax(-1)
            rows = None
            if step == 5:  # rows that repeat, are left out and change places, as beams do
                rows = torch.tensor([len(lengths) - 1, 0, 0])
                sequences, sources = [sequences[row] for row in rows], [sources[row] for row in rows]
                ids = ids[rows] + torch.tensor([0, 1, 0])
            sequences = [[*before, token] for before, token in zip(sequences, ids.tolist(), strict=True)]
            scores = decoder.step(ids, rows)


@pytest.mark.parametrize("family", GENERATORS)
def test_the_packed_engine_is_used_and_equals_torch_s(family):
    model = model_of(family)
    with torch.inference_mode():
        decoder = CachedDecoder(model, [[5, 6, 7]], 4, [Passage([8, 9], [0, 0])] if model.decoder else None)
        assert fastest(decoder.stack).ops is not TORCH
        torch.testing.assert_close(decoder.start(), whole_pass(model, [[5, 6, 7]], [[8, 9]]), atol=1e-5, rtol=1e-5)


def test_tokens_beyond_the_vocabulary_are_never_chosen():
    model = model_of("gpt2")
    with torch.inference_mode():
        scores = CachedDecoder(model, [[5, 6]], 1, vocabulary=50).start()
    assert scores[:, 50:].isneginf().all()
    assert scores[:, :50].isfinite().all()


@pytest.mark.parametrize("family", GENERATORS)
def test_recorded_steps_equal_others(family, monkeypatch):
    """On a GPU a step is a CUDA graph; here the same function is called in place of a replay."""
    model = model_of(family)

    def record(run):
        output = run().clone()
        return lambda: output.copy_(run()), lambda: output

    sources = [Passage([8, 9, 10], [0] * 3), Passage([11], [0])] if model.decoder is not None else None
    with torch.inference_mode():
        plain, recorded = (CachedDecoder(model, [[5, 6], [7]], 100, sources) for _ in range(2))
        recorded._record = record
        expected, scores = plain.start(), recorded.start()
        for step in range(80):  # past 64 visible slots
            torch.testing.assert_close(scores, expected, atol=1e-5, rtol=1e-5)
            ids = expected.argmax(-1)
            rows = {20: torch.tensor([1, 0]), 40: torch.tensor([0])}.get(step)
            ids = ids if rows is None else ids[rows]
            expected, scores = plain.step(ids, rows), recorded.step(ids, rows)
            if len(plain.cache.lengths) and max(plain.cache.lengths) == model.config.max_length:
                break
    assert max(recorded.cache.lengths) >= 60
