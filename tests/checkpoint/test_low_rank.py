"""A tuned model as a small change of another: what is kept is the most that fits, and nothing else passes for it."""

import importlib.util
import itertools
import json
import struct
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from bertkit.checkpoint.bundled import BASE_FILE, CHECKSUM_FILE, SMALL_FILE
from bertkit.checkpoint.delta import FORMAT, load_delta, save_delta, vector_cosines
from bertkit.checkpoint.low_rank import SCALE_BYTES, choose_ranks, differences, directions, low_rank_changes
from bertkit.checkpoint.save_load import Checkpoint, load_checkpoint, save_small
from bertkit.checkpoint.small import CHANGE, FACTORS, add_changes, pack, unpack
from bertkit.checkpoint.tensors import fingerprint
from bertkit.checkpoint.text_vectors import text_vectors
from bertkit.config import family_config
from bertkit.errors import RequestError
from bertkit.model.model import new_model
from bertkit.model.pooling import EmbedSettings
from bertkit.text.tokenizer import Tokenizer

pytestmark = pytest.mark.usefixtures("_one_thread")
WORDS = ["river", "stone", "cloud", "apple", "train", "good", "bad", "film", "the", "a", "falls", "runs"]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *WORDS]
TEXTS = ["the good film", "a bad film.", "the river runs", "stone falls", "a cloud", "the train runs. the apple falls"]


def model(seed: int = 0, **shape) -> Checkpoint:
    shape = {"depth": 2, "width": 32, "heads": 2, "inner": 64, "embedding_width": 16, "max_length": 32} | shape
    config = family_config("electra", "tiny", **shape, vocab_size=len(PIECES), init_std=0.2)
    made = new_model(config, {"masked_word": None}, seed=seed).eval()
    return Checkpoint(model=made, tokenizer=Tokenizer.from_vocab(PIECES), max_length=32)


def tuned(base: Checkpoint, rank: int | None = 2, size: float = 0.05) -> Checkpoint:
    """The base with its matrices moved in `rank` directions (None: in all), its vectors moved too, its tables not."""
    torch.manual_seed(1)
    other = model()
    other.model.load_state_dict(base.model.state_dict())
    with torch.no_grad():
        for name, parameter in other.model.encoder.named_parameters():
            if name.startswith(("embeddings.word", "embeddings.position", "embeddings.segment")):
                continue
            if parameter.dim() == 2 and rank is not None:
                rows, columns = parameter.shape
                parameter += size * torch.randn(rows, rank) @ torch.randn(rank, columns)
            else:
                parameter += size * torch.randn_like(parameter)
    return replace(other, embed=EmbedSettings(pooling="mean", normalize=True))


def test_directions_are_a_sum_of_outer_products_and_the_strongest_come_first():
    torch.manual_seed(0)
    change = torch.randn(7, 5)
    found = directions(change)
    parts = [torch.outer(row[:7], row[7:]) for row in found.rows]
    torch.testing.assert_close(sum(parts), change, rtol=0, atol=1e-5)
    strengths = [float(part.norm()) for part in parts]
    np.testing.assert_allclose(strengths, found.strengths, rtol=1e-5)
    assert strengths == sorted(strengths, reverse=True)
    for row in found.rows:
        assert float(row[:7].abs().max()) == pytest.approx(float(row[7:].abs().max()), rel=1e-5)


def test_rounding_is_not_a_direction():
    torch.manual_seed(0)
    base = torch.randn(40, 30)
    moved = base + 0.01 * torch.randn(40, 3) @ torch.randn(3, 30)
    assert len(directions(moved - base).rows) == 3


def test_no_choice_of_ranks_explains_more():
    """Held against every choice that fits: greedy by worth may only lose what the last piece leaves over."""
    torch.manual_seed(2)
    matrices = {
        "a": directions(torch.randn(6, 4)),
        "b": directions(3 * torch.randn(3, 3)),
        "c": directions(torch.randn(2, 9)),
    }
    costs = {name: found.rows.shape[1] + SCALE_BYTES for name, found in matrices.items()}

    def explained(ranks):
        return sum(float(matrices[name].strengths[:count].square().sum()) for name, count in ranks.items())

    def spent(ranks):
        return sum(costs[name] * count for name, count in ranks.items())

    counts = itertools.product(*(range(len(found.strengths) + 1) for found in matrices.values()))
    every = [dict(zip(matrices, each, strict=True)) for each in counts]
    for room in range(0, 150, 7):
        chosen = choose_ranks(matrices, room)
        assert spent(chosen) <= room
        best = max(explained(ranks) for ranks in every if spent(ranks) <= spent(chosen))
        assert explained(chosen) == pytest.approx(best)


