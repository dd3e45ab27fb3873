"""`bertkit serve`: serve models over HTTP."""

import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import typer

from bertkit.cli.options import Dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence

    from bertkit.predict.bert import Bert
    from bertkit.serve.http.auth import Keys
    from bertkit.serve.http.logs import LogForm
    from bertkit.serve.http.middleware import Middleware
    from bertkit.serve.settings import ServeSettings


LOG_FORMS: "dict[str, LogForm]" = {"text": "text", "json": "json"}
LOCAL = ("127.0.0.1", "localhost", "::1")


def serve(
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODEL]...", help="Model folders, as PATH or NAME=PATH; or none: the bundled ones."),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; by default this machine only.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 picks a free one.")] = 8000,
    max_tokens: Annotated[int | None, typer.Option(help="Tokens per batch; by default 4,096, GPU 32,768.")] = None,
    max_queue: Annotated[int, typer.Option(help="Requests in progress at most; more are refused with 429.")] = 512,
    timeout: Annotated[float, typer.Option(help="Seconds until a request is answered with 504.")] = 60.0,
    too_long: Annotated[str, typer.Option(help="Texts over the limit: truncate, window or refuse.")] = "truncate",
    api_key: Annotated[Path | None, typer.Option(help="A file with a key per line; or set BERTKIT_API_KEY.")] = None,
    no_key: Annotated[bool, typer.Option("--no-key", help="Accept other machines without a key, any Host.")] = False,
    workers: Annotated[int | None, typer.Option(help="Batches at a time; by default 1 on a GPU, else up to 4.")] = None,
    dtype: Dtype = None,
    backend: Annotated[str | None, typer.Option(help="onnx: ONNX Runtime for single short texts, faster.")] = None,
    adapters: Annotated[Path | None, typer.Option(help="Folder whose adapters clients may load and drop.")] = None,
    log: Annotated[str | None, typer.Option(help="text or json; by default text on a terminal, else json.")] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Serve models over HTTP: embeddings, masked words, labels, tags, answers, choices, attention.

    Clients of OpenAI, Hugging Face and text-embeddings-inference work unchanged; /docs lists every route.
    SIGTERM and Ctrl-C finish the requests in progress, then stop. Logs go to standard error.
    """
    from bertkit.errors import RequestError
    from bertkit.serve.http.auth import read_keys
    from bertkit.serve.http.listener import bind, require_key
    from bertkit.serve.settings import ServeSettings
    from bertkit.settings import pick
    from bertkit.text.length import POLICIES

    limits = {"max_tokens": max_tokens, "workers": workers}
    given = {name: number for name, number in limits.items() if number is not None}
    policy = pick(POLICIES, too_long, "length policy")
    form: LogForm = pick(LOG_FORMS, log or ("text" if sys.stderr.isatty() else "json"), "form of the log")
    if adapters is not None and not adapters.is_dir():
        raise RequestError(f"--adapters {adapters} is not a folder; make it, and put a folder for each adapter there")
    settings = ServeSettings(max_queue=max_queue, seconds=timeout, too_long=policy, **given)
    keys = read_keys(api_key)
    require_key(host, keys, no_key=no_key)
    listener = bind(host, port)
    address = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
    server = _import_server()
    app, names = _load_app(
        models or [], settings, given, keys, dtype, backend, form, adapters, local=not keys and not no_key
    )

    def announce() -> None:
        _print_address(
            address, names, "other machines reach it" if host not in LOCAL else "only this machine reaches it"
        )
        if open_page:
            import webbrowser

            webbrowser.open(address)

    server.serve(app, listener, announce)
    if form == "text":
        print("stopped", file=sys.stderr)


def _print_address(address: str, names: "Sequence[str]", others: str) -> None:
    """Where the server is: in a frame on a terminal, elsewhere one line."""
    if sys.stdout.isatty():
        from bertkit.cli.serve_screen import print_frame

        return print_frame(address, names, others)
    ready = f"{', '.join(names)} at {address} - open it in a browser; {address}/docs for programs; Ctrl-C stops"
    print(ready, flush=True)


def _load_app(
    models: list[str],
    settings: "ServeSettings",
    given: "Container[str]",
    keys: "Keys",
    dtype: str | None,
    backend: str | None,
    log: "LogForm",
    adapters: Path | None,
    *,
    local: bool,
) -> "tuple[Middleware, list[str]]":
    """The application with its models loaded, and their names; torch is imported here."""
    import torch

    from bertkit.inside.attribution.attribution import quick_why
    from bertkit.predict.bert import load
    from bertkit.predict.files.pipeline import Hardware
    from bertkit.serve.app import create_app
    from bertkit.serve.http.logs import start_logs
    from bertkit.serve.models import load_models
    from bertkit.serve.settings import fitted

    hardware = Hardware.chosen(None, dtype)
    settings = fitted(settings, hardware.device, torch.get_num_threads(), given)
    loader: Callable[[str | None], Bert] = load
    if sys.stderr.isatty() and log == "text":
        from bertkit.cli.serve_screen import shown_load

        loader = shown_load(load)
    device = torch.device(hardware.device)
    loaded = load_models(
        models, device, dtype=hardware.dtype, backend=backend, load=loader, as_trunks=adapters is not None
    )
    start_logs(form=log)
    app = create_app(loaded, settings, keys, local=local, explain=quick_why, adapters=adapters)
    return app, list(loaded.by_name)


def _import_server() -> ModuleType:
    """The server's module; the packages that it needs are installed with the extra `serve`."""
    from importlib import import_module

    from bertkit.errors import RequestError

    try:
        return import_module("bertkit.serve.http.server")
    except ModuleNotFoundError as error:
        raise RequestError(f"the package {error.name} is missing; install it: pip install 'bertkit[serve]'") from error
