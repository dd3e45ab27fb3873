"""The report and what it reads: whole, self-contained, and calm about torn, hostile and empty records."""

import importlib.machinery
import json
import sys
import types
from html.parser import HTMLParser

import pytest

from bertkit.errors import RequestError
from bertkit.pretraining.objectives.table import LOSSES
from bertkit.train import report
from bertkit.train.records import code_version, read_records, write_code_version, write_tensorboard
from bertkit.train.report import write_report

VOID = {"meta", "path", "circle", "br"}
HOSTILE = '<script>alert("x")</script><img src=x onerror=alert(1)>&amp;\u202e\ud800'


class Page(HTMLParser):
    """Checks nesting, and keeps tags, attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def training(step: int, **more) -> dict:
    line = {"step": step, "seconds": step * 0.5, "tokens": step * 4096, "loss": {"mlm": 9 - step / 100}}
    line |= {"right": {"mlm": step / 1000}, "rate": 1e-3, "norm": 1.5, "tokens_per_second": 8192, "skipped": 0}
    return line | more


def full_run() -> list[dict]:
    lines: list[dict] = []
    for step in range(10, 310, 10):
        lines.append(training(step, padding=0.04, share=0.31, memory_gib=2.5))
        if step % 50 == 0:
            evaluation = {"mlm_loss": 9 - step / 110, "mlm_right": step / 1100, "rtd_f1": 0.4}
            lines.append({"step": step, "evaluation": evaluation})
        if step % 100 == 0:
            words = ["the", "of"] if step == 100 else ["paris", "rome", "lyon", "unseen"]
            lines.append({"step": step, "filled": [{"text": "The capital is [MASK].", "words": words}]})
    return lines


@pytest.fixture
def write(tmp_path):
    def write(lines, tail: str = "", settings: str | None = 'shards = "s"\n\n[train]\nbatch = 32\n') -> Page:
        folder = tmp_path / "my run"
        folder.mkdir(exist_ok=True)
        text = "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
        (folder / "metrics.jsonl").write_bytes((text + tail).encode("utf-8", "surrogatepass"))
        if settings is not None:
            (folder / "settings.toml").write_text(settings, encoding="utf-8")
        path = write_report(folder, LOSSES.values())
        assert path == folder / "report.html"
        assert sorted(p.name for p in folder.iterdir() if p.name.startswith(".")) == []
        write.text = path.read_text(encoding="utf-8")
        return Page(write.text)

    return write


def test_a_full_run_shows_everything(write):
    page = write(full_run())
    for title in ("Loss: masked words, nats", "Accuracy: masked words, %", "Perplexity of masked words"):
        assert title in page.text
    for title in ("Learning rate", "Speed, tokens/s", "Padding, %", "Share of the matmul rate, %", "GiB", "skipped"):
        assert title in page.text
    assert "Held-out replaced tokens found, %" in page.text
    assert "40.0%" in page.text  # F1
    assert "nothing recorded" not in page.text
    assert "paris" in page.text
    assert "unseen" not in page.text  # the three likeliest are shown
    assert "step 100" in page.text
    assert "batch = 32" in page.text
    assert "300" in page.text
    assert "1.23 M" in page.text  # tokens
    assert page.tags.count("svg") == 11


def test_the_most_memory_so_far_does_not_fall_when_a_run_is_resumed(monkeypatch, write):
    drawn = {}
    curves = report.curves

    def drawing(title, lines, **options):
        drawn[title] = lines
        return curves(title, lines, **options)

    monkeypatch.setattr(report, "curves", drawing)
    held = [2.0, 3.5, None, 1.0, 1.5, 4.0]  # the process of the fourth line is another than that of the third
    page = write([training(step, memory_gib=gib, share=0.3) for step, gib in enumerate(held, 1)])
    [line] = drawn["Peak memory"]
    assert line.points == [(1, 2.0), (2, 3.5), (4, 3.5), (5, 3.5), (6, 4.0)]
    assert "since the last start" in page.text  # what a share of the matmul rate is taken over


def test_nothing_comes_from_elsewhere_and_nothing_runs(write):
    page = write(full_run())
    assert "script" not in page.tags
    assert not {"src", "href", "srcset", "action"} & {name for name, _ in page.attributes}
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert "http://" not in write.text
    assert "https://" not in write.text
    assert "url(" not in write.text
    assert "@import" not in write.text
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in page.attributes
    assert "prefers-color-scheme:dark" in write.text
    assert ("name", "viewport") in page.attributes


def test_hostile_text_is_shown_and_not_executed(write):
    sample = {"step": 10, "filled": [{"text": HOSTILE, "words": [HOSTILE, HOSTILE]}]}
    line = training(10, loss={HOSTILE: 1.0}, right={HOSTILE: 0.5})
    evaluation = {"step": 10, "evaluation": {HOSTILE: 1.0, f"{HOSTILE}_loss": 2.0}}
    page = write([line, evaluation, sample], settings=f'name = "{HOSTILE[:-1]}"')
    assert "script" not in page.tags
    assert "img" not in page.tags
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert page.text.count('<script>alert("x")</script>') >= 4


@pytest.mark.parametrize(
    "lines", [[], ["\n"], ["no json\n"], ["[1]\n", "3\n", "null\n", '{"a": 1}\n'], ['{"step": "x"}\n']]
)
def test_without_a_record_there_is_still_a_page(write, lines):
    page = write(lines, settings=None)
    assert "nothing recorded" in page.text
    assert "no settings.toml" in page.text
    assert "nan" not in page.text


def test_without_any_file_there_is_still_a_page(tmp_path):
    Page(write_report(tmp_path).read_text(encoding="utf-8"))


def test_a_torn_last_line_is_left_out(write):
    whole = write(full_run()).text
    assert write(full_run(), tail='{"step": 310, "loss": {"ml').text == whole
    assert write(full_run(), tail='{"step": 310, "rate": "\udc80').text == whole


def test_one_point(write):
    page = write([training(1), {"step": 1, "evaluation": {"mlm_loss": 8.5}}])
    assert "svg" not in page.tags, "a point is no curve"
    assert "masked words loss" in page.text
    assert "8.5" in page.text


def test_numbers_that_are_none(write):
    odd = ['{"step": 20, "loss": {"mlm": NaN}, "right": {"mlm": Infinity}, "rate": -Infinity, "norm": NaN}\n']
    odd += [f'{{"step": 30, "loss": {{"mlm": {"9" * 400}}}, "tokens": "many", "seconds": null, "norm": true}}\n']
    odd += ['{"step": 40, "loss": 3, "right": [1], "tokens_per_second": {}, "filled": 7}\n']
    odd += ['{"step": 50, "evaluation": null}\n', '{"step": 60, "evaluation": {"mlm_loss": 1e400}}\n']
    odd += ['{"step": 60, "filled": [1, {"words": 3}, {"words": []}, {"text": null, "words": [null, 4]}]}\n']
    page = write([*(training(step) for step in (4, 6, 8, 10)), *odd])
    shapes = [value for name, value in page.attributes if name in ("d", "cx", "cy", "x", "y")]
    assert shapes
    assert not [value for value in shapes if "nan" in value or "inf" in value]
    write(odd)


def test_a_collapsed_run_whose_losses_are_all_nan(write):
    page = write([training(step, loss={"mlm": float("nan")}) for step in (10, 20)])
    assert "Loss: masked words, natsnothing recorded" in page.text


def test_many_samples_are_spread_over_a_few_columns(write):
    lines = [{"step": n, "filled": [{"text": "a [MASK]", "words": [f"word{n}"]}]} for n in range(100)]
    page = write(lines)
    shown = [n for n in range(100) if f"word{n}<" in write.text]
    assert len(shown) == 6
    assert shown[0] == 0
    assert shown[-1] == 99
    assert page.tags.count("th") == 7


def test_two_blanks_of_one_text_are_two_rows(write):
    both = [{"text": "a [MASK] [MASK]", "words": ["first"]}, {"text": "a [MASK] [MASK]", "words": ["second"]}]
    page = write([{"step": 5, "filled": both}])
    assert page.tags.count("tr") == 3
    assert "first" in page.text
    assert "second" in page.text


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(RequestError, match="not a run's folder"):
        write_report(tmp_path / "none")


def test_a_failed_report_leaves_the_old_one(write, tmp_path, monkeypatch):
    write(full_run())
    before = write.text
    monkeypatch.setattr("bertkit.train.report.report_page", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write([])
    folder = tmp_path / "my run"
    assert (folder / "report.html").read_text(encoding="utf-8") == before
    assert sorted(path.name for path in folder.iterdir()) == ["metrics.jsonl", "report.html", "settings.toml"]


def test_records_are_in_order_and_speed_is_of_the_moment(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [
        training(30, seconds=5.0, tokens=600),
        training(10, seconds=1.0, tokens=100),
        training(20, seconds=2.0, tokens=300),
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    records = read_records(path)
    assert [line["step"] for line in records.training] == [10, 20, 30]
    assert records.speed() == [(20, 200.0), (30, 100.0)]
    assert records.curves("loss")["mlm"][0] == (10, 8.9)


def test_code_version_is_written_and_shown(tmp_path):
    version = code_version()
    assert version == code_version()
    assert {"bertkit", "source", "torch", "python"} <= set(version)
    write_code_version(tmp_path)
    assert json.loads((tmp_path / "code.json").read_text(encoding="utf-8")) == version
    assert version["source"] in write_report(tmp_path).read_text(encoding="utf-8")
    (tmp_path / "code.json").write_text("{torn", encoding="utf-8")
    assert "not recorded" in write_report(tmp_path).read_text(encoding="utf-8")


class FakeWriter:
    """Stands for TensorBoard's."""

    written: list[tuple[str, float, int]] = []  # noqa: RUF012

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None

    def add_scalar(self, name, value, step):
        self.written.append((name, value, step))