@pytest.mark.parametrize("budget", [4_000, 9_000, 40_000, 10**9])
def test_the_budget_is_kept_and_more_of_it_keeps_more(tmp_path, budget):
    base = model()
    report = save_delta(base, tuned(base, None), tmp_path / "d", budget + 8_000, texts=TEXTS, least_cosine=0)
    assert report.bytes == (tmp_path / "d").stat().st_size <= budget + 8_000
    more = save_delta(base, tuned(base, None), tmp_path / "e", 2 * budget + 8_000, texts=TEXTS, least_cosine=0)
    assert report.kept <= more.kept + 1e-6
    assert more.kept > (0.999 if budget > 10_000 else 0.3)


def test_what_was_tuned_in_few_directions_comes_back(tmp_path):
    base = model()
    other = tuned(base, 2)
    report = save_delta(base, other, tmp_path / "delta", 30_000, texts=TEXTS)
    assert report.cosine_mean > 0.999
    assert report.cosine_least > 0.998
    assert report.kept > 0.999
    back = load_delta(base, tmp_path / "delta")
    assert back.embed == other.embed
    assert float(vector_cosines(back, other, TEXTS).mean()) == pytest.approx(report.cosine_mean, abs=1e-6)
    changed = vector_cosines(replace(base, embed=other.embed), other, TEXTS)
    assert float(changed.mean()) < 0.99, "else the test would pass without any change"
    for name, tensor in back.model.state_dict().items():
        if not name.startswith("encoder."):
            assert torch.equal(tensor, base.model.state_dict()[name]), name
    assert "masked_word" in back.model.heads
    assert torch.equal(
        back.model.state_dict()["encoder.embeddings.word.weight"], base.model.encoder.embeddings.word.weight
    )


def test_too_few_bytes_are_refused_unless_it_is_said(tmp_path):
    base = model()
    with pytest.raises(RequestError, match=r"11,000 bytes keep .* mean cosine of 0\.\d+, under 0.99; allow more bytes"):
        save_delta(base, tuned(base, None, 0.2), tmp_path / "delta", 11_000, texts=TEXTS)
    assert not list(tmp_path.iterdir())
    with pytest.raises(RequestError, match="the vectors alone take 7,914 bytes, over the budget of 2,000"):
        save_delta(base, tuned(base), tmp_path / "delta", 3_024, texts=TEXTS)
    assert save_delta(base, tuned(base, None, 0.2), tmp_path / "delta", 11_000, texts=TEXTS, least_cosine=0).kept < 0.9


def test_no_change_is_a_change_too(tmp_path):
    base = model()
    report = save_delta(base, base, tmp_path / "delta", 2_000, texts=TEXTS)
    assert report.kept == 1
    assert report.bytes < 2_000
    assert torch.equal(
        load_delta(base, tmp_path / "delta").model.encoder.layers[0].feed_forward.up.weight,
        base.model.encoder.layers[0].feed_forward.up.weight,
    )


def test_another_base_is_refused(tmp_path):
    base = model()
    save_delta(base, tuned(base), tmp_path / "delta", 30_000, texts=TEXTS)
    with pytest.raises(RequestError, match="a change of another model than this one"):
        load_delta(model(seed=9), tmp_path / "delta")
    with pytest.raises(RequestError, match="has shape .* but the model it is to be a change of"):
        save_delta(base, model(inner=48), tmp_path / "other", 30_000, texts=TEXTS)
    with pytest.raises(RequestError, match="no such tensor"):
        save_delta(base, model(depth=3), tmp_path / "other", 30_000, texts=TEXTS)
    broken = tuned(base)
    with torch.no_grad():
        broken.model.encoder.layers[0].attention.out.weight[0, 0] = float("nan")
    with pytest.raises(RequestError, match="holds NaN or infinity; the change of a model that diverged"):
        save_delta(base, broken, tmp_path / "other", 30_000, texts=TEXTS)


@pytest.fixture
def delta(tmp_path):
    base = model()
    save_delta(base, tuned(base), tmp_path / "delta", 30_000, texts=TEXTS)
    return base, tmp_path / "delta"


