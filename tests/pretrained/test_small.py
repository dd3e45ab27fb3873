"""Small weights: rounded by at most half a step, equal to their slow twin, verified, and refused when damaged."""

import hashlib
import subprocess

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save
from small_models import tiny

import bertkit
from bertkit.checkpoint.bundled import BASE_FILE, CHECKSUM_FILE, SMALL_FILE
from bertkit.checkpoint.save_load import load_checkpoint, save_checkpoint, save_small
from bertkit.checkpoint.small import pack, pack_row_plain, pack_rows, read_small, unpack, write_small
from bertkit.errors import BertkitError, RequestError

TINIEST = 1e-37  # under this a scale is no ordinary float32 any more


def half_a_step(matrix: torch.Tensor) -> None:
    rows = pack_rows(matrix)
    off = (rows.matrix().double() - matrix.double()).abs()
    assert rows.values.dtype == torch.int8
    assert rows.scales.dtype == torch.float32
    assert (off <= rows.scales.double().unsqueeze(1) * 0.5 * (1 + 1e-5) + TINIEST).all()


@pytest.mark.parametrize("kind", ["normal", "heavy tails", "one outlier", "uniform", "tiny", "huge"])
def test_no_number_is_off_by_more_than_half_a_step(kind):
    torch.manual_seed(0)
    draws = {
        "normal": torch.randn(200, 64) * 0.02,
        "heavy tails": torch.randn(200, 64) ** 5,
        "one outlier": torch.cat((torch.randn(200, 63) * 0.01, torch.full((200, 1), 3.0)), 1),
        "uniform": torch.rand(200, 64),
        "tiny": torch.randn(200, 64) * 1e-30,
        "huge": torch.randn(200, 64) * 1e30,
    }
    half_a_step(draws[kind])
    rows = pack_rows(draws[kind])
    largest = rows.values.abs().amax(dim=1)
    assert (largest == 127).all(), "every row uses all of its room"
    assert (rows.scales >= draws[kind].abs().amax(1) / 127.5 * (1 - 1e-6)).all()


@settings(max_examples=60)
@given(st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=12))
def test_any_row_is_off_by_at_most_half_a_step(row):
    half_a_step(torch.tensor([row]))


def test_the_fast_way_is_the_readable_one():
    torch.manual_seed(1)
    matrix = torch.cat((torch.randn(120, 24), torch.zeros(1, 24), torch.randn(40, 24) ** 7, torch.ones(1, 24)))
    rows = pack_rows(matrix)
    plain = [pack_row_plain(row) for row in matrix.double().tolist()]
    assert rows.values.tolist() == [numbers for numbers, _ in plain]
    torch.testing.assert_close(rows.scales, torch.tensor([scale for _, scale in plain]), rtol=1e-6, atol=0)


def test_least_squares_is_taken_where_it_errs_less_and_only_there():
    torch.manual_seed(2)
    matrix = torch.randn(500, 32)
    rows = pack_rows(matrix)
    simple = matrix.abs().amax(1, keepdim=True) / 127
    by_max = ((matrix / simple).round() * simple - matrix).square().sum(1)
    ours = (rows.matrix() - matrix).square().sum(1)
    assert (ours <= by_max * (1 + 1e-4)).all()
    assert (ours < by_max * 0.999).float().mean() > 0.3, "otherwise it were not worth its lines"


def test_vectors_take_the_16_bits_that_are_closer():
    torch.manual_seed(3)
    stored = pack({"norm": 1 + torch.randn(64) * 0.1, "large": torch.tensor([1e6, 2e20]), "empty": torch.zeros(0, 4)})
    assert stored["norm"].dtype == torch.float16
    assert stored["large"].dtype == torch.bfloat16
    back = unpack(stored)
    torch.testing.assert_close(back["large"], torch.tensor([1e6, 2e20]), rtol=2**-8, atol=0)
    assert back["empty"].shape == (0, 4)
    assert all(tensor.dtype == torch.float32 for tensor in back.values())


def test_what_was_stored_once_is_stored_again_without_loss(tmp_path):
    save_small(tiny(), tmp_path / "once")
    save_small(load_checkpoint(tmp_path / "once"), tmp_path / "twice")
    assert (tmp_path / "once" / SMALL_FILE).read_bytes() == (tmp_path / "twice" / SMALL_FILE).read_bytes()


def test_a_small_folder_is_a_model_folder(tmp_path):
    checkpoint = tiny()
    save_small(checkpoint, tmp_path / "small")
    save_checkpoint(checkpoint, tmp_path / "full")
    small, full = (bertkit.load(tmp_path / name) for name in ("small", "full"))
    assert set(small.report.used) == set(full.report.used)
    assert not small.report.new
    assert not small.report.dropped
    for name, tensor in full.model.state_dict().items():
        off = (small.model.state_dict()[name] - tensor).abs().max()
        assert off <= tensor.abs().max() / 127, name
    texts = ["the river falls.", "a great film"]
    ours, theirs = (torch.from_numpy(bert.embed(texts)) for bert in (small, full))
    assert torch.cosine_similarity(ours, theirs).min() > 0.999
    assert not torch.equal(ours, theirs)
    assert small.fill("the [MASK] falls.")[0].text == full.fill("the [MASK] falls.")[0].text
    assert (tmp_path / "small" / SMALL_FILE).stat().st_mode & 0o077 == (
        tmp_path / "small" / "config.json"
    ).stat().st_mode & 0o077


