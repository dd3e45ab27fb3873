"""Google checkpoints: written here by a small writer, hurt in every way, and the real SimBERT."""

import shutil
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from bertkit.checkpoint.crc32c import crc32c
from bertkit.checkpoint.google import is_google, read_google
from bertkit.checkpoint.google_index import parse_index
from bertkit.checkpoint.google_names import hugging_face_names
from bertkit.errors import RequestError

PREFIX = "bert_model.ckpt"
MAGIC = 0xDB4775248B80FB57.to_bytes(8, "little")
DTYPES = {"float32": 1, "float64": 2, "int32": 3, "uint8": 4, "int64": 9, "bool": 10, "float16": 19}
BFLOAT16 = 14


# The writer, which shares no code with the reader: bytes in, bytes out.


def slow_crc32c(data: bytes) -> int:
    """The slow twin: the textbook's division, bit by bit."""
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


def checksum(data: bytes) -> bytes:
    crc = slow_crc32c(data)
    return (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    groups = [number >> shift & 0x7F for shift in range(0, max(number.bit_length(), 1), 7)]
    return bytes([group | 0x80 for group in groups[:-1]] + groups[-1:])


def number_field(field: int, number: int) -> bytes:
    return varint(field << 3) + varint(number) if number else b""


def bytes_field(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(value)) + value


def entry(dtype=1, shape=(), shard=0, offset=0, data=b"", size=None, extra=b"") -> bytes:
    dimensions = b"".join(bytes_field(2, number_field(1, length)) for length in shape)
    numbers = [(3, shard), (4, offset), (5, len(data) if size is None else size)]
    return (
        number_field(1, dtype)
        + bytes_field(2, dimensions)
        + b"".join(number_field(*pair) for pair in numbers)
        + varint(6 << 3 | 5)
        + checksum(data)
        + extra
    )


def header(shards=1, endianness=0) -> bytes:
    return number_field(1, shards) + number_field(2, endianness) + bytes_field(3, number_field(1, 1))


def block(pairs: list[tuple[bytes, bytes]], restart_every: int = 3) -> bytes:
    written, restarts, last = b"", [], b""
    for position, (key, value) in enumerate(pairs):
        shared = 0
        if position % restart_every == 0:
            restarts.append(len(written))
        else:
            while shared < min(len(key), len(last)) and key[shared] == last[shared]:
                shared += 1
        written += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        last = key
    restarts = restarts or [0]
    return written + b"".join(number.to_bytes(4, "little") for number in [*restarts, len(restarts)])


def seal(contents: bytes, compression: bytes = b"\0") -> bytes:
    return contents + compression + checksum(contents + compression)


def table(blocks: list[bytes], spoil_index=lambda index: index, compression: bytes = b"\0") -> bytes:
    """Blocks (as `block` makes them), the empty meta-index, the index over the blocks, the footer."""
    written, handles = b"", []
    for contents in blocks:
        handles.append((b"\xff%05d" % len(handles), varint(len(written)) + varint(len(contents))))
        written += seal(contents, compression)
    places = b""
    for contents in (block([]), spoil_index(block(handles))):
        places += varint(len(written)) + varint(len(contents))
        written += seal(contents)
    return written + places.ljust(40, b"\0") + MAGIC


def blocks_of(pairs: dict[bytes, bytes], per_block: int = 3) -> list[bytes]:
    ordered = sorted(pairs.items())
    return [block(ordered[at : at + per_block]) for at in range(0, len(ordered), per_block)]


def write(folder: Path, variables: dict, *, shards: int = 1, per_block: int = 3, prefix: str = PREFIX) -> Path:
    """A checkpoint; a variable is an array, or a tuple (dtype number, array of its raw elements)."""
    pairs, data = {b"": header(shards)}, [b""] * shards
    for position, (name, value) in enumerate(sorted(variables.items())):
        dtype, array = value if isinstance(value, tuple) else (DTYPES[value.dtype.name], value)
        shard, raw = position % shards, array.tobytes()
        pairs[name.encode()] = entry(dtype, array.shape, shard, len(data[shard]), raw)
        data[shard] += raw
    put(folder, table(blocks_of(pairs, per_block)), data, prefix)
    return folder


def put(folder: Path, index: bytes, data: list[bytes], prefix: str = PREFIX) -> None:
    folder.mkdir(exist_ok=True, parents=True)
    (folder / f"{prefix}.index").write_bytes(index)
    for shard, contents in enumerate(data):
        (folder / f"{prefix}.data-{shard:05d}-of-{len(data):05d}").write_bytes(contents)
    (folder / "bert_config.json").write_text('{"hidden_size": 4}')


def put_pairs(folder: Path, pairs: dict[bytes, bytes], data: bytes = b"") -> Path:
    put(folder, table(blocks_of({b"": header()} | pairs)), [data])
    return folder


def small(seed: int = 0) -> dict:
    rng = np.random.default_rng(seed)
    return {
        "bert/embeddings/word_embeddings": rng.normal(size=(5, 2)),
        "bert/embeddings/LayerNorm/gamma": rng.normal(size=2).astype(np.float32),
        "bert/encoder/layer_0/output/dense/kernel": rng.normal(size=(2, 3)).astype(np.float16),
        "bert/encoder/layer_0/output/dense/bias": rng.normal(size=3).astype(np.float32),
        "cls/predictions/output_bias": (BFLOAT16, np.array([0x3F80, 0xC000, 0x7F80], np.uint16)),
        "empty": np.zeros((0, 7), np.float32),
        "global_step": np.array(1 << 40),
        "odd/名前 ü": np.array([True, False]),
    }


def expected(variables: dict) -> dict[str, np.ndarray]:
    plain = {}
    for name, value in variables.items():
        if isinstance(value, tuple):  # a bfloat16 is the upper half of a float32
            value = np.array([int(bits) << 16 for bits in value[1].flat], np.uint32).view(np.float32)
        plain[name] = value.astype(np.float32) if value.dtype.kind == "f" else value
    return plain


def assert_same(found: dict, wanted: dict) -> None:
    assert sorted(found) == sorted(wanted)
    for name, array in wanted.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape), name
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def words_only(value: object) -> str:
    """The name of a test case: its message, not its bytes."""
    return value if isinstance(value, str) else "bytes"