@pytest.mark.parametrize("kept", [0, 5, 200, -1])
def test_a_truncated_file_is_one_sentence(delta, kept):
    base, path = delta
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(RequestError, match="is missing, truncated or corrupt .*; copy it again") as error:
        load_delta(base, path)
    assert "\n" not in str(error.value)
    path.unlink()
    with pytest.raises(RequestError, match="is missing, truncated or corrupt"):
        load_delta(base, path)


def test_one_changed_bit_is_noticed(delta):
    base, path = delta
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(RequestError, match="is damaged: its numbers are not those of its checksum"):
        load_delta(base, path)


WEIGHT = "encoder.layers.0.attention.out.weight"
BIAS = "encoder.layers.0.attention.out.bias"
HOSTILE = {
    "an unknown tensor": {"encoder.nothing" + CHANGE: torch.ones(3)},
    "one of a head": {"heads.masked_word.dense.bias" + CHANGE: torch.ones(16)},
    "a new tensor": {"encoder.more": torch.ones(3)},
    "another shape": {WEIGHT: torch.ones(2, 2)},
    "factors too short": {WEIGHT + FACTORS: torch.ones(2, 63)},
    "factors of a vector": {BIAS + FACTORS: torch.ones(2, 33)},
    "a change of another shape": {BIAS + CHANGE: torch.ones(1)},
    "both": {WEIGHT + FACTORS: torch.ones(1, 64), WEIGHT + CHANGE: torch.ones(1, 32, 32)},
    "infinite": {BIAS + CHANGE: torch.full((32,), float("inf"))},
}


def content_of(base: Checkpoint, tensors: dict, **about: str) -> bytes:
    """A file whose checksums are right, whatever it holds."""
    known = {name: tensor for name, tensor in base.model.state_dict().items() if name.startswith("encoder.")}
    embed = json.dumps({"pooling": "mean", "layers": [-1], "normalize": True, "prefix": ""})
    words = {"format": FORMAT, "base": fingerprint(known), "sha256": fingerprint(tensors), "embed": embed}
    return save(tensors, metadata=words | about)


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_file_is_refused(tmp_path, kind):
    base = model()
    (tmp_path / "delta").write_bytes(content_of(base, {name: t.half() for name, t in HOSTILE[kind].items()}))
    with pytest.raises(RequestError, match=r"delta is not as bertkit writes it \(.*\); save it again"):
        load_delta(base, tmp_path / "delta")


def test_files_of_other_kinds_are_refused(tmp_path):
    base, path = model(), tmp_path / "delta"
    path.write_bytes(save({"a": torch.ones(2)}))
    with pytest.raises(RequestError, match="holds no change of a model"):
        load_delta(base, path)
    for embed in ("", "[]", "{}", '{"pooling": 3, "layers": [-1]}'):
        path.write_bytes(content_of(base, {}, embed=embed))
        with pytest.raises(RequestError, match="not as bertkit writes it"):
            load_delta(base, path)
    path.write_bytes(struct.pack("<Q", 2**62) + b"{}")
    with pytest.raises(RequestError, match="truncated or corrupt"):
        load_delta(base, path)


def test_a_folder_can_hold_a_low_rank_change_of_the_one_above(tmp_path):
    save_small(model(), tmp_path / "small")
    base = load_checkpoint(tmp_path / "small")
    other = tuned(base, 2)
    save_small(other, tmp_path / "small" / "whole", delta=True)
    whole = (tmp_path / "small" / "whole" / SMALL_FILE).stat().st_size
    budget = whole // 2
    save_small(other, tmp_path / "small" / "sentences", delta=True, budget=budget)
    path = tmp_path / "small" / "sentences" / SMALL_FILE
    assert path.stat().st_size <= budget
    assert any(name.endswith(FACTORS) for name in load(path.read_bytes()))
    back = load_checkpoint(tmp_path / "small" / "sentences")
    assert back.embed == other.embed
    assert float(vector_cosines(back, other, TEXTS).mean()) > 0.99
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(RequestError, match="is truncated or changed: its sha256 begins"):
        load_checkpoint(tmp_path / "small" / "sentences")