def test_tensorboard_gets_the_curves_if_it_is_there(tmp_path, monkeypatch):
    fake, inside = types.ModuleType("tensorboard"), types.ModuleType("torch.utils.tensorboard")
    fake.__spec__ = importlib.machinery.ModuleSpec("tensorboard", None)
    inside.SummaryWriter = FakeWriter
    monkeypatch.setitem(sys.modules, "tensorboard", fake)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", inside)
    monkeypatch.setattr(FakeWriter, "written", [])
    lines = [*full_run(), {"step": 310, "loss": {"mlm": float("nan")}}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines), encoding="utf-8")
    old = tmp_path / "tensorboard" / "events.out.tfevents.1"
    old.parent.mkdir()
    old.touch()
    assert write_tensorboard(tmp_path) is True
    assert ("loss/mlm", 8.9, 10) in FakeWriter.written
    assert ("evaluation/rtd_f1", 0.4, 300) in FakeWriter.written
    assert ("training/share", 0.31, 10) in FakeWriter.written
    assert not [entry for entry in FakeWriter.written if entry[2] == 310]
    assert not old.exists()


def test_without_tensorboard_nothing_happens(tmp_path, monkeypatch):
    monkeypatch.setattr("bertkit.train.records.find_spec", lambda name: None)
    assert write_tensorboard(tmp_path) is False
    assert list(tmp_path.iterdir()) == []
