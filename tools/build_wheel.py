"""Build the sdist and the wheel into a folder, from a clean copy of the sources.

python tools/build_wheel.py dist
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md")
IGNORED = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.pyc")


def build(target: Path) -> list[Path]:
    """Build both, and return their paths."""
    from setuptools import build_meta

    target = target.absolute()
    target.mkdir(parents=True, exist_ok=True)
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        for name in SOURCES:
            shutil.copy(ROOT / name, folder)
        shutil.copytree(ROOT / "src", Path(folder) / "src", ignore=IGNORED)
        os.chdir(folder)
        try:
            return [target / build_meta.build_sdist(str(target)), target / build_meta.build_wheel(str(target))]
        finally:
            os.chdir(before)


if __name__ == "__main__":
    print(*build(Path(sys.argv[1] if len(sys.argv) > 1 else "dist")), sep="\n")
