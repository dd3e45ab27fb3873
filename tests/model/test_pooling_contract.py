"""Every row of the table of poolings, in each of its forms; a new row is tested by being there, once it has a twin."""

import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import numpy as np
import onnxruntime
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertkit.checkpoint.sentence_transformers import read_settings, write_settings
from bertkit.config import Parts
from bertkit.errors import RequestError
from bertkit.model.batch import Batch
from bertkit.model.pooling import EmbedSettings, pool, pool_array
from bertkit.poolings import (
    DEFAULT_POOLING,
    NO_POOLING,
    POOLINGS,
    TEXT_POOLINGS,
    HeadPooling,
    NoPooling,
    PoolingName,
)
from bertkit.predict.onnx.graph import PaddedTokens, Rectangle
from bertkit.serve.routes.embeddings import EmbedRequest, OpenAIRequest

# The slow twins: what each row gives for the vectors of one sequence, [L, D], and the scores of its tokens, [L].
TWINS = {
    "mean": lambda x, _: x.sum(0) / len(x),
    "cls": lambda x, _: x[0],
    "first": lambda x, _: x[0],
    "last": lambda x, _: x[-1],
    "max": lambda x, _: x.max(0).values,
    "mean-max": lambda x, _: torch.cat((x.mean(0), x.max(0).values)),
    "last-max-mean": lambda x, _: torch.cat((x[-1], x.max(0).values, x.mean(0))),
    "weighted-mean": lambda x, _: sum(n * row for n, row in enumerate(x, 1)) / sum(range(len(x) + 1)),
    "attention": lambda x, scores: sum(weight * row for weight, row in zip(scores.softmax(0), x, strict=True)),
}
WIDTH = 4
lengths_of_sequences = st.lists(st.integers(1, 9), min_size=1, max_size=5)
every_row = pytest.mark.parametrize("name", POOLINGS)
every_text_row = pytest.mark.parametrize("name", TEXT_POOLINGS)