# Reading what was written.


@pytest.mark.parametrize("shards", [1, 2, 3, 11])
@pytest.mark.parametrize("per_block", [1, 4, 100])
def test_every_variable_comes_back(tmp_path, shards, per_block):
    folder = write(tmp_path, small(), shards=shards, per_block=per_block)
    checkpoint = read_google(folder)
    assert_same(checkpoint.variables, expected(small()))
    assert checkpoint.config == {"hidden_size": 4}
    assert checkpoint.vocab is None
    (folder / "vocab.txt").write_text("[PAD]\n")
    assert read_google(folder).vocab == folder / "vocab.txt"


ANY_ARRAY = arrays.arrays(
    st.sampled_from([np.float32, np.float16, np.int64, np.int32, np.uint8]),
    arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
)


@settings(max_examples=60, deadline=None)
@given(
    variables=st.dictionaries(st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1), ANY_ARRAY),
    shards=st.integers(1, 3),
    per_block=st.integers(1, 5),
)
def test_any_names_and_shapes_come_back(tmp_path_factory, variables, shards, per_block):
    folder = write(tmp_path_factory.mktemp("any"), variables, shards=shards, per_block=per_block)
    assert_same(read_google(folder).variables, expected(variables))


def test_variables_can_be_written_to(tmp_path):
    for array in read_google(write(tmp_path, small())).variables.values():
        array.fill(1)


def test_folder_index_and_prefix_are_the_same(tmp_path):
    folder = write(tmp_path / "a folder [1]*", small())
    for path in (folder, folder / PREFIX, folder / f"{PREFIX}.index"):
        assert is_google(path)
        assert_same(read_google(path).variables, expected(small()))


def test_what_is_no_checkpoint(tmp_path):
    (tmp_path / "lonely.index").write_bytes(b"")
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    (tmp_path / "folders" / "a.index").mkdir(parents=True)
    (tmp_path / "folders" / "bert_config.json").write_text("{}")
    for name in (".", "file", "empty", "folders", "missing", "missing/x.index", "long" * 5000):
        assert not is_google(tmp_path / name)
        with pytest.raises(RequestError, match=r"bert_config|no Google checkpoint|cannot be read"):
            read_google(tmp_path / name)


