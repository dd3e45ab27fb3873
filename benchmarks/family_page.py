"""The page of `family`: tables as Markdown, and pictures beside it, from a result file that may lack rows."""

import json
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glue_scores import METRICS
from pictures import svg_files

from bertkit.errors import RequestError
from bertkit.files import whole_file
from bertkit.report.chart import Line, Shape, chart, circle, label, path
from bertkit.report.page import render_fragment

if TYPE_CHECKING:
    from family import Row

NAMES = {"matthews": "Matthews", "accuracy": "accuracy", "spearman": "Spearman", "f1": "F1"}
# Answers without reading: the larger class of each dev file, and no correlation; a coin for BLiMP.
BLIND = {"CoLA": 0.0, "SST-2": 50.9, "MRPC": 68.4, "STS-B": 0.0, "RTE": 52.7, "CoNLL-2003": 0.0, "BLiMP": 50.0}
LOSSES = {"mlm_loss": "masked words", "causal_loss": "next words", "bilm_loss": "next and previous words"}
LOSSES |= {"plm_loss": "permuted words"}
NONE = "–"
LEFT, RIGHT, TOP, STEP, WIDTH = 118, 16, 34, 22, 560  # of the picture of scores, in pixels
KINDS = {"frozen": "main", "fine-tuned": "second", "BLiMP": "third"}
UNFAIR = """
Equal minutes are not equal tokens. ALBERT's layer is as large as twelve layers of the others and is used twelve
times, so that a token costs twelve times as much; recurrent layers read a token after the other, which leaves a GPU
idle; XLNet computes two streams. The published models were compared after days or weeks, where such differences count
less.

Equal parameters in the layers are not equal models: tables of words come on top, narrow ones for ALBERT and ELECTRA,
and ELECTRA's generator is not counted.

The Transformers have one optimizer and one rate, which were chosen for ELECTRA with masked words; each might gain by
its own. The recurrent models have AdamW.

Minutes count from the first step, compilation included, which takes longer for some. word2vec has its epochs on a
CPU, whatever they take, and sees no pieces but words.

Each model was pre-trained once; the spread (±) is that of the seeds of fine-tuning alone. Differences of a point
between two rows mean little.

All read the same vocabulary of pieces in lower case. ELMo has no characters, ULMFiT no continued pre-training on the
texts of the task, and GPT no language model beside the task, as their papers have. XLNet has no memory.

Defaults of fine-tuning were found on encoders like BERT; ULMFiT alone has its paper's settings (slanted rates,
layer_decay=0.38, unfreeze=0.5).

A pair of texts is read apart for frozen vectors (|u - v| and u * v), so a model that learned about pairs cannot show
it there. Training for a pair reads both together.

BLiMP asks a causal model for the probability of a sentence, ELMo for two of them, masked models and XLNet for each
token given all others, ELECTRA for its judgement of each token: these are not the same question.

Losses on held-out text are those of each model's own objective. They cannot be compared between objectives: a masked
word is guessed from both sides, the next word from one.
"""
# (what is claimed, kind of score, task or None for the mean, the better row, the other)
ORDERS = (
    ("Vectors in context beat static ones", "features", "CoNLL-2003", "elmo", "word2vec"),
    ("BERT's vectors beat ELMo's", "features", "CoNLL-2003", "bert", "elmo"),
    ("A Transformer beats an LSTM of the same objective", "fine-tuned", None, "gpt", "ulmfit"),
    ("Reading both sides beats reading from the left", "fine-tuned", None, "roberta", "gpt"),
    ("RoBERTa beats BERT: next sentences do not help", "fine-tuned", None, "roberta", "bert"),
    ("Judging every token beats masked words at this size", "fine-tuned", None, "electra", "roberta"),
    ("Permuted words beat masked words", "fine-tuned", None, "xlnet", "roberta"),
)
Facts = Mapping[str, Any]