def test_real_weights_keep_their_meaning(minilm, tmp_path):
    full = bertkit.load(minilm)
    save_small(full.checkpoint, tmp_path / "small")
    small = bertkit.load(tmp_path / "small")
    texts = ["A cat sat on the mat.", "Interest rates rose again.", "Ünïcode 你好 😀", "She opened the door. " * 20, ""]
    cosines = (full.embed(texts, normalize=True) * small.embed(texts, normalize=True)).sum(axis=1)
    assert 0.998 < cosines[:-1].min() < 1 - 1e-7
    assert cosines[-1] > 0.99, "of [CLS] and [SEP] alone: the mean is over two tokens, and errors do not cancel"
    assert (tmp_path / "small" / SMALL_FILE).stat().st_size < 0.27 * (minilm / "model.safetensors").stat().st_size


def test_convert_makes_a_full_folder_of_it_that_transformers_loads(tmp_path, command_here):
    import transformers

    save_small(tiny(), tmp_path / "small")
    done = command_here("convert", tmp_path / "small", tmp_path / "full")
    assert done.returncode == 0, done.stderr
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "full").eval()
    bert = bertkit.load(tmp_path / "small")
    ids = bert.tokenizer.encode("the [MASK] falls.").ids
    with torch.inference_mode():
        ours = bert.model.heads["masked_word"](bert.trace("the [MASK] falls.").output)
        logits = theirs(torch.tensor([ids])).logits[0]
    torch.testing.assert_close(ours, logits, rtol=0, atol=1e-5)


