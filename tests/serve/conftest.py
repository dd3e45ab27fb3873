"""Tiny models for every head, and servers that have them."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from serving import Running, fill_folder, running, taught

import bertkit
from bertkit.serve.models import Models, load_models, share_encoders
from bertkit.tasks.table import TASKS


@pytest.fixture(autouse=True)
def _no_loop_is_running() -> Iterator[None]:
    """Playwright, where a browser test came before in this process, leaves its own loop marked as running."""
    left = asyncio.events._get_running_loop()
    asyncio.events._set_running_loop(None)
    yield
    asyncio.events._set_running_loop(left)


@pytest.fixture(scope="session")
def folders(tmp_path_factory) -> dict[str, Path]:
    """A tiny folder for every task, and one that fills; `fill` has the encoder of none of the others."""
    base = tmp_path_factory.mktemp("served")
    found = {"fill": fill_folder(base / "fill")}
    return found | {task: taught.taught_folder(base / task, task) for task in TASKS}


@pytest.fixture(scope="session")
def berts(folders) -> dict[str, bertkit.Bert]:
    """The same models as the Python API has them; the server's are loaded apart."""
    return {name: bertkit.load(folder) for name, folder in folders.items()}


@pytest.fixture(scope="session")
def models(folders) -> Models:
    torch.set_num_threads(1)
    return load_models([f"{name}={folder}" for name, folder in folders.items()], torch.device("cpu"))


@pytest.fixture(scope="session")
def server(models, berts) -> Iterator[Running]:
    with running(models, berts=berts) as found:
        yield found


@pytest.fixture(scope="session")
def minilm_server(minilm) -> Iterator[Running]:
    torch.set_num_threads(1)
    berts = {"minilm": bertkit.load(minilm)}
    with running(Models(share_encoders({"minilm": bertkit.load(minilm)})), berts=berts) as found:
        yield found