def test_several_checkpoints_need_a_choice(tmp_path):
    for step in (10, 20):
        write(tmp_path, small(step), prefix=f"model.ckpt-{step}")
    assert is_google(tmp_path)
    with pytest.raises(RequestError, match=r"model\.ckpt-10\.index, model\.ckpt-20\.index"):
        read_google(tmp_path)
    assert_same(read_google(tmp_path / "model.ckpt-10").variables, expected(small(10)))
    note = 'model_checkpoint_path: "{}"\nall_model_checkpoint_paths: "model.ckpt-10"\n'
    for path in ("model.ckpt-20", "/gone/run 1/model.ckpt-20", r"C:\run\model.ckpt-20"):
        (tmp_path / "checkpoint").write_text(note.format(path))
        assert_same(read_google(tmp_path).variables, expected(small(20)))
    (tmp_path / "checkpoint").write_bytes(b'\xff\0model_checkpoint_path: "model.ckpt-30"')
    with pytest.raises(RequestError, match=r"model\.ckpt-10\.index, model\.ckpt-20\.index"):
        read_google(tmp_path)


@pytest.mark.parametrize(
    ("contents", "says"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[1]", "one JSON object"),
        (b'{"a": ' + b"1" * 10_000 + b"}", "not JSON"),
        (b" " * (9 << 20), "MiB"),
    ],
    ids=words_only,
)
def test_bad_settings(tmp_path, contents, says):
    write(tmp_path, small())
    (tmp_path / "bert_config.json").write_bytes(contents)
    with pytest.raises(RequestError, match=rf"bert_config\.json.*{says}"):
        read_google(tmp_path)


def test_settings_under_another_name(tmp_path):
    write(tmp_path, small())
    (tmp_path / "bert_config.json").rename(tmp_path / "albert_config.json")
    assert read_google(tmp_path).config == {"hidden_size": 4}
    (tmp_path / "other_config.json").write_text("{}")
    with pytest.raises(RequestError, match=r"albert_config\.json, other_config\.json"):
        read_google(tmp_path)
    for file in tmp_path.glob("*config*"):
        file.unlink()
    with pytest.raises(RequestError, match=r"needs a bert_config\.json"):
        read_google(tmp_path)


# The checksum and its slow twin.


def test_checksum_of_known_texts():
    for text, value in [(b"", 0), (b"123456789", 0xE3069283), (b"\0" * 32, 0x8A9136AA)]:
        assert crc32c(np.frombuffer(text, np.uint8)) == value == slow_crc32c(text)


@pytest.mark.parametrize("length", [*range(70), 255, 256, 4093, (1 << 18) - 4, 1 << 18, (1 << 18) + 1, 600_001])
def test_checksum_equals_its_slow_twin(length):
    data = np.random.default_rng(length).integers(0, 256, length, dtype=np.uint8)
    assert crc32c(data) == slow_crc32c(data.tobytes())


def test_checksum_of_34_megabytes_is_quick():
    data = np.zeros(34_000_000, np.uint8)
    crc32c(data[:1000])
    start = time.perf_counter()
    crc32c(data)
    assert time.perf_counter() - start < 1.5  # measured: 0.08 s; a loaded machine gets some room


# What is not read, and what is hurt: one sentence each.

FOUR = np.arange(4, dtype=np.float32).tobytes()
HUGE = 1 << 62


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        (b"a", entry(7, (1,), data=b"\0"), "holds text in 'a'"),
        (b"_CHECKPOINTABLE_OBJECT_GRAPH", entry(7, (), data=b"\0"), "TensorFlow"),
        (b"a", entry(8, (2,), data=FOUR), "dtype number 8"),
        (b"a", entry(0, (4,), data=FOUR), "dtype number 0"),
        (b"a", entry(1, (4,), data=FOUR, extra=bytes_field(7, b"")), "partitioned"),
        (b"\0\1a\0\1", entry(1, (4,), data=FOUR), "partitioned"),
        (b"\xff", entry(1, (4,), data=FOUR), "UTF-8"),
        (b"a", entry(1, (5,), data=FOUR), "size or offset of 'a'"),
        (b"a", entry(1, (4,), data=FOUR, size=-16), "size or offset"),
        (b"a", entry(1, (4,), offset=-1, data=FOUR), "size or offset"),
        (b"a", entry(1, (4,), shard=1, data=FOUR), "size or offset"),
        (b"a", entry(1, (4,), shard=-1, data=FOUR), "size or offset"),
        (b"a", entry(1, (-4,), data=FOUR), "shape is impossible"),
        (b"a", entry(1, (HUGE, HUGE), data=FOUR), "shape is impossible"),
        (b"a", entry(1, (0, HUGE, HUGE), data=b""), "shape is impossible"),
        (b"a", entry(1, (1,) * 100, data=FOUR[:4]), "shape is impossible"),
        (b"a", entry(1, (1 << 38,), size=1 << 40), r"data-00000-of-00001 has 16 bytes"),
        (b"a", entry(1, (4,), offset=1, data=FOUR), "has 16 bytes, too few for 'a'"),
        (b"a", entry(1, (4,), offset=HUGE, data=FOUR), "has 16 bytes, too few for 'a'"),
        (b"a", entry(1, (4,), data=FOUR[::-1]), "checksum of 'a'"),
        (b"a", b"", "dtype number 0"),
        (b"a", b"\x80", "cut off"),
        (b"a", b"\x08" + b"\x80" * 20, "does not end"),
        (b"a", b"\x0b", "no known kind"),
        (b"a", b"\x12\xff\xff\x03", "cut off"),
        (b"a" * 1025, entry(1, (4,), data=FOUR), "wrong length"),
    ],
    ids=words_only,
)
def test_refused_entries(tmp_path, key, value, says):
    with pytest.raises(RequestError, match=says) as caught:
        read_google(put_pairs(tmp_path, {key: value}, FOUR))
    assert str(tmp_path / PREFIX) in str(caught.value)
    assert "again" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_many_variables_cannot_claim_the_same_bytes(tmp_path):
    pairs = {b"%d" % number: entry(1, (4,), data=FOUR) for number in range(3)}
    with pytest.raises(RequestError, match="too few for '1'"):
        read_google(put_pairs(tmp_path, pairs, FOUR))


