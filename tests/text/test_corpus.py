"""Files to documents: every container, every fault, bounded memory."""

import bz2
import gzip
import json
import lzma
import os
import threading
import tracemalloc
from pathlib import Path

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.errors import RequestError
from bertkit.text import corpus
from bertkit.text.corpus import CorpusReport, Document, corpus_files, corpus_size, read_documents, read_lines

TEXT = "First paragraph.\nSecond, naïve — 漢字.\n\n\n  \nAnother document.\n"
DOCUMENTS = [("First paragraph.", "Second, naïve — 漢字."), ("Another document.",)]


def zstd(data: bytes) -> bytes:
    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


COMPRESSORS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstd, "": bytes}


def read(*paths: Path | str, report: CorpusReport | None = None) -> list[Document]:
    return list(read_documents(paths, report=CorpusReport() if report is None else report))


def paragraphs(*paths: Path | str) -> list[tuple[str, ...]]:
    return [document.paragraphs for document in read(*paths)]


def refusal(*paths: Path | str) -> str:
    with pytest.raises(RequestError) as caught:
        read(*paths)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_plain_text_in_every_container(tmp_path, suffix):
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(COMPRESSORS[suffix](TEXT.encode()))
    report = CorpusReport()
    documents = read(path, report=report)
    assert [document.paragraphs for document in documents] == DOCUMENTS
    assert [(document.source, document.line) for document in documents] == [(str(path), 1), (str(path), 6)]
    assert (report.files, report.documents, report.paragraphs) == (1, 2, 3)
    assert report.bytes == corpus_size([path])
    assert report.text_bytes == len(TEXT.encode())
    assert report.notes == {}


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_jsonl_in_every_container(tmp_path, suffix):
    rows = [{"text": "one\r\ntwo\n\nthree", "id": 7}, {"text": "naïve \U0001f600"}]
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(COMPRESSORS[suffix]("\n".join(map(json.dumps, rows)).encode()))
    assert paragraphs(path) == [("one", "two", "three"), ("naïve \U0001f600",)]


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
def test_members_one_after_another_are_one_text(tmp_path, suffix):
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(COMPRESSORS[suffix](b"half a li") + COMPRESSORS[suffix](b"ne\n\nmore"))
    assert paragraphs(path) == [("half a line",), ("more",)]


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
@pytest.mark.parametrize("keep", [0.5, 0.99])
def test_truncated_file_is_refused(tmp_path, suffix, keep):
    whole = COMPRESSORS[suffix](os.urandom(3000).hex().encode() + b"\n")
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(whole[: int(len(whole) * keep)])
    sentence = refusal(path)
    assert str(path) in sentence
    assert "cut off or damaged" in sentence


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
def test_plain_text_under_a_compressed_name_is_refused(tmp_path, suffix):
    path = tmp_path / f"a.txt{suffix}"
    path.write_text("this is plain\n" * 10)
    assert "cut off or damaged" in refusal(path)


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
def test_compressed_text_under_a_plain_name_says_which(tmp_path, suffix):
    path = tmp_path / "a.txt"
    path.write_bytes(COMPRESSORS[suffix](TEXT.encode()))
    assert f"is a {suffix} file" in refusal(path)


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_every_kind_of_line_end(tmp_path, ending, monkeypatch):
    monkeypatch.setattr(corpus, "BLOCK_BYTES", 1)  # every line end is torn by a block border
    path = tmp_path / "a.txt"
    path.write_bytes("a\nb\n\nc".replace("\n", ending).encode())
    assert [(document.paragraphs, document.line) for document in read(path)] == [(("a", "b"), 1), (("c",), 4)]


@given(st.text(st.sampled_from("aé漢\U0001f600 \r\n\x0b\x85\u2028"), max_size=60), st.integers(1, 9))
def test_blocks_of_any_size_read_the_same_lines(text, block):
    data = ("\ufeff" + text).encode()
    blocks = [data[start : start + block] for start in range(0, len(data), block)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus, "_byte_blocks", lambda *_: iter([*blocks, b""]))
        lines = list(read_lines(Path("not opened"), report=CorpusReport()))
    expected = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    expected = expected if expected[-1] else expected[:-1]
    assert lines == list(enumerate(expected, start=1))


