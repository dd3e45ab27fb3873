"""The search over recipes at tiny size on the CPU: every fact recorded, faults survived, stopped and gone on with."""

import json
import random
import tarfile
from pathlib import Path

import pytest
from small_models import PIECES, WORDS, script

from bertkit.checkpoint.save_load import load_checkpoint
from bertkit.errors import RequestError
from bertkit.text.shards.writer import write_shards
from bertkit.train.records import Records

SHAPE = "depth=1 width=16 heads=2 inner=32 embedding_width=8 max_length=32"
TRAIN = "length=24 block=4 batch=8 steps=6 warmup=1 log_every=1 evaluate_every=3 save_every=2 stages="
TINY = f"{SHAPE} {TRAIN}"
RECIPE = '[model]\nfamily = "electra"\n\n[data]\nobjective = ["mlm"]\n\n[train]\nlearning_rate = 3e-3\n'
PAIRED = {"glue-mrpc", "glue-stsb", "glue-rte"}


@pytest.fixture(scope="module")
def search():
    return script("benchmarks/recipes_gpu.py")


def sentence(draw: random.Random) -> str:
    return " ".join(draw.choices(WORDS, k=draw.randint(4, 8)))


def write_task(folder: Path, rows: dict[str, int]) -> None:
    """A made-up task in a layout with a header; the label is whether the text holds `good`."""
    folder.mkdir(parents=True)
    draw, pair = random.Random(folder.name), folder.name in PAIRED
    for part, count in rows.items():
        lines = ["sentence1\tsentence2\tlabel" if pair else "sentence\tlabel"]
        for _ in range(count):
            good = draw.random() < 0.5
            text = f"{sentence(draw)} {'good' if good else 'bad'}"
            label = (round(draw.random() + 4 * good, 2)) if folder.name == "glue-stsb" else int(good)
            lines.append("\t".join([text, *([sentence(draw)] if pair else []), str(label)]))
        (folder / f"{part}.tsv").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Shards, held-out shards, the five tasks, a recipe."""
    folder, draw = tmp_path_factory.mktemp("search"), random.Random(0)
    (folder / "vocab").mkdir()
    (folder / "vocab" / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))
    for name in ("shards", "heldout"):
        text = "\n\n".join("\n".join(f"{sentence(draw)}." for _ in range(6)) for _ in range(10))
        (folder / f"{name}.txt").write_text(text + "\n")
        write_shards([folder / f"{name}.txt"], folder / "vocab", folder / name, processes=1)
    for name in ("glue-cola", "glue-sst2", "glue-mrpc", "glue-stsb", "glue-rte"):
        write_task(folder / "tasks" / name, {"train": 24, "dev": 12})
    (folder / "tiny.toml").write_text(RECIPE)
    return folder


def words(data: Path, folder: Path, *tries: str, tasks: bool = True, **more: object) -> list[str]:
    found = [*tries, "--shards", data / "shards", "--heldout", data / "heldout"]
    found += ["--out", folder / "out", "--work", folder / "work", *(["--tasks", data / "tasks"] if tasks else [])]
    found += [word for name, value in more.items() for word in (f"--{name}", value)]
    return [*map(str, found), "--finetune", "epochs=1", "batch=8"]


def results(folder: Path) -> dict:
    return json.loads((folder / "out" / "results.json").read_text())


@pytest.fixture(scope="module")
def searched(search, data, tmp_path_factory) -> Path:
    """Three tries: one good, one that diverges at once, one of another objective; two seeds."""
    folder = tmp_path_factory.mktemp("searched")
    tries = [
        f"good={data / 'tiny.toml'} {TINY}",
        f"broken={data / 'tiny.toml'} {TINY} learning_rate=1e30 clip=1e30 most_skipped=0",
        f"electra={data / 'tiny.toml'} {TINY} objective=rtd generator=0.5",
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "LENGTHS", (16, 32, 512))
        assert search.main(words(data, folder, *tries, seeds=2, keep=1, rows=20)) == 1
    return folder


def test_a_try_is_told_in_full(searched):
    good = results(searched)["tries"]["good"]
    training = good["training"]
    assert training["step"] == 6
    assert training["tokens"] > 100
    assert set(training["loss"]) == {"mlm"}
    assert {"mlm_loss", "mlm_right", "mlm_perplexity"} <= set(training["evaluation"])
    assert 0 <= training["compile_seconds"] <= training["wall_seconds"]
    assert training["tokens_per_second"] > 0
    assert "length=24" in good["changes"]
    assert set(good["heldout"]) == {"trained", "stored"}
    assert set(good["heldout"]["stored"]) == {"16", "32"}, "512 is over this model's length"
    off = good["heldout"]["stored"]["32"]["mlm_loss"] - good["heldout"]["trained"]["32"]["mlm_loss"]
    assert 0 < abs(off) < 0.01, "stored, it is nearly the same model"


def test_scores_are_of_all_tasks_and_seeds(searched):
    good = results(searched)["tries"]["good"]
    assert set(good["scores"]) == {"CoLA", "SST-2", "MRPC", "STS-B", "RTE"}
    for name, metric in (("CoLA", "matthews"), ("MRPC", "accuracy"), ("STS-B", "spearman")):
        assert good["scores"][name]["metric"] == metric
    for scores in good["scores"].values():
        assert len(scores["seeds"]) == 2
        assert all(best >= last for best, last in zip(scores["best_epoch"]["seeds"], scores["seeds"], strict=True))
        assert scores["median"] == min(scores["seeds"]), "of two the lower"
        assert scores["rows"] == 20
        assert scores["settings"]["epochs"] == "1"
        assert scores["settings"]["batch"] == "8"
        assert -100 <= scores["median"] <= 100
    medians = [scores["median"] for scores in good["scores"].values()]
    assert good["mean"] == pytest.approx(sum(medians) / 5, abs=0.01)


def test_an_error_in_one_does_not_lose_the_others(searched):
    tries = results(searched)["tries"]
    assert list(tries) == ["good", "broken", "electra"]
    assert "NaN" in tries["broken"]["error"]
    assert tries["broken"]["trace"]
    assert "mean" not in tries["broken"]
    assert tries["electra"]["heldout"] == {"trained": {}, "stored": {}}, "it fills no blanks"
    assert "mean" in tries["electra"]


def test_the_best_model_comes_home_in_one_file(searched, tmp_path):
    tries = results(searched)["tries"]
    best = max(("good", "electra"), key=lambda name: tries[name]["mean"])
    archives = [path.name for path in (searched / "out").glob("*.tar")]
    assert archives == [f"{best}.tar"]
    archive = searched / "out" / archives[0]
    assert archive.stat().st_size == tries[best]["stored"]["archive_bytes"] < 16 * 2**20
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    assert load_checkpoint(tmp_path / "model").model.config.width == 16
    assert (tmp_path / "metrics.jsonl").is_file()
    assert (tmp_path / "settings.toml").is_file()


def test_the_same_command_does_nothing_twice(search, data, searched, monkeypatch):
    before = results(searched)["tries"]["good"]
    (searched / "out" / "results.json").unlink()
    monkeypatch.setattr(search, "pretrain", lambda *_, **__: pytest.fail("trained again"))
    monkeypatch.setattr("glue_scores.fine_tune_once", lambda *_: pytest.fail("fine-tuned again"))
    assert search.main(words(data, searched, f"good={data / 'tiny.toml'} {TINY}", seeds=2)) == 0
    assert results(searched)["tries"]["good"] == before


def test_a_stopped_search_goes_on(search, data, tmp_path, monkeypatch):
    one = words(data, tmp_path, f"{data / 'tiny.toml'} {TINY}", tasks=False)
    real = search.pretrain

    def stop(recipe, run, **options):
        """As after SIGTERM: some steps are saved, and there is no model."""
        real(recipe, run, **options)
        (run / "model").rename(run.parent / "aside")

    monkeypatch.setattr(search, "pretrain", stop)
    assert search.main(one) == search.STOPPED
    assert "training" not in results(tmp_path)["tries"]["tiny"]
    (tmp_path / "work" / "tiny" / "aside").rename(tmp_path / "work" / "tiny" / "run" / "model")
    monkeypatch.setattr(search, "pretrain", real)
    assert search.main(one) == 0
    found = results(tmp_path)["tries"]["tiny"]
    assert found["training"]["step"] == 6
    assert "scores" not in found
    assert (tmp_path / "out" / "tiny.tar").is_file()


def test_what_is_wrong_is_said_before_the_first_minute(search, data, tmp_path):
    with pytest.raises(RequestError, match="unknown setting 'deepth'"):
        search.main(words(data, tmp_path, f"{data / 'tiny.toml'} deepth=2"))
    with pytest.raises(RequestError, match="same name"):
        search.main(words(data, tmp_path, f"{data / 'tiny.toml'} depth=2", f"{data / 'tiny.toml'}"))
    with pytest.raises(RequestError, match="unknown file or recipe 'nowhere.toml'"):
        search.main(words(data, tmp_path, "nowhere.toml"))
    for wrong, said in (("epoks=1", "unknown setting 'epoks'"), ("cola:epochs=1", "unknown task 'cola'")):
        with pytest.raises(RequestError, match=said):
            search.main([*words(data, tmp_path, str(data / "tiny.toml")), wrong])
    assert not (tmp_path / "out").exists()


def test_tries_are_read_as_a_shell_would(search):
    found = search.read_try("a-b=recipes/x.toml rate=0.3 'stages=0.5: 8 x 16'")
    assert (found.name, found.recipe) == ("a-b", Path("recipes/x.toml"))
    assert found.changes == ("rate=0.3", "stages=0.5: 8 x 16")
    assert search.read_try("recipes/x.toml").name == "x"
    for wrong in ("", "../a=x.toml", "=x.toml"):
        with pytest.raises(RequestError):
            search.read_try(wrong)


def test_minutes_replace_a_recipes_own_budget_but_not_a_trys(search, data, tmp_path):
    more = {"start": None, "heldout": data / "heldout", "out": tmp_path, "work": tmp_path}
    scoring = search.Scoring(tasks=None)
    bench = search.Bench(shards=data / "shards", minutes=4.0, keep=1, scoring=scoring, **more)
    assert bench.recipe(search.read_try(f"{data / 'tiny.toml'}")).train.minutes == 4
    assert bench.recipe(search.read_try(f"{data / 'tiny.toml'} minutes=9")).train.minutes == 9


def test_standing_still_is_counted(search):
    seconds = [31.0, 32.0, 33.0, 34.0, 55.0, 56.0, 57.5]
    lines = [{"step": i, "seconds": s, "tokens": 1000 * (i + 1)} for i, s in enumerate(seconds)]
    records = Records(lines, [], [])
    assert search.stalled(records, 1000.0) == pytest.approx(30 + 20)
    told = search.told(records, 60.0)
    assert told["compile_seconds"] == pytest.approx(50)
    assert told["tokens_per_second"] == 1000