def test_the_checksum_is_what_sha256sum_prints(tmp_path):
    save_small(tiny(), tmp_path / "small")
    digest = hashlib.sha256((tmp_path / "small" / SMALL_FILE).read_bytes()).hexdigest()
    assert (tmp_path / "small" / CHECKSUM_FILE).read_text() == f"{digest}  {SMALL_FILE}\n"
    done = subprocess.run(
        ["sha256sum", "-c", CHECKSUM_FILE], cwd=tmp_path / "small", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


@pytest.fixture
def folder(tmp_path):
    save_small(tiny(), tmp_path / "small")
    return tmp_path / "small"


@pytest.mark.parametrize("kept", [0, 7, 100, -1])
def test_a_truncated_file_is_said_in_one_sentence(folder, kept):
    whole = (folder / SMALL_FILE).read_bytes()
    (folder / SMALL_FILE).write_bytes(whole[:kept])
    with pytest.raises(
        RequestError, match=rf"{SMALL_FILE} is truncated or changed: its sha256 begins .* copy the folder"
    ) as e:
        load_checkpoint(folder)
    assert "\n" not in str(e.value)


def test_one_changed_bit_is_noticed(folder):
    content = bytearray((folder / SMALL_FILE).read_bytes())
    content[-5] ^= 1
    (folder / SMALL_FILE).write_bytes(content)
    with pytest.raises(RequestError, match="truncated or changed"):
        load_checkpoint(folder)


SUMS_FAULTS = {
    "missing": (None, "cannot be read"),
    "empty": ("", "not as bertkit writes it"),
    "another file": (f"{'0' * 64}  ../../secret\n", "not as bertkit writes it"),
    "only the one above": (f"{'0' * 64}  {BASE_FILE}\n", "not as bertkit writes it"),
    "torn": (f"{'0' * 64}", "not as bertkit writes it"),
    "short": (f"abc  {SMALL_FILE}\n", "not as bertkit writes it"),
    "not ASCII": (f"{'é' * 64}  {SMALL_FILE}\n", "cannot be read"),
    "of another file": (f"{'0' * 64}  {SMALL_FILE}\n", "truncated or changed"),
}


@pytest.mark.parametrize("fault", SUMS_FAULTS)
def test_a_wrong_checksum_file_is_refused(folder, fault):
    content, said = SUMS_FAULTS[fault]
    (folder / CHECKSUM_FILE).unlink()
    if content is not None:
        (folder / CHECKSUM_FILE).write_text(content, encoding="utf-8")
    with pytest.raises(RequestError, match=said):
        load_checkpoint(folder)


def _with(**tensors: torch.Tensor) -> bytes:
    return save({name.replace("_", "."): tensor for name, tensor in tensors.items()})


CONTENTS = {
    "no safetensors": b"hello",
    "no scale": _with(a=torch.ones(2, 3, dtype=torch.int8)),
    "a scale too few": _with(a=torch.ones(2, 3, dtype=torch.int8), a_scale=torch.ones(1)),
    "scales of whole numbers": _with(a=torch.ones(2, 3, dtype=torch.int8), a_scale=torch.ones(2, dtype=torch.int32)),
    "a vector of whole numbers": _with(a=torch.ones(2, dtype=torch.int8), a_scale=torch.ones(2)),
    "a scale of nothing": _with(a_scale=torch.ones(2)),
}


@pytest.mark.parametrize("kind", CONTENTS)
def test_a_hostile_file_with_its_checksum_is_refused(tmp_path, kind):
    content = CONTENTS[kind]
    (tmp_path / SMALL_FILE).write_bytes(content)
    (tmp_path / CHECKSUM_FILE).write_text(f"{hashlib.sha256(content).hexdigest()}  {SMALL_FILE}\n")
    with pytest.raises(RequestError, match=rf"{SMALL_FILE} is not a file of small weights: .*; save the model again"):
        read_small(tmp_path / SMALL_FILE)


def test_infinite_scales_do_not_become_a_model(tmp_path):
    save_small(tiny(), tmp_path / "small")
    path = tmp_path / "small" / SMALL_FILE
    tensors = pack(read_small(path))
    scale = next(name for name in tensors if name.endswith(".scale"))
    tensors[scale][0] = float("inf")
    path.write_bytes(save(tensors))
    (tmp_path / "small" / CHECKSUM_FILE).write_text(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {SMALL_FILE}\n")
    with pytest.raises(RequestError, match="holds NaN or infinity"):
        load_checkpoint(tmp_path / "small")


def test_a_model_that_diverged_is_not_stored(tmp_path):
    checkpoint = tiny()
    with torch.no_grad():
        checkpoint.model.encoder.layers[0].feed_forward.up.weight[0, 0] = float("nan")
    with pytest.raises(RequestError, match="holds NaN or infinity; a model that diverged"):
        save_small(checkpoint, tmp_path / "small")
    assert not list(tmp_path.iterdir())
    with pytest.raises(RequestError, match="names that end so"):
        pack({"a.scale": torch.ones(2)})


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    with pytest.raises(BertkitError, match="No space left"):
        save_small(tiny(), tmp_path / "small")
    assert not list(tmp_path.iterdir())


def tuned(folder):
    """The model of a folder with its last layer moved a little, as frozen fine-tuning leaves it."""
    checkpoint = load_checkpoint(folder)
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in checkpoint.model.encoder.layers[-1].parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    return checkpoint


def test_a_variant_is_stored_as_what_differs(folder):
    variant = tuned(folder)
    save_small(variant, folder / "sentences", delta=True)
    own = (folder / "sentences" / SMALL_FILE).stat().st_size
    assert own < 0.5 * (folder / SMALL_FILE).stat().st_size
    loaded, base = load_checkpoint(folder / "sentences"), load_checkpoint(folder)
    moved = {name for name, t in loaded.model.state_dict().items() if not torch.equal(t, base.model.state_dict()[name])}
    assert moved
    assert all(name.startswith("encoder.layers.2.") for name in moved)
    for name, tensor in variant.model.state_dict().items():
        assert (loaded.model.state_dict()[name] - tensor).abs().max() <= tensor.abs().max() / 127, name
    done = subprocess.run(
        ["sha256sum", "-c", CHECKSUM_FILE], cwd=folder / "sentences", capture_output=True, check=False
    )
    assert done.returncode == 0


def test_a_variant_says_that_it_needs_the_folder_above(folder, tmp_path):
    save_small(tuned(folder), folder / "sentences", delta=True)
    (folder / "sentences").rename(tmp_path / "alone")
    with pytest.raises(RequestError, match="holds only what differs from it; copy both folders together"):
        load_checkpoint(tmp_path / "alone")
    save_small(tiny(seed=9), tmp_path / "other")
    (tmp_path / "alone").rename(tmp_path / "other" / "sentences")
    with pytest.raises(RequestError, match="truncated or changed"):
        load_checkpoint(tmp_path / "other" / "sentences")


def test_a_variant_of_a_variant_is_refused(folder):
    save_small(tuned(folder), folder / "sentences", delta=True)
    with pytest.raises(RequestError, match="holds only differences itself"):
        save_small(tuned(folder), folder / "sentences" / "more", delta=True)


def test_a_variant_over_nothing_is_refused(tmp_path):
    with pytest.raises(RequestError, match="cannot be read"):
        save_small(tiny(), tmp_path / "sentences", delta=True)
    assert not list(tmp_path.iterdir())


def test_names_of_the_variant_that_the_base_lacks_are_kept(folder):
    extra = {**read_small(folder / SMALL_FILE), "more.weight": torch.ones(2, 2)}
    (folder / "v").mkdir()
    write_small(extra, folder / "v", base=folder)
    assert set(read_small(folder / "v" / SMALL_FILE)) == set(extra)
