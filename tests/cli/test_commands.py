"""The command line as a person meets it: results on stdout, one sentence on stderr, exit 0, 1 or 2."""

import gzip
import json
import os

import numpy as np
import pyarrow.parquet as pq
import pytest

import bertkit
from bertkit.checkpoint.save_load import Checkpoint, save_checkpoint
from bertkit.cli.main import share_cores
from bertkit.config import family_config
from bertkit.model.model import new_model
from bertkit.tasks.table import TASKS
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.wordpiece import SPECIALS

LETTERS = "abcdefghijklmnopqrstuvwxyz"
PIECES = [*SPECIALS, *LETTERS, *(f"##{c}" for c in LETTERS)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    config = family_config("bert", "tiny", vocab_size=len(PIECES), max_length=32, init_std=0.2)
    tiny = new_model(config, {"masked_word": None}).eval()
    save_checkpoint(Checkpoint(model=tiny, tokenizer=Tokenizer.from_vocab(PIECES), max_length=32), folder)
    return folder


@pytest.fixture
def fails(command_here):
    """Run a command that must fail with one sentence on stderr, no traceback, nothing on stdout."""

    def run(code, sentence, *arguments, **options):
        done = command_here(*arguments, **options)
        assert done.returncode == code, (done.stdout, done.stderr)
        said = [line for line in done.stderr.strip().splitlines() if line.startswith("bertkit: ")]
        assert len(said) == 1, done.stderr
        assert "Traceback" not in done.stderr
        assert sentence in said[0]
        assert done.stdout == ""

    return run


def test_help_and_version(bertkit_command):
    for arguments in ([], ["--help"], ["-h"]):
        done = bertkit_command(*arguments)
        assert done.returncode == 0
        assert "a BERT from raw text to a running service" in done.stdout
    assert bertkit_command("--version").stdout == f"bertkit {bertkit.__version__}\n"


def test_answers_without_a_verb(command_here):
    assert command_here("-V").stdout == command_here("version").stdout == f"bertkit {bertkit.__version__}\n"
    assert "Usage: bertkit fill" in command_here("help", "fill").stdout
    assert "Usage: bertkit fill" in command_here("fill", "-h").stdout
    assert command_here("completion", "bash").stdout.startswith("_bertkit() {")
    assert "unknown shell 'csh'; choose from: bash, fish, zsh" in command_here("completion", "csh").stderr


def test_tokenize(bertkit_command, command_here, model, tmp_path):
    done = bertkit_command("tokenize", "-", "--model", model, input="ab c\n\na\n")
    assert done.stdout == "[CLS] a ##b c [SEP]\n[CLS] [SEP]\n[CLS] a [SEP]\n"
    ids = command_here("tokenize", "ab", "--model", model, "--ids").stdout.split()
    assert ids == [str(PIECES.index(piece)) for piece in ("[CLS]", "a", "##b", "[SEP]")]
    shown = json.loads(command_here("tokenize", "ab", "--pair", "c", "--model", model, "--json").stdout)
    assert shown["tokens"] == ["[CLS]", "a", "##b", "[SEP]", "c", "[SEP]"]
    assert shown["segments"] == [0, 0, 0, 0, 1, 1]
    assert shown["offsets"][1:3] == [[0, 1], [1, 2]]
    assert "--pair goes with one text" in command_here("tokenize", "-", "--pair", "c", "--model", model).stderr


def test_info(command_here, model):
    facts = json.loads(command_here("info", model, "--json").stdout)
    assert facts["family"] == "bert"
    assert (facts["layers"], facts["width"], facts["max length"]) == (2, 128, 32)
    assert facts["answers"] == ["embed", "fill"]
    assert facts["task"] is None
    assert facts["bytes"] > facts["parameters"] > 100_000
    lines = command_here("info", model).stdout.splitlines()
    assert "family           bert" in lines
    assert "answers          embed, fill" in lines
    assert not any(line.startswith(("task", "labels")) for line in lines)


def test_wrong_words(fails):
    fails(2, "no command 'embd'; did you mean 'embed'? choose from: vocab", "embd")
    fails(2, "no command 'sing'; choose from: vocab", "sing")
    fails(2, "no command 'train'; 'bertkit finetune' trains on labeled examples, 'bertkit pretrain' on plain", "train")
    fails(2, "No such option: --pitch", "fill", "text", "--pitch", "high")
    fails(2, "Missing argument", "fill")
    fails(2, "Missing option '--out'", "embed", "x.txt")


def test_fill(command_here, model):
    done = command_here("fill", "a [MASK] c", "--model", model, "--top", 3)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 3
    rows = [
        json.loads(line) for line in command_here("fill", "a [MASK] c", "--model", model, "--json").stdout.splitlines()
    ]
    assert [row["word"] for row in rows] == [c.word for c in bertkit.load(model).fill("a [MASK] c")]


def test_blanks_may_be_written_in_several_ways(command_here, model):
    expected = command_here("fill", "a [MASK] c", "--model", model).stdout
    for text in ("a ___ c", "a <mask> c", "a [mask] c", "a __ c"):
        assert command_here("fill", text, "--model", model).stdout == expected
    assert "__" in command_here("fill", "a [MASK] __", "--model", model).stdout  # the model's own token is there


def test_fill_refuses(fails, model, tmp_path):
    fails(2, "the text has no blank: write [MASK]", "fill", "a b", "--model", model)
    fails(2, "is not a folder", "fill", "a [MASK]", "--model", tmp_path / "nowhere")
    fails(2, "top=0 must be from 1", "fill", "[MASK]", "--model", model, "--top", 0)


def test_embed(bertkit_command, model, tmp_path):
    lines = ["a b c", "", "hello world", "Ünïcode 你好"]
    (tmp_path / "in.txt").write_text("".join(f"{line}\r\n" for line in lines), encoding="utf-8-sig")
    done = bertkit_command("embed", tmp_path / "in.txt", "--model", model, "--out", tmp_path / "v.npy")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("4 vectors of 128")
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), bertkit.load(model).embed(lines), atol=1e-5)
    options = ["--pooling", "max", "--layers=-1,0", "--normalize", "--json"]
    done = bertkit_command("embed", tmp_path / "in.txt", "--model", model, "--out", tmp_path / "v.parquet", *options)
    summary = {"texts": 4, "width": 256, "out": str(tmp_path / "v.parquet"), "model": "tiny"}
    assert json.loads(done.stdout) == summary
    table = pq.read_table(tmp_path / "v.parquet").to_pydict()
    assert table["text"] == lines
    expected = bertkit.load(model).embed(lines, pooling="max", layers=[-1, 0], normalize=True)
    np.testing.assert_allclose(np.array(table["vector"]), expected, atol=1e-5)


