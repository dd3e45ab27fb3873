"""What these tests share: a tiny ELECTRA-shaped model with its masked-word head, and scripts loaded as modules."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from bertkit.checkpoint.save_load import Checkpoint
from bertkit.config import family_config
from bertkit.model.model import new_model
from bertkit.text.tokenizer import Tokenizer

ROOT = Path(__file__).parents[2]
WORDS = [
    "river",
    "stone",
    "cloud",
    "apple",
    "train",
    "good",
    "great",
    "bad",
    "dull",
    "film",
    "runs",
    "falls",
    "the",
    "a",
]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *WORDS, "##s"]


def tiny(seed: int = 0, depth: int = 3, heads: tuple[str, ...] = ("masked_word",)) -> Checkpoint:
    """Weights ten times as large as those of a fresh model, so that what rounding does can be seen."""
    shape = {"depth": depth, "width": 32, "heads": 2, "inner": 64, "embedding_width": 16, "max_length": 64}
    config = family_config("electra", "tiny", **shape, vocab_size=len(PIECES), init_std=0.2)
    model = new_model(config, dict.fromkeys(heads), seed=seed).eval()
    return Checkpoint(model=model, tokenizer=Tokenizer.from_vocab(PIECES), max_length=64)


def script(path: str) -> ModuleType:
    """A file of tools/ or benchmarks/ as a module."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up there
    if (beside := str((ROOT / path).parent)) not in sys.path:  # as when it is run
        sys.path.append(beside)
    spec.loader.exec_module(module)
    return module
