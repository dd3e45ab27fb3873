"""`bertkit VERB ...`: one file per verb, imported only when that verb is called, so that --help is fast."""

import errno
import io
import os
import select
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from bertkit._version import __version__
from bertkit.cli.common import INTERRUPTED, print_note
from bertkit.cli.verbs import OLD_OPTIONS, OLD_SPELLINGS, OTHER_WORDS, VERBS, help_text, note_old_spelling
from bertkit.errors import BertkitError, BertkitWarning, RequestError, UnknownSetting
from bertkit.progress import VERBOSITY


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one verb and exit with its code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    warnings.showwarning = show_warning
    share_cores()
    signal.signal(signal.SIGTERM, _interrupt)  # as Ctrl-C: partial outputs are removed
    if sys.stdout is None:  # closed by the caller
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 - for the rest of the process
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal for ASCII only still gets its result
    try:
        code = run(words)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except OSError as error:  # /dev/full
        code = _fail(f"the output could not be written: {error.strerror}", 1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def share_cores() -> None:
    """On a busy machine, let OpenMP's threads sleep while they wait for each other, instead of keeping a core busy.

    Must be called before torch is imported, which reads the variable. Measured in docs/LOG.md.
    """
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0  # Windows has none
    if load > (os.cpu_count() or 1):
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def run(words: list[str]) -> int:
    """Run `bertkit *words` and return its exit code; errors are printed as one sentence."""
    usual = VERBOSITY.set(0)
    try:
        return _dispatch(words)
    except BertkitError as error:
        return _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        return _fail("stopped", INTERRUPTED)
    except MemoryError:
        return _fail("out of memory; give it less at a time", 1)
    except OSError as error:
        if (error.errno == errno.EPIPE and _stdout_is_closed()) or not set(words[:1]) & {*VERBS, *OLD_SPELLINGS}:
            raise  # standard output could not be written
        return _fail(f"{error.filename or 'the work failed'}: {error.strerror or error}", 1)
    finally:
        VERBOSITY.reset(usual)


def _dispatch(words: list[str]) -> int:
    """Handle --help, --version and completion here, replace old spellings, and pass everything else to its verb."""
    verb, *rest = words or ["--help"]
    if verb == "help" and rest:
        verb, rest = rest[0], ["--help"]
    if verb in OLD_SPELLINGS:
        new = OLD_SPELLINGS[verb]
        note_old_spelling(verb, " ".join(new))
        verb, *rest = *new, *rest
    if verb in ("-h", "--help", "help"):
        print(help_text())
    elif verb in ("-V", "--version", "version"):
        print(f"bertkit {__version__}")
    elif verb == "completion":
        from bertkit.cli.completion import completion_script

        print(completion_script(*rest[:1]), end="")
    elif verb in VERBS:
        return _run_verb(verb, rest)
    else:
        near = _nearest(verb, [*VERBS, *OLD_SPELLINGS])
        hint = f"{OTHER_WORDS[verb]}; " if verb in OTHER_WORDS else f"did you mean '{near}'? " if near else ""
        return _fail(f"no command '{verb}'; {hint}choose from: {', '.join(VERBS)}", 2)
    return 0


def _nearest(word: str, known: Iterable[str]) -> str | None:
    from difflib import get_close_matches

    return next(iter(get_close_matches(word, list(known), n=1, cutoff=0.7)), None)


def _run_verb(verb: str, words: list[str]) -> int:
    """Parse the verb's options with typer and call it."""
    import typer

    command = verb_command(verb)
    words = _with_new_options(verb, words)
    options = ["--help", *(name for option in command.params for name in (*option.opts, *option.secondary_opts))]
    takes_settings = "settings" in options
    arguments = _settings_from_options(verb, words, options) if takes_settings else words
    try:
        if takes_settings:
            _refuse_misplaced(command, verb, arguments, options)
        code = command.main(arguments, prog_name=f"bertkit {verb}", standalone_mode=False)
    except RequestError as error:
        raise _as_option(error, verb, words, options) from error
    except typer.Abort:
        return _fail("stopped", INTERRUPTED)
    except SystemExit as error:  # typer exits with 1 at a closed pipe, even with standalone_mode=False
        if isinstance(error.__context__, BrokenPipeError):
            raise error.__context__ from None
        raise
    except Exception as error:
        # Newer versions of typer vendor click, so usage errors are recognized by their attributes.
        if not (hasattr(error, "format_message") and hasattr(error, "exit_code")):
            raise
        return _fail(f"{error.format_message()} See 'bertkit {verb} --help'.", 2)
    if code == INTERRUPTED:  # typer returns Ctrl-C as this code
        return _fail("stopped", INTERRUPTED)
    return code if isinstance(code, int) else 0


def verb_command(verb: str) -> Any:
    """The command of a verb with its options and those of every verb."""
    from bertkit.cli.options import common_options

    command = _typer_command(verb, getattr(import_module(f"bertkit.cli.{verb}"), verb))
    for option in _typer_command(verb, common_options).params:
        option.expose_value, option.callback = False, _choose_verbosity  # the verb's function does not take it
        command.params.append(option)
    return command


def _choose_verbosity(_context: Any, option: Any, given: bool) -> None:
    if given:
        VERBOSITY.set({"quiet": -1, "verbose": 1}[option.name])


def _typer_command(name: str, function: Callable[..., Any]) -> Any:
    import typer

    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(name=name, context_settings={"help_option_names": ["-h", "--help"]})(function)
    return typer.main.get_command(app)


def _with_new_options(verb: str, words: list[str]) -> list[str]:
    """The words with options of an earlier version replaced, and a note on each."""
    renamed = OLD_OPTIONS.get(verb, {})
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        if new := renamed.get(name):
            note_old_spelling(f"{verb} {name}", f"{verb} {new}")
            words = [*words[:place], f"{new}{equals}{value}", *words[place + 1 :]]
    return words


def _settings_from_options(verb: str, words: list[str], known: Collection[str]) -> list[str]:
    """Rewrite `--epochs 3` and `--epochs=3` as `epochs=3`, for verbs that take settings and have no such option."""
    arguments, rest = list[str](), iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if name == "--":
            return [*arguments, word, *rest]
        if not name.startswith("--") or name in known:
            arguments.append(word)
            continue
        value = value if equals else next(rest, "--")
        if not equals and value.startswith("--"):  # a flag; no setting is a flag
            raise _unknown_option(verb, name, known)
        arguments.append(f"{name.removeprefix('--').replace('-', '_')}={value}")
    return arguments


def _refuse_misplaced(command: Any, verb: str, arguments: list[str], options: Iterable[str]) -> None:
    """Refuse a setting in the place of the first argument: in `bertkit finetune --trian x` the task is missing."""
    first = command.params[0].name
    given = str(command.make_context(verb, list(arguments), resilient_parsing=True).params.get(first))
    name, equals, _ = given.partition("=")
    if equals and name.isidentifier() and not Path(given).exists():
        if near := _nearest(f"--{name}", options):
            raise RequestError(f"Unknown option --{name}. Did you mean {near}? See 'bertkit {verb} --help'.")
        raise RequestError(f"the {first} comes first, then settings such as {given}: {VERBS[verb][1]}")


def _unknown_option(verb: str, name: str, known: Iterable[str]) -> RequestError:
    near = _nearest(name, known)
    hint = f" Did you mean {near}?" if near else ""
    return RequestError(f"Unknown option {name}.{hint} See 'bertkit {verb} --help'.")


def _as_option(error: RequestError, verb: str, words: list[str], options: Iterable[str]) -> RequestError:
    """The error for an unknown setting, as one for an unknown option where it was written as an option."""
    unknown = error if isinstance(error, UnknownSetting) else error.__cause__
    if not isinstance(unknown, UnknownSetting):
        return error
    given = {name.replace("-", "_"): name for name in (word.partition("=")[0] for word in words)}
    name = given.get(f"__{unknown.name}")
    settings = (f"--{setting.replace('_', '-')}" for setting in unknown.names)
    return _unknown_option(verb, name, [*options, *settings]) if name else error


def _stdout_is_closed() -> bool:
    """Whether the closed pipe is standard output, and not one to a worker process."""
    if not hasattr(select, "poll"):  # Windows: assume standard output
        return True
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)  # poll reports a closed pipe without any flag
    return bool(output.poll(0))


def _fail(sentence: str, code: int) -> int:
    """Print an error, with --verbose also where it comes from, and return the exit code."""
    if VERBOSITY.get() > 0:
        traceback.print_exc()
    print(f"bertkit: {sentence}", file=sys.stderr)
    return code


def _interrupt(*_: Any) -> NoReturn:
    raise KeyboardInterrupt


def show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """Print bertkit's own warnings as notes; those of other packages only with --verbose."""
    if issubclass(category, BertkitWarning) or VERBOSITY.get() > 0:
        print_note(str(message))