def write_page(result: Path, out: Path, rows: Sequence["Row"]) -> None:
    """The page, and its pictures beside it."""
    try:
        known: dict[str, Facts] = json.loads(result.read_text(encoding="utf-8"))["rows"]
    except (OSError, ValueError, KeyError) as error:
        raise RequestError(f"{result} holds no result of this benchmark ({error})") from error
    done = [row for row in rows if "training" in known.get(row.name, {})]
    if not done:
        raise RequestError(f"{result} has no row that was trained; run some with --rows")
    pictures = {"scores": scores_picture(done, known)}
    if both := curves_picture(known):
        pictures["masked-causal"] = both
    files = {name: out.with_name(f"{out.stem}-{name}.svg") for name in pictures}
    for name, svg in pictures.items():
        write(files[name], svg)
    links = {name: f"![{name}]({file.name})" for name, file in files.items()}
    write(out, "\n".join(page(done, known, links, result.name)))


def page(rows: Sequence["Row"], known: Mapping[str, Facts], pictures: Mapping[str, str], source: str) -> Iterator[str]:
    """The lines of the page."""
    trained = [known[row.name]["training"] for row in rows]
    minutes = sorted(
        {f"{each['minutes']:g}" for row, each in zip(rows, trained, strict=True) if row.name != "word2vec"}
    )
    devices = sorted({each["device"] for row, each in zip(rows, trained, strict=True) if row.name != "word2vec"})
    yield "# The family tree, measured\n"
    yield joined(
        f"""{len(rows)} models, from word2vec to ELECTRA, with about ten million parameters in their layers,
        trained on the same text with the same vocabulary for the same time: {" or ".join(minutes) or "no"} minutes
        each on {", ".join(devices)}, {span([each["date"] for each in trained])} (word2vec: five epochs on a CPU).
        Then each is measured in the same
        two ways: by a small classifier on its frozen vectors, and by fine-tuning."""
    )
    yield ""
    yield f"The command is `runs/family.sh`; all numbers are in `{source}`. {pictures['scores']}\n"
    yield "## Pre-training\n"
    columns = (
        "model",
        "year",
        "learns to predict",
        "parameters in layers",
        "tokens read",
        "targets",
        "loss on held-out text",
        "date",
    )
    yield from table(columns, [training_cells(row, known[row.name]["training"]) for row in rows])
    yield "## Fine-tuned\n"
    seeds = sorted({len(each) for row in rows for each in known[row.name].get("fine-tuned", {}).values()})
    yield joined(
        f"""Dev scores at the last step, mean and standard deviation of {span(list(map(str, seeds))) if seeds else "no"}
        seeds (a score without ± has one); SST-2 with a fixed 10,000 of its rows."""
    )
    yield ""
    yield from score_table(rows, known, "fine-tuned")
    yield "## Frozen vectors\n"
    yield joined(
        """A linear classifier on a learned mixture of all layers (`bertkit finetune --features`). BLiMP needs no
        training: the share of pairs whose right sentence is the likelier one."""
    )
    yield ""
    yield from score_table(rows, known, "features")
    yield "## Known orders\n"
    yield from table(("claim", "measured on", "scores", "comes out"), list(order_cells(known)))
    yield "## Masked and causal\n"
    yield from masked_and_causal(known, pictures)
    yield "## What is not fair about it\n"
    yield from (f"- {joined(part)}" for part in UNFAIR.strip().split("\n\n"))
    yield ""


def training_cells(row: "Row", facts: Facts) -> tuple[str, ...]:
    """A row of the table of pre-training."""
    loss = next(
        (f"{value:.2f} ({LOSSES[name]})" for name, value in facts.get("heldout", {}).items() if name in LOSSES), NONE
    )
    if row.name == "electra" and "rtd_f1" in facts.get("heldout", {}):
        loss = f"F1 of replaced words {100 * facts['heldout']['rtd_f1']:.1f}"
    layers = facts.get("parameters_in_layers")
    size = f"{layers / 1e6:.1f} M" if layers else f"0 (vectors {facts['parameters'] / 1e6:.1f} M)"
    counts = (f"{facts[name] / 1e6:,.0f} M" for name in ("tokens", "targets"))
    return (row.title, str(row.year), row.objective, size, *counts, loss, facts["date"])


