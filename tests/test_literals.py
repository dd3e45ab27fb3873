"""A capability is a row: its name stands in its own files, and no other file compares, keys or types by it."""

import ast
from pathlib import Path

import pytest

from bertkit.poolings import POOLINGS
from bertkit.pretraining.objectives.table import OBJECTIVES
from bertkit.tasks.table import TASKS

ROOT = Path(__file__).parents[1] / "src" / "bertkit"
# Adapters to protocols and formats of others, which have names for the same things (families: Hugging Face's classes);
# facts, which are about single tasks; and the table of heads, whose keys are stored in model folders.
ADAPTERS = (
    "families/",
    "model/heads.py",
    "serve/routes/hugging_face.py",
    "serve/routes/tei.py",
    "finetuning/explore/glue.py",
    "data/squad.py",
    "data/choices.py",
    "facts/",
)
# Names of each table, and the files of a name's own row.
TABLES: dict[str, dict[str, tuple[str, ...]]] = {
    "tasks": {name: (f"tasks/rows/{name}.py", f"tasks/{name}.py") for name in (n.replace("-", "_") for n in TASKS)},
}
# "causal" is a part of a model's shape as well, and "fill" a verb of the command line.
_OBJECTIVES = [name for name in OBJECTIVES if name not in ("causal", "fill")]
TABLES["objectives"] = {name: (f"pretraining/objectives/{name}.py",) for name in _OBJECTIVES}
# Other poolings have names that are words of other tables too: "mean" also joins windows, "first" is a piece of a word.
TABLES["poolings"] = {name: ("poolings.py",) for name in POOLINGS if "-" in name}
TABLES["tasks"] |= {name: TABLES["tasks"][name.replace("-", "_")] for name in TASKS}
# To write is also what a pre-trained decoder can do: a verb of the command line, and routes of its own.
TABLES["tasks"]["write"] += ("cli/verbs.py", "serve/routes/write.py")


def literals(tree: ast.AST) -> list[tuple[int, str]]:
    """(line, text) of every string that is compared with, is a key of a dictionary, or stands in Literal[...]."""
    found: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            found += [node.left, *node.comparators]
        elif isinstance(node, ast.Dict):
            found += [key for key in node.keys if key is not None]
        elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "Literal":
            found.append(node.slice)
        elif isinstance(node, ast.match_case):
            found += [pattern.value for pattern in ast.walk(node.pattern) if isinstance(pattern, ast.MatchValue)]
    texts = [each for expression in found for each in _flat(expression)]
    return [(each.lineno, each.value) for each in texts if isinstance(each.value, str)]


def _flat(expression: ast.expr) -> list[ast.Constant]:
    """Constants, and those of tuples, lists and sets."""
    if isinstance(expression, ast.Tuple | ast.List | ast.Set):
        return [constant for each in expression.elts for constant in _flat(each)]
    return [expression] if isinstance(expression, ast.Constant) else []


def strangers(source: str, path: str, names: dict[str, tuple[str, ...]]) -> list[str]:
    """Names of rows in a file that is none of theirs."""
    if path.startswith(ADAPTERS):
        return []
    found = literals(ast.parse(source))
    return [f"{path}:{line}: {text!r}" for line, text in found if text in names and path not in names[text]]


@pytest.mark.parametrize("table", TABLES)
def test_no_file_knows_the_name_of_a_row_that_is_not_its_own(table):
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        found += strangers(path.read_text(encoding="utf-8"), str(path.relative_to(ROOT)), TABLES[table])
    assert found == []


@pytest.mark.parametrize("table", TABLES)
def test_every_row_has_its_own_files(table):
    for name, files in TABLES[table].items():
        assert all((ROOT / file).is_file() for file in files), name


@pytest.mark.parametrize(
    "source",
    [
        "x == 'tag'",
        "'tag' != x",
        "x in ('answer', 'tag')",
        "x not in {'tag'}",
        "y = {'tag': 1}",
        "Kind = Literal['tag', 'other']",
        "match x:\n    case 'tag':\n        pass",
        "match x:\n    case 'a' | 'tag':\n        pass",
    ],
)
def test_a_name_is_found_wherever_it_decides_something(source):
    assert any("'tag'" in each for each in strangers(source, "serve/models.py", TABLES["tasks"]))
    assert not strangers(source.replace("'answer', ", ""), "tasks/tag.py", TABLES["tasks"])


def test_what_only_mentions_a_name_is_let_be():
    assert not strangers("'''tag'''\nf('tag', kind='answer')\nx = 'tag'", "serve/models.py", TABLES["tasks"])
