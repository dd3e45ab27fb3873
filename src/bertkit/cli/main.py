"""`bertkit VERB ...`: one file per verb, imported only when it is called, so that help is instant."""

import errno
import io
import os
import select
import signal
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from importlib import import_module
from typing import Any, NoReturn

from bertkit._version import __version__
from bertkit.cli.verbs import OLD_SPELLINGS, VERBS, help_text, note_old_spelling
from bertkit.errors import BertkitError, BertkitWarning, RequestError, UnknownSetting


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one verb and leave with its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    warnings.showwarning = show_warning
    signal.signal(signal.SIGTERM, _stop)  # as Ctrl-C: what is half-written is cleared away
    if sys.stdout is None:  # closed by the caller
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 - for the rest of the process
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that knows ASCII only still gets its answer
    try:
        code = run(words)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except OSError as error:  # /dev/full
        code = _say(f"the output could not be written: {error.strerror}", 1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def run(words: list[str]) -> int:
    """The exit code of `bertkit *words`."""
    try:
        return _answer(words)
    except BertkitError as error:
        return _say(str(error), error.exit_code)
    except KeyboardInterrupt:
        return _say("stopped", 130)
    except MemoryError:
        return _say("out of memory; give it less at a time", 1)
    except OSError as error:
        if (error.errno == errno.EPIPE and _reader_has_left()) or not set(words[:1]) & {*VERBS, *OLD_SPELLINGS}:
            raise  # standard output could not be written
        return _say(f"{error.filename or 'the work failed'}: {error.strerror or error}", 1)


def _answer(words: list[str]) -> int:
    """What needs no verb is answered at once; old spellings are replaced; everything else is a verb's."""
    verb, *rest = words or ["--help"]
    if verb == "help" and rest:
        verb, rest = rest[0], ["--help"]
    if verb in OLD_SPELLINGS:
        new = OLD_SPELLINGS[verb]
        note_old_spelling(verb, " ".join(new))
        verb, *rest = *new, *rest
    if verb in ("-h", "--help", "help"):
        print(help_text())
    elif verb in ("-V", "--version"):
        print(f"bertkit {__version__}")
    elif verb == "completion":
        from bertkit.cli.completion import completion_script

        print(completion_script(*rest[:1]), end="")
    elif verb in VERBS:
        return _run_verb(verb, rest)
    else:
        near = _nearest(verb, [*VERBS, *OLD_SPELLINGS])
        hint = f"did you mean '{near}'? " if near else ""
        return _say(f"no command '{verb}'; {hint}choose from: {', '.join(VERBS)}", 2)
    return 0


def _nearest(word: str, known: Iterable[str]) -> str | None:
    from difflib import get_close_matches

    return next(iter(get_close_matches(word, list(known), n=1, cutoff=0.7)), None)


def _run_verb(verb: str, words: list[str]) -> int:
    """Parse the verb's own options with typer and call it."""
    import typer

    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    function: Callable[..., Any] = getattr(import_module(f"bertkit.cli.{verb}"), verb)
    app.command(name=verb, context_settings={"help_option_names": ["-h", "--help"]})(function)
    command = typer.main.get_command(app)
    options = ["--help", *(name for each in command.params for name in (*each.opts, *each.secondary_opts))]
    given = _settings_from_options(verb, words, options) if "settings" in options else words
    try:
        code = command.main(given, prog_name=f"bertkit {verb}", standalone_mode=False)
    except RequestError as error:
        raise _as_option(error, verb, words, options) from error
    except typer.Abort:
        return _say("stopped", 130)
    except SystemExit as error:  # typer leaves with 1 where a pipe is closed, even when it is not to leave
        if isinstance(error.__context__, BrokenPipeError):
            raise error.__context__ from None
        raise
    except Exception as error:
        # Newer versions of typer carry their own click: its usage errors are known by what they can do.
        if not (hasattr(error, "format_message") and hasattr(error, "exit_code")):
            raise
        return _say(f"{error.format_message()} See 'bertkit {verb} --help'.", 2)
    if code == 130:  # typer gives Ctrl-C back as a number
        return _say("stopped", 130)
    return code if isinstance(code, int) else 0


def _settings_from_options(verb: str, words: list[str], known: Collection[str]) -> list[str]:
    """`--epochs 3` and `--epochs=3` as `epochs=3`, where a verb takes settings and has no such option of its own."""
    made, rest = list[str](), iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if name == "--":
            return [*made, word, *rest]
        if not name.startswith("--") or name in known:
            made.append(word)
            continue
        value = value if equals else next(rest, "--")
        if not equals and value.startswith("--"):  # a flag, and no setting is one
            raise _unknown_option(verb, name, known)
        made.append(f"{name.removeprefix('--').replace('-', '_')}={value}")
    return made


def _unknown_option(verb: str, name: str, known: Iterable[str]) -> RequestError:
    near = _nearest(name, known)
    hint = f" Did you mean {near}?" if near else ""
    return RequestError(f"Unknown option {name}.{hint} See 'bertkit {verb} --help'.")


def _as_option(error: RequestError, verb: str, words: list[str], options: Iterable[str]) -> RequestError:
    """The error about a setting that was given as an option, which is more likely an option with a typing error."""
    unknown = error if isinstance(error, UnknownSetting) else error.__cause__
    if not isinstance(unknown, UnknownSetting):
        return error
    given = {name.replace("-", "_"): name for name in (word.partition("=")[0] for word in words)}
    name = given.get(f"__{unknown.name}")
    settings = (f"--{setting.replace('_', '-')}" for setting in unknown.names)
    return _unknown_option(verb, name, [*options, *settings]) if name else error


def _reader_has_left() -> bool:
    """Whether the closed pipe is standard output, not one to a process that does part of the work."""
    if not hasattr(select, "poll"):  # Windows: most likely it is
        return True
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)  # closed pipes are told of without being asked for
    return bool(output.poll(0))


def _say(sentence: str, code: int) -> int:
    print(f"bertkit: {sentence}", file=sys.stderr)
    return code


def _stop(*_: Any) -> NoReturn:
    raise KeyboardInterrupt


def show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """Print bertkit's own warnings as a note, and no others."""
    if issubclass(category, BertkitWarning):
        print(f"bertkit: note: {message}", file=sys.stderr)