def test_embed_reads_standard_input(bertkit_command, model, tmp_path):
    done = bertkit_command("embed", "-", "--model", model, "--out", tmp_path / "v.npy", input="a\nb\n")
    assert done.returncode == 0, done.stderr
    assert np.load(tmp_path / "v.npy").shape == (2, 128)


def test_quiet_keeps_errors_and_verbose_says_where_they_come_from(command_here):
    quiet, verbose = (command_here("fill", "no blank", option) for option in ("--quiet", "--verbose"))
    assert quiet.stderr.startswith("bertkit: the text has no blank: ")
    assert quiet.stderr.count("\n") == 1
    assert verbose.stderr.startswith("Traceback (most recent call last):\n")
    assert verbose.stderr.endswith(quiet.stderr)
    assert quiet.returncode == verbose.returncode == 2


@pytest.mark.parametrize(
    ("load", "given", "policy"), [(9e9, None, "passive"), (9e9, "active", "active"), (0.0, None, None)]
)
def test_threads_sleep_while_they_wait_only_on_a_busy_machine(load, given, policy, monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", given or "")  # so that it is restored afterwards
    if given is None:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load), raising=False)
    share_cores()
    assert os.environ.get("OMP_WAIT_POLICY") == policy


def test_help_lists_the_fields_of_predictions(command_here):
    shown = command_here("predict", "--help").stdout
    for row in TASKS.values():
        assert f"    {row.name:<11} {', '.join(row.output)}\n" in shown


