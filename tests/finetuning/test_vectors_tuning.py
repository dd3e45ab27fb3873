"""Runs that tune vectors: they learn, go on after a kill as if nothing had been, and write a folder others can use."""

import json
import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch
from safetensors.torch import load_file

import bertkit
from bertkit.checkpoint.delta import save_delta
from bertkit.checkpoint.save_load import load_checkpoint
from bertkit.cli.main import run
from bertkit.errors import RequestError
from bertkit.finetuning.embeddings.data import read_pairs, read_texts
from bertkit.finetuning.embeddings.session import VectorSession, pair_spearman
from bertkit.finetuning.embeddings.settings import read_vector_request
from bertkit.finetuning.embeddings.tuning import encode, teacher_vectors, tune_vectors
from bertkit.progress import silent

pytestmark = pytest.mark.usefixtures("_one_thread")
QUICK = ("batch=16", "learning_rate=3e-3", "dropout=0")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return tiny.tiny_folder(tmp_path_factory.mktemp("tiny") / "model")


def word(draw: random.Random) -> str:
    return draw.choice(tiny.GOOD + tiny.BAD)


def good(text: str) -> bool:
    return any(each in tiny.GOOD for each in text.split())


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """lines.txt; pairs.tsv of texts of one mind; sts.csv: 5 for those, 0 for others; docs.txt of one mind each."""
    folder, draw = tmp_path_factory.mktemp("files"), random.Random(0)
    (folder / "lines.txt").write_text("".join(tiny.sentence(draw, word(draw)) + "\n" for _ in range(96)))
    pairs, rows = ["sentence1\tsentence2"], ["sentence1,sentence2,score"]
    for _ in range(192):
        one = word(draw)
        other = draw.choice(tiny.GOOD if one in tiny.GOOD else tiny.BAD)
        pairs.append(f"{tiny.sentence(draw, one)}\t{tiny.sentence(draw, other)}")
    for _ in range(128):
        one, other = word(draw), word(draw)
        score = 5 if (one in tiny.GOOD) == (other in tiny.GOOD) else 0
        rows.append(f"{tiny.sentence(draw, one)},{tiny.sentence(draw, other)},{score}")
    (folder / "pairs.tsv").write_text("\n".join(pairs) + "\n")
    (folder / "sts.csv").write_text("\n".join(rows) + "\n")
    kinds = [draw.choice((tiny.GOOD, tiny.BAD)) for _ in range(48)]
    docs = [" ".join(f"{tiny.sentence(draw, draw.choice(kind)).capitalize()}." for _ in range(4)) for kind in kinds]
    (folder / "docs.txt").write_text("\n\n".join(docs) + "\n")
    return folder


def tune(model, train, dev, out, *pairs, **options):
    return tune_vectors(read_vector_request(*QUICK, *pairs)[0], model, train, dev, out, **options)


