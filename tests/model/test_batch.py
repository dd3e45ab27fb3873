import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertkit.errors import RequestError
from bertkit.model.batch import Batch
from bertkit.model.pooling import pool

sequences = st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=9), min_size=1, max_size=6)


@given(sequences)
def test_padding_is_only_a_view(rows):
    batch = Batch.pack(rows)
    padded = batch.pad(batch.ids, fill=-1)
    assert padded.shape == (len(rows), max(map(len, rows)))
    assert [row[row >= 0].tolist() for row in padded] == rows
    assert torch.equal(batch.unpad(padded), batch.ids)
    assert [part.tolist() for part in batch.split(batch.ids)] == rows
    assert batch.first(batch.ids).tolist() == [row[0] for row in rows]
    assert batch.positions.tolist() == [place for row in rows for place in range(len(row))]
    again = Batch.from_padded(padded, batch.mask)
    assert torch.equal(again.ids, batch.ids)
    assert again.lengths == batch.lengths
    assert batch.padding == pytest.approx(1 - sum(map(len, rows)) / (len(rows) * max(map(len, rows))))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_mean_in_half_precision_is_not_added_up_in_it(dtype):
    batch = Batch.pack([[1] * 512])
    assert pool(torch.full((512, 1), 0.1, dtype=dtype), batch, "mean").item() == pytest.approx(0.1, rel=5e-3)


def test_a_fixed_layout_reads_the_same(monkeypatch):
    batch = Batch.pack([[1, 2, 3], [4, 5]])
    expected = batch.positions.clone(), batch.first(batch.ids).clone()
    batch = batch.laid_out(longest=8, sequences=4)
    assert (batch.longest, batch.offsets.tolist()) == (8, [0, 3, 5, 5, 5])
    assert torch.equal(batch.positions, expected[0])
    assert torch.equal(batch.first(batch.ids)[:2], expected[1])
    with pytest.raises(RequestError, match="do not fit the fixed layout"):
        Batch.pack([[1, 2, 3]]).laid_out(longest=2)


def test_wrong_shapes_are_refused():
    with pytest.raises(RequestError, match="do not fit 3 tokens"):
        Batch(torch.arange(3), torch.zeros(3), (2, 2))
    with pytest.raises(RequestError, match="each must be 1 or more"):
        Batch.pack([[1, 2], []])
    with pytest.raises(RequestError, match="each must be 1 or more"):
        Batch.pack([])
    with pytest.raises(RequestError, match="1 segment ids do not fit 2 token ids"):
        Batch.pack([[1, 2]], [[0]])
    with pytest.raises(RequestError, match="unknown pooling 'median'; choose from: attention, cls"):
        pool(torch.zeros(1, 2), Batch.pack([[1]]), "median")
