"""`bertkit vocab`: train a WordPiece vocabulary."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from bertkit.cli.options import AsJson, Corpus
from bertkit.errors import RequestError
from bertkit.files import refuse_to_overwrite
from bertkit.progress import progress
from bertkit.text.vocabulary.build import VocabularySettings, make_vocabulary


def vocab(
    texts: Corpus,
    out: Annotated[Path, typer.Option(help="The folder to write, which must not exist yet.")],
    size: Annotated[int, typer.Option(help="Exact number of tokens in the vocabulary.")] = 30522,
    cased: Annotated[bool, typer.Option("--cased", help="Keep upper case and accents.")] = False,
    min_count: Annotated[int, typer.Option(help="Do not merge pairs that occur fewer times than this.")] = 2,
    alphabet_limit: Annotated[int | None, typer.Option(help="Maximum number of characters; by default 1000.")] = None,
    extend: Annotated[
        Path | None, typer.Option(help="Keep the tokens of this model with their ids, and append words of the texts.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train a WordPiece vocabulary on texts.

    Text may be compressed (.gz .bz2 .xz .zst). Example: bertkit vocab books/*.txt --size 30000 --out vocab/
    """
    limit = VocabularySettings.alphabet_limit if alphabet_limit is None else alphabet_limit
    settings = VocabularySettings(size=size, lowercase=not cased, min_count=min_count, alphabet_limit=limit)
    refuse_to_overwrite(out)
    if extend is not None:
        if alphabet_limit is not None:
            raise RequestError(f"the characters are those of {extend}; leave out --alphabet-limit")
        return _extend(texts, extend, settings, out, as_json)
    vocabulary = make_vocabulary(texts, settings, show=progress)
    vocabulary.save(out)
    print(json.dumps(vocabulary.report, indent=2) if as_json else _format_report(vocabulary.report, out))


def _extend(texts: list[Path], model: Path, settings: VocabularySettings, out: Path, as_json: bool) -> None:
    from bertkit.checkpoint.bundled import tokenizer_folder
    from bertkit.text.tokenizer import Tokenizer
    from bertkit.text.vocabulary.extension import extend_vocabulary

    if not settings.lowercase:
        raise RequestError(f"the vocabulary has the case of {model}; leave out --cased")
    old = Tokenizer.load(tokenizer_folder(model))
    vocabulary = extend_vocabulary(texts, old, settings.size, min_count=settings.min_count, show=progress)
    vocabulary.save(out)
    report = vocabulary.report
    lines = {
        "vocabulary": f"{report['size']:,} pieces in {out}",
        "kept": f"{report['kept']:,} pieces of {model}, each at its id",
        "added": f"{report['added']:,} words: {', '.join(report['first_added'][:8])} ...",
        "pieces per word": f"{report['pieces_per_word_before']:.3f} before, {report['pieces_per_word_after']:.3f} now",
    }
    print(json.dumps(report, indent=2) if as_json else "\n".join(f"{name:20}{text}" for name, text in lines.items()))


def _format_report(report: dict[str, Any], out: Path) -> str:
    """The report as lines of text."""
    size, pieces, alphabet, corpus = report["size"], report["pieces"], report["alphabet"], report["corpus"]
    cut_share = f"{100 * alphabet['cut_share_of_text']:.4f} % of the text"
    mean, median = corpus["mean_words_per_sentence"], corpus["median_words_per_sentence"]
    memory = report["peak_memory_bytes"]
    lines = {
        "vocabulary": f"{size:,} pieces in {out}",
        "whole words": f"{pieces['whole_words']:,} ({100 * pieces['whole_words'] / size:.1f} %)",
        "## pieces": f"{pieces['continuations']:,} ({100 * pieces['continuations'] / size:.1f} %)",
        "characters": f"{pieces['characters']:,} kept, {alphabet['cut']:,} cut ({cut_share})",
        "corpus": f"{corpus['documents']:,} documents, {corpus['sentences']:,} sentences",
        "words": f"{corpus['words']:,}; {corpus['unique_words']:,} different ones, normalized and cut at punctuation",
        "words per sentence": f"mean {mean}, median {median}",
        "time": f"counting {report['seconds']['counting']} s, merging {report['seconds']['merging']} s",
        "peak memory": f"{memory / 2**20:,.0f} MiB" if memory else "not known on this system",
    }
    if corpus["rare_words_left_out"]:
        share = f"{100 * corpus['share_of_text_left_out']:.2f} % of the text"
        lines["left out"] = f"the {corpus['rare_words_left_out']:,} rarest words ({share}), to stay in memory"
    notes = [f"note: {reason} ({note['count']:,}, first: {note['first']})" for reason, note in corpus["notes"].items()]
    return "\n".join([*(f"{name:20}{text}" for name, text in lines.items()), *notes])
