"""`bertkit completion bash`: a script that completes verbs, options and files.

The options are read from the source of the verbs: importing all verbs would take seconds.
"""

import ast
from collections.abc import Iterator
from functools import cache
from importlib.resources import files

from bertkit.cli.verbs import VERBS
from bertkit.pretraining.recipe_files import recipe_files
from bertkit.settings import pick
from bertkit.tasks.table import TASKS

BASH = """_bertkit() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} options= first=
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{verbs} --help --version" -- "$word"))
        return
    fi
    case ${{COMP_WORDS[1]}} in
{cases}
    esac
    case $word in
        -*) COMPREPLY=($(compgen -W "$options --help" -- "$word")) ;;
        *) [ "$COMP_CWORD" -eq 2 ] || first=
           COMPREPLY=($(compgen -W "$first" -- "$word") $(compgen -f -- "$word")) ;;
    esac
}}
complete -o filenames -o bashdefault -F _bertkit bertkit
"""
ZSH = """#compdef bertkit
_bertkit() {{
    local -a verbs options first
    verbs=({verbs} --help --version)
    if (( CURRENT == 2 )); then
        compadd -- $verbs
        return
    fi
    case $words[2] in
{cases}
    esac
    if [[ $words[CURRENT] == -* ]]; then compadd -- ${{=options}} --help; return; fi
    if (( CURRENT == 3 )); then compadd -- ${{=first}}; fi
    _files
}}
compdef _bertkit bertkit
"""


def completion_script(shell: str = "") -> str:
    """The script for bash, zsh or fish, to be evaluated in the shell's start-up file."""
    return pick({"bash": lambda: _posix(BASH), "zsh": lambda: _posix(ZSH), "fish": _fish}, shell, "shell")()


def verb_options(verb: str) -> list[str]:
    """The options of a verb as its source declares them, without hidden ones."""
    parameters = [*_parameters(verb, verb), *_parameters("options", "common_options")]
    names = [name for parameter in parameters for name in _option_names(parameter)]
    return [name for name in names if name.startswith("--")]


def _parameters(module: str, name: str) -> list[ast.arg]:
    functions = (node for node in _parsed(module) if isinstance(node, ast.FunctionDef))
    return next(function for function in functions if function.name == name).args.args


@cache
def _parsed(module: str) -> list[ast.stmt]:
    return ast.parse(files("bertkit.cli").joinpath(f"{module}.py").read_text(encoding="utf-8")).body


def _option_names(parameter: ast.arg) -> Iterator[str]:
    """The names of one parameter on the command line; none for a positional argument."""
    shared = {ast.unparse(node.targets[0]): node for node in _parsed("options") if isinstance(node, ast.Assign)}
    declaration = shared.get(getattr(parameter.annotation, "id", ""), parameter)
    for call in (node for node in ast.walk(declaration) if isinstance(node, ast.Call)):
        hidden = any(keyword.arg == "hidden" for keyword in call.keywords)
        if hidden or not (isinstance(call.func, ast.Attribute) and call.func.attr == "Option"):
            continue
        names = [arg.value for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        name = parameter.arg.replace("_", "-")
        is_switch = any(isinstance(node, ast.Name) and node.id == "bool" for node in ast.walk(declaration))
        yield from names or [f"--{name}", *([f"--no-{name}"] if is_switch else [])]


def first_words(verb: str) -> list[str]:
    """The names that a verb knows as its first argument."""
    recipes, tasks = list(recipe_files()), [*TASKS, "vectors", "glue"]
    return {"finetune": tasks, "pretrain": recipes, "recipes": recipes}.get(verb, [])


def _posix(template: str) -> str:
    words = {verb: (" ".join(verb_options(verb)), " ".join(first_words(verb))) for verb in VERBS}
    cases = "\n".join(
        f'        {verb}) options="{options}" first="{first}" ;;' for verb, (options, first) in words.items()
    )
    return template.format(verbs=" ".join(VERBS), cases=cases)


def _fish() -> str:
    lines = []
    for verb, (summary, _) in VERBS.items():
        lines.append(f"complete -c bertkit -n __fish_use_subcommand -a {verb} -d '{summary}'")
        condition = f"complete -c bertkit -n '__fish_seen_subcommand_from {verb}'"
        lines += [f"{condition} -a {name}" for name in first_words(verb)]
        lines += [f"{condition} -l {option.removeprefix('--')}" for option in verb_options(verb)]
    return "\n".join(lines) + "\n"