def test_byte_order_mark_is_dropped(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfhello")
    assert paragraphs(path) == [("hello",)]


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_latin1_is_refused_with_offset_line_and_remedy(tmp_path, mark):
    path = tmp_path / "a.txt"
    path.write_bytes(mark + b"fine\ncaf\xe9 au lait\n")
    sentence = refusal(path)
    assert f"{path}, line 2: byte 0xe9 at offset {len(mark) + 8} is not UTF-8" in sentence
    assert "iconv -f latin1 -t utf-8 a.txt" in sentence


def test_offset_of_a_bad_byte_far_into_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "BLOCK_BYTES", 7)  # characters of two bytes straddle the blocks
    path = tmp_path / "a.txt"
    good = "éé\n".encode() * 50
    path.write_bytes(good + b"\xff\n")
    assert f"line 51: byte 0xff at offset {len(good)} " in refusal(path)


def test_text_that_ends_inside_a_character_is_refused(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("good\n漢".encode()[:-1])
    assert "line 2: byte 0xe6 at offset 5 is not UTF-8 (the text ends inside a character)" in refusal(path)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_utf16_is_named(tmp_path, encoding):
    path = tmp_path / "a.txt"
    path.write_bytes("Some ordinary text.\n".encode(encoding))
    sentence = refusal(path)
    assert "UTF-16" in sentence
    assert "iconv -f utf-16 -t utf-8 a.txt" in sentence


def test_nul_bytes_are_refused_with_their_place(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"one line of text\nanother line\0 of text\n")
    assert f"{path}, line 2: a NUL byte at offset 29" in refusal(path)


@pytest.mark.parametrize("suffix", [".txt", ".txt.gz", ".txt.zst", ".jsonl"])
def test_empty_files_are_refused(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    path.write_bytes(b"")
    assert f"{path} is empty" in refusal(path)


def test_empty_text_in_a_container_is_refused(tmp_path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b""))
    assert f"{path} is empty" in refusal(path)


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_nothing_but_blank_lines_is_refused(tmp_path, name):
    (tmp_path / name).write_text("\n \n\t\n")
    assert "holds no text" in refusal(tmp_path / name)


ROWS = {
    '{"text": "torn': "torn or no JSON",
    '{"text": "a"} {"text": "b"}': "torn or no JSON",
    "[" * 100_000: "torn or no JSON",
    '{"text": ' + "9" * 5000 + "}": "torn or no JSON",
    '{"body": "a"}': "no field 'text' (the row has: 'body')",
    "{}": "no field 'text' (the row has: nothing)",
    '["text"]': "no field 'text' (the row has: list)",
    '"text"': "no field 'text' (the row has: str)",
    '{"text": null}': "'text' is NoneType, not a string",
    '{"text": 3}': "'text' is int, not a string",
    '{"text": ["a"]}': "'text' is list, not a string",
    '{"text": "half \\ud83d pair"}': "half a surrogate pair (\\ud83d)",
    '{"text": "\\uDE00\\uD83D"}': "half a surrogate pair (\\ude00)",
}


@pytest.mark.parametrize("row", ROWS, ids=range(len(ROWS)))
def test_faulty_rows_are_refused_with_their_line(tmp_path, row):
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"text": "good"}}\n\n{row}\n')
    sentence = refusal(path)
    assert sentence.startswith(f"{path}, line 3: ")
    assert ROWS[row] in sentence


def test_rows_with_an_empty_text_are_counted(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "\\n"}\n{"text": "good"}\n{"text": ""}\n')
    report = CorpusReport()
    assert len(read(path, report=report)) == 1
    note = report.notes["row with an empty text, left out"]
    assert (note.count, note.first) == (2, f"{path}, line 1")