def test_embed_says_what_was_cut(command_here, model, tmp_path):
    (tmp_path / "in.txt").write_text("a\n" + "b " * 100 + "\n")
    arguments = ["embed", tmp_path / "in.txt", "--model", model]
    done = command_here(*arguments, "--out", tmp_path / "a.npy")
    assert done.returncode == 0
    said = f"bertkit: note: 1 text was cut to 32 tokens; the longest, {tmp_path}/in.txt, line 2, has 102; "
    assert f"{said}--too-long window reads whole texts\n" in done.stderr
    done = command_here(*arguments, "--out", tmp_path / "quiet.npy", "-q")
    assert (done.stdout, done.stderr) == (f"2 vectors of 128 in {tmp_path}/quiet.npy\n", "")
    done = command_here(*arguments, "--out", tmp_path / "b.npy", "--too-long", "window")
    assert "read through windows of 32 tokens" in done.stderr
    done = command_here(*arguments, "--out", tmp_path / "c.npy", "--too-long", "refuse")
    assert done.returncode == 2
    assert f"{tmp_path}/in.txt, line 2 has 102 tokens, over the limit of 32" in done.stderr
    assert not (tmp_path / "c.npy").exists()


def test_embed_reads_jsonl_and_compressed_files(command_here, model, tmp_path):
    rows = "".join(json.dumps({"text": text, "id": 1}) + "\n" for text in ("a b", "c"))
    (tmp_path / "in.jsonl.gz").write_bytes(gzip.compress(rows.encode()))
    done = command_here("embed", tmp_path / "in.jsonl.gz", "--model", model, "--out", tmp_path / "v.npy")
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), bertkit.load(model).embed(["a b", "c"]), atol=1e-5)


def test_embed_takes_what_is_left_of_standard_input(model, tmp_path):
    """A shell may have read some of it already."""
    import subprocess
    import sys

    (tmp_path / "in.txt").write_text("first\nsecond\nthird\n")
    command = f'(read x; "{sys.executable}" -m bertkit embed - --model "{model}" --out v.npy) < in.txt'
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True, capture_output=True)
    assert np.load(tmp_path / "v.npy").shape == (2, 128)


def test_embed_in_many_blocks_is_in_order(command_here, model, tmp_path):
    lines = [f"{'abcdefghij'[i % 10]} " * (i % 7 + 1) for i in range(5000)]
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in lines))
    for name in ("v.npy", "v.parquet"):
        assert command_here("embed", tmp_path / "in.txt", "--model", model, "--out", tmp_path / name).returncode == 0
    expected = bertkit.load(model).embed(lines)
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), expected, atol=1e-5)
    table = pq.read_table(tmp_path / "v.parquet").to_pydict()
    assert table["text"] == lines
    np.testing.assert_allclose(np.array(table["vector"]), expected, atol=1e-5)


