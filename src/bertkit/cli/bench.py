"""`bertkit bench`: a load test of a running server."""

import json
from dataclasses import replace
from typing import Annotated

import typer

from bertkit.cli.common import parse_integers

TRIAL_TIMEOUT = 20.0  # seconds to wait for the reply to one text, before anything is measured


def bench(
    url: Annotated[str, typer.Argument(help="Address of the server.")] = "http://127.0.0.1:8000",
    clients: Annotated[str, typer.Option(help="Numbers of concurrent clients to measure, with commas.")] = "1,4,16,64",
    batch: Annotated[str, typer.Option(help="Numbers of texts per request to measure, with commas.")] = "1,16,64",
    length: Annotated[str, typer.Option(help="Numbers of words per text to measure, with commas.")] = "10,40,160",
    seconds: Annotated[float, typer.Option(help="Seconds to measure each row of the table.")] = 3.0,
    rate: Annotated[
        float | None,
        typer.Option(help="Send this many requests per second (Poisson arrivals), without waiting for the replies."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="Name of the model to query, if the server has several.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per row.")] = False,
) -> None:
    """Measure a running server: texts per second and latency, by batch size, text length and number of clients.

    While one list varies, the others keep their first value. The API key is read from BERTKIT_API_KEY.
    """
    from bertkit.serve.bench import Load, measure, table

    options = {"batch": batch, "length": length, "clients": clients}
    lists = {name: parse_integers(text, f"--{name}", "1,4,16") for name, text in options.items()}
    base = Load(seconds=seconds, rate=rate, **{name: numbers[0] for name, numbers in lists.items()})
    trial = replace(base, clients=1, batch=1, seconds=min(1.0, seconds))
    measure(url, trial, key=None, model=model, timeout=TRIAL_TIMEOUT)  # warms up, and fails early
    for name, numbers in lists.items():
        loads = [replace(base, **{name: number}) for number in numbers]
        rows = [measure(url, load, key=None, model=model) for load in loads]
        if as_json:
            print("\n".join(json.dumps({"by": name, **row.to_json()}) for row in rows), flush=True)
        else:
            print(table(rows, name), end="\n\n", flush=True)
