"""Killed, out of space, damaged or asked differently: each row once, in order, as in a run that was never stopped."""

import errno
import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import taught
import torch

from bertkit.cli.main import run
from bertkit.errors import BertkitError
from bertkit.predict.files import rows as rows_module
from bertkit.predict.files import workers
from bertkit.predict.files.pipeline import ordered
from bertkit.predict.files.resume import Draft
from bertkit.predict.files.workers import processes

LINES = 300
ENVIRONMENT = os.environ | taught.ONE_THREAD
BLOCK = 32  # ten blocks, the last one short


class Killed(BaseException):
    """What no handler expects: the nearest thing to a SIGKILL within one process."""


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("taught")
    return {task: taught.taught_folder(folder / str(task), task) for task in ("classify", None)}


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(rows_module, "ROWS_PER_BLOCK", BLOCK)


@pytest.fixture
def texts(tmp_path):
    return write_texts(tmp_path / "in.jsonl", LINES)


@pytest.fixture
def call(capsys):
    def called(code, *words):
        found = run([str(word) for word in words])
        out, err = capsys.readouterr()
        assert found == code, (out, err)
        return out + err

    return called


def write_texts(path, count, bad=()):
    draw = random.Random(1)
    with path.open("w") as file:
        for n in range(count):
            words = " ".join(draw.choices("abcdefgh", k=draw.randint(0, 40)))
            file.write("torn {\n" if n in bad else json.dumps({"id": n, "text": words}) + "\n")
    return path


def words_for(kind, models, texts, out, *more):
    if out.suffix in (".npy",) or kind == "embed":
        return ("embed", texts, "--model", models[None], "--out", out, *more)
    return ("predict", models["classify"], texts, "--out", out, *more)