def test_a_folder_whose_change_does_not_fit_is_refused(tmp_path):
    import hashlib

    save_small(model(), tmp_path / "small")
    save_small(tuned(load_checkpoint(tmp_path / "small")), tmp_path / "small" / "sentences", delta=True, budget=30_000)
    path = tmp_path / "small" / "sentences" / SMALL_FILE
    name = next(name for name in load(path.read_bytes()) if name.endswith(FACTORS))
    path.write_bytes(save(pack({name: torch.ones(2, 7)})))
    digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in (path, tmp_path / "small" / SMALL_FILE)]
    (path.parent / CHECKSUM_FILE).write_text(f"{digests[0]}  {SMALL_FILE}\n{digests[1]}  {BASE_FILE}\n")
    with pytest.raises(RequestError, match="is not a file of small weights: .* cannot change a tensor of"):
        load_checkpoint(path.parent)


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("bundle", Path(__file__).parents[2] / "tools" / "bundle.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


def test_a_bundle_takes_a_change_where_whole_tensors_do_not_fit(tool, tmp_path, monkeypatch, capsys):
    save_small(model(), tmp_path / "bundle")
    base = load_checkpoint(tmp_path / "bundle")
    other = tuned(base, 2)
    save_delta(base, other, tmp_path / "delta", 40_000, texts=TEXTS)
    words = [str(tmp_path / "delta"), "--out", str(tmp_path / "bundle"), "--sentences"]
    assert tool.main(words) == 0
    whole = json.loads(capsys.readouterr().out)["bytes"]
    above = (tmp_path / "bundle" / SMALL_FILE).stat().st_size
    monkeypatch.setattr(tool, "MAX_BYTES", above + whole - 2_000)
    assert tool.main(words) == 0
    assert json.loads(capsys.readouterr().out)["bytes"] <= whole - 2_000
    stored = load(((tmp_path / "bundle" / "sentences") / SMALL_FILE).read_bytes())
    assert any(name.endswith(FACTORS) for name in stored)
    back = load_checkpoint(tmp_path / "bundle" / "sentences")
    assert float(vector_cosines(back, other, TEXTS).mean()) > 0.995
    monkeypatch.setattr(tool, "MAX_BYTES", above + 100)
    assert tool.main(words) == 2
    assert "over the budget of 100" in capsys.readouterr().err
    monkeypatch.setattr(tool, "MIN_COSINE", 1.1)
    monkeypatch.setattr(tool, "MAX_BYTES", above + whole - 2_000)
    assert tool.main(words) == 2
    assert "tune with rank=32 or less" in capsys.readouterr().err
    assert load_checkpoint(tmp_path / "bundle" / "sentences").embed == other.embed, "what was there stays"


def test_storing_as_rows_costs_little():
    """int8 rows: each direction is off by half a step at most, which is under a percent of the change."""
    base = {"w": torch.randn(48, 32), "b": torch.randn(5)}
    moved = {"w": base["w"] + torch.randn(48, 4) @ torch.randn(4, 32), "b": base["b"] + 0.1}
    changes = low_rank_changes(base, moved, 10_000)
    assert set(changes) == {"w" + FACTORS, "b" + CHANGE}
    back = add_changes(base, unpack(pack(changes)))
    assert float((back["w"] - moved["w"]).norm() / (moved["w"] - base["w"]).norm()) < 0.02
    torch.testing.assert_close(back["b"], moved["b"], rtol=0, atol=1e-3)
    assert differences(base, base) == {}


def test_text_vectors_are_those_of_embed(minilm):
    import bertkit

    bert = bertkit.load(minilm)
    texts = ["A cat sat on the mat.", "", "Interest rates rose again. " * 80, "你好 😀", "A cat sat on the mat."]
    ours = text_vectors(bert.checkpoint, texts)
    with pytest.warns(bertkit.BertkitWarning, match="cut|long"):
        theirs = bert.embed(texts)
    np.testing.assert_allclose(ours, theirs, atol=2e-6)
    short = text_vectors(bert.checkpoint, texts, length=8, kind="float16")
    assert short.dtype == np.float16
    assert not np.allclose(short[2], ours[2], atol=1e-2)
    np.testing.assert_allclose(np.linalg.norm(short.astype(np.float32), axis=1), 1, atol=2e-3)
    assert text_vectors(bert.checkpoint, []).shape == (0, 384)
    with pytest.raises(RequestError, match="only those of the last one"):
        text_vectors(replace(bert.checkpoint, embed=EmbedSettings(layers=(0,))), texts)
    with pytest.raises(RequestError, match="holds no tokenizer"):
        text_vectors(replace(bert.checkpoint, tokenizer=None), texts)
