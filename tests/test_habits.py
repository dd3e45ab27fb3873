"""The files that other tools read can be read: workflow, hooks, issue templates."""

from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]


def read(name):
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def test_the_workflow_runs_the_tests_where_it_says():
    jobs = read(".github/workflows/test.yml")["jobs"]
    assert jobs["linux"]["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13"]
    assert any("make test" in step.get("run", "") for step in jobs["linux"]["steps"])
    assert jobs["other-systems"]["strategy"]["matrix"]["os"] == ["macos-latest", "windows-latest"]
    assert any("embed(" in step.get("run", "") for step in jobs["other-systems"]["steps"])


def test_the_hooks_are_tools_of_the_project():
    [local] = read(".pre-commit-config.yaml")["repos"]
    assert local["repo"] == "local"
    assert {hook["entry"].split()[0] for hook in local["hooks"]} == {".venv/bin/ruff", ".venv/bin/mypy"}
    assert all(hook["language"] == "system" for hook in local["hooks"])


def test_issue_templates_are_forms():
    forms = sorted(path for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config")
    assert [path.stem for path in forms] == ["bug", "feature"]
    for path in forms:
        form = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert {"name", "description", "body"} <= set(form)
        assert all({"type", "id", "attributes"} <= set(part) for part in form["body"])