def test_missing_files_are_refused_before_anything_is_read(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    missing = tmp_path / "b.txt"
    with pytest.raises(RequestError, match="does not exist"):
        read_documents([tmp_path / "a.txt", missing], report=CorpusReport())  # not even iterated


def test_patterns_expand_and_refuse_to_match_nothing(tmp_path, monkeypatch):
    for name in ("b.txt", "a.txt", "c.md"):
        (tmp_path / name).write_text(name)
    assert paragraphs(tmp_path / "*.txt") == [("a.txt",), ("b.txt",)]
    monkeypatch.chdir(tmp_path)
    assert paragraphs("*.txt") == [("a.txt",), ("b.txt",)]
    assert refusal(tmp_path / "*.gz").startswith(f"no file matches {tmp_path / '*.gz'}")
    assert "no file matches no/such/*.txt" in refusal("no/such/*.txt")


def test_folders_expand_sorted_without_hidden_files(tmp_path):
    for name in ("z.txt", "deep/a.txt", ".hidden", ".git/config", "m.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('{"text": "row"}')
    names = [str(file.relative_to(tmp_path)) for file in corpus_files([tmp_path])]
    assert names == ["deep/a.txt", "m.jsonl", "z.txt"]
    (tmp_path / "empty").mkdir()
    assert "holds no files" in refusal(tmp_path / "empty")
    assert "no text files were named" in refusal()


def test_a_link_to_nowhere_in_a_folder_is_refused(tmp_path):
    (tmp_path / "a.txt").symlink_to(tmp_path / "gone.txt")
    assert "cannot be read: No such file" in refusal(tmp_path)


def test_a_file_named_twice_is_read_once(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("text")
    report = CorpusReport()
    assert len(read(path, tmp_path, report=report)) == 1
    assert report.notes["file named twice, read once"].first == str(path)


def test_a_pipe_can_be_read(tmp_path):
    pipe = tmp_path / "pipe.txt.gz"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(gzip.compress(TEXT.encode()),))
    writer.start()
    assert paragraphs(pipe) == DOCUMENTS
    writer.join()


def test_long_paragraphs_are_split_at_a_space(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "BLOCK_BYTES", 16)
    path = tmp_path / "a.txt"
    path.write_text("some words " * 40 + "\nshort\n")
    report = CorpusReport()
    lines = list(read_lines(path, report=report, longest=50))
    assert "".join(line for number, line in lines if number == 1) == "some words " * 40
    assert all(len(line) <= 50 + 16 and line.endswith((" ", "words")) for _, line in lines[:-1])
    assert lines[-1] == (2, "short")
    assert report.notes["paragraph over 50 characters, split at a space"].first == f"{path}, line 1"


def test_a_long_row_is_split_and_counted_too(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "MAX_PARAGRAPH", 20)
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "short"}\n' + json.dumps({"text": "some words " * 4}))
    report = CorpusReport()
    assert [len(document.paragraphs) for document in read(path, report=report)] == [1, 3]
    assert report.notes == {"paragraph over 20 characters, split at a space": corpus.Note(2, f"{path}, line 2")}


def test_ndjson_is_another_name_of_jsonl_and_one_path_needs_no_list(tmp_path):
    (tmp_path / "a.ndjson").write_text('{"text": "one\\ntwo"}')
    for one in (tmp_path / "a.ndjson", str(tmp_path / "a.ndjson"), [tmp_path]):
        assert [document.paragraphs for document in read_documents(one, report=CorpusReport())] == [("one", "two")]


def test_long_documents_are_split_and_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "MAX_DOCUMENT", 10)
    path = tmp_path / "a.txt"
    path.write_text("12345\n12345\n123\n\n1234567890123\nx\n")
    report = CorpusReport()
    documents = read(path, report=report)
    assert [document.paragraphs for document in documents] == [
        ("12345", "12345"),
        ("123",),
        ("1234567890123",),
        ("x",),
    ]
    assert [document.line for document in documents] == [1, 3, 5, 6]
    assert report.notes["document over 10 characters, split between paragraphs"].count == 2


def test_an_endless_row_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "MAX_ROW", 1_000_000)
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "' + b"x" * 5_000_000 + b'"}'))
    assert f"{path}, line 1: the row is over 1,000,000 characters" in refusal(path)


@pytest.mark.parametrize(
    ("unit", "megabytes"),
    [(b"word ", 60), (b"x", 60), (b"a line\n", 3)],
    ids=["one line", "no space", "no blank line"],
)
def test_memory_stays_bounded_without_line_ends_or_blank_lines(tmp_path, monkeypatch, unit, megabytes):
    monkeypatch.setattr(corpus, "MAX_DOCUMENT", 100_000)
    path = tmp_path / "a.txt.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(megabytes):
            file.write(unit * (1_000_000 // len(unit)))
    tracemalloc.start()
    total = sum(sum(map(len, document.paragraphs)) for document in read_documents([path], report=CorpusReport()))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert total > 700_000 * megabytes
    assert peak < 12_000_000
