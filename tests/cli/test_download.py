"""Models of the Hugging Face hub: found in the local cache by their ids, and downloaded only when asked."""

import json
import shutil
import sys
from pathlib import Path

import httpx
import pytest
from huggingface_hub.errors import GatedRepoError, OfflineModeIsEnabled, RepositoryNotFoundError

import bertkit
from bertkit.cli.download import needed_files

sys.path.insert(0, str(Path(__file__).parents[1] / "predict"))
import taught

ROOT = Path(__file__).parents[2]


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return taught.taught_folder(tmp_path_factory.mktemp("hub") / "model", "classify")


def put(cache: Path, name: str, model: Path) -> Path:
    """Store a model as huggingface_hub does."""
    folder = cache / f"models--{name.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("abc123")
    return shutil.copytree(model, folder / "snapshots" / "abc123")


def test_an_id_is_found_in_the_cache(cache, model, tmp_path, monkeypatch, command_here):
    monkeypatch.chdir(tmp_path)
    put(cache, "some-lab/tiny-bert", model)
    for name in ("some-lab/tiny-bert", "tiny-bert"):
        assert bertkit.load(name).tokenizer.size == bertkit.load(model).tokenizer.size
        assert json.loads(command_here("info", name, "--json").stdout)["task"] == "classify"
        assert command_here("tokenize", "ab", "--model", name).stdout == "[CLS] a ##b [SEP]\n"
    shutil.copytree(model, tmp_path / "tiny-bert")
    assert json.loads(command_here("info", "tiny-bert", "--json").stdout)["folder"] == "tiny-bert", "a folder is first"
    put(cache, "other-lab/small-bert", model)
    put(cache, "some-lab/small-bert", model)
    assert "is not a folder" in command_here("info", "small-bert").stderr, "two of them"


def test_an_id_that_is_not_there_says_how_to_get_it(cache, command_here):
    done = command_here("fill", "a ___", "--model", "bert-base-uncased")
    assert done.returncode == 2
    assert done.stderr.endswith("model on the Hugging Face hub, fetch it: bertkit download bert-base-uncased\n")
    assert "fetch it: bertkit download" in command_here("tokenize", "a", "--model", "bert-base-uncased").stderr
    for path in ("/no/such/folder", "src/model", "no/vocab.txt"):
        assert "download" not in command_here("tokenize", "a", "--model", path, cwd=ROOT).stderr


def test_the_files_that_are_read():
    shared = ["config.json", "vocab.txt", "1_Pooling/config.json", "modules.json"]
    more = ["model.safetensors", "pytorch_model.bin", "tf_model.h5", "onnx/model.onnx", "README.md", "openvino/x.json"]
    assert needed_files([*shared, *more]) == [*shared, "model.safetensors"]
    assert needed_files(["config.json", "pytorch_model.bin"]) == ["config.json", "pytorch_model.bin"]
    assert needed_files(["config.json", "README.md"]) == []


def test_download_writes_to_the_cache_or_a_folder(cache, model, tmp_path, monkeypatch, command_here):
    asked = []

    def snapshot_download(name, *, allow_patterns, local_dir):
        asked.append((name, sorted(allow_patterns), local_dir))
        return str(put(cache, name, model) if local_dir is None else shutil.copytree(model, local_dir))

    files = sorted(path.name for path in model.iterdir())
    monkeypatch.setattr("huggingface_hub.HfApi.list_repo_files", lambda self, name: [*files, "README.md"])
    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    done = command_here("download", "some-lab/tiny-bert")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("try: bertkit info some-lab/tiny-bert\n")
    assert command_here("info", "tiny-bert").returncode == 0
    done = command_here("download", "some-lab/tiny-bert", tmp_path / "mine", "--json")
    assert json.loads(done.stdout)["folder"] == str(tmp_path / "mine")
    assert asked == [("some-lab/tiny-bert", files, None), ("some-lab/tiny-bert", files, tmp_path / "mine")]
    again = command_here("download", "some-lab/tiny-bert", tmp_path / "mine")
    assert "exists already" in again.stderr
    assert len(asked) == 2


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (RepositoryNotFoundError, 2, "the hub has no model 'x/y', or none that may be read; check OWNER/NAME"),
        (GatedRepoError, 2, "x/y asks for an agreement on its page and a token in HF_TOKEN"),
        (OfflineModeIsEnabled, 1, "x/y could not be downloaded: no way out"),
        (OSError, 1, "x/y could not be downloaded: no way out"),
        (httpx.ConnectError, 1, "x/y could not be downloaded: no way out"),
    ],
)
def test_what_cannot_be_downloaded(error, code, said, cache, monkeypatch, command_here):
    def fails(self, name):
        response = httpx.Response(404, request=httpx.Request("GET", "https://hub.invalid"))
        raise (
            error("no way out", response=response)
            if issubclass(error, RepositoryNotFoundError)
            else error("no way out")
        )

    monkeypatch.setattr("huggingface_hub.HfApi.list_repo_files", fails)
    done = command_here("download", "x/y")
    assert (done.returncode, done.stderr) == (code, f"bertkit: {said}\n")
    assert not cache.exists()
