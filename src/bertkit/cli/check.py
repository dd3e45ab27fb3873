"""`bertkit check`: check data before training."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bertkit.cli.options import AsJson, ColumnNames

if TYPE_CHECKING:
    from bertkit.pretraining.check_shards import Lengths, ShardReport
    from bertkit.pretraining.recipe import Recipe
    from bertkit.text.shards.reader import ShardSet
    from bertkit.text.tokenizer import Tokenizer


def check(
    path: Annotated[Path, typer.Argument(help="A folder written by bertkit shards, or a file of labeled examples.")],
    columns: ColumnNames = None,
    dev: Annotated[Path | None, typer.Option(help="With a file: the file to evaluate on.")] = None,
    task: Annotated[str | None, typer.Option(help="With a file: its task; by default guessed.")] = None,
    model: Annotated[Path | None, typer.Option(help="With a file: count lengths in tokens of this model.")] = None,
    masks: Annotated[bool, typer.Option("--masks", help="With shards: print texts and their masked form.")] = False,
    recipe: Annotated[Path | None, typer.Option(help="With shards: check them against this recipe.")] = None,
    count: Annotated[int, typer.Option(help="With --masks: number of examples to print.")] = 5,
    as_json: AsJson = False,
) -> int:
    """Report what a folder of shards or a labeled file contains, and what would make training fail (then exit code 1).

    Of shards, each is read and its checksum verified; of a labeled file, every row is read.

    Examples: bertkit check shards/ --recipe tiny-cpu; bertkit check train.tsv --dev dev.tsv --model model/
    """
    if path.is_file() or (path.suffix and not path.exists()):
        _refuse({"--masks": masks, "--recipe": recipe}, "goes with a folder of shards", path)
        return _check_examples(path, dev, task, model, columns or [], as_json)
    options = {"--dev": dev, "--task": task, "--model": model, " ".join(columns or []): columns}
    _refuse(options, "goes with a file of labeled examples", path)
    from bertkit.pretraining.check_shards import report_shards
    from bertkit.pretraining.recipe import read_recipe
    from bertkit.text.shards.reader import open_shards

    shards = open_shards(path, verify=True)
    settings = read_recipe(recipe, f"shards={path}") if recipe else None
    if masks:
        _print_masks(shards, settings, count, as_json)
        return 0
    report = report_shards(shards, settings)
    print(json.dumps(asdict(report), indent=2) if as_json else "\n".join(_format_report(report)))
    return 1 if report.stops else 0


def _refuse(options: Mapping[str, object], rule: str, path: Path) -> None:
    """Refuse the first of the options that was given."""
    from bertkit.errors import RequestError

    for name, value in options.items():
        if value:
            kind = "a folder" if path.is_dir() else "a file" if path.exists() else "missing"
            raise RequestError(f"{name} {rule}; {path} is {kind}")


def _check_examples(
    path: Path, dev: Path | None, task: str | None, model: Path | None, columns: list[str], as_json: bool
) -> int:
    from bertkit.data.columns import named_columns
    from bertkit.finetuning.check.check_data import check_data

    tokenizer, limit = _tokenizer_and_limit(model) if model else (None, 512)
    report = check_data(path, dev, task=task, columns=named_columns(columns), tokenizer=tokenizer, limit=limit)
    print(json.dumps(report.to_json(), indent=2, ensure_ascii=False) if as_json else report)
    return 1 if report.stops else 0


def _tokenizer_and_limit(model: Path) -> "tuple[Tokenizer, int]":
    """The tokenizer of a model folder, or of a folder with a vocabulary only, and the longest text in tokens."""
    from bertkit.checkpoint.bundled import model_folder, tokenizer_folder
    from bertkit.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(tokenizer_folder(model))
    if not (model_folder(model) / "config.json").is_file():
        return tokenizer, 512
    from bertkit.checkpoint.save_load import load_checkpoint

    return tokenizer, load_checkpoint(model).max_length


def _print_masks(shards: "ShardSet", recipe: "Recipe | None", count: int, as_json: bool) -> None:
    """Print pairs of lines (text, masked text) and the measured shares; or one JSON object per example."""
    from bertkit.pretraining.examples.batches import DataSettings
    from bertkit.pretraining.examples.show_masks import lines, masked_examples

    examples, shares = masked_examples(shards, recipe.data if recipe else DataSettings(), count)
    for example in examples:
        if as_json:
            print(json.dumps(asdict(example), ensure_ascii=False))
            continue
        if example.truth:
            print(f"({example.truth})")
        for text, shown in lines(example):
            print(f"{text}\n{shown}\n")
    if not as_json:
        corrupted = f"{shares.masked:.1%} masked, {shares.replaced:.1%} replaced, {shares.kept:.1%} kept"
        print(f"{shares.chosen:.1%} of {shares.tokens:,} tokens chosen; of these {corrupted}")
        for remark in shares.remarks:
            print(remark)


def _format_report(report: "ShardReport") -> Iterator[str]:
    """The report as lines of text."""
    yield f"{'shards':18}{report.shards:,}, every checksum as written"
    yield f"{'tokens':18}{report.tokens:,}, {report.unknown_share:.3%} of them unknown"
    yield f"{'sentences':18}{report.sentences:,}{_format_lengths(report.sentence_lengths)}"
    yield f"{'documents':18}{report.documents:,}{_format_lengths(report.document_lengths)}"
    yield f"{'vocabulary':18}{report.vocabulary:,} pieces, {report.pieces_used:,} of them in the text"
    if report.entities is not None:
        yield f"{'names':18}{report.entities:,}"
    if report.epoch:
        times = "" if report.epoch["epochs"] is None else f"; the recipe reads them {report.epoch['epochs']} times"
        yield f"{'examples':18}{report.epoch['examples']:,} in an epoch{times}"
        yield f"{'padding':18}{report.epoch['padding_share']:.1%} if they were padded to the recipe's length"
    yield from (f"note: {note}" for note in report.notes)
    yield from (f"stop: {stop}" for stop in report.stops)


def _format_lengths(lengths: "Lengths | None") -> str:
    if lengths is None:
        return ""
    return f"; tokens: mean {lengths.mean}, median {lengths.median}, 95 % to {lengths.most}, most {lengths.longest}"