def test_float64_beyond_float32_is_not_made_infinite(tmp_path):
    with pytest.raises(RequestError, match="'a' beyond float32"):
        read_google(write(tmp_path, {"a": np.array([1e300])}))
    kept = read_google(write(tmp_path, {"a": np.array([np.inf, np.nan, 1e-300])})).variables["a"]
    np.testing.assert_array_equal(kept, np.array([np.inf, np.nan, 0], np.float32))


GOOD = [block([(b"", header()), (b"a", entry(1, (4,), data=FOUR))])]


@pytest.mark.parametrize(
    ("index", "says"),
    [
        (b"", "not a checkpoint index"),
        (MAGIC, "not a checkpoint index"),
        (table(GOOD)[:-1] + b"\0", "not a checkpoint index"),
        (b"\xff" * 40 + MAGIC, "does not end"),
        (varint(HUGE) * 4 + MAGIC.rjust(12, b"\0"), "outside the file"),
        (varint(0) * 2 + varint(0) + varint(HUGE) + MAGIC.rjust(36, b"\0"), "outside the file"),
        (table(GOOD, compression=b"\1"), "snappy"),
        (table([block([(b"", header(endianness=1))])]), "big-endian"),
        (table([block([(b"", header(0))])]), "header is wrong"),
        (table([block([(b"", header(1 << 31))])]), "header is wrong"),
        (table([block([(b"a", header())])]), "header is wrong"),
        (table([]), "header is wrong"),
        (table([b""]), "too short"),
        (table([b"\xff\xff\xff\xff"]), "too short"),
        (table(GOOD * 2), "out of order"),
        (table([block([(b"", header()), (b"b", entry()), (b"a", entry())])]), "out of order|size or offset"),
        (table(GOOD, spoil_index=lambda _: block([(b"b", varint(0) + varint(len(GOOD[0])))] * 2)), "overlap"),
        (table([block([(b"", header()), (b"a", b"")]).replace(b"\0\1\0a", b"\7\1\0a")]), "wrong length"),
        (table([block([(b"", header(2)), (b"a", entry(1, (4,), data=FOUR))])]), "of-00002 is missing"),
        (bytes(9 << 20), "MiB"),
    ],
    ids=words_only,
)
def test_refused_indexes(tmp_path, index, says):
    put(tmp_path, index, [FOUR])
    with pytest.raises(RequestError, match=says) as caught:
        read_google(tmp_path)
    assert str(tmp_path / PREFIX) in str(caught.value)


def test_missing_and_short_data_files(tmp_path):
    folder = write(tmp_path, small(), shards=2)
    last = folder / f"{PREFIX}.data-00001-of-00002"
    contents = last.read_bytes()
    last.write_bytes(contents[:-1])
    with pytest.raises(RequestError, match=rf"00001-of-00002 has {len(contents) - 1} bytes, too few"):
        read_google(folder)
    last.unlink()
    with pytest.raises(RequestError, match="00001-of-00002 is missing; copy it"):
        read_google(folder)
    last.mkdir()
    with pytest.raises(RequestError, match="00001-of-00002 is missing"):
        read_google(folder)


# Every byte, flipped and cut.


