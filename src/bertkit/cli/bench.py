"""`bertkit bench`: load test of a server."""

import json
from dataclasses import replace
from typing import Annotated

import typer

TRIAL_SECONDS = 20.0  # limit for the reply to one text, before anything is measured


def bench(
    url: Annotated[str, typer.Argument(help="A server's address.")] = "http://127.0.0.1:8000",
    clients: Annotated[str, typer.Option(help="Concurrent clients.")] = "1,4,16,64",
    batch: Annotated[str, typer.Option(help="Texts in a request.")] = "1,16,64",
    length: Annotated[str, typer.Option(help="Words in a text.")] = "10,40,160",
    seconds: Annotated[float, typer.Option(help="Duration of each row.")] = 3.0,
    rate: Annotated[float | None, typer.Option(help="Open-loop Poisson arrivals, requests per second.")] = None,
    model: Annotated[str | None, typer.Option(help="One of the server's models.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per row.")] = False,
) -> None:
    """Measure a running server: texts per second and latencies by batch size, by text length, by clients.

    While one list varies, the first value of the others is used. The key is that of BERTKIT_API_KEY.
    """
    from bertkit.serve.bench import Load, measure, table

    lists = {name: _numbers(text, name) for name, text in (("batch", batch), ("length", length), ("clients", clients))}
    base = Load(seconds=seconds, rate=rate, **{name: numbers[0] for name, numbers in lists.items()})
    trial = replace(base, clients=1, batch=1, seconds=min(1.0, seconds))
    measure(url, trial, key=None, model=model, timeout=TRIAL_SECONDS)  # warm-up, and a check that it answers
    for name, numbers in lists.items():
        loads = [replace(base, **{name: number}) for number in numbers]
        rows = [measure(url, load, key=None, model=model) for load in loads]
        if as_json:
            print("\n".join(json.dumps({"by": name, **row.to_json()}) for row in rows), flush=True)
        else:
            print(table(rows, name), end="\n\n", flush=True)


def _numbers(text: str, name: str) -> list[int]:
    from bertkit.errors import RequestError

    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise RequestError(f"--{name} {text} must be integers separated by commas, such as 1,4,16") from error
