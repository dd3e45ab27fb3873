"""`bertkit serve`: models behind an HTTP API."""

from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer


def serve(
    models: Annotated[
        list[str] | None, typer.Argument(metavar="[MODEL]...", help="Model folders, as PATH or NAME=PATH.")
    ] = None,
    host: Annotated[str, typer.Option(help="Where to listen; loopback lets only this machine in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.")] = 8000,
    max_tokens: Annotated[
        int | None, typer.Option(help="Tokens through the model at once; by default 4,096, on a GPU 32,768.")
    ] = None,
    max_queue: Annotated[int, typer.Option(help="Requests inside at once; more are told to come back.")] = 512,
    timeout: Annotated[float, typer.Option(help="Seconds until a request is given up.")] = 60.0,
    too_long: Annotated[str, typer.Option(help="truncate, window or refuse texts over the limit.")] = "truncate",
    api_key: Annotated[
        Path | None, typer.Option(help="A file with a key on each line; or set BERTKIT_API_KEY.")
    ] = None,
    no_key: Annotated[bool, typer.Option("--no-key", help="Let others in without a key, by any name.")] = False,
    workers: Annotated[
        int | None, typer.Option(help="Batches at a time; by default 1 on a GPU, on a CPU one a core up to 4.")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="float32, bfloat16, float16 or int8; by default bfloat16 on a GPU, else float32.")
    ] = None,
    backend: Annotated[
        str | None, typer.Option(help="onnx: single short texts through ONNX Runtime, which answers them sooner.")
    ] = None,
) -> None:
    """Answer over HTTP what the models can do: vectors, blanks, labels, tags, answers, choices, attention.

    OpenAI's, Hugging Face's and text-embeddings-inference's clients work unchanged; /docs shows every route.
    SIGTERM and Ctrl-C answer what has come in, then stop. Logs are JSON on standard error.
    """
    from bertkit.config import pick
    from bertkit.serve.http.auth import read_keys
    from bertkit.serve.http.listener import bind, refuse_open_door
    from bertkit.serve.settings import ServeSettings, fitted
    from bertkit.text.length import POLICIES

    asked = {"max_tokens": max_tokens, "workers": workers}
    given = {name: number for name, number in asked.items() if number is not None}
    policy = pick(POLICIES, too_long, "length policy")
    settings = ServeSettings(max_queue=max_queue, seconds=timeout, too_long=policy, **given)
    keys = read_keys(api_key)
    refuse_open_door(host, keys, told=no_key)
    listener = bind(host, port)
    server = _imported()

    import torch

    from bertkit.predict.files.pipeline import Hardware
    from bertkit.serve.app import create_app
    from bertkit.serve.http.logs import start_logs
    from bertkit.serve.models import load_models

    hardware = Hardware.chosen(None, dtype)
    settings = fitted(settings, hardware.device, torch.get_num_threads(), given)
    loaded = load_models(models or [], torch.device(hardware.device), dtype=hardware.dtype, backend=backend)
    start_logs()
    place = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
    said = f"{', '.join(loaded.by_name)} at {place} - open it in a browser; {place}/docs for programs; Ctrl-C stops"
    app = create_app(loaded, settings, keys, local=not keys and not no_key)
    server.serve(app, listener, lambda: print(said, flush=True))


def _imported() -> ModuleType:
    """The server's own module; the packages that it needs are an extra."""
    from importlib import import_module

    from bertkit.errors import RequestError

    try:
        return import_module("bertkit.serve.http.server")
    except ModuleNotFoundError as error:
        raise RequestError(f"the package {error.name} is missing; install it: pip install 'bertkit[serve]'") from error
