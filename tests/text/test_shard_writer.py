"""Writing shards: the same bytes however it is done, killed or not; damage repaired, wrong requests refused."""

import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from shard_helpers import everything, make_again, slowly, snapshot, write_corpus, write_made

from bertkit import files
from bertkit.errors import BertkitError, RequestError
from bertkit.text.corpus import CorpusReport
from bertkit.text.shards import writer as shard_writer
from bertkit.text.shards.reader import open_shards
from bertkit.text.shards.writer import cut_into_blocks, write_shards
from bertkit.text.tokenizer import Tokenizer


@pytest.fixture
def corpus(tmp_path) -> list[Path]:
    return write_corpus(tmp_path / "texts")


@pytest.mark.parametrize(("block_bytes", "shard_count"), [(1, 66), (700, 5), (10**6, 1)])
def test_content_is_that_of_the_tokenizer_whatever_the_blocks(
    corpus, uncased_vocab, tmp_path, block_bytes, shard_count
):
    write_shards(corpus, uncased_vocab, tmp_path / "out", processes=1, block_bytes=block_bytes)
    opened = open_shards(tmp_path / "out", verify=True)
    documents = [text.decode().split("\n") for text in _whole_text(corpus).split(b"\n\n")]
    masked = [row for row in documents if "[MASK]" in "".join(row)]
    plain = [row for row in documents if row not in masked]  # see test_special_pieces_in_a_text for the others
    found = everything(opened)
    expected = slowly(plain, Tokenizer.load(uncased_vocab))
    assert len(masked) == 1
    assert [row for row in found if row in expected] == expected
    assert opened.documents == len(found) == len(expected) + len(masked) == 64
    assert opened.sentences == sum(map(len, found))
    assert len(opened.manifest["shards"]) == shard_count


def _whole_text(corpus: list[Path]) -> bytes:
    [block] = cut_into_blocks(corpus, 10**9, CorpusReport())
    return block.text


def test_any_number_of_processes_writes_the_same_bytes(corpus, uncased_vocab, tmp_path):
    for name, processes in {"a": 1, "b": 2, "c": 3, "again": 2}.items():
        report = write_shards(corpus, uncased_vocab, tmp_path / name, processes=processes, block_bytes=300)
        assert report["shards"] > 5
        assert report["kept"] == 0
    first = snapshot(tmp_path / "a")
    assert all(snapshot(tmp_path / name) == first for name in ("b", "c", "again"))
    assert str(tmp_path).encode() not in b"".join(first.values())


def test_a_finished_folder_is_left_as_it_is(corpus, uncased_vocab, tmp_path):
    write_shards(corpus, uncased_vocab, tmp_path / "out", processes=1, block_bytes=500)
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    report = write_shards(corpus, uncased_vocab, tmp_path / "out", processes=2, block_bytes=500)
    assert report["kept"] == report["shards"]
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == times


@pytest.mark.parametrize("finished", [True, False])
def test_another_request_on_the_same_folder_is_refused(uncased_vocab, cased_vocab, tmp_path, finished):
    write_made(tmp_path, uncased_vocab)
    made, corpus = tmp_path / "made", sorted((tmp_path / "texts").iterdir())
    if not finished:
        (made / "manifest.json").unlink()
    before = snapshot(made)
    for texts, vocab, options, words in [
        (corpus[:-1], uncased_vocab, {}, "text files"),
        (corpus, cased_vocab, {}, "vocabulary"),
        (corpus, uncased_vocab, {"entities": None}, "entity names"),
        (corpus[:-1], cased_vocab, {"block_bytes": 600}, "vocabulary, text files, block size"),
    ]:
        with pytest.raises(RequestError, match=f"begun with other settings .{words}.; give the same arguments"):
            make_again(texts, vocab, made, **options)
    assert snapshot(made) == before


