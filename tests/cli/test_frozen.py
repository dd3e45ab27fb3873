"""Verbs, arguments and options of the command line are frozen: `frozen.txt` lists them, and a change is made there too.

`python tests/cli/test_frozen.py` writes the file anew.
"""

from pathlib import Path

import pytest

from bertkit.cli.completion import completion_script, verb_options
from bertkit.cli.main import verb_command
from bertkit.cli.verbs import OLD_OPTIONS, OLD_SPELLINGS, PANELS, VERBS

SNAPSHOT = Path(__file__).parent / "frozen.txt"


def parameters(verb: str):
    return verb_command(verb).params


def described(parameter) -> str:
    if parameter.param_type_name == "argument":
        name = parameter.name.upper() if parameter.required else f"[{parameter.name.upper()}]"
        return name + ("..." if parameter.nargs == -1 else "")
    names = "/".join([*parameter.opts, *parameter.secondary_opts])
    plain = getattr(parameter, "is_flag", False) or parameter.default is None
    value = "" if plain or parameter.required else f"={parameter.default}"
    return names + (" (required)" if parameter.required else value)


def snapshot() -> str:
    """A block for each verb: its panel, then a line for each argument and option that help shows."""
    lines = []
    for panel, verbs in PANELS.items():
        for verb in verbs:
            shown = [each for each in parameters(verb) if not getattr(each, "hidden", False)]
            lines += [f"{panel}: {verb}", *(f"    {described(each)}" for each in shown), ""]
    lines += [f"old: {old} -> {' '.join(new)}" for old, new in OLD_SPELLINGS.items()]
    renamed = [(verb, *names) for verb, options in OLD_OPTIONS.items() for names in options.items()]
    lines += [f"old: {verb} {old} -> {verb} {new}" for verb, old, new in renamed]
    lines += [f"old: look {name}" for each in parameters("look") if each.hidden for name in each.opts]
    return "\n".join(lines) + "\n"


def test_the_command_line_is_as_it_was_promised():
    assert snapshot() == SNAPSHOT.read_text(encoding="utf-8"), f"if it is meant, run: python {__file__}"


def test_five_panels_hold_every_verb_once():
    assert list(PANELS) == ["data", "train", "use", "understand", "models"]
    assert sum(map(len, PANELS.values())) == len(VERBS)


def test_completion_knows_the_options_that_typer_knows():
    for verb in VERBS:
        known = [
            name
            for each in parameters(verb)
            if each.param_type_name == "option" and not each.hidden
            for name in (*each.opts, *each.secondary_opts)
            if name.startswith("--")
        ]
        assert verb_options(verb) == known, verb


def test_every_shell_gets_a_script_with_every_verb():
    for shell in ("bash", "zsh", "fish"):
        script = completion_script(shell)
        assert all(verb in script for verb in VERBS)
        assert "fill-model" in script
        assert "rate-words" in script
        assert "family/bert" in script


if __name__ == "__main__":
    SNAPSHOT.write_text(snapshot(), encoding="utf-8")


def test_a_mistyped_flag_names_the_nearest_option(capsys):
    from bertkit.cli.main import run

    assert run(["embed", "texts.txt", "--resum", "--out", "vectors.npy"]) == 2
    said = "bertkit: Unknown option --resum. Did you mean --resume? See 'bertkit embed --help'.\n"
    assert capsys.readouterr().err == said


RECIPE = "tiny-cpu"
FILES = ("rows.csv", "--out", "out.jsonl")


@pytest.mark.parametrize(
    ("words", "given", "meant"),
    [
        (("finetune", "classify", "--trian", "x"), "--trian", "--train"),
        (("finetune", "--trian", "x"), "--trian", "--train"),
        (("finetune", "classify", "--train", "x", "--trian=x"), "--trian", "--train"),
        (("finetune", "vectors", "--learningrate", "1"), "--learningrate", "--learning-rate"),
        (("finetune", "classify", "--learning_rat", "1"), "--learning_rat", "--learning-rate"),
        (("pretrain", RECIPE, "shards=shards/", "--stesp", "10"), "--stesp", "--steps"),
        (("embed", "texts.txt", "--out", "vectors.npy", "--poling", "max"), "--poling", "--pooling"),
        (("predict", "model", *FILES, "--devise", "cpu"), "--devise", "--device"),
    ],
)
def test_a_mistyped_option_with_a_value_names_the_nearest_option_or_setting(capsys, words, given, meant):
    from bertkit.cli.main import run

    assert run([*words]) == 2
    said = f"bertkit: Unknown option {given}. Did you mean {meant}? See 'bertkit {words[0]} --help'.\n"
    assert capsys.readouterr().err == said


def test_a_setting_in_place_of_the_task(capsys):
    from bertkit.cli.main import run

    assert run(["finetune", "--epochs", "3"]) == 2
    assert "the task comes first, then settings such as epochs=3: bertkit finetune classify" in capsys.readouterr().err
    assert run(["finetune", "classfy", "--train", "x"]) == 2
    assert "did you mean 'classify'?" in capsys.readouterr().err


def test_usual_names_of_other_tools_are_settings(capsys):
    from bertkit.cli.main import run

    for words in (["--lr", "fast"], ["lr=fast"]):
        assert run(["finetune", "classify", "--train", "x", *words]) == 2
        assert "learning_rate=fast is not a number" in capsys.readouterr().err


def test_an_option_that_is_like_no_other(capsys):
    from bertkit.cli.main import run

    assert run(["finetune", "classify", "--zebra"]) == 2
    assert "Unknown option --zebra. See 'bertkit" in capsys.readouterr().err
    assert run(["finetune", "classify", "--zebra", "3"]) == 2
    assert "Unknown option --zebra. See 'bertkit" in capsys.readouterr().err
    assert run(["finetune", "classify", "zebra=3"]) == 2
    assert "unknown setting 'zebra'; choose from: " in capsys.readouterr().err


def test_words_after_two_dashes_are_no_settings():
    from bertkit.cli.main import _settings_from_options

    assert _settings_from_options("finetune", ["--epochs", "3", "--", "--batch", "4"], ["--train"]) == [
        "epochs=3",
        "--",
        "--batch",
        "4",
    ]


def test_an_old_spelling_names_the_file_that_failed(monkeypatch, capsys):
    from bertkit.cli import main

    def fails(*_):
        raise PermissionError(13, "Permission denied", "shards/manifest.json")

    monkeypatch.setattr(main, "_run_verb", fails)
    assert main.run(["vectors", "shards"]) == 1
    assert "shards/manifest.json: Permission denied" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "old", "new"),
    [
        (("probe", "none.conllu", "--what", "pos"), "probe --what", "probe --task"),
        (("senses", "bank", "none.txt", "--most=5"), "senses --most", "senses --max-uses"),
        (("heads", "a", "--link", "he"), "heads --link", "heads --from-to"),
    ],
)
def test_an_old_option_works_and_says_the_new_one(capsys, words, old, new):
    from bertkit.cli.main import run

    assert run([*words]) == 2  # the files are not there, or the words are not two
    note, error = capsys.readouterr().err.splitlines()
    assert note == f"bertkit: note: 'bertkit {old}' is now 'bertkit {new}'; the old spelling goes in 0.3"
    assert "option" not in error