def score_table(rows: Sequence["Row"], known: Mapping[str, Facts], kind: str) -> Iterator[str]:
    """A column for each task, the mean of the tasks, and BLiMP beside frozen vectors."""
    extra = ("BLiMP",) if kind == "features" else ()
    columns = ("model", *(f"{task} ({NAMES[metric]})" for task, metric in METRICS.items()), "mean", *extra)
    body = []
    for row in rows:
        facts = known[row.name]
        cells = [show(facts, kind, task) for task in METRICS]
        cells.append(number_or_none(mean_score(facts, kind)))
        cells += [number_or_none((facts.get("blimp") or {}).get("score"))] if extra else []
        body.append((row.title, *cells))
    blind = [BLIND[task] for task in METRICS]
    body.append(
        ("no reading", *(f"{value:.1f}" for value in (*blind, statistics.fmean(blind))), *(["50.0"] if extra else []))
    )
    yield from table(columns, body)


def score(facts: Facts, kind: str, task: str) -> float | None:
    """A task's score; of fine-tuning the mean over seeds."""
    found = facts.get(kind, {}).get(task)
    if not found:
        return None
    return found["mixture"] if kind == "features" else statistics.fmean(each["last"] for each in found.values())


def show(facts: Facts, kind: str, task: str) -> str:
    """A task's score, with its spread over seeds if there are several."""
    value, found = score(facts, kind, task), facts.get(kind, {}).get(task, {})
    if value is None or kind == "features" or len(found) < 2:
        return number_or_none(value)
    return f"{value:.1f} ± {statistics.stdev(each['last'] for each in found.values()):.1f}"


def mean_score(facts: Facts, kind: str) -> float | None:
    """The mean over the six tasks, if all are known."""
    scores = [score(facts, kind, task) for task in METRICS]
    known = [value for value in scores if value is not None]
    return statistics.fmean(known) if len(known) == len(scores) else None


def order_cells(known: Mapping[str, Facts]) -> Iterator[tuple[str, ...]]:
    """Whether what is known from papers comes out here."""
    for claim, kind, task, better, other in ORDERS:
        read: Callable[[Facts], float | None] = (
            (lambda facts, kind=kind: mean_score(facts, kind))
            if task is None
            else (lambda facts, kind=kind, task=task: score(facts, kind, task))
        )
        values = [read(known.get(name, {})) for name in (better, other)]
        where = f"{task or 'mean of six tasks'}, {'frozen' if kind == 'features' else kind}"
        first, second = values
        if first is None or second is None:
            yield claim, where, NONE, "not measured"
            continue
        gap = first - second
        verdict = "yes" if gap >= 1 else "no" if gap <= -1 else "within a point"
        yield claim, where, f"{better} {first:.1f}, {other} {second:.1f}", verdict


def masked_and_causal(known: Mapping[str, Facts], pictures: Mapping[str, str]) -> Iterator[str]:
    """RoBERTa beside GPT: the same layers, text, optimizer and minutes."""
    pair = {
        name: known[key]
        for name, key in (("masked (RoBERTa)", "roberta"), ("causal (GPT)", "gpt"))
        if "training" in known.get(key, {})
    }
    yield joined(
        """A causal model predicts every token, a masked one 15 % of them: 1 / 0.15 = 6.7 times as many targets for
        the same text. The layers, the optimizer and the text are the same here. Beside the objective, only the
        ends differ: GPT has no norm of its embeddings, and a plain map to the words."""
    )
    yield ""
    if len(pair) < 2:
        yield "Not measured yet: it needs the rows `roberta` and `gpt`.\n"
        return
    columns = (
        "objective",
        "tokens",
        "targets",
        "targets for each token",
        "held-out loss at the end",
        "fine-tuned, mean of six",
        "frozen, mean of six",
    )
    body = []
    for name, facts in pair.items():
        training = facts["training"]
        ends = training["curve"]["heldout"] or training["curve"]["training"]
        counts = (f"{training[key] / 1e6:,.0f} M" for key in ("tokens", "targets"))
        means = (number_or_none(mean_score(facts, kind)) for kind in ("fine-tuned", "features"))
        body.append((name, *counts, f"{training['target_share']:.2f}", f"{ends[-1][2]:.2f}" if ends else NONE, *means))
    yield from table(columns, body)
    yield joined(
        f"""The two losses have other scales: a masked word is guessed from both sides. What compares them is what
        they are good for, in the last two columns; and how soon each curve becomes flat.
        {pictures.get("masked-causal", "")}"""
    )
    yield ""