def test_text_that_changed_but_not_in_size_is_made_anew(corpus, uncased_vocab, tmp_path):
    out = tmp_path / "out"
    write_shards(corpus, uncased_vocab, out, processes=1, block_bytes=500)
    path = corpus[2]
    path.write_text(path.read_text().replace("Document 7 ", "Document 8 "))
    report = write_shards(corpus, uncased_vocab, out, processes=1, block_bytes=500)
    assert report["kept"] == report["shards"] - 1
    write_shards(corpus, uncased_vocab, tmp_path / "fresh", processes=1, block_bytes=500)
    assert snapshot(out) == snapshot(tmp_path / "fresh")


def test_a_text_that_cannot_be_read_leaves_a_finished_folder_as_it_was(uncased_vocab, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for text in (b"The same cat.", b"\xff\xfe\xfd"):
        threading.Thread(target=(tmp_path / "pipe").write_bytes, args=[text], daemon=True).start()
        if text.startswith(b"The"):
            write_shards([tmp_path / "pipe"], uncased_vocab, tmp_path / "out", processes=1)
            before = snapshot(tmp_path / "out")
        else:
            with pytest.raises(RequestError):
                write_shards([tmp_path / "pipe"], uncased_vocab, tmp_path / "out", processes=1)
    assert snapshot(tmp_path / "out") == before


def test_text_from_a_pipe_is_read_though_the_folder_is_finished(uncased_vocab, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    tokens = []
    for text in (b"The same cat.", b"The same cat.", b"The other cat sat."):
        threading.Thread(target=(tmp_path / "pipe").write_bytes, args=[text], daemon=True).start()
        report = write_shards([tmp_path / "pipe"], uncased_vocab, tmp_path / "out", processes=1)
        tokens.append((report["tokens"], report["kept"]))
    assert tokens == [(4, 0), (4, 1), (5, 0)]


def test_wrong_requests_leave_nothing(corpus, uncased_vocab, tmp_path):
    (tmp_path / "bad.txt").write_bytes(b"Good line.\n\n\xff\xfe bad")
    (tmp_path / "no-token.txt").write_text("\u200b\n")
    (tmp_path / "no-names.txt").write_text("\n \n")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "work.txt").write_text("mine")
    out = tmp_path / "out"
    for words, arguments, options in [
        ("is not UTF-8", ([tmp_path / "bad.txt"], uncased_vocab, out), {"processes": 2}),
        ("no-token.txt: no token is left of this text", ([tmp_path / "no-token.txt"], uncased_vocab, out), {}),
        ("does not exist", ([tmp_path / "nowhere.txt"], uncased_vocab, out), {}),
        ("does not exist", (corpus, tmp_path / "nowhere", out), {}),
        ("processes=0 must be at least 1", (corpus, uncased_vocab, out), {"processes": 0}),
        ("no-names.txt holds no names", (corpus, uncased_vocab, out), {"entities": str(tmp_path / "no-names.txt")}),
        ("exists already", (corpus, uncased_vocab, tmp_path / "taken"), {}),
        ("exists already", (corpus, uncased_vocab, corpus[0]), {}),
    ]:
        with pytest.raises(RequestError, match=words):
            write_shards(*arguments, **options)
        assert not out.exists()
    assert (tmp_path / "taken" / "work.txt").read_text() == "mine"


@pytest.mark.parametrize("processes", [1, 2])
def test_a_full_disk_says_so_and_the_next_call_goes_on(corpus, uncased_vocab, tmp_path, processes):
    out = tmp_path / "out"
    big = tmp_path / "texts" / "zz.txt"
    big.write_text("Many words are here. " * 20_000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    Tokenizer.load(uncased_vocab).save(tmp_path / "vocab")  # before the limit, which is under its size
    options = {"processes": processes, "block_bytes": 1000}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            shard_writer, "_repair_tokenizer", lambda *_: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        )
        try:
            with pytest.raises(BertkitError, match="not written: File too large.*finished shards are kept") as caught:
                write_shards([*corpus, big], uncased_vocab, out, **options)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.exit_code == 1
    assert not list(out.glob(".*"))
    with pytest.raises(RequestError, match="unfinished"):
        open_shards(out)
    report = write_shards([*corpus, big], uncased_vocab, out, **options)
    assert 0 < report["kept"] < report["shards"]
    write_shards([*corpus, big], uncased_vocab, tmp_path / "straight", **options)
    assert snapshot(out) == snapshot(tmp_path / "straight")


RUN = """
import sys
from bertkit.text.shards.writer import write_shards
if __name__ == "__main__":
    print("go", flush=True)
    write_shards([sys.argv[1]], sys.argv[2], sys.argv[3], processes=2, block_bytes=60_000)
"""


@pytest.fixture
def job(tmp_path, uncased_vocab):
    rng = random.Random(0)
    words = [line for line in uncased_vocab.read_text(encoding="utf-8").split("\n") if line.isalpha()]
    lines = [" ".join(rng.choices(words, k=12)).capitalize() + "." for _ in range(30_000)]
    text = "".join(f"{line}\n" if number % 7 else f"{line}\n\n" for number, line in enumerate(lines))
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    (tmp_path / "run.py").write_text(RUN)

    def start(out: Path) -> subprocess.Popen[str]:
        command = [sys.executable, tmp_path / "run.py", tmp_path / "text.txt", uncased_vocab, out]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen([*map(str, command)], text=True, start_new_session=True, **pipes)
        process.stdout.readline()
        return process

    return start


def test_killed_at_any_moment_it_goes_on_to_the_same_bytes(job, tmp_path):
    began = time.monotonic()
    process = job(tmp_path / "straight")
    assert process.wait() == 0, process.stderr.read()
    whole = time.monotonic() - began
    rng, kills, kept = random.Random(1), 0, []
    for attempt in range(6):
        process = job(tmp_path / "out")
        time.sleep(rng.uniform(0, whole * (0.9 if attempt else 0.2)))
        kills += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stderr.read()  # ends only when the workers, who share it, have ended too
        kept.append(len(list((tmp_path / "out").glob("shard-*"))))
    process = job(tmp_path / "out")
    assert process.wait() == 0, process.stderr.read()
    assert kills > 0
    assert kept == sorted(kept)
    assert snapshot(tmp_path / "out") == snapshot(tmp_path / "straight")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_stopped_it_leaves_no_worker_and_no_manifest(job, tmp_path, how):
    process = job(tmp_path / "out")
    while not list((tmp_path / "out").glob("shard-*")):
        time.sleep(0.01)
    os.killpg(process.pid, how) if how == signal.SIGINT else process.send_signal(how)
    began = time.monotonic()
    process.communicate(timeout=60)  # until every process that holds the pipe has ended
    assert time.monotonic() - began < 20
    assert process.returncode != 0
    with pytest.raises(RequestError, match="unfinished"):
        open_shards(tmp_path / "out")


def test_a_killed_worker_is_said(corpus, uncased_vocab, tmp_path, monkeypatch):
    from bertkit.text.shards.maker import ShardMaker

    monkeypatch.setattr(ShardMaker, "make", lambda self, block: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(BertkitError, match="a worker process was killed.*given again, goes on"):
        write_shards(corpus, uncased_vocab, tmp_path / "out", processes=2)


def test_two_runs_at_once_are_refused(corpus, uncased_vocab, tmp_path, monkeypatch):
    import fcntl

    out = tmp_path / "out"
    write_shards(corpus, uncased_vocab, out, processes=1)
    monkeypatch.setattr(files, "LOCK_TIMEOUT", 0.1)
    handle = os.open(out, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        with pytest.raises(RequestError, match="another process is writing"):
            write_shards(corpus, uncased_vocab, out, processes=1)
    finally:
        os.close(handle)
