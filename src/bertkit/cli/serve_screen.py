"""What `bertkit serve` shows on a terminal: each model while it loads, then the address in a frame."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bertkit.predict.bert import Bert


def shown_load(load: "Callable[[str | None], Bert]") -> "Callable[[str | None], Bert]":
    """The function `load`, with a line on standard error that says which model is being loaded."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False)

    def load_and_show(path: str | None) -> "Bert":
        began, name = time.monotonic(), _shown_name(path)
        with console.status(f"loading {name}", spinner="dots"):
            bert = load(path)
        console.print(f"[green]✓[/] {name} [dim]{time.monotonic() - began:.1f} s[/]")
        return bert

    return load_and_show


def _shown_name(path: str | None) -> str:
    """A model as the user named it; one of the package by its name."""
    from bertkit.checkpoint.bundled import bundled_folder

    is_bundled = path is None or Path(path).is_relative_to(bundled_folder())
    return f"the bundled model{f' {Path(path).name}' if path else ''}" if is_bundled else str(path)


def print_frame(address: str, names: Iterable[str], others: str) -> None:
    """The address in a frame; `others` says which machines reach it."""
    from rich.console import Console
    from rich.panel import Panel

    lines = [f"[bold]{address}[/]  open it in a browser", f"{address}/docs  for programs"]
    lines += [f"models: {', '.join(names)}", f"{others}; Ctrl-C stops"]
    Console(highlight=False).print(Panel("\n".join(lines), title="bertkit serve", expand=False, border_style="green"))