def vectors_and_scores(tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    drawn = torch.randn(tokens, WIDTH + 1, generator=torch.Generator().manual_seed(1))
    return drawn[:, :WIDTH].contiguous(), drawn[:, WIDTH].contiguous()


def packed(lengths: list[int]) -> Batch:
    return Batch.pack([[1] * length for length in lengths])


def twin_rows(name: str, x: torch.Tensor, scores: torch.Tensor, batch: Batch) -> torch.Tensor:
    parts = zip(batch.split(x), batch.split(scores), strict=True)
    return torch.stack([TWINS[name](part, own) for part, own in parts])


def test_every_row_has_a_twin_and_stands_in_the_types():
    assert list(TWINS) == list(POOLINGS)
    assert list(get_args(PoolingName)) == list(TEXT_POOLINGS)
    assert set(get_args(HeadPooling)) == {name for name, row in POOLINGS.items() if row.head}
    assert get_args(NoPooling) == (NO_POOLING,)
    assert NO_POOLING not in POOLINGS
    assert DEFAULT_POOLING == EmbedSettings().pooling == "mean"
    assert not any(row.scored and not row.head for row in POOLINGS.values()), "only heads are trained"


def test_the_table_is_importable_without_torch():
    code = "import sys, bertkit.poolings; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@every_row
@given(lengths=lengths_of_sequences)
def test_packed_is_the_twin_of_each_sequence(name, lengths):
    batch = packed(lengths)
    x, scores = vectors_and_scores(len(batch.ids))
    found = pool(x, batch, name, scores if POOLINGS[name].scored else None)
    assert found.shape == (len(lengths), WIDTH * POOLINGS[name].width)
    torch.testing.assert_close(found, twin_rows(name, x, scores, batch))


@every_text_row
@given(length=st.integers(1, 12))
def test_numpy_is_the_twin(name, length):
    x, scores = vectors_and_scores(length)
    np.testing.assert_allclose(pool_array(x.numpy(), name), TWINS[name](x, scores), atol=1e-6)


@every_text_row
def test_a_fixed_layout_gives_the_same(name):
    """Empty sequences at the end, as recordings for GPUs have them, change nothing for the others."""
    plain, fixed = packed([3, 5, 1]), packed([3, 5, 1]).laid_out(longest=8, sequences=5)
    x, _ = vectors_and_scores(9)
    torch.testing.assert_close(pool(x, fixed, name)[:3], pool(x, plain, name))


@every_row
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_float32(name, dtype):
    batch = packed([512, 2])
    x = torch.full((514, 1), 0.1, dtype=dtype)
    scores = torch.zeros(514, dtype=dtype) if POOLINGS[name].scored else None
    assert pool(x, batch, name, scores)[0, 0].item() == pytest.approx(0.1, rel=5e-3)
    assert pool(x, batch, name, scores).dtype == dtype


class EveryPooling(torch.nn.Module):
    """All rows over one padded rectangle, as an exported graph has one of them."""

    def forward(self, x_NLD: torch.Tensor, scores_NL: torch.Tensor, mask_NL: torch.Tensor) -> list[torch.Tensor]:
        tokens = PaddedTokens(Rectangle.of(mask_NL, mask_NL, mask_NL), scores_NL)
        return [row.pool(x_NLD, tokens) for row in POOLINGS.values()]


@pytest.fixture(scope="module")
def exported(tmp_path_factory) -> onnxruntime.InferenceSession:
    path = tmp_path_factory.mktemp("onnx") / "poolings.onnx"
    example = (torch.randn(2, 3, WIDTH), torch.randn(2, 3), torch.tensor([[1, 1, 1], [1, 1, 0]]))
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    torch.onnx.export(
        EveryPooling().eval(),
        example,
        path,
        dynamo=True,
        input_names=["x", "scores", "mask"],
        dynamic_shapes=(sizes, sizes, sizes),
        verbose=False,
    )
    return onnxruntime.InferenceSession(path)


@pytest.mark.parametrize("where", ["right", "left", "between"])
def test_onnx_is_the_packed_form(exported, where):
    lengths, longest = [4, 1, 6, 6], 9
    mask = torch.zeros(len(lengths), longest, dtype=torch.long)
    for row, length in enumerate(lengths):
        places = {"right": range(length), "left": range(longest - length, longest), "between": range(0, longest, 2)}
        mask[row, list(places[where])[:length]] = 1
    x, scores = torch.randn(*mask.shape, WIDTH), torch.randn(*mask.shape)
    batch = Batch.from_padded(mask, mask)
    found = exported.run(None, {"x": x.numpy(), "scores": scores.numpy(), "mask": mask.numpy()})
    for (name, row), rows in zip(POOLINGS.items(), found, strict=True):
        own = scores[mask.bool()] if row.scored else None
        np.testing.assert_allclose(rows, pool(x[mask.bool()], batch, name, own), atol=1e-5, err_msg=name)


@every_text_row
def test_folders_of_sentence_transformers_keep_it(name, tmp_path):
    write_settings(tmp_path, EmbedSettings(pooling=name, normalize=True), WIDTH, 32)
    names = TEXT_POOLINGS[name].sentence_transformers
    assert (tmp_path / "modules.json").is_file() == (names is not None)
    if names is not None:
        read = read_settings(tmp_path, WIDTH)
        assert TEXT_POOLINGS[read.pooling].pool is TEXT_POOLINGS[name].pool
        assert read.normalize
        for words in (f'{{"pooling_mode": "{names[0]}"}}', f'{{"{names[1]}": true}}'):
            (tmp_path / "1_Pooling" / "config.json").write_text(words)
            assert read_settings(tmp_path, WIDTH) == read


@pytest.mark.parametrize("name", [name for name, row in TEXT_POOLINGS.items() if row.sentence_transformers])
def test_it_is_what_sentence_transformers_computes(name):
    from sentence_transformers.sentence_transformer.modules import Pooling

    mode, _ = TEXT_POOLINGS[name].sentence_transformers
    batch = packed([4, 1, 6])
    x, _ = vectors_and_scores(len(batch.ids))
    theirs = Pooling(WIDTH, pooling_mode=mode)(
        {"token_embeddings": batch.pad(x), "attention_mask": batch.mask.long(), "cls_token_embeddings": batch.first(x)}
    )
    torch.testing.assert_close(pool(x, batch, name), theirs["sentence_embedding"])


def test_the_docs_name_every_row():
    page = (Path(__file__).parents[2] / "docs" / "answers.md").read_text(encoding="utf-8")
    [listed] = re.findall(r"Pooling is one of ([^.]*)\.", page)
    assert re.findall(r"[a-z-]+", re.sub(r"\([^)]*\)|\band\b", "", listed)) == [*TEXT_POOLINGS, NO_POOLING]


@pytest.mark.parametrize("name", [*TEXT_POOLINGS, NO_POOLING])
def test_requests_may_name_it(name):
    assert OpenAIRequest(input="a", pooling=name).pooling == name
    assert EmbedRequest(inputs="a", pooling=name).pooling == name


@every_row
def test_a_head_reads_it_where_the_row_says_so(name):
    if POOLINGS[name].head:
        assert Parts(pooling=name).pooling == name
    else:
        with pytest.raises(RequestError, match=f"unknown pooling '{name}'; choose from: first, last, mean"):
            Parts(pooling=name)
