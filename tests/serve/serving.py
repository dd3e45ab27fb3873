"""A real server in a thread of the test process."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "predict"))
import taught

import bertkit
from bertkit.checkpoint.save_load import Checkpoint, load_checkpoint, save_checkpoint
from bertkit.config import family_config, override
from bertkit.inside.attribution.attribution import quick_why
from bertkit.model.model import new_model
from bertkit.model.pooling import EmbedSettings
from bertkit.serve.app import create_app
from bertkit.serve.http.auth import Keys
from bertkit.serve.http.listener import bind
from bertkit.serve.http.server import make_server
from bertkit.serve.models import Models
from bertkit.serve.routes.why import Explain
from bertkit.serve.service import Service
from bertkit.serve.settings import ServeSettings
from bertkit.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Running:
    """A server that is up."""

    url: str
    service: Service
    berts: dict[str, bertkit.Bert]
    http: httpx.Client
    thread: str  # the name of the event loop's

    def post(self, path: str, body: object = None, **options) -> httpx.Response:
        return self.http.post(path, json=body, **options)


class Hold:
    """Stops the workers in the middle of a batch, until let go."""

    def __init__(self, server, monkeypatch):
        shared = server.service.models.named(None).shared_encoder
        plain, self.open, self.calls = type(shared).compute, threading.Event(), 0

        def held(own, pieces):
            self.calls += 1
            self.open.wait(20)
            return plain(own, pieces)

        monkeypatch.setattr(type(shared), "compute", held)


def fill_folder(
    folder: Path, *, max_length: int = 32, causal: bool = False, family: str = "bert", head: str = "masked_word"
) -> Path:
    """A model with a masked-word head, and `head` beside it, over the letters of `taught`, two layers deep."""
    shape = {"depth": 2, "width": 16, "heads": 2, "inner": 32, "max_length": max_length}
    config = family_config(family, "tiny", vocab_size=len(taught.PIECES), init_std=0.3, **shape)
    model = new_model(override(config, f"causal={causal}"), {"masked_word": None, head: None}, seed=5).eval()
    found = Checkpoint(model=model, tokenizer=Tokenizer.from_vocab(taught.PIECES), max_length=max_length)
    save_checkpoint(found, folder)
    return folder


def vectors_folder(folder: Path, **shape) -> Path:
    """A model whose folder says how vectors of sentences are made."""
    plain = load_checkpoint(taught.taught_folder(folder.with_name(f"{folder.name}-plain"), None, **shape))
    save_checkpoint(replace(plain, embed=EmbedSettings(pooling="mean", normalize=True)), folder)
    return folder


@contextmanager
def running(
    models: Models,
    settings: ServeSettings | None = None,
    keys: Keys | None = None,
    berts: dict | None = None,
    *,
    local: bool = False,
    loop: str = "auto",
    explain: Explain = quick_why,
    adapters: Path | None = None,
) -> Iterator[Running]:
    app = create_app(models, settings, keys, local=local, explain=explain, adapters=adapters)
    listener = bind("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    server = make_server(app)
    server.config.loop = loop
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    deadline = time.monotonic() + 30
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        assert time.monotonic() < deadline, "the server did not start"
        time.sleep(0.01)
    with httpx.Client(base_url=url, timeout=30) as http:
        yield Running(url, app.service, berts or {}, http, thread.name)
    server.should_exit = True
    thread.join(30)
    assert not thread.is_alive()


def wait_until(true, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def same(found, expected, near: float = 1e-5) -> None:
    """Equal but for the last digits of numbers."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name in expected:
            same(found[name], expected[name], near)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same(one, other, near)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, abs=near)
    else:
        assert found == expected
