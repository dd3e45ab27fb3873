"""What the tests of runs share: a corpus of made-up sentences, shards of it, recipes that take a second."""

import multiprocessing
import os
import random
import signal
from contextlib import nullcontext
from pathlib import Path

from bertkit.pretraining.recipe import Recipe, build_recipe
from bertkit.text.shards.writer import write_shards

WORDS = [
    "river",
    "stone",
    "cloud",
    "apple",
    "train",
    "violin",
    "copper",
    "garden",
    "winter",
    "lantern",
    "market",
    "silver",
    "forest",
    "bridge",
    "letter",
]
WORDS += [
    "runs",
    "sings",
    "falls",
    "turns",
    "waits",
    "grows",
    "breaks",
    "shines",
    "moves",
    "the",
    "a",
    "old",
    "new",
    "small",
    "under",
    "over",
    "near",
]
SHAPE = {"width": "16", "depth": "2", "heads": "2", "inner": "32", "max_length": "32", "size": "tiny"}
DATA = {"length": "24", "objective": "mlm,nsp", "block": "4"}
TRAIN = {"steps": "24", "batch": "8", "warmup": "2", "log_every": "1", "save_every": "4", "learning_rate": "0.003"}


def write_text(path: Path, documents: int = 12, seed: int = 0) -> Path:
    """Documents of eight sentences, each of four to seven words."""
    rng = random.Random(seed)
    lines = []
    for _ in range(documents):
        lines += [" ".join(rng.choices(WORDS, k=rng.randint(4, 7))) + "." for _ in range(8)]
        lines.append("")
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def make_shards(folder: Path, documents: int = 12, seed: int = 0, words: list[str] = WORDS) -> Path:
    """`folder/shards`, with the vocabulary in `folder/vocab`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab").mkdir()
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *words]
    (folder / "vocab" / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")
    write_shards([write_text(folder / "text.txt", documents, seed)], folder / "vocab", folder / "shards", processes=1)
    return folder / "shards"


def tiny_recipe(shards: Path, **changes: object) -> Recipe:
    """SHAPE, DATA and TRAIN with changes."""
    settings = SHAPE | DATA | TRAIN | {"shards": str(shards)} | {name: str(value) for name, value in changes.items()}
    return build_recipe(settings)


def recipe_words(shards: Path, **changes: object) -> list[str]:
    """The same for the command line, after the name of an empty recipe."""
    settings = SHAPE | DATA | TRAIN | {"shards": str(shards)} | {name: str(value) for name, value in changes.items()}
    return [f"{name}={value}" for name, value in settings.items()]


class Stopper:
    """A meter that sends this process SIGTERM at one of its updates, and knows whether the work then stopped."""

    def __init__(self, update: int) -> None:
        self.left, self.was_stopped = update, False

    def update(self, done, facts=None):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGTERM)

    def say(self, now):
        pass

    def stop(self):
        self.was_stopped = True


def showing(meter):
    """What `show=` takes, for one meter."""
    return lambda title, total: nullcontext(meter)


def server() -> multiprocessing.context.ForkServerContext:
    """Processes that begin with torch imported: one that starts in no time can be killed twenty times."""
    context = multiprocessing.get_context("forkserver")
    # torch's optimizers import torch._dynamo with their first step.
    context.set_forkserver_preload(["bertkit.pretraining.pretraining", "torch._dynamo", "tokenizers"])
    return context


def child(recipe: Recipe, out: Path, pause: float, ready) -> None:
    """In a process of its own: resume the run; every logged step takes `pause` seconds longer."""
    import time

    import torch

    from bertkit.pretraining.pretraining import pretrain

    torch.set_num_threads(1)

    class Slow:
        def update(self, done, facts=None):
            ready.set()
            time.sleep(pause)

        def say(self, now):
            pass

    pretrain(recipe, out, resume=True, show=showing(Slow()))


def weights(run: Path) -> dict[str, bytes]:
    """Every tensor file of the newest checkpoint, and of the model."""
    newest = sorted((run / "checkpoints").glob("step-*"))[-1]
    files = sorted(newest.rglob("*.safetensors")) + sorted((run / "model").rglob("*.safetensors"))
    return {str(path.relative_to(run)): path.read_bytes() for path in files}
