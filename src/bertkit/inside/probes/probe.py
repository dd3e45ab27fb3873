"""`bertkit probe`: what a probe can predict from each layer of a model, from annotated files to a report."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from bertkit.inside.probes.data import ProbeSettings, read_probe_files
from bertkit.inside.probes.labels import LabelReport, label_task, probe_labels
from bertkit.inside.probes.structure import StructureReport, probe_structure
from bertkit.inside.probes.tree_files import Tree
from bertkit.inside.probes.word_vectors import PIECES, BothSides, Pieces, Sentences, cut_sentences, word_vectors
from bertkit.model.model import new_model
from bertkit.predict.bert import Bert
from bertkit.progress import ShowProgress, silent


def probe(
    bert: Bert, files: Sequence[Path | str], settings: ProbeSettings | None = None, *, show: ShowProgress = silent
) -> LabelReport | StructureReport:
    """Probe every layer of a model: learn from all files but the last, measure on that.

    The same files, settings and machine give the same numbers.
    """
    settings = settings or ProbeSettings()
    fold = str.lower if bert.tokenizer.lowercase else str  # a model that lowercases takes The and the for one word
    data = read_probe_files([Path(file) for file in files], settings)
    cut = [cut_sentences(bert, [sentence.words for sentence in side]) for side in (data.train, data.test)]
    train, test = ([side[n] for n in own.kept] for side, own in zip((data.train, data.test), cut, strict=True))
    vectors = partial(_read_both, cut=cut, pieces=PIECES[settings.pieces], show=show)
    random = partial(vectors, untrained(bert, settings.seed))
    report: LabelReport | StructureReport
    if settings.what == "structure":
        known, gold = ([each for each in side if isinstance(each, Tree)] for side in (train, test))
        report = probe_structure(known, gold, vectors(bert), random, settings, show)
    else:
        task = label_task(train, test, settings.seed, fold)  # before the slow part: files may not fit each other
        report = probe_labels(task, vectors(bert), random, settings, show)
    return replace(report, counts={"train": cut[0].counts, "test": cut[1].counts}, notes=data.notes)


def untrained(bert: Bert, seed: int = 0) -> Bert:
    """The same tokenizer and the same shape, with random weights: the baseline for what training adds."""
    model = new_model(bert.model.config, seed=seed).eval().to(bert.model.device)
    return Bert(replace(bert.checkpoint, model=model))


def _read_both(bert: Bert, cut: Sequence[Sentences], pieces: Pieces, show: ShowProgress) -> BothSides:
    train, test = (word_vectors(bert, side, pieces, show=show) for side in cut)
    return train, test