def test_outputs_that_cannot_be_printed(bertkit_command, model):
    import subprocess
    import sys

    run = [sys.executable, "-m", "bertkit"]
    closed = subprocess.run(
        ["bash", "-c", f'"{run[0]}" -m bertkit --help >&-'], capture_output=True, text=True, check=False
    )
    assert "Traceback" not in closed.stderr
    full = subprocess.run(
        ["bash", "-c", f'"{run[0]}" -m bertkit --help >/dev/full'], capture_output=True, text=True, check=False
    )
    assert full.returncode == 1
    assert full.stderr == "bertkit: the output could not be written: No space left on device\n"
    ascii_only = bertkit_command("fill", "thé [MASK]", "--model", model, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert ascii_only.returncode == 0
    assert "th\\xe9" in ascii_only.stdout


def test_embed_refuses_bad_files(fails, model, tmp_path):
    out = ["--model", model, "--out", tmp_path / "v.npy"]
    bad = {
        "empty.txt": (b"", "empty.txt is empty"),
        "latin1.txt": ("caf\u00e9\n".encode("latin1"), "latin1.txt, line 1: byte 0xe9 at offset 3 is not UTF-8"),
        "utf16.txt": ("hi\n".encode("utf-16"), "utf16.txt looks like UTF-16, not UTF-8; convert it first"),
        "nul.txt": (b"a\nb\0cdefghijkl\n", "nul.txt, line 2: a NUL byte at offset 3"),
        "cut.txt.gz": (gzip.compress(b"some text\n" * 100)[:-9], "cut.txt.gz is cut off or damaged"),
    }
    for name, (data, sentence) in bad.items():
        (tmp_path / name).write_bytes(data)
        fails(2, sentence, "embed", tmp_path / name, *out)
    fails(2, "nowhere.txt cannot be read: No such file or directory", "embed", tmp_path / "nowhere.txt", *out)
    fails(2, "cannot be read: Is a directory", "embed", tmp_path, *out)
    (tmp_path / "ok.txt").write_text("a\n")
    fails(2, "must end in .npy or .parquet", "embed", tmp_path / "ok.txt", "--model", model, "--out", "v.txt")
    fails(2, "unknown pooling of one vector per text 'none'", "embed", tmp_path / "ok.txt", *out, "--pooling", "none")
    fails(2, "--layers x must be whole numbers", "embed", tmp_path / "ok.txt", *out, "--layers", "x")
    fails(2, "unknown length policy 'chop'", "embed", tmp_path / "ok.txt", *out, "--too-long", "chop")
    (tmp_path / "v.npy").write_bytes(b"precious")
    fails(2, "v.npy exists already", "embed", tmp_path / "ok.txt", *out)
    assert (tmp_path / "v.npy").read_bytes() == b"precious"


def test_a_full_disk_loses_nothing(bertkit_command, model, tmp_path):
    """/dev/full takes no byte: the write fails, the sentence says so, no file is left."""
    (tmp_path / "in.txt").write_text("a\n" * 2000)
    code = (
        "import resource, sys\n"
        "from bertkit.cli.main import main\n"
        "import bertkit.predict.bert\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "main(sys.argv[1:])\n"
    )
    import subprocess
    import sys

    arguments = ["embed", tmp_path / "in.txt", "--model", model, "--out", tmp_path / "v.npy"]
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "v.npy was not written" in done.stderr
    assert "nothing is left of it" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt"]


def test_convert(command_here, model, tmp_path, fails):
    import transformers

    done = command_here("convert", model, tmp_path / "copy")
    assert done.returncode == 0, done.stderr
    assert "0 dropped, 0 newly made" in done.stdout
    assert "BertForMaskedLM" in done.stdout
    loaded = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "copy")
    assert loaded.config.hidden_size == 128
    done = command_here("convert", model, tmp_path / "json", "--json")
    assert json.loads(done.stdout)["class"] == "BertForMaskedLM"
    fails(2, "exists already", "convert", model, tmp_path / "copy")
    (tmp_path / "broken").mkdir()
    fails(2, "config.json does not exist", "convert", tmp_path / "broken", tmp_path / "never")
    assert not (tmp_path / "never").exists()


def test_convert_an_old_pickle_with_a_tokenizer_from_elsewhere(command_here, antiberty, tmp_path):
    done = command_here("convert", antiberty, tmp_path / "out", "--tokenizer", antiberty.parent / "vocab.txt")
    assert done.returncode == 0, done.stderr
    assert "dropped  cls.species.weight: no part of this model" in done.stdout
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert "model.safetensors" in names
    assert not any(name.endswith(".bin") for name in names)
    assert command_here("fill", "E V Q [MASK] V E S G", "--model", tmp_path / "out").returncode == 0


