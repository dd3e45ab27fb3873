"""README and docs are executed: Python sessions as doctests, console blocks as commands, tables of files as files.

A console line that starts with `$ ` is run with bash in a scratch folder that holds links to real checkpoints; what
follows must be what it prints, with `...` for anything. The first command of each verb is a process of its own; of
the others, `bertkit` is a small program that lets the test's process do the work, which has imported torch already.
"""

import doctest
import json
import os
import re
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def blocks(kind: str) -> list[tuple[Path, int, str]]:
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in BLOCK.finditer(text):
            if match.group(1) == kind:
                found.append((page, text[: match.start()].count("\n") + 2, match.group(2)))
    return found


def session(text: str) -> str:
    """A Python block as a doctest: as it is, or, without prompts, a statement a line with its value as a comment."""
    if ">>>" in text:
        return text
    parts = [line.partition("  # ")[::2] for line in text.splitlines()]
    return "".join(f">>> {code}\n{value}\n" if value else f">>> {code}\n" for code, value in parts)


def name(block: tuple[Path, int, str]) -> str:
    return f"{block[0].name}:{block[1]}"


@pytest.fixture
def scratch(tmp_path, monkeypatch, minilm, antiberty, simbert):
    """A folder as a reader would have it, with the checkpoints that the pages speak of."""
    for link, target in {"minilm": minilm, "antiberty": antiberty, "simbert": simbert}.items():
        (tmp_path / link).symlink_to(target)
    (tmp_path / "texts.txt").write_text("A cat sat on the mat.\nA dog lay on the rug.\nInterest rates rose again.\n")
    source = ROOT / "src" / "bertkit"
    (tmp_path / "corpus.txt").write_text("\n\n".join(p.read_text() for p in sorted(source.rglob("*.py"))))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def test_the_pages_are_there_and_every_block_is_of_a_kind_that_runs():
    assert len(PAGES) >= 7
    kinds = [match.group(1) for page in PAGES for match in BLOCK.finditer(page.read_text(encoding="utf-8"))]
    assert set(kinds) <= {"python", "console", "text", "toml"}, "a block of another kind would not be executed"
    assert kinds.count("python") >= 6
    assert kinds.count("console") >= 6


@pytest.mark.filterwarnings("ignore::bertkit.errors.BertkitWarning")
@pytest.mark.parametrize("block", blocks("python"), ids=name)
def test_python_sessions_print_what_they_say(block, scratch):
    page, line, text = block
    test = doctest.DocTestParser().get_doctest(session(text), {}, name(block), str(page), line)
    assert test.examples
    report: list[str] = []
    doctest.DocTestRunner(optionflags=FLAGS).run(test, out=report.append)
    assert not report, "".join(report)


def commands(text: str) -> list[tuple[str, str]]:
    """(command, expected output) pairs of one console block."""
    parts = re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
    return [(part.partition("\n")[0], part.partition("\n")[2]) for part in parts]


CONSOLE = [block for block in blocks("console") if "make " not in block[2]]
VERB = re.compile(r"\bbertkit ([a-z]\w+)")
# verb -> the block where the pages use it first
FIRST = {verb: name(block) for block in reversed(CONSOLE) for verb in VERB.findall(block[2])}
BERTKIT = f"""#!{sys.executable} -SE
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as done, done.makefile("rw") as lines:
    done.connect("{{socket}}")
    print(json.dumps([os.getcwd(), sys.argv[1:]]), file=lines, flush=True)
    code, out, err = json.loads(lines.readline())
sys.stderr.write(err)
sys.stdout.write(out)
sys.exit(code)
"""


@pytest.fixture
def bash(scratch, command_here, tmp_path_factory):
    """`bash("bertkit fill ...", here=True)` gives the output of a command line; `here`: done by this process."""
    folder = tmp_path_factory.mktemp("bin")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "s"))
        listener.listen()
        listener.settimeout(0.02)
        (folder / "bertkit").write_text(BERTKIT.format(socket=folder / "s"))
        (folder / "bertkit").chmod(0o755)

        def answer(connection: socket.socket) -> None:
            connection.settimeout(None)
            with connection, connection.makefile("rw") as lines:
                cwd, words = json.loads(lines.readline())
                done = command_here(*words, cwd=cwd)
                print(json.dumps([done.returncode, done.stdout, done.stderr]), file=lines, flush=True)

        def run(command: str, *, here: bool) -> str:
            paths = f"{folder}{os.pathsep}{os.environ['PATH']}" if here else os.environ["PATH"]
            with (scratch / ".out").open("w+") as out, (scratch / ".err").open("w+") as err:
                environment = os.environ | {"PATH": paths}
                with subprocess.Popen(["bash", "-c", command], stdout=out, stderr=err, env=environment) as process:
                    while process.poll() is None:
                        with suppress(TimeoutError):
                            answer(listener.accept()[0])
                return (scratch / ".out").read_text() + (scratch / ".err").read_text()

        yield run


@pytest.mark.parametrize("block", CONSOLE, ids=name)
def test_console_blocks_print_what_they_say(block, bash):
    pairs = commands(block[2])
    assert pairs
    checker, first = doctest.OutputChecker(), {verb for verb, place in FIRST.items() if place == name(block)}
    for command, expected in pairs:
        verbs = set(VERB.findall(command))
        got = bash(command, here="torchrun" not in command and not verbs & first)
        first -= verbs
        assert checker.check_output(expected, got, FLAGS), f"{command}\n--- expected\n{expected}\n--- got\n{got}"


def test_make_targets_that_the_pages_name_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {t for page in PAGES for t in re.findall(r"\$ make ([a-z]+)", page.read_text(encoding="utf-8"))}
    assert named >= {"demo", "test"}
    assert named <= targets


def test_files_and_folders_that_the_pages_name_exist():
    """`src/bertkit/...`, `docs/...`, `benchmarks/...`, `tests/...` in backticks or links."""
    pattern = re.compile(r"[`(]((?:src|docs|benchmarks|tests|tools)/[\w./-]+)[`)]")
    named = {(page.name, path) for page in PAGES for path in pattern.findall(page.read_text(encoding="utf-8"))}
    assert len(named) > 10
    missing = [(page, path) for page, path in named if not (ROOT / path).exists()]
    assert not missing


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert "://" not in target, f"{page.name}: {target}: the project stands alone"
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_page_of_commands_is_the_help_and_the_readme_names_them_all():
    from bertkit.cli.main import help_text
    from bertkit.cli.verbs import VERBS

    assert help_text() in (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert not [verb for verb in VERBS if f"`{verb}`" not in readme]


def test_the_readme_is_short_and_has_pictures():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.split()) <= 700
    assert len(re.findall(r"^!\[", readme, re.MULTILINE)) == 2


def test_every_figure_of_the_benchmarks_is_that_of_a_result_file(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import benchmark_page

    for name, path in benchmark_page.PAGES.items():
        assert path.read_text(encoding="utf-8") == benchmark_page.written(name), "run python tools/benchmark_page.py"


def test_the_version_has_a_changelog_entry():
    from bertkit import __version__

    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