OUTPUTS = [
    ("embed", ".npy"),
    ("embed", ".parquet"),
    ("predict", ".jsonl"),
    ("predict", ".csv"),
    ("predict", ".parquet"),
]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(("kind", "ending"), OUTPUTS)
def test_killed_in_the_middle_of_any_write(kind, ending, models, texts, tmp_path, call, monkeypatch):
    """Half of a block's bytes are on the disk when the end comes, at every third block in turn."""
    straight, out = tmp_path / f"straight{ending}", tmp_path / f"out{ending}"
    call(0, *words_for(kind, models, texts, straight))
    append, count = Draft.append, 0

    def torn(self, parts):
        nonlocal count
        count += 1
        if count % 4 == 0:
            append(self, {name: data[: len(data) // 2] for name, data in parts.items()})
            raise Killed
        append(self, parts)

    monkeypatch.setattr(Draft, "append", torn)
    kills = 0
    while not out.exists():
        try:
            call(0, *words_for(kind, models, texts, out, "--resume"))
        except Killed:
            kills += 1
            assert not out.exists()
    assert kills == 3
    assert out.read_bytes() == straight.read_bytes()
    assert [path.name for path in tmp_path.iterdir() if ".part" in path.name] == []
    if ending == ".npy":
        assert (tmp_path / "out.npy.ids.jsonl").read_bytes() == (tmp_path / "straight.npy.ids.jsonl").read_bytes()


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("ending", [".npy", ".parquet"])
def test_killed_before_any_renaming(ending, models, tmp_path, call, monkeypatch):
    texts = write_texts(tmp_path / "in.jsonl", 3 * BLOCK + 5, bad=[40])
    straight = tmp_path / f"straight{ending}"
    call(0, *words_for("embed", models, texts, straight, "--on-error", "skip"))
    replace, left = Path.replace, 0

    def maybe(self, target):
        nonlocal left
        left -= 1
        if left == 0:
            raise Killed
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", maybe)
    for kills in range(1, 20):
        left, out = kills, tmp_path / f"{kills}{ending}"
        words = words_for("embed", models, texts, out, "--on-error", "skip")
        try:
            call(0, *words)
            break
        except Killed:
            left = 0
            call(0, *words, "--resume")
        assert out.read_bytes() == straight.read_bytes()
        for side in (".ids.jsonl", ".skipped.txt"):
            beside = out.with_name(out.name + side)
            if beside.exists():
                assert beside.read_bytes() == straight.with_name(straight.name + side).read_bytes()
    assert kills >= 6  # three states, a side file or two, the output


@pytest.mark.usefixtures("small_blocks")
def test_a_full_disk_keeps_what_is_finished(models, texts, tmp_path, call, monkeypatch):
    straight, out = tmp_path / "straight.npy", tmp_path / "out.npy"
    call(0, *words_for("embed", models, texts, straight))
    with monkeypatch.context() as patch:
        append, count = Draft.append, iter(range(100))

        def full(self, parts):
            if next(count) == 5:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            append(self, parts)

        patch.setattr(Draft, "append", full)
        said = call(1, *words_for("embed", models, texts, out))
    assert f"{out} was not written: No space left on device; 128 rows are finished in {out}.part" in said
    assert "--resume goes on" in said
    said = call(2, *words_for("embed", models, texts, out))
    assert f"{out}.part is left from a run that was stopped; --resume goes on, or remove it" in said
    call(0, *words_for("embed", models, texts, out, "--resume"))
    assert out.read_bytes() == straight.read_bytes()
    said = call(2, *words_for("embed", models, texts, out, "--resume"))
    assert "it is finished, so --resume has nothing to do" in said


@pytest.mark.usefixtures("small_blocks")
def test_a_full_disk_in_the_state_file(models, texts, tmp_path, call, monkeypatch):
    import bertkit.files

    out, flush, count = tmp_path / "out.jsonl", bertkit.files.flush, iter(range(100))

    def full(path):
        if next(count) == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        flush(path)

    monkeypatch.setattr(bertkit.files, "flush", full)
    said = call(1, *words_for("predict", models, texts, out))
    # The fourth state could not be written, though its block is: three count.
    assert "No space left on device; 96 rows are finished" in said
    call(0, *words_for("predict", models, texts, out, "--resume"))
    assert [json.loads(line)["id"] for line in out.open()] == list(range(LINES))


@pytest.mark.usefixtures("small_blocks")
def test_ctrl_c_says_how_to_go_on(models, texts, tmp_path, call, monkeypatch):
    append, count = Draft.append, iter(range(100))

    def stopped(self, parts):
        if next(count) == 3:
            raise KeyboardInterrupt
        append(self, parts)

    monkeypatch.setattr(Draft, "append", stopped)
    said = call(130, *words_for("predict", models, texts, tmp_path / "out.csv"))
    assert "note: 64 rows are finished in" in said
    said = call(0, *words_for("predict", models, texts, tmp_path / "out.csv", "--resume", "--json"))
    assert json.loads(said[said.index("{") : said.index("}") + 1])["rows"] == LINES


@pytest.mark.usefixtures("small_blocks")
def test_the_first_bad_row_stops_and_skip_goes_on(models, tmp_path, call):
    texts = write_texts(tmp_path / "in.jsonl", LINES, bad=[100, 101, 200])
    out, straight = tmp_path / "out.jsonl", tmp_path / "straight.jsonl"
    said = call(2, *words_for("predict", models, texts, out))
    assert f"{texts}, line 101: the row is torn or no JSON" in said
    assert "(--on-error skip leaves such rows out); 96 rows are finished" in said
    said = call(0, *words_for("predict", models, texts, out, "--resume", "--on-error", "skip"))
    assert f"3 rows were left out; all are in {out}.skipped.txt" in said
    assert said.count("the row is torn") == 3
    call(0, *words_for("predict", models, texts, straight, "--on-error", "skip"))
    assert out.read_bytes() == straight.read_bytes()
    assert [json.loads(line)["id"] for line in out.open()] == [n for n in range(LINES) if n not in (100, 101, 200)]
    lines = Path(f"{out}.skipped.txt").read_text().splitlines()
    assert [line.split(":")[0] for line in lines] == [f"{texts}, line {n + 1}" for n in (100, 101, 200)]


@pytest.mark.usefixtures("small_blocks")
def test_a_repaired_row_lets_it_go_on(models, tmp_path, call):
    texts = write_texts(tmp_path / "in.jsonl", LINES, bad=[100])
    out, straight = tmp_path / "out.jsonl", tmp_path / "straight.jsonl"
    call(2, *words_for("predict", models, texts, out))
    write_texts(texts, LINES)
    call(0, *words_for("predict", models, texts, out, "--resume"))
    call(0, *words_for("predict", models, texts, straight))
    assert out.read_bytes() == straight.read_bytes()


def test_every_kind_of_bad_row_is_listed(models, tmp_path, call):
    rows = ['{"text": "fine"}', '{"text": 5}', '{"text": null}', '{"text": ["a"]}', '{"txt": "a"}', "[1]", "torn {"]
    rows += ['{"text": "\\ud800"}', '{"text": "last \\u0000"}', '{"text": {"a": 1}}', "NaN"]
    (tmp_path / "in.jsonl").write_text("\n".join(rows))
    out = tmp_path / "out.npy"
    said = call(0, *words_for("embed", models, tmp_path / "in.jsonl", out, "--on-error", "skip", "--json"))
    assert np.load(out).shape[0] == 3
    assert Path(f"{out}.ids.jsonl").read_text().split() == ["1", "2", "9"]
    assert '"skipped": 8' in said
    for line in (3, 4, 5, 6, 7, 8, 10, 11):
        assert f"in.jsonl, line {line}: " in said


def test_long_rows_are_faults_where_they_are_refused(models, tmp_path, call):
    (tmp_path / "in.txt").write_text("a\n" + "b " * 100 + "\nc\n")
    out = tmp_path / "v.parquet"
    words = words_for("embed", models, tmp_path / "in.txt", out, "--too-long", "refuse")
    assert "line 2 has 102 tokens, over the limit of 32" in call(2, *words)
    assert "1 row was left out" in call(0, *words, "--on-error", "skip")
    assert pq.read_table(out)["id"].to_pylist() == [1, 3]


def test_columns_that_come_late_are_faults_of_tables_only(models, tmp_path, call):
    rows = [{"text": "a"}] * 1000 + [{"text": "b", "new": 1}, {"text": "c", "label": "mine"}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = call(2, *words_for("predict", models, tmp_path / "in.jsonl", tmp_path / "a.csv"))
    assert "line 1001: a column 'new' that the first 1,000 rows do not have; name the columns" in said
    said = call(2, *words_for("predict", models, tmp_path / "in.jsonl", tmp_path / "a.jsonl"))
    assert "line 1002: a column 'label'" in said, "it must not be hidden by the prediction of that name"
    call(0, *words_for("predict", models, tmp_path / "in.jsonl", tmp_path / "b.csv", "keep=text"))
    assert len((tmp_path / "b.csv").read_text().splitlines()) == 1003


@pytest.mark.usefixtures("small_blocks")
def test_what_changed_is_refused(models, texts, tmp_path, call, monkeypatch):
    out = tmp_path / "out.npy"
    killed_after(4, monkeypatch, call, *words_for("embed", models, texts, out))
    part, state = tmp_path / "out.npy.part", tmp_path / "out.npy.part" / "state.json"
    said = call(2, *words_for("embed", models, texts, out, "--resume", "--pooling", "cls"))
    assert f"{part} was begun with vectors EmbedSettings(pooling='mean'" in said
    other = taught.taught_folder(tmp_path / "other", None, width=32)
    said = call(2, "embed", texts, "--model", other, "--out", out, "--resume")
    assert "was begun with model " in said
    content = texts.read_text()
    texts.write_text(content.replace('"id": 3,', '"id": 4,', 1))
    said = call(2, *words_for("embed", models, texts, out, "--resume"))
    assert f"{texts} has changed in the 96 rows that were finished" in said
    texts.write_text("".join(content.splitlines(keepends=True)[:50]))
    assert "has changed" in call(2, *words_for("embed", models, texts, out, "--resume"))
    texts.write_text(content)
    good = state.read_text()
    for bad in ("", "{}{", "[1]", '{"blocks": -1}', '{"blocks": "3"}', '{"unknown": 3}', '{"settings": 3}'):
        state.write_text(bad)
        said = call(2, *words_for("embed", models, texts, out, "--resume"))
        assert f"state.json is damaged; remove {part} and begin again" in said, bad
    state.write_text(good)
    os.truncate(part / "rows", 200)
    assert "has lost some of its bytes" in call(2, *words_for("embed", models, texts, out, "--resume"))
    assert state.exists(), "a refusal removes nothing"


def killed_after(blocks, monkeypatch, call, *words):
    """The command, killed when so many blocks are written."""
    append, count = Draft.append, iter(range(100))

    def killed(self, parts):
        if next(count) == blocks:
            raise Killed
        append(self, parts)

    with monkeypatch.context() as patch:
        patch.setattr(Draft, "append", killed)
        with pytest.raises(Killed):
            call(0, *words)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("named", [(), ("--model", "bundled"), ("--model", "sentences"), ("--model", ".")])
def test_the_model_that_is_used_counts_and_not_the_working_folder(named, models, texts, tmp_path, call, monkeypatch):
    """What lies around it may change; with `--model .` it is the model of the working folder that is used."""
    here = tmp_path / "here"
    shutil.copytree(models[None], here) if "." in named else here.mkdir()
    monkeypatch.chdir(here)
    call(0, "embed", texts, *named, "--out", "straight.npy")
    killed_after(4, monkeypatch, call, "embed", texts, *named, "--out", "out.npy")
    (here / "later.txt").write_text("what another program writes here")
    others = {"": "bundled", "sentences": "bundled", ".": models["classify"]}
    other = others.get(named[-1] if named else "", "sentences")
    assert "was begun with model " in call(2, "embed", texts, "--model", other, "--out", "out.npy", "--resume")
    call(0, "embed", texts, *named, "--out", "out.npy", "--resume")
    assert (here / "out.npy").read_bytes() == (here / "straight.npy").read_bytes()
    assert np.load("out.npy").shape == (LINES, 16 if "." in named else 256)


def test_no_file_of_the_working_folder_is_read(texts, tmp_path, call, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path("private").write_text("not for this program")
    opened = Path.open

    def careful(self, *args, **options):
        if self.name == "private":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))
        return opened(self, *args, **options)

    monkeypatch.setattr(Path, "open", careful)
    call(0, "embed", texts, "--out", "out.npy")


@pytest.mark.usefixtures("small_blocks")
def test_predictions_of_the_model_in_the_working_folder(models, texts, tmp_path, call, monkeypatch):
    here = shutil.copytree(models["classify"], tmp_path / "here")
    monkeypatch.chdir(here)
    call(0, *words_for("predict", models, texts, Path("straight.jsonl")))
    killed_after(4, monkeypatch, call, "predict", ".", texts, "--out", "out.jsonl")
    call(0, "predict", ".", texts, "--out", "out.jsonl", "--resume")
    assert (here / "out.jsonl").read_bytes() == (here / "straight.jsonl").read_bytes()


@pytest.mark.usefixtures("small_blocks")
def test_two_at_once_are_refused(models, texts, tmp_path, call, monkeypatch):
    out, append, said = tmp_path / "out.npy", Draft.append, []

    def second(self, parts):
        if not said:
            said.append("")
            words = words_for("embed", models, texts, out, "--resume")
            said[0] = call(2, *words)
        append(self, parts)

    monkeypatch.setattr(Draft, "append", second)
    call(0, *words_for("embed", models, texts, out))
    assert f"another process is writing to {out}.part" in said[0]
    assert np.load(out).shape[0] == LINES


RUNNER = (
    "import bertkit.predict.files.rows as r, sys; r.ROWS_PER_BLOCK = 32\n"
    "from bertkit.cli.main import main\nmain(sys.argv[1:])"
)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(("workers", "moments"), [(0, (1, 12, 24)), (2, (5,))])
def test_real_kills(workers, moments, models, tmp_path, call):
    """SIGKILL from outside when a few more blocks are finished; several processes write what one does."""
    texts = write_texts(tmp_path / "in.jsonl", 1500)
    out, straight = tmp_path / "out.parquet", tmp_path / "straight.parquet"
    more = ["--resume", "--workers", workers]
    command = [sys.executable, "-c", RUNNER, *map(str, words_for("embed", models, texts, out, *more))]
    draw = random.Random(workers)
    for least in moments:
        child = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=ENVIRONMENT)
        while child.poll() is None and blocks_in(tmp_path / "out.parquet.part") < least:
            time.sleep(0.002)
        time.sleep(draw.random() * 0.02)
        assert child.poll() is None, "it must still be at work"
        child.kill()
        child.wait()
        assert not out.exists()
    call(0, *words_for("embed", models, texts, out, *more))
    call(0, *words_for("embed", models, texts, straight))
    assert out.read_bytes() == straight.read_bytes()
    assert pq.read_table(out)["id"].to_pylist() == list(range(1500))


def blocks_in(part):
    try:
        return json.loads((part / "state.json").read_text())["blocks"]
    except (OSError, ValueError):
        return 0


def test_what_is_under_way_comes_before_the_error():
    def blocks():
        yield from range(5)
        raise BertkitError("the sixth is bad")

    found = []
    with pytest.raises(BertkitError, match="the sixth is bad"):
        for number in ordered(blocks(), ahead=3):
            found.append(number)
    assert found == list(range(5))


def test_a_worker_that_dies_is_one_sentence():
    with (
        pytest.raises(BertkitError, match="a worker process was killed, perhaps for want of memory"),
        processes(taught.dies, 1, prepare=taught.nothing) as (submit, _),
    ):
        for result in [submit(block) for block in range(4)]:
            result()


def test_cluster_without_ray_is_one_sentence(models, texts, tmp_path, call, monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(workers, "import_module", missing)
    said = call(2, *words_for("embed", models, texts, tmp_path / "v.npy", "--cluster"))
    assert "--cluster needs Ray; install it with: pip install 'bertkit[cluster]'" in said
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


class OneMachine:
    """What `cluster` uses of Ray, in this process."""

    class exceptions:
        class RayError(Exception):
            pass

        class RayTaskError(RayError):
            pass

    def __init__(self):
        self.up, self.retries = False, None

    def is_initialized(self):
        return self.up

    def init(self, **_):
        self.up = True

    def shutdown(self):
        self.up = False

    def cluster_resources(self):
        return {"CPU": 2.0}

    def put(self, value):
        return value

    def remote(self, *, num_cpus, max_retries):
        self.retries = max_retries

        def wrap(function):
            function.remote = lambda *arguments: (function, arguments)
            return function

        return wrap

    def get(self, reference):
        function, arguments = reference
        try:
            return function(*arguments)
        except Exception as error:
            wrapped = self.exceptions.RayTaskError(str(error))
            wrapped.cause = error
            raise wrapped from error


@pytest.mark.usefixtures("small_blocks")
def test_a_cluster_writes_the_same_bytes_and_errors_come_back(models, texts, tmp_path, call, monkeypatch):
    machine = OneMachine()
    monkeypatch.setattr(workers, "import_module", lambda name: machine)
    call(0, *words_for("embed", models, texts, tmp_path / "a.npy"))
    call(0, *words_for("embed", models, texts, tmp_path / "b.npy", "--cluster"))
    assert (tmp_path / "a.npy").read_bytes() == (tmp_path / "b.npy").read_bytes()
    assert machine.retries
    assert not machine.up, "what was started is stopped"
    said = call(2, *words_for("embed", models, texts, tmp_path / "c.npy", "--cluster", "--too-long", "refuse"))
    assert "over the limit of 32" in said


PEAK = """import sys
from bertkit.cli.main import run
assert run(sys.argv[1:]) == 0
print([line for line in open("/proc/self/status") if line.startswith("VmHWM")][0].split()[1])
"""


def test_memory_does_not_grow_with_the_file(models, tmp_path):
    peaks = {}
    for count in (20_000, 100_000):
        (tmp_path / f"{count}.txt").write_text("".join(f"a b {n % 97}\n" for n in range(count)))
        words = words_for("embed", models, tmp_path / f"{count}.txt", tmp_path / f"{count}.npy")
        done = subprocess.run(
            [sys.executable, "-c", PEAK, *map(str, words)], capture_output=True, text=True, check=True, env=ENVIRONMENT
        )
        peaks[count] = int(done.stdout.split()[-1]) / 1024
        assert np.load(tmp_path / f"{count}.npy", mmap_mode="r").shape[0] == count
    assert peaks[100_000] < peaks[20_000] + 25, peaks  # MiB; the difference of the outputs alone would be 5