def outcome(folder: Path) -> dict | None:
    """The variables, or None for a proper refusal; any other exception fails the test."""
    try:
        return read_google(folder).variables
    except RequestError:
        return None


@pytest.mark.parametrize("suffix", ["index", "data-00000-of-00002", "data-00001-of-00002"])
def test_no_flipped_or_missing_byte_goes_unnoticed(tmp_path, suffix):
    file = write(tmp_path, small(), shards=2) / f"{PREFIX}.{suffix}"
    whole, wanted, refused = file.read_bytes(), expected(small()), Counter()
    spoiled = [whole[:at] for at in range(len(whole))]
    for at in range(len(whole)):
        spoiled += [whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :] for flip in (1, 0x80, 0xFF)]
    for contents in spoiled:
        file.write_bytes(contents)
        found = outcome(tmp_path)
        refused[found is None] += 1
        if found is not None:
            assert_same(found, wanted)
    # What may change unnoticed: the empty meta-index and the padding of the footer.
    assert refused[False] <= 3 * (8 + 5 + 40) * (suffix == "index")
    assert refused[True] > len(whole)


def test_hostile_blocks_with_right_checksums(tmp_path):
    """Checksums stop chance, not malice: here every flip is sealed anew, so the parser itself is attacked."""
    data = FOUR * 2
    variables = {b"name": entry(1, (2, 2), data=FOUR), b"names": entry(2, (2,), offset=16, data=FOUR)}
    blocks = blocks_of({b"": header()} | variables, per_block=2)
    put(tmp_path, table(blocks), [data])
    assert len(outcome(tmp_path)) == 2
    for spoiled in hostile_tables(blocks):
        (tmp_path / f"{PREFIX}.index").write_bytes(spoiled)
        found = outcome(tmp_path) or {}
        assert sum(array.size for array in found.values()) <= len(data)


def hostile_tables(blocks: list[bytes]):
    for number, contents in enumerate(blocks):
        for changed in hostile_versions(contents):
            yield table([*blocks[:number], changed, *blocks[number + 1 :]])
    index_size = len(block([(b"\xff%05d" % n, b"\0\0") for n in range(len(blocks))])) + 2
    for number in range(4 * index_size):
        yield table(blocks, spoil_index=lambda index, n=number: hostile_versions(index)[n % (4 * len(index))])


def hostile_versions(contents: bytes) -> list[bytes]:
    flips = [(at, flip) for at in range(len(contents)) for flip in (1, 0x80, 0xFF)]
    changed = [contents[:at] + bytes([contents[at] ^ flip]) + contents[at + 1 :] for at, flip in flips]
    return changed + [contents[:at] for at in range(len(contents))]


@settings(max_examples=300, deadline=None)
@given(contents=st.binary(max_size=60), restarts=st.integers(0, 3))
def test_any_block_is_read_or_refused(tmp_path_factory, contents, restarts):
    folder = tmp_path_factory.mktemp("any")
    put(folder, table([GOOD[0], contents + bytes(4 * restarts) + restarts.to_bytes(4, "little")]), [FOUR])
    outcome(folder)


# Names.


def layer(scope: str, number: int) -> list[str]:
    """The sixteen variables of one BERT or ELECTRA layer."""
    linear = ["attention/self/query", "attention/self/key", "attention/self/value"]
    linear += ["attention/output/dense", "intermediate/dense", "output/dense"]
    norms = ["attention/output/LayerNorm", "output/LayerNorm"]
    return [
        f"{scope}/encoder/layer_{number}/{module}/{leaf}"
        for modules, leaves in ((linear, ("kernel", "bias")), (norms, ("gamma", "beta")))
        for module in modules
        for leaf in leaves
    ]


def embeddings(scope: str) -> list[str]:
    tables = [f"{scope}/embeddings/{kind}_embeddings" for kind in ("word", "position", "token_type")]
    return [*tables, f"{scope}/embeddings/LayerNorm/gamma", f"{scope}/embeddings/LayerNorm/beta"]


def filled(*names: str) -> dict[str, np.ndarray]:
    """Each name with an array of its own; matrices are 2 x 3, so that a transposed one shows."""
    vectors = ("bias", "gamma", "beta")
    return {
        name: np.full(3 if name.endswith(vectors) else (2, 3), place, np.float32) for place, name in enumerate(names)
    }


