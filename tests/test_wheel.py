"""The wheel holds every file of the package, and works where the sources are not."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, ROOT / "tools" / "build_wheel.py", folder]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return folder


def test_every_file_of_the_package_is_in_both(built):
    [wheel], [sdist] = built.glob("*.whl"), built.glob("*.tar.gz")
    source = ROOT / "src"
    files = {
        str(path.relative_to(source))
        for path in (source / "bertkit").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert len(files) > 300
    with zipfile.ZipFile(wheel) as archive:
        assert {name for name in archive.namelist() if name.startswith("bertkit/")} == files
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/src/")[2] for name in archive.getnames()}
    assert files <= packed


def test_an_installed_wheel_runs_the_readme_as_pasted(built, tmp_path):
    [wheel] = built.glob("*.whl")
    place = tmp_path / "installed"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", place, wheel]
    subprocess.run(install, check=True, capture_output=True, timeout=300)
    block = (ROOT / "README.md").read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]
    values = [line.partition("  # ")[2] for line in block.splitlines() if "  # " in line]
    environment = {**os.environ, "PYTHONPATH": str(place), "PYTHONSTARTUP": ""}
    shell = [sys.executable, "-i", "-q"]  # prints the values of pasted lines
    pasted = {"input": block + "bertkit.__file__\n", "cwd": tmp_path, "env": environment}
    done = subprocess.run(shell, **pasted, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [*values, repr(str(place / "bertkit" / "__init__.py"))]
    script = place / "bin" / "bertkit"
    done = subprocess.run([sys.executable, script, "--version"], env=environment, capture_output=True, text=True)
    assert done.stdout.startswith("bertkit ")
    done = subprocess.run([sys.executable, script, "recipes"], env=environment, capture_output=True, text=True)
    assert "\ntiny-cpu " in done.stdout