def lines_of(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def scored(model, files, tmp_path_factory) -> Path:
    """A run on scored pairs, measured on them."""
    out = tmp_path_factory.mktemp("scored") / "run"
    tune(model, files / "sts.csv", files / "sts.csv", out, "epochs=10", "evaluations=2")
    return out


def test_scored_pairs_are_learned_and_the_folder_says_how_vectors_are_made(scored, model, files):
    before = pair_spearman(load_checkpoint(model), read_pairs(files / "sts.csv"))
    result = json.loads((scored / "result.json").read_text())
    assert result["metric"] == "spearman"
    assert result["scores"]["spearman"] > max(0.7, before + 0.3)
    bert = bertkit.load(scored)
    assert bert.checkpoint.embed.pooling == "mean"
    assert bert.checkpoint.embed.normalize
    assert not bert.model.heads
    pairs = read_pairs(files / "sts.csv")
    assert pair_spearman(bert.checkpoint, pairs) == pytest.approx(result["scores"]["spearman"], abs=1e-9)
    assert (scored / "report.html").is_file()
    assert not (scored / "checkpoints").exists()


def test_cosent_learns_the_order_of_scored_pairs(model, files, tmp_path):
    before = pair_spearman(load_checkpoint(model), read_pairs(files / "sts.csv"))
    given = (model, files / "sts.csv", files / "sts.csv", tmp_path / "run")
    result = tune(*given, "objective=cosent", "epochs=6", "evaluations=1", "tokens=128")
    assert result.score > max(0.6, before + 0.3)
    with pytest.raises(RequestError, match="no column looks like the label"):
        tune(model, files / "pairs.tsv", None, tmp_path / "other", "objective=cosent")


def test_the_best_evaluation_is_kept(scored):
    found = {line["step"]: line["evaluation"]["spearman"] for line in lines_of(scored) if "evaluation" in line}
    result = json.loads((scored / "result.json").read_text())
    assert len(found) == 2
    assert found[result["best_step"]] == max(found.values()) == result["scores"]["spearman"]


def test_sentence_transformers_gives_the_same_vectors(scored):
    from sentence_transformers import SentenceTransformer

    texts = ["the film was very good", "a dull film .", "it is"]
    theirs = SentenceTransformer(str(scored / "model"), device="cpu").encode(texts)
    np.testing.assert_allclose(bertkit.load(scored).embed(texts), theirs, atol=1e-5)


@pytest.mark.parametrize("name", ["pairs.tsv", "docs.txt"])
def test_contrast_brings_texts_of_one_mind_together(name, model, files, tmp_path):
    before = pair_spearman(load_checkpoint(model), read_pairs(files / "sts.csv"))
    result = tune(model, files / name, files / "sts.csv", tmp_path / "run", "epochs=14", "temperature=0.2")
    assert result.score > before + 0.15
    training = [line for line in lines_of(tmp_path / "run") if "loss" in line]
    assert training[-1]["loss"]["task"] < training[0]["loss"]["task"]
    assert 0 < training[-1]["right"]["task"] <= 1


def test_twins_learn_from_lines_alone(model, files, tmp_path):
    result = tune(model, files / "lines.txt", None, tmp_path / "run", "epochs=4", "dropout=0.1", "log_every=1")
    assert (result.metric, result.best_step) == ("loss", 24)
    losses = [line["loss"]["task"] for line in lines_of(tmp_path / "run")]
    assert np.mean(losses[-6:]) < np.mean(losses[:6])
    with pytest.raises(RequestError, match="objective=twins needs dropout"):
        tune(model, files / "lines.txt", None, tmp_path / "other", "dropout=0")
    assert not (tmp_path / "other").exists()


def test_twins_of_a_model_without_dropout_get_some(tmp_path, files):
    still = tiny.tiny_folder(tmp_path / "still")
    config = json.loads((still / "config.json").read_text())
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (still / "config.json").write_text(json.dumps(config))
    wanted = read_vector_request("batch=32", "log_every=1")[0]
    tune_vectors(wanted, still, files / "lines.txt", None, tmp_path / "run")
    assert json.loads((tmp_path / "run" / "model" / "config.json").read_text())["hidden_dropout_prob"] == 0.1


def test_a_pupil_follows_a_teacher(scored, model, files, tmp_path):
    """The teacher learned whose mind a text is of; the pupil never sees a score, and is of few directions."""
    before = pair_spearman(load_checkpoint(model), read_pairs(files / "sts.csv"))
    options = {"teacher": scored, "device": "cpu"}
    result = tune(
        model,
        files / "docs.txt",
        files / "sts.csv",
        tmp_path / "run",
        "epochs=12",
        "rank=4",
        "learning_rate=2e-2",
        "temperature=0.2",
        **options,
    )
    assert result.score > before + 0.3
    base, tuned = load_checkpoint(model), load_checkpoint(tmp_path / "run")
    report = save_delta(
        base, tuned, tmp_path / "delta", 40_000, texts=["a good film", "it was dull", "who lives in rome"]
    )
    assert report.cosine_mean > 0.999
    assert not list((tmp_path / "run").glob("teacher-*")), "of no use once the run is done"


def test_a_teachers_vectors_are_made_once(minilm, model, files, tmp_path, monkeypatch):
    texts = ["a good film", "a dull film", "Ünïcode 你好"]
    teacher = load_checkpoint(minilm)
    made = teacher_vectors(teacher, texts, 32, tmp_path, torch.device("cpu"))
    assert made.dtype == np.float16
    np.testing.assert_allclose(made, bertkit.load(minilm).embed(texts), atol=2e-3)
    [path] = tmp_path.glob("teacher-*.npy")
    monkeypatch.setattr("bertkit.finetuning.embeddings.tuning.text_vectors", None)  # it would be called for nothing
    np.testing.assert_array_equal(teacher_vectors(teacher, texts, 32, tmp_path, torch.device("cpu")), made)
    for content in (b"", path.read_bytes()[:100], path.read_bytes()[:-10], b"no array at all"):
        path.write_bytes(content)
        with pytest.raises(RequestError, match="remove it, and it will be made again"):
            teacher_vectors(teacher, texts, 32, tmp_path, torch.device("cpu"))
    np.save(path, np.zeros((2, 384), dtype=np.float16))
    with pytest.raises(RequestError, match="does not hold 3 vectors"):
        teacher_vectors(teacher, texts, 32, tmp_path, torch.device("cpu"))
    with pytest.raises(TypeError):
        teacher_vectors(teacher, [*texts, "another"], 32, tmp_path, torch.device("cpu"))


class Interrupting:
    """A meter that gets a signal, or dies, when so many updates were made."""

    def __init__(self, count: int, interrupt: Callable[[], None]) -> None:
        self.left, self.interrupt, self.was_stopped = count, interrupt, False

    def update(self, done: float, facts: object = None) -> None:
        self.left -= 1
        if self.left == 0:
            self.interrupt()

    def say(self, now: str) -> None:
        pass

    def stop(self) -> None:
        self.was_stopped = True


class Killed(BaseException):
    """Like kill -9, as far as the folder goes: nothing is done after it."""


def killed() -> None:
    raise Killed


SLOW = ("epochs=3", "batch=32", "save_minutes=0", "log_every=1", "evaluations=4", "temperature=0.2", "dropout=0.1")
INTERRUPTS = {"killed": killed, "asked to stop": lambda: os.kill(os.getpid(), signal.SIGTERM)}


@pytest.mark.parametrize(("how", "rank"), [("killed", "rank=0"), ("asked to stop", "rank=3")])
def test_stopped_and_resumed_it_ends_as_if_nothing_had_been(how, rank, model, files, tmp_path):
    wanted = read_vector_request(*SLOW, rank)[0]
    given = (wanted, model, files / "pairs.tsv", files / "sts.csv")
    meter = Interrupting(11, INTERRUPTS[how])

    def show(title: str, total: float):
        return nullcontext(meter) if title == "tuning vectors" else silent(title, total)

    try:
        stopped = tune_vectors(*given, tmp_path / "run", show=show)
        assert (stopped.finished, stopped.steps, meter.was_stopped) == (False, 11, True)
        assert (tmp_path / "run" / "model" / "model.safetensors").is_file()
    except Killed:
        assert not (tmp_path / "run" / "model").exists()
        assert len(list((tmp_path / "run" / "checkpoints").iterdir())) == 1
    resumed = tune_vectors(*given, tmp_path / "run", resume=True)
    straight = tune_vectors(*given, tmp_path / "straight")
    assert resumed == straight
    assert resumed.finished
    one, other = (load_file(tmp_path / run / "model" / "model.safetensors") for run in ("run", "straight"))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert tune_vectors(*given, tmp_path / "run", resume=True) == resumed, "a run that is done is not done again"
    with pytest.raises(RequestError, match="exists already"):
        tune_vectors(*given, tmp_path / "run")


@pytest.mark.parametrize("dev", [None, "sts.csv"])
def test_killed_while_the_model_is_written_it_has_the_same_result_when_resumed(
    dev, model, files, tmp_path, monkeypatch
):
    given = (read_vector_request(*SLOW)[0], model, files / "pairs.tsv", files / dev if dev else None)
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(VectorSession, "_write_model", lambda session, checkpoint: killed())
        tune_vectors(*given, tmp_path / "run")
    resumed = tune_vectors(*given, tmp_path / "run", resume=True)
    assert resumed == tune_vectors(*given, tmp_path / "straight")
    assert np.isfinite(resumed.score)


def test_a_step_over_the_budget_falls_into_parts(model, files, tmp_path):
    result = tune(model, files / "pairs.tsv", None, tmp_path / "run", "tokens=64", "batch=16")
    assert result.steps == 12
    assert np.isfinite(result.score)


def test_what_stays_frozen_stays(model, files, tmp_path):
    tune(model, files / "pairs.tsv", None, tmp_path / "run", "frozen=1")
    before, after = (load_checkpoint(each).model.encoder.state_dict() for each in (model, tmp_path / "run"))
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved
    assert all(name.startswith("layers.1.") for name in moved)


def test_minutes_end_a_run(model, files, tmp_path):
    began = time.monotonic()
    result = tune(model, files / "pairs.tsv", files / "sts.csv", tmp_path / "run", "epochs=100000", "minutes=0.02")
    assert time.monotonic() - began < 60
    assert result.finished
    assert 0 < result.steps < 100_000


def test_long_texts_are_cut_as_embed_cuts_them(model):
    start = load_checkpoint(model)
    found = encode(start, ["good " * 50, "", "film"], 10)
    assert found.lengths.tolist() == [10, 2, 3]
    batch = found.batch([0, 2])
    ids = start.tokenizer.encode("good " * 50).ids
    assert batch.ids.tolist()[:10] == [*ids[:9], ids[-1]]
    assert batch.lengths == (10, 3)


@pytest.mark.parametrize(
    ("pairs", "options", "sentence"),
    [
        (["objective=teacher"], {}, "objective=teacher needs a teacher; name one with --teacher FOLDER"),
        (["objective=pairs"], {"teacher": Path("t")}, "objective=pairs does not use a teacher"),
        (["objective=scores"], {}, "no column looks like the label"),
    ],
)
def test_what_does_not_go_together_is_refused(pairs, options, sentence, model, files, tmp_path):
    with pytest.raises(RequestError) as error:
        tune(model, files / "pairs.tsv", None, tmp_path / "run", *pairs, **options)
    assert sentence in str(error.value)
    assert not (tmp_path / "run").exists()


def test_the_command(model, files, tmp_path, capsys):
    words = ["finetune", "vectors", "--from", model, "--train", files / "pairs.tsv", "--dev", files / "sts.csv"]

    def command(*more: object) -> int:
        return run([str(each) for each in (*words, *more)])

    assert command("--out", tmp_path / "run", "--json", "batch=64", "temperature=0.1") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["task"] == "vectors"
    assert set(found["scores"]) == {"spearman", "loss"}
    assert read_texts([files / "pairs.tsv"]).summary == found["said"][0]
    for more, sentence in (
        (["--out", tmp_path / "x", "rnak=3"], "unknown setting 'rnak'"),
        (["--out", tmp_path / "x", "--seeds", "3"], "do not go with vectors"),
        (["--out", tmp_path / "run"], "exists already"),
        (["--out", tmp_path / "x", "--teacher", tmp_path / "none"], "none is not a folder"),
    ):
        assert command(*more) == 2
        said = capsys.readouterr().err
        assert sentence in said
        assert "Traceback" not in said
    assert not (tmp_path / "x").exists()
