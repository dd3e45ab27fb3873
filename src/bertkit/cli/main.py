"""`bertkit VERB ...`: one file per verb, imported only when it is called, so that help is instant."""

import errno
import io
import os
import select
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NoReturn

from bertkit._version import __version__
from bertkit.errors import BertkitError, BertkitWarning

# verb: (what it does, an example)
VERBS = {
    "vocab": ("train a WordPiece vocabulary", "bertkit vocab books/*.txt --size 30522 --out vocab/"),
    "shards": ("tokenize a corpus once", "bertkit shards books/*.txt --vocab vocab/ --out shards/"),
    "pretrain": ("train from scratch, or carry on", "bertkit pretrain recipes/tiny-cpu.toml shards=shards/ --out run/"),
    "finetune": ("teach it a task", "bertkit finetune classify --from model/ --train a.tsv --dev b.tsv --out run/"),
    "glue": ("every task in a folder, one table", "bertkit glue tasks/ --from model/ --out glue/"),
    "check": ("look before training", "bertkit check shards/ --recipe recipes/tiny-cpu.toml"),
    "predict": ("a taught model on a file", "bertkit predict run/model reviews.csv --out predicted.jsonl"),
    "embed": ("texts to vectors", "bertkit embed texts.txt --model model/ --out vectors.npy"),
    "fill": ("the blanks of a text", 'bertkit fill "Paris is the [MASK] of France." --model model/'),
    "serve": ("answer over HTTP", "bertkit serve model/ ner=run/model --port 8000"),
    "bench": ("how much a server can take", "bertkit bench http://127.0.0.1:8000 --clients 1,16,64"),
    "look": ("inside, while it reads a text", 'bertkit look "The animal was tired." --model model/ --out look.html'),
    "probe": ("what each layer knows of syntax", "bertkit probe train.conllu dev.conllu --model model/ --what pos"),
    "senses": ("the map of a word's uses", "bertkit senses bank books/*.txt --model model/ --out bank.html"),
    "vectors": ("one vector per word, as word2vec", "bertkit vectors shards/ --method skip-gram --out vectors/"),
    "convert": ("other layouts to a model folder", "bertkit convert uncased_L-12_H-768_A-12/ model/"),
    "facts": ("claims about BERT, checked", "bertkit facts"),
}


def help_text() -> str:
    """The list of verbs."""
    lines = ["bertkit: a BERT from raw text to a running service", ""]
    lines += [f"  {verb:<10} {what:<34} {example}" for verb, (what, example) in VERBS.items()]
    lines += ["", "bertkit VERB --help says more. Exit 0: done, 1: the work failed, 2: the request was wrong."]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one verb and leave with its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    warnings.showwarning = _say_warning
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
    if not words or words[0] in ("-h", "--help", "help"):
        print(help_text())
        return 0
    if words[0] == "--version":
        print(f"bertkit {__version__}")
        return 0
    verb, *rest = words
    if verb not in VERBS:
        return _say(f"no command '{verb}'; choose from: {', '.join(VERBS)}", 2)
    try:
        return _run_verb(verb, rest)
    except BertkitError as error:
        return _say(str(error), error.exit_code)
    except KeyboardInterrupt:
        return _say("stopped", 130)
    except MemoryError:
        return _say("out of memory; give it less at a time", 1)
    except OSError as error:
        if error.errno == errno.EPIPE and _reader_has_left():
            raise
        return _say(f"{error.filename or 'the work failed'}: {error.strerror or error}", 1)


def _run_verb(verb: str, words: list[str]) -> int:
    """Parse the verb's own options with typer and call it."""
    import typer

    function: Callable[..., Any] = getattr(import_module(f"bertkit.cli.{verb}"), verb)
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(name=verb)(function)
    try:
        code = typer.main.get_command(app).main(words, prog_name=f"bertkit {verb}", standalone_mode=False)
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


def _say_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    if issubclass(category, BertkitWarning):
        print(f"bertkit: note: {message}", file=sys.stderr)