def renamed_pairs(variables: dict, **options) -> dict[str, str]:
    """TensorFlow name -> Hugging Face name, told by the arrays' own values."""
    result = hugging_face_names(variables, **options)
    by_value = {float(array.flat[0]): name for name, array in result.tensors.items()}
    pairs = {name: by_value.get(float(array.flat[0])) for name, array in variables.items()}
    assert {name for name, target in pairs.items() if target is None} == set(result.ignored)
    assert all(result.ignored.values())
    for name, target in pairs.items():
        if target is not None and variables[name].ndim == 2:
            wanted = (3, 2) if name.endswith("kernel") else (2, 3)
            assert result.tensors[target].shape == wanted, name
            assert result.tensors[target].flags.c_contiguous
    return pairs


BERT_HEADS = {
    "bert/pooler/dense/kernel": "bert.pooler.dense.weight",
    "bert/pooler/dense/bias": "bert.pooler.dense.bias",
    "bert/encoder/embedding_hidden_mapping_in/kernel": "bert.encoder.embedding_hidden_mapping_in.weight",
    "bert/encoder/embedding_hidden_mapping_in/bias": "bert.encoder.embedding_hidden_mapping_in.bias",
    "cls/predictions/output_bias": "cls.predictions.bias",
    "cls/predictions/transform/dense/kernel": "cls.predictions.transform.dense.weight",
    "cls/predictions/transform/dense/bias": "cls.predictions.transform.dense.bias",
    "cls/predictions/transform/LayerNorm/gamma": "cls.predictions.transform.LayerNorm.weight",
    "cls/predictions/transform/LayerNorm/beta": "cls.predictions.transform.LayerNorm.bias",
    "cls/seq_relationship/output_weights": "cls.seq_relationship.weight",
    "cls/seq_relationship/output_bias": "cls.seq_relationship.bias",
    "cls/squad/output_weights": "qa_outputs.weight",
    "cls/squad/output_bias": "qa_outputs.bias",
    "output_weights": "classifier.weight",
    "output_bias": "classifier.bias",
}


def bert_layer(prefix: str) -> set[str]:
    """The state-dict keys of one layer of Hugging Face's BertModel and ElectraModel."""
    modules = ["attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"]
    modules += ["attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm"]
    return {f"{prefix}.{module}.{leaf}" for module in modules for leaf in ("weight", "bias")}


def hugging_face_embeddings(scope: str) -> set[str]:
    modules = ["word_embeddings", "position_embeddings", "token_type_embeddings", "LayerNorm"]
    return {f"{scope}.embeddings.{module}.weight" for module in modules} | {f"{scope}.embeddings.LayerNorm.bias"}


def test_bert_names():
    names = [*embeddings("bert"), *layer("bert", 0), *layer("bert", 11), *BERT_HEADS]
    pairs = renamed_pairs(filled(*names))
    assert BERT_HEADS.items() <= pairs.items()
    layers = bert_layer("bert.encoder.layer.0") | bert_layer("bert.encoder.layer.11")
    assert set(pairs.values()) == hugging_face_embeddings("bert") | layers | set(BERT_HEADS.values())
    query = "bert/encoder/layer_11/attention/self/query/kernel"
    assert pairs[query] == "bert.encoder.layer.11.attention.self.query.weight"
    assert pairs["bert/embeddings/LayerNorm/gamma"] == "bert.embeddings.LayerNorm.weight"
    assert pairs["bert/embeddings/LayerNorm/beta"] == "bert.embeddings.LayerNorm.bias"


def test_albert_names():
    tensorflow, torch = (
        "bert/encoder/transformer/group_0/inner_group_0/",
        ("albert.encoder.albert_layer_groups.0.albert_layers.0."),
    )
    modules = {
        "attention_1/self/query": "attention.query",
        "attention_1/self/key": "attention.key",
        "attention_1/self/value": "attention.value",
        "attention_1/output/dense": "attention.dense",
        "ffn_1/intermediate/dense": "ffn",
        "ffn_1/intermediate/output/dense": "ffn_output",
    }
    heads = {
        "bert/encoder/embedding_hidden_mapping_in": "albert.encoder.embedding_hidden_mapping_in",
        "bert/pooler/dense": "albert.pooler",
        "cls/predictions/transform/dense": "predictions.dense",
    }
    linear = {tensorflow + theirs: torch + ours for theirs, ours in modules.items()} | heads
    norms = {
        f"{tensorflow}LayerNorm": f"{torch}attention.LayerNorm",
        f"{tensorflow}LayerNorm_1": f"{torch}full_layer_layer_norm",
        "bert/embeddings/LayerNorm": "albert.embeddings.LayerNorm",
        "cls/predictions/transform/LayerNorm": "predictions.LayerNorm",
    }
    wanted = {f"{theirs}/kernel": f"{ours}.weight" for theirs, ours in linear.items()}
    wanted |= {f"{theirs}/bias": f"{ours}.bias" for theirs, ours in linear.items()}
    wanted |= {f"{theirs}/gamma": f"{ours}.weight" for theirs, ours in norms.items()}
    wanted |= {f"{theirs}/beta": f"{ours}.bias" for theirs, ours in norms.items()}
    wanted |= {
        f"bert/embeddings/{kind}_embeddings": f"albert.embeddings.{kind}_embeddings.weight"
        for kind in ("word", "position", "token_type")
    }
    wanted |= {
        "cls/predictions/output_bias": "predictions.bias",
        "cls/seq_relationship/output_weights": "sop_classifier.classifier.weight",
        "cls/seq_relationship/output_bias": "sop_classifier.classifier.bias",
    }
    assert renamed_pairs(filled(*wanted)) == wanted


