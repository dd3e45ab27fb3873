"""Models, files and helpers that several facts use."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from bertkit.checkpoint.bundled import BUNDLED
from bertkit.config import BertConfig, family_config
from bertkit.data.examples import Example
from bertkit.data.tables import Location
from bertkit.errors import RequestError
from bertkit.model.encoder import Encoder
from bertkit.model.model import BertModel, new_model
from bertkit.predict.bert import Bert, load
from bertkit.tasks.task import Dataset, Task

CPU = torch.device("cpu")
PLACE = Location(Path("facts"), 1)  # the source of made-up examples


@cache
def bundled() -> Bert:
    """The bundled model, on which facts about trained models are measured."""
    return load(BUNDLED)


@cache
def base_encoder() -> Encoder:
    """BERT-base with random weights, for facts about shapes and arithmetic."""
    return new_model(family_config("bert", "base")).eval().encoder


@cache
def small_encoder(**settings: object) -> Encoder:
    """A two-layer encoder with large random weights, for facts that hold at any size."""
    return new_model(family_config("bert", "tiny", vocab_size=200, init_std=0.2, **settings)).eval().encoder


def shape_only(config: BertConfig, heads: dict[str, int | None] | None = None) -> BertModel:
    """A model on the meta device, without memory: enough to count parameters."""
    with torch.device("meta"):
        return BertModel(config, heads or {}, pooler=True)


def random_tensor(*shape: int, seed: int = 0) -> Tensor:
    """Reproducible normal random numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def is_refused(call: Callable[[], object], error: type[Exception] = RequestError) -> bool:
    """Whether a call raises the error."""
    try:
        call()
    except error:
        return True
    return False


@contextmanager
def text_file(content: str, name: str = "text.txt") -> Iterator[Path]:
    """A temporary file with this name and content."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text(content, encoding="utf-8")
        yield path


def make_part(task: Task, examples: Sequence[Example]) -> Dataset:
    """The examples with their windows."""
    return Dataset(list(examples), [task.windows(example, number) for number, example in enumerate(examples)])