def curves_picture(known: Mapping[str, Facts]) -> str | None:
    """Held-out loss (of training, where nothing was held out) over tokens, targets and minutes, as one file."""
    pair = {
        name: known[key]["training"]
        for name, key in (("masked", "roberta"), ("causal", "gpt"))
        if "training" in known.get(key, {})
    }
    curves = {
        name: each["curve"]["heldout"] if len(each["curve"]["heldout"]) > 1 else each["curve"]["training"]
        for name, each in pair.items()
    }
    if len(pair) < 2 or not all(curves.values()):
        return None
    kinds = dict(zip(pair, ("main", "second"), strict=True))
    figures = []
    for along, place, scale in (("M tokens read", 0, 1e-6), ("M targets seen", 0, 1e-6), ("seconds", 1, 1.0)):
        factors = {name: scale * (each["target_share"] if "targets" in along else 1) for name, each in pair.items()}
        lines = [
            Line(name, [(point[place] * factors[name], point[2]) for point in points], kinds[name])
            for name, points in curves.items()
        ]
        figures.append(chart(f"Loss over {along}", lines, along=along))
    return side_by_side(svg_files("".join(figures)))


def side_by_side(drawings: Sequence[str]) -> str:
    """Several drawings of 440 x 220 as one."""
    inner = "".join(
        svg.replace("<svg ", f'<svg x="{440 * n}" width="440" height="220" ', 1) for n, svg in enumerate(drawings)
    )
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {440 * len(drawings)} 220" role="img">{inner}</svg>\n'


def scores_picture(rows: Sequence["Row"], known: Mapping[str, Facts]) -> str:
    """A line for each model, and on it the means of its frozen and fine-tuned scores, and BLiMP."""
    bottom = TOP + STEP * len(rows)
    shapes: list[Shape] = []
    for tick in range(0, 101, 20):
        shapes += [
            path("grid", f"M{across(tick):.1f} {TOP - 8}V{bottom}"),
            label("x", across(tick), bottom + 16, str(tick)),
        ]
    for place, (name, kind) in enumerate(KINDS.items()):
        shapes += [circle(kind, LEFT + 110 * place, 10, 4), label("", LEFT + 110 * place + 9, 14, name)]
    for number, row in enumerate(rows):
        y, facts = TOP + STEP * (number + 0.5), known[row.name]
        shapes += [label("y", LEFT - 10, y + 4, row.title), path("grid", f"M{LEFT} {y:.1f}H{WIDTH - RIGHT}")]
        values = (
            mean_score(facts, "features"),
            mean_score(facts, "fine-tuned"),
            (facts.get("blimp") or {}).get("score"),
        )
        for value, kind in zip(values, KINDS.values(), strict=True):
            shapes += [circle(kind, across(max(value, 0.0)), y, 5)] if value is not None else []
    drawn = render_fragment(
        "chart.html",
        name="Means of six tasks, and BLiMP",
        keys=[],
        shapes=shapes,
        width=WIDTH,
        height=bottom + 24,
        natural_size=False,
    )
    return svg_files(drawn)[0] + "\n"


def across(value: float) -> float:
    """Pixels from the left edge, for a score from 0 to 100."""
    return LEFT + value / 100 * (WIDTH - LEFT - RIGHT)


def joined(text: str) -> str:
    """A paragraph on one line."""
    return " ".join(text.split())


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A Markdown table."""
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    yield from (f"| {' | '.join(row)} |" for row in rows)
    yield ""


def span(dates: Sequence[str]) -> str:
    """`2026-11-18`, or the first and the last."""
    return min(dates) if min(dates) == max(dates) else f"{min(dates)} to {max(dates)}"


def number_or_none(value: float | None) -> str:
    """One digit after the point."""
    return NONE if value is None else f"{value:.1f}"


def write(path: Path, text: str) -> None:
    """Whole or not at all."""
    with whole_file(path) as draft:
        draft.write_text(re.sub(r"[ \t]+\n", "\n", text), encoding="utf-8")