ELECTRA = [*embeddings("electra"), *layer("electra", 0), *layer("generator", 0)]
ELECTRA += [f"{scope}/embeddings_project/{leaf}" for scope in ("electra", "generator") for leaf in ("kernel", "bias")]
ELECTRA += [f"discriminator_predictions/dense{one}/{leaf}" for one in ("", "_1") for leaf in ("kernel", "bias")]
ELECTRA += ["generator_predictions/dense/kernel", "generator_predictions/dense/bias"]
ELECTRA += ["generator_predictions/LayerNorm/gamma", "generator_predictions/LayerNorm/beta"]
ELECTRA += ["generator_predictions/output_bias", "global_step"]
ELECTRA_BODY = hugging_face_embeddings("electra") | bert_layer("electra.encoder.layer.0")
ELECTRA_BODY |= {"electra.embeddings_project.weight", "electra.embeddings_project.bias"}


def test_electra_discriminator_names():
    pairs = renamed_pairs(filled(*ELECTRA))
    heads = {
        f"discriminator_predictions.{module}.{leaf}"
        for module in ("dense", "dense_prediction")
        for leaf in ("weight", "bias")
    }
    assert {target for target in pairs.values() if target} == ELECTRA_BODY | heads
    assert pairs["electra/embeddings_project/kernel"] == "electra.embeddings_project.weight"
    assert pairs["discriminator_predictions/dense_1/kernel"] == "discriminator_predictions.dense_prediction.weight"
    assert [name for name, target in pairs.items() if not target and not name.startswith("generator")] == [
        "global_step"
    ]


GENERATOR_HEADS = {
    "generator_predictions.dense.weight",
    "generator_predictions.dense.bias",
    "generator_predictions.LayerNorm.weight",
    "generator_predictions.LayerNorm.bias",
    "generator_lm_head.bias",
}


def test_electra_generator_names():
    pairs = renamed_pairs(filled(*ELECTRA), generator=True)
    assert {target for target in pairs.values() if target} == ELECTRA_BODY | GENERATOR_HEADS
    assert pairs["generator/embeddings_project/kernel"] == "electra.embeddings_project.weight"
    assert pairs["electra/embeddings_project/kernel"] is None
    assert pairs["electra/embeddings/word_embeddings"] == "electra.embeddings.word_embeddings.weight"
    alone = [name for name in ELECTRA if not name.startswith(("electra/enc", "electra/embeddings_", "disc"))]
    assert set(renamed_pairs(filled(*alone)).values()) - {None} == ELECTRA_BODY | GENERATOR_HEADS


def test_generator_with_embeddings_of_its_own():
    pairs = renamed_pairs(filled(*ELECTRA, *embeddings("generator")), generator=True)
    assert {target for target in pairs.values() if target} == ELECTRA_BODY | GENERATOR_HEADS
    assert pairs["generator/embeddings/word_embeddings"] == "electra.embeddings.word_embeddings.weight"
    assert pairs["electra/embeddings/word_embeddings"] is None


def test_generator_bias_under_its_other_name():
    pairs = renamed_pairs(filled("generator/encoder/layer_0/output/dense/bias", "generator_lm_head_bias"))
    assert pairs["generator_lm_head_bias"] == "generator_lm_head.bias"


