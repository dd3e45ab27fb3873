"""`bertkit probe`: train probes on each layer of a model, from annotated files to a report."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from bertkit.inside.probes.data import Probed, ProbeData, ProbeSettings, read_probe_files
from bertkit.inside.probes.labels import LabelReport, label_task, probe_labels
from bertkit.inside.probes.structure import StructureReport, probe_structure
from bertkit.inside.probes.tree_files import Tree
from bertkit.inside.probes.word_vectors import (
    PIECES,
    Pieces,
    TokenizedSentences,
    TrainAndTest,
    tokenize_sentences,
    word_vectors,
)
from bertkit.model.model import new_model
from bertkit.predict.bert import Bert
from bertkit.progress import ShowProgress, silent


def probe(
    bert: Bert, files: Sequence[Path | str], settings: ProbeSettings | None = None, *, show: ShowProgress = silent
) -> LabelReport | StructureReport:
    """Probe every layer of a model: train on all files but the last, test on the last.

    The same files, settings and machine give the same scores.
    """
    settings = settings or ProbeSettings()
    fold = str.lower if bert.tokenizer.lowercase else str  # word types of an uncased model
    data = read_probe_files([Path(file) for file in files], settings)
    tokenized, train, test = tokenize_data(bert, data)
    vectors = partial(_train_and_test_vectors, sentences=tokenized, pieces=PIECES[settings.pieces], show=show)
    random = partial(vectors, untrained(bert, settings.seed))
    report: LabelReport | StructureReport
    if settings.what == "structure":
        trees = [[tree for tree in part if isinstance(tree, Tree)] for part in (train, test)]
        report = probe_structure(trees[0], trees[1], vectors(bert), random, settings, show)
    else:
        task = label_task(train, test, settings.seed, fold)  # before the slow part, because it may refuse the files
        report = probe_labels(task, vectors(bert), random, settings, show)
    return replace(report, counts={"train": tokenized[0].counts, "test": tokenized[1].counts}, notes=data.notes)


def tokenize_data(bert: Bert, data: ProbeData) -> tuple[list[TokenizedSentences], list[Probed], list[Probed]]:
    """The tokenized training and test sentences, and the sentences without those that could not be tokenized."""
    parts = (data.train, data.test)
    tokenized = [tokenize_sentences(bert, [sentence.words for sentence in part]) for part in parts]
    train, test = ([part[n] for n in tokens.kept] for part, tokens in zip(parts, tokenized, strict=True))
    return tokenized, train, test


def untrained(bert: Bert, seed: int = 0) -> Bert:
    """The model with random weights: the baseline without training."""
    model = new_model(bert.model.config, seed=seed).eval().to(bert.model.device)
    return Bert(replace(bert.checkpoint, model=model))


def _train_and_test_vectors(
    bert: Bert, sentences: Sequence[TokenizedSentences], pieces: Pieces, show: ShowProgress
) -> TrainAndTest:
    train, test = (word_vectors(bert, part, pieces, show=show) for part in sentences)
    return train, test
