"""`bertkit embed --vectors`: smaller numbers on disk, in .npy and in Parquet's fixed-size lists, beside float32's."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import bertkit
from bertkit.cli.main import run
from bertkit.errors import RequestError
from bertkit.predict.files.outputs import to_bits, to_int8

TEXTS = ["A man plays an instrument.", "The stock market fell.", "She cooks pasta.", "Rain is wet."]
TYPES = {"float32": pa.float32(), "float16": pa.float16(), "int8": pa.int8(), "binary": pa.uint8()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("vectors")
    (path / "texts.txt").write_text("\n".join(TEXTS))
    for name in TYPES:
        for ending in ("npy", "parquet"):
            out = str(path / f"{name}.{ending}")
            assert run(["embed", str(path / "texts.txt"), "--out", out, "--vectors", name, "--quiet"]) == 0
    return path


@pytest.mark.parametrize("name", TYPES)
def test_both_files_hold_the_same_numbers(folder, name):
    array, column = np.load(folder / f"{name}.npy"), pq.read_table(folder / f"{name}.parquet")["vector"]
    assert column.type == pa.list_(TYPES[name], array.shape[1])
    assert array.dtype == TYPES[name].to_pandas_dtype()
    np.testing.assert_array_equal(np.array(column.to_pylist()), array)


def test_smaller_numbers_are_those_of_float32(folder):
    floats = np.load(folder / "float32.npy")
    np.testing.assert_allclose(np.load(folder / "float16.npy"), floats, atol=1e-3)
    rounded = np.load(folder / "int8.npy").astype(np.float32)
    cosines = (rounded * floats).sum(1) / np.linalg.norm(rounded, axis=1) / np.linalg.norm(floats, axis=1)
    assert np.abs(rounded).max(axis=1).tolist() == [127] * 4
    assert (cosines > 0.999).all()
    bits = np.unpackbits(np.load(folder / "binary.npy"), axis=1)
    np.testing.assert_array_equal(bits.astype(bool), floats > 0)


def test_int8_files_can_be_searched_and_bits_are_refused(folder):
    bert = bertkit.load()
    query = "Someone is playing the guitar."
    [found] = bert.search(query, TEXTS, k=1, vectors=folder / "int8.npy")
    assert (found.text, found.score) == (TEXTS[0], pytest.approx(bert.search(query, TEXTS, k=1)[0].score, abs=0.01))
    with pytest.raises(RequestError, match="numbers of type uint8; rows of floats or int8 belong there"):
        bert.search(query, TEXTS, vectors=folder / "binary.npy")


def test_encoders_by_hand():
    vectors = np.array([[0.5, -1.0, 0.0], [0.0, 0.0, 0.0]], np.float32)
    assert to_int8(vectors).tolist() == [[64, -127, 0], [0, 0, 0]]
    assert to_bits(vectors).tolist() == [[0b10000000], [0]]


def test_another_type_is_refused_and_a_resumed_run_keeps_its_type(tmp_path, capsys):
    (tmp_path / "texts.txt").write_text("one\n")
    assert run(["embed", str(tmp_path / "texts.txt"), "--out", str(tmp_path / "v.npy"), "--vectors", "int4"]) == 2
    assert "unknown type of vectors 'int4'; choose from: binary, float16, float32, int8" in capsys.readouterr().err