@pytest.mark.parametrize(
    "name",
    [
        "bert/embeddings/word_embeddings/adam_m",
        "bert/embeddings/word_embeddings/adam_v",
        "bert/encoder/layer_0/output/dense/kernel/Adam",
        "bert/encoder/layer_0/output/dense/kernel/Adam_1",
        "bert/encoder/layer_0/output/dense/kernel/AdamWeightDecayOptimizer_1",
        "output_weights/adam_m",
        "bert/pooler/dense/kernel/ExponentialMovingAverage",
        "global_step",
        "beta1_power",
        "training/beta2_power",
        "loss_scale",
        "something/else/kernel",
        "task_specific/sst/dense/kernel",
    ],
)
def test_what_is_no_part_of_the_model_is_named_with_a_reason(name):
    result = hugging_face_names(filled("bert/pooler/dense/kernel", name))
    assert list(result.tensors) == ["bert.pooler.dense.weight"]
    assert list(result.ignored) == [name]
    assert result.ignored[name]


def test_kernels_are_transposed_and_others_are_not():
    matrix = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensors = hugging_face_names({"bert/pooler/dense/kernel": matrix, "output_weights": matrix}).tensors
    np.testing.assert_array_equal(tensors["bert.pooler.dense.weight"], [[0, 3], [1, 4], [2, 5]])
    np.testing.assert_array_equal(tensors["classifier.weight"], matrix)


def test_refused_names():
    kernel = np.zeros((2, 3, 4), np.float32)
    with pytest.raises(RequestError, match=r"dense/kernel.*\(2, 3, 4\)"):
        hugging_face_names({"bert/pooler/dense/kernel": kernel})
    with pytest.raises(RequestError, match=r"second variable for 'bert\.pooler\.norm\.weight'"):
        hugging_face_names(filled("bert/pooler/norm/gamma", "bert/pooler/norm/output_weights"))
    for variables in ({}, filled("model/layer/kernel")):
        with pytest.raises(RequestError, match="not of a BERT, ALBERT or ELECTRA"):
            hugging_face_names(variables)
    with pytest.raises(RequestError, match="not of an ELECTRA's generator"):
        hugging_face_names(filled("bert/pooler/dense/kernel"), generator=True)


# The real one.


def test_simbert(simbert):
    checkpoint = read_google(simbert)
    variables = checkpoint.variables
    assert len(variables) == 78
    assert Counter(array.dtype.name for array in variables.values()) == {"float32": 78}
    assert checkpoint.config["hidden_size"] == 312
    assert checkpoint.vocab == simbert / "vocab.txt"
    assert variables["bert/embeddings/word_embeddings"].shape == (13685, 128)
    assert variables["bert/encoder/embedding_hidden_mapping_in/kernel"].shape == (128, 312)
    assert sum(array.size for array in variables.values()) > 6_600_000
    assert all(np.isfinite(array).all() for array in variables.values())
    assert 0.01 < variables["bert/embeddings/word_embeddings"].std() < 1


def test_simbert_is_stored_as_described(simbert):
    _, entries = parse_index((simbert / f"{PREFIX}.index").read_bytes())
    doubles = [entry.name for entry in entries if entry.dtype == DTYPES["float64"]]
    assert doubles == ["bert/embeddings/word_embeddings", "cls/predictions/output_bias"]
    assert Counter(entry.dtype for entry in entries) == {DTYPES["float32"]: 76, DTYPES["float64"]: 2}
    data = next(simbert.glob("*.data-*")).stat().st_size
    assert sum(entry.size for entry in entries) == data  # no byte of the data file is left unread


def test_simbert_under_hugging_face_names(simbert):
    variables = read_google(simbert).variables
    result = hugging_face_names(variables)
    assert result.ignored == {}
    wanted = hugging_face_embeddings("bert").union(*(bert_layer(f"bert.encoder.layer.{n}") for n in range(4)))
    wanted |= {name for name in BERT_HEADS.values() if not name.startswith(("cls.seq", "qa", "classifier"))}
    assert set(result.tensors) == wanted
    assert result.tensors["bert.encoder.embedding_hidden_mapping_in.weight"].shape == (312, 128)
    assert result.tensors["bert.encoder.layer.3.intermediate.dense.weight"].shape == (1248, 312)
    assert result.tensors["cls.predictions.transform.dense.weight"].shape == (128, 312)


def test_simbert_cut_short(simbert, tmp_path):
    folder = tmp_path / "simbert"
    folder.mkdir()
    for file in simbert.iterdir():
        with file.open("rb") as source, (folder / file.name).open("wb") as target:
            target.write(source.read(100_000))
    with pytest.raises(RequestError, match="has 100000 bytes, too few for"):
        read_google(folder)
    shutil.rmtree(folder)
    assert not is_google(folder)
