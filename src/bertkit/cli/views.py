"""The views of `look`, `heads` and `why`: a table with the option, the computation and the text of each view."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertkit.inside.look.heads import HeadKind, LinkedHead
    from bertkit.inside.look.reading import Reading
    from bertkit.inside.look.table import StepTable
    from bertkit.inside.prune import PruneReport
    from bertkit.inside.through_training import TrainingHistory
    from bertkit.predict.bert import Bert
    from bertkit.report.why import Flips, Why

HEADS_LEGEND = (
    "looks at  what gets more than half of the attention (special tokens: the first token and separators together);",
    "          else everything (attention is even) or mixed (no half for any of them)",
    "next ...  the share of a word's attention on the next word, the previous word, itself, the first token,",
    "          separators and the same word elsewhere, averaged over all words of the text; they overlap where the",
    "          next word is a separator, so a row may add up to more than 100%",
    "spread    how many tokens share the attention;  distance  how many tokens away they are on average",
)
SHOWN_HEADS = 10  # of a ranking that is printed; JSON has all of them
# option -> the views that it belongs to
BELONGS_TO = {
    "pair": ("out", "table", "heads", "from_to", "why"),
    "head": ("table", "out"),
    "word": ("table", "why"),
    "texts": ("heads", "prune", "runs"),
    "target": ("why",),
    "flip": ("why",),
    "fill_model": ("flip",),
    "probe": ("runs",),
}
NO_TEXT = "give a text to look at, or a run's folder: --runs DIR"
PAGE_ENDINGS = (".html", ".htm")


@dataclass(frozen=True, kw_only=True)
class ViewRequest:
    """The options of one command."""

    verb: str = "look"
    text: str | None = None
    pair: str | None = None
    model: Path | None = None
    out: Path | None = None
    table: bool = False
    head: str | None = None
    word: str | None = None
    heads: bool = False
    from_to: str | None = None
    prune: bool = False
    why: bool = False
    target: str | None = None
    flip: bool = False
    fill_model: Path | None = None
    runs: list[Path] | None = None
    probe: list[Path] | None = None
    texts: Path | None = None
    as_json: bool = False

    def given(self, *names: str) -> list[str]:
        """Those of the options that the user gave."""
        return [name for name in names if getattr(self, name)]


class Subject:
    """The texts and the model of a request; the model is loaded, and its trace made, when a view needs them."""

    def __init__(self, request: ViewRequest) -> None:
        from bertkit.inside.look.heads import parse_link
        from bertkit.inside.look.table import parse_head
        from bertkit.text.corpus import CorpusReport, read_lines

        self.request, self.text = request, request.text or ""
        self.words = parse_link(request.from_to) if request.from_to else ("", "")
        self.layer, self.head = parse_head(request.head or "1-1")
        lines = read_lines(request.texts, report=CorpusReport()) if request.texts else ()
        self.more_texts = [line for _, line in lines if line.strip()]

    @cached_property
    def bert(self) -> "Bert":
        """The model."""
        from bertkit.predict.bert import load

        return load(self.request.model)

    @cached_property
    def reading(self) -> "Reading":
        """The tokens of the text with the trace of the model."""
        from bertkit.inside.look.reading import read

        return read(self.bert, self.text, self.request.pair)

    @cached_property
    def flips(self) -> "Flips | None":
        """Replacement words that change the prediction; None without --flip."""
        from bertkit.inside.attribution.counterfactuals import flips
        from bertkit.predict.bert import load

        if not self.request.flip:
            return None
        filler = load(self.request.fill_model) if self.request.fill_model else None
        return flips(self.bert, self.text, self.request.pair, fill=filler)


def _page(subject: Subject) -> dict[str, Any]:
    from bertkit.inside.look.data import page_data
    from bertkit.inside.look.look import Look

    out, reading = subject.request.out, subject.reading
    assert out is not None  # this view is chosen by --out
    head = (subject.layer, subject.head) if subject.request.head else None
    Look(page_data(subject.bert, reading, head=head)).save(out)
    return {"out": str(out), "tokens": len(reading.tokens), "bytes": out.stat().st_size}


def _table(subject: Subject) -> "StepTable":
    from bertkit.inside.look.table import step_table

    return step_table(subject.reading, layer=subject.layer, head=subject.head, word=subject.request.word)


def _heads(subject: Subject) -> "list[HeadKind]":
    from bertkit.inside.look.heads import catalogue
    from bertkit.inside.look.reading import read

    return catalogue([subject.reading, *(read(subject.bert, text) for text in subject.more_texts)])


def _format_heads(rows: "list[HeadKind]") -> str:
    from bertkit.inside.look.heads import KIND_NAMES, SHARES

    columns = [(KIND_NAMES[name].split()[0], name) for name in SHARES]
    names = " ".join(f"{shown:>9}" for shown, _ in columns)
    lines = [f"{'head':17} {'looks at':14} {names}  spread  distance"]
    for row in rows:
        shares = " ".join(f"{getattr(row, name):9.0%}" for _, name in columns)
        lines.append(f"{row.name:17} {KIND_NAMES[row.kind]:14} {shares} {row.spread:7.1f} {row.distance:9.1f}")
    return "\n".join([*lines, *HEADS_LEGEND])


def _link(subject: Subject) -> "list[LinkedHead]":
    from bertkit.inside.look.heads import link

    return link(subject.reading, *subject.words)


def _prune(subject: Subject) -> "PruneReport":
    from bertkit.inside.prune import prune
    from bertkit.progress import progress

    config = subject.bert.model.config
    with progress("removing heads", config.depth * config.heads) as meter:
        return prune(subject.bert, [subject.text, *subject.more_texts], lambda count: meter.update(count, {}))


def _format_costs(report: "PruneReport") -> str:
    half = SHOWN_HEADS // 2  # the cheapest, and the most expensive
    rows = (*report.alone[:half], *report.alone[half:][-half:])
    alone = [f"without {row.name:17} {row.cost:+.5f}" for row in rows]
    together = [f"without the {count} cheapest together {cost:+.5f}" for count, cost in report.together]
    return "\n".join([f"{report.measure} with every head: {report.whole:.4f}", *alone, *together])


def _why(subject: Subject) -> "Why":
    from bertkit.inside.attribution.attribution import why
    from bertkit.predict.fill import mark_blanks
    from bertkit.report.page import save_page
    from bertkit.report.why import why_page
    from bertkit.tasks.folder import task_name
    from bertkit.tasks.table import TASKS

    request, bert = subject.request, subject.bert
    tagging = any(row.word_level and row.head in bert.model.heads for row in TASKS.values())
    word = None if request.table and not tagging else request.word  # with --table it is the word of that view
    text = subject.text if task_name(bert.checkpoint) else mark_blanks(subject.text, bert.tokenizer.mask_token)
    explanation = why(bert, text, request.pair, target=request.target, word=word)
    if request.out:
        save_page(why_page(explanation, subject.flips), request.out)
    return explanation


def _format_why(why: "Why") -> str:
    """The explanation as text, on a terminal with the words in color above it."""
    from rich.console import Console

    from bertkit.report.why import why_text

    console = Console()
    if not console.is_terminal:
        return str(why)
    with console.capture() as shown:
        console.print(why_text(why))
    return f"{shown.get()}\n{why}"


def _runs(subject: Subject) -> "TrainingHistory":
    from bertkit.inside.through_training import HistorySettings, through_training
    from bertkit.progress import progress

    request = subject.request
    texts = (*([subject.text] if subject.text else []), *subject.more_texts)
    settings = HistorySettings(texts=texts or HistorySettings.texts, probe=tuple(request.probe or ()))
    history = through_training(request.runs or (), settings, show=progress)
    if request.out:
        history.save(request.out)
    return history


@dataclass(frozen=True)
class View:
    """A row of the table: the option that chooses the view, its computation, and its result as text."""

    option: str
    compute: Callable[[Subject], Any]
    text: Callable[[Any], str] = str


VIEWS = {
    "page": View("out", _page, lambda page: f"{page['tokens']} tokens in {page['out']}, {page['bytes'] / 1e6:.1f} MB"),
    "table": View("table", _table),
    "heads": View("heads", _heads, _format_heads),
    "link": View(
        "from_to",
        _link,
        lambda rows: "\n".join(
            [f"{'head':17} weight", *(f"{row.name:17} {row.weight:6.4f}" for row in rows[:SHOWN_HEADS])]
        ),
    ),
    "prune": View("prune", _prune, _format_costs),
    "why": View("why", _why, _format_why),
    "flips": View("flip", lambda subject: subject.flips),
    "runs": View("runs", _runs),
}


def show(request: ViewRequest) -> None:
    """Check the request, compute the chosen views and print them."""
    check_request(request)
    subject = Subject(request)
    other_page = request.why or request.runs  # then --out names the page of that view
    chosen = [
        name for name, view in VIEWS.items() if request.given(view.option) and not (name == "page" and other_page)
    ]
    results = {name: VIEWS[name].compute(subject) for name in chosen}
    if request.as_json:
        print(json.dumps(results, ensure_ascii=False, default=asdict))
    else:
        print("\n\n".join(VIEWS[name].text(result) for name, result in results.items()))


def with_default_page(request: ViewRequest) -> ViewRequest:
    """The request of a page, look.html or a name that is free, where a text is given and no view."""
    if request.text is None or request.given("runs", *(view.option for view in VIEWS.values())):
        return request
    names = (f"look{'' if number == 1 else f'-{number}'}.html" for number in count(1))
    return replace(request, out=next(path for path in map(Path, names) if not path.exists()))


def flag(name: str) -> str:
    """An option as it is written on the command line."""
    return f"--{name.replace('_', '-')}"


def check_request(request: ViewRequest) -> None:
    """Refuse a request that cannot be met, before any work is done."""
    from bertkit.errors import RequestError
    from bertkit.files import refuse_taken

    chosen = request.given(*(view.option for view in VIEWS.values() if view.option not in (*BELONGS_TO, "runs")))
    if request.text is None and not request.runs:
        raise RequestError(NO_TEXT)
    of_one_model = [name for name in (*chosen, *request.given("pair", "model")) if name != "out"]
    if request.runs and of_one_model:
        raise RequestError(f"--runs looks at checkpoints; leave out {flag(of_one_model[0])}")
    for name, views in BELONGS_TO.items():
        if request.given(name) and not request.given(*views):
            raise RequestError(f"{flag(name)} goes with {' or '.join(_view_flags(request.verb, views))}")
    if request.out:
        refuse_taken(request.out, "look.html")
        if request.out.suffix.lower() not in PAGE_ENDINGS:
            raise RequestError(f"{request.out} would be an HTML page: name it {request.out.with_suffix('.html')}")
    if request.out and request.runs:
        from bertkit.inside.through_training import json_path

        refuse_taken(json_path(request.out), "look.html")


def _view_flags(verb: str, views: Sequence[str]) -> Iterator[str]:
    """How the user of a verb chooses these views."""
    if verb != "heads":
        yield from map(flag, views)
    else:
        yield from (flag(name) for name in views if name in ("table", "from_to", "prune"))
        yield from ("the list of heads" for name in views if name == "heads")