def test_sigterm_clears_up(tmp_path, model):
    """Asked to stop in the middle of the work, it says so and leaves nothing behind."""
    import signal
    import subprocess
    import sys
    import time

    (tmp_path / "in.txt").write_text("some words to embed again and again\n" * 1_500_000)
    (tmp_path / "tmp").mkdir()
    command = [sys.executable, "-m", "bertkit", "vocab", "in.txt", "--size", "40", "--out", "out"]
    with subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, env=os.environ | {"TMPDIR": str(tmp_path / "tmp")}
    ) as process:
        time.sleep(1.2)
        process.send_signal(signal.SIGTERM)
        said = process.stderr.read()
    assert "Traceback" not in said
    if process.returncode:
        assert process.returncode == 130
        assert not (tmp_path / "out").exists()
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize(
    ("words", "unbuffered"),
    [(["fill", "--help"], ""), (["fill", "--help"], "1"), (["fill", "a [MASK]", "--model", "{model}"], "1")],
)
def test_a_reader_that_leaves_early(model, words, unbuffered):
    """`bertkit ... | head -0` is not an error."""
    import subprocess
    import sys

    with subprocess.Popen(
        [sys.executable, "-m", "bertkit", *(word.format(model=model) for word in words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
    ) as process:
        process.stdout.close()
        said = process.stderr.read()
    assert (process.returncode, said) == (0, b"")


def test_a_closed_pipe_inside_the_work_is_a_failure(monkeypatch, capfd):
    import sys

    from bertkit.cli import facts, main

    def fail() -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(facts, "facts", fail)
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, getattr(sys, name))  # typer changes them
    assert main.run(["facts"]) == 1
    assert capfd.readouterr().err == "bertkit: the work failed: Broken pipe\n"


def test_files_of_another_kind_are_named(fails, model, tmp_path):
    (tmp_path / "sst.tsv").write_text("sentence\tlabel\n" + "a fine film\t1\na dull film\t0\n" * 5)
    table = "sst.tsv is a table, and its header and other columns are no text; write its texts to a .txt file"
    fails(2, table, "vocab", tmp_path / "sst.tsv", "--out", tmp_path / "vocab")
    fails(2, table, "shards", tmp_path / "sst.tsv", "--vocab", model, "--out", tmp_path / "shards")
    tagged = "is one example as 'tag' reads it, and looks like a file for 'classify' (one label for each text)"
    fails(2, tagged, "finetune", "tag", "--train", tmp_path / "sst.tsv", "--from", model, "--out", tmp_path / "run")
    senses = "the text has no word 'bank'; every text of a table with a column 'label' must have it"
    fails(2, senses, "senses", "bank", tmp_path / "sst.tsv", "--model", model)
    assert [path.name for path in tmp_path.iterdir()] == ["sst.tsv"]


def test_vectors_that_are_all_alike_are_called_untrained(capsys):
    from bertkit.cli.word2vec import _note_untrained
    from bertkit.inside.static.vectors import Neighbor

    _note_untrained([Neighbor("town", 0.9997), Neighbor("village", 0.4)])
    assert capsys.readouterr().err == ""
    _note_untrained([Neighbor("town", 0.9997), Neighbor("of", 0.9992)])
    assert "all these words are equally near: the vectors have hardly been trained" in capsys.readouterr().err


def test_facts_are_claims_in_words(command_here):
    done = command_here("facts", "T1c")
    assert done.stdout.startswith("T1c    ok       a trained vocabulary has exactly the size asked for\n")
    assert set(json.loads(command_here("facts", "T1c", "--json").stdout)) == {
        *("fact", "claim", "status", "expected", "measured")
    }
