"""The architecture is a test: imports point up the reading order, torch comes late, nothing calls home."""

import ast
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "src" / "bertkit"
ORDER = [
    "_version",
    "errors",
    "given",
    "client",
    "bert_client",
    "files",
    "folder_lock",
    "progress",
    "families",
    "settings",
    "config",
    "report",
    "text",
    "model",
    "engine",
    "checkpoint",
]
ORDER += ["data", "tasks", "train", "pretraining", "finetuning", "predict", "inside", "serve", "pretrained", "facts"]
ORDER += ["cli", "__main__"]
SIBLINGS = [{"pretraining", "finetuning"}, {"inside", "serve"}]
NEVER = {"transformers", "sentence_transformers", "socket", "urllib", "http", "requests", "httpx"}
ON_THE_WIRE = {"client": {"http", "urllib"}, "serve": {"socket", "urllib"}}  # what a server and its client are made of


def imports(path: Path) -> list[tuple[int, str]]:
    """(line, dotted module) of every import in a file, late ones too."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found += [(node.lineno, f"{node.module}.{name.name}") for name in node.names]
        elif isinstance(node, ast.Import):
            found += [(node.lineno, name.name) for name in node.names]
    return found


def stage(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


FILES = sorted(path for path in ROOT.rglob("*.py") if path.parent != ROOT or path.name != "__init__.py")


def test_the_walk_finds_the_package():
    assert len(FILES) > 40
    assert {stage(path) for path in FILES} <= set(ORDER)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_up_the_reading_order(path):
    here = ORDER.index(stage(path))
    for line, module in imports(path):
        parts = module.split(".")
        if parts[0] != "bertkit" or len(parts) < 2:
            continue
        assert parts[1] in ORDER, f"{path}:{line} imports {module}"
        assert ORDER.index(parts[1]) <= here, f"{path}:{line} imports {module}, which comes later in the road"
        assert not any({stage(path), parts[1]} == pair for pair in SIBLINGS), f"{path}:{line}: siblings stay apart"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_network_and_no_peers(path):
    for line, module in imports(path):
        top = module.split(".")[0]
        assert top not in NEVER - ON_THE_WIRE.get(stage(path), set()), f"{path}:{line} imports {module}"
        if stage(path) == "text":
            assert top != "torch", f"{path}:{line}: text/ does without torch"


def modules_after(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"], capture_output=True, text=True, check=True
    )
    return {name.split(".")[0] for name in done.stdout.split()}


def test_import_bertkit_is_light():
    heavy = {"torch", "numpy", "tokenizers", "typer", "rich", "pyarrow"}
    assert not heavy & modules_after("import bertkit")


def test_help_does_not_import_torch():
    code = "from bertkit.cli.main import run; run(['--help'])"
    assert not {"torch", "numpy", "typer"} & modules_after(code)


def test_text_does_without_torch():
    assert "torch" not in modules_after(
        "import bertkit.text.tokenizer, bertkit.text.vocabulary.build, bertkit.text.corpus"
    )


def test_the_families_are_plain_data():
    assert not {"torch", "numpy", "tokenizers"} & modules_after("import bertkit.families.table, bertkit.config")


def test_help_answers_in_a_third_of_a_second():
    def seconds() -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "bertkit", "--help"], capture_output=True, check=True)
        return time.perf_counter() - start

    assert min(seconds() for _ in range(5)) < 0.3


def test_every_verb_of_the_help_exists_and_explains_itself(bertkit_command):
    from bertkit.cli.main import VERBS

    files = {path.stem for path in (ROOT / "cli").glob("*.py")} - {"__init__", "main"}
    assert set(VERBS) == files
    for verb in VERBS:
        done = bertkit_command(verb, "--help")
        assert done.returncode == 0, done.stderr
        assert f"bertkit {verb}" in done.stdout
