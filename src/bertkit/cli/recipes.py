"""`bertkit recipes`: the recipes for pre-training inside the package."""

import json
from typing import Annotated

import typer

from bertkit.cli.options import AsJson


def recipes(
    name: Annotated[str | None, typer.Argument(help="Print this recipe, to be changed and saved.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the recipes that bertkit pretrain knows by name, or print one of them.

    Example: bertkit recipes tiny-cpu > mine.toml
    """
    from bertkit.pretraining.recipe_files import find_recipe, recipe_files, recipe_summary

    if name is not None:
        text = find_recipe(name).read_text(encoding="utf-8")
        print(json.dumps({"name": name, "toml": text}) if as_json else text, end="\n" if as_json else "")
        return
    summaries = {name: recipe_summary(path) for name, path in recipe_files().items()}
    print(json.dumps(summaries) if as_json else "\n".join(f"{name:<16} {text}" for name, text in summaries.items()))
