"""`bertkit completion bash`: a script that completes verbs, options and files; made without importing any verb."""

import ast
from collections.abc import Iterator
from functools import cache
from importlib.resources import files

from bertkit.cli.verbs import VERBS
from bertkit.settings import pick

BASH = """_bertkit() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} options=
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{verbs} --help --version" -- "$word"))
        return
    fi
    case ${{COMP_WORDS[1]}} in
{cases}
    esac
    case $word in
        -*) COMPREPLY=($(compgen -W "$options --help" -- "$word")) ;;
        *) COMPREPLY=($(compgen -f -- "$word")) ;;
    esac
}}
complete -o filenames -o bashdefault -F _bertkit bertkit
"""
ZSH = """#compdef bertkit
_bertkit() {{
    local -a verbs options
    verbs=({verbs} --help --version)
    if (( CURRENT == 2 )); then
        compadd -- $verbs
        return
    fi
    case $words[2] in
{cases}
    esac
    if [[ $words[CURRENT] == -* ]]; then compadd -- ${{=options}} --help; else _files; fi
}}
compdef _bertkit bertkit
"""


def completion_script(shell: str = "") -> str:
    """The script for bash, zsh or fish; evaluate it in the shell's start-up file."""
    return pick({"bash": lambda: _posix(BASH), "zsh": lambda: _posix(ZSH), "fish": _fish}, shell, "shell")()


def verb_options(verb: str) -> list[str]:
    """The options of a verb as its source declares them, hidden ones left out."""
    function = next(node for node in _parsed(verb) if isinstance(node, ast.FunctionDef) and node.name == verb)
    return [name for argument in function.args.args for name in _declared(argument)]


@cache
def _parsed(module: str) -> list[ast.stmt]:
    return ast.parse(files("bertkit.cli").joinpath(f"{module}.py").read_text(encoding="utf-8")).body


def _declared(argument: ast.arg) -> Iterator[str]:
    """What one parameter is called on the command line; nothing for arguments by place."""
    shared = {ast.unparse(node.targets[0]): node for node in _parsed("options") if isinstance(node, ast.Assign)}
    declaration = shared.get(getattr(argument.annotation, "id", ""), argument)
    for call in (node for node in ast.walk(declaration) if isinstance(node, ast.Call)):
        hidden = any(keyword.arg == "hidden" for keyword in call.keywords)
        if hidden or not (isinstance(call.func, ast.Attribute) and call.func.attr == "Option"):
            continue
        names = [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
        name = argument.arg.replace("_", "-")
        is_switch = any(isinstance(node, ast.Name) and node.id == "bool" for node in ast.walk(declaration))
        yield from names or [f"--{name}", *([f"--no-{name}"] if is_switch else [])]


def _posix(template: str) -> str:
    cases = "\n".join(f'        {verb}) options="{" ".join(verb_options(verb))}" ;;' for verb in VERBS)
    return template.format(verbs=" ".join(VERBS), cases=cases)


def _fish() -> str:
    lines = []
    for verb, (what, _) in VERBS.items():
        lines.append(f"complete -c bertkit -n __fish_use_subcommand -a {verb} -d '{what}'")
        within = f"complete -c bertkit -n '__fish_seen_subcommand_from {verb}'"
        lines += [f"{within} -l {option.removeprefix('--')}" for option in verb_options(verb)]
    return "\n".join(lines) + "\n"
