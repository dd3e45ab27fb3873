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
    "poolings",
    "calls",
    "text_inputs",
    "connection",
    "embedding_requests",
    "client",
    "bert_client",
    "files",
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
ORDER += [
    "data",
    "tasks",
    "train",
    "pretraining",
    "finetuning",
    "predict",
    "search",
    "evaluation",
    "inside",
    "serve",
    "pretrained",
    "facts",
]
ORDER += ["api", "sklearn", "cli", "__main__"]
SIBLINGS = [{"pretraining", "finetuning"}, {"inside", "serve"}]
MOST_MODULES = 16  # of a folder
FOLDERS_OF_ROWS = {"cli", "facts"}  # a verb, a topic is a file
RETURN_ANY = {
    "bertkit.checkpoint.tensors.read_json",
    "bertkit.settings.Rule.cast",
    "bertkit.predict.files.embed.vector_schema",
    "bertkit.predict.files.outputs.arrow_schema",
    "bertkit.predict.files.outputs.plain_type",
}
NEVER = {"transformers", "sentence_transformers", "socket", "urllib", "http", "requests", "httpx"}
ON_THE_WIRE = {
    "connection": {"http", "urllib"},
    "serve": {"socket", "urllib"},
}  # of a server and its client


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


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_no_module_imports_itself_around_a_corner():
    """Late imports and those for type checkers count as well."""
    modules = {name_of(path): path for path in ROOT.rglob("*.py")}
    graph = {}
    for name, path in modules.items():
        named = {module if module in modules else module.rpartition(".")[0] for _, module in imports(path)}
        graph[name] = (named & set(modules)) - {name}
    graph["bertkit"] = set()  # it names what others hold, and none of them asks it for anything but its version
    while free := [name for name, needed in graph.items() if not needed & set(graph)]:
        for name in free:
            del graph[name]
    assert not graph, {name: sorted(needed & set(graph)) for name, needed in graph.items()}


def test_no_two_classes_have_one_name():
    places: dict[str, list[str]] = {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(name_of(path))
    assert not {name: found for name, found in places.items() if len(found) > 1}


def public_functions(path: Path):
    """(qualified name, node) of the functions and methods that have no underscore before them or above them."""

    def walk(nodes, prefix):
        for node in nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith(
                "_"
            ):
                yield f"{prefix}{node.name}", node
                if isinstance(node, ast.ClassDef):
                    yield from walk(node.body, f"{prefix}{node.name}.")

    for name, node in walk(ast.parse(path.read_text(encoding="utf-8")).body, f"{name_of(path)}."):
        if not isinstance(node, ast.ClassDef):
            yield name, node


PUBLIC = [path for path in FILES if stage(path) not in {"cli", "facts", "__main__"}]


def test_no_public_function_returns_any():
    found = {
        name
        for path in PUBLIC
        for name, node in public_functions(path)
        if isinstance(node.returns, ast.Name) and node.returns.id == "Any"
    }
    assert not found - RETURN_ANY


def test_no_folder_is_too_full_to_overlook():
    for folder in {path.parent for path in FILES} - {ROOT, *(ROOT / name for name in FOLDERS_OF_ROWS)}:
        files = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        parted = any((inner / "__init__.py").is_file() for inner in folder.iterdir())
        most = MOST_MODULES + 4 * parted
        assert len(files) <= most, f"{folder.name} has {len(files)} modules; make sub-packages"


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
    rows = (
        "import bertkit.config\nfrom bertkit.families.family import FAMILIES\nassert len(list(FAMILIES.values())) > 5"
    )
    assert not {"torch", "numpy", "tokenizers"} & modules_after(rows)


def test_the_optimizers_and_objectives_are_listed_without_torch():
    tables = "import bertkit.train.optimizer_rows, bertkit.pretraining.objectives.table, bertkit.finetuning.settings"
    assert "torch" not in modules_after(tables)


def test_help_answers_in_a_third_of_a_second():
    def seconds() -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "bertkit", "--help"], capture_output=True, check=True)
        return time.perf_counter() - start

    assert min(seconds() for _ in range(5)) < 0.3


def test_every_verb_of_the_help_exists_and_explains_itself(command_here):
    from bertkit.cli.verbs import VERBS

    shared = {"__init__", "main", "verbs", "views", "options", "common", "completion", "serve_screen"}
    assert set(VERBS) == {path.stem for path in (ROOT / "cli").glob("*.py")} - shared
    for verb in VERBS:
        done = command_here(verb, "--help")
        assert done.returncode == 0, done.stderr
        assert f"bertkit {verb}" in done.stdout
