"""Words → static vectors: threads that take stretches of the text and move the same tables."""

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from functools import partial

import numpy as np
import torch

from bertkit.engine.threads import set_own_threads
from bertkit.errors import BertkitError
from bertkit.inside.static.blocks import STRETCH, BlockMaker
from bertkit.inside.static.corpus import WordCorpus
from bertkit.inside.static.glove import RUN, GloveTables, glove_run, near_counts
from bertkit.inside.static.settings import StaticSettings
from bertkit.inside.static.steps import STEPS
from bertkit.inside.static.subwords import ngram_buckets
from bertkit.inside.static.tables import AnyTable, SubwordTable, WordTable
from bertkit.inside.static.vectors import StaticVectors, Subwords
from bertkit.progress import Meter, ShowProgress, silent

SLOWEST = 1e-3  # the rate ends at this share of its start, and not at 0
LARGEST = 1e3  # of a number in a vector; sound vectors have none over 10
Work = Callable[[], int]


def train_vectors(
    corpus: WordCorpus, settings: StaticSettings, *, threads: int | None = None, show: ShowProgress = silent
) -> StaticVectors:
    """Train by the settings' method. One thread gives the same vectors each time; several race, and differ a little."""
    threads = threads or os.cpu_count() or 1
    began = time.perf_counter()
    train = _train_glove if settings.method == "glove" else _train_word2vec
    vectors = train(corpus, settings, threads, show)
    if not np.abs(vectors.vectors).max() < LARGEST:  # true of what is no number, too
        raise BertkitError(f"the vectors grew without bound at rate={settings.rate}; try a smaller one")
    seconds = round(time.perf_counter() - began, 1)
    text = {"text words": len(corpus.ids), "sentences": len(corpus.starts) - 1, "seconds": seconds}
    return StaticVectors(vectors.words, vectors.vectors, vectors.subwords, {**asdict(settings), **text})


def _train_word2vec(corpus: WordCorpus, settings: StaticSettings, threads: int, show: ShowProgress) -> StaticVectors:
    inputs = _inputs(corpus, settings)
    outputs = WordTable(torch.zeros(len(corpus.words), settings.width))
    maker = BlockMaker.of(corpus, settings)
    jobs = [
        partial(_train_stretch, inputs, outputs, maker, epoch, start)
        for epoch in range(settings.epochs)
        for start in range(0, len(corpus.ids), STRETCH)
    ]
    with show(f"training {settings.method}", settings.epochs * len(corpus.ids)) as meter:
        _run(jobs, threads, meter, "words/s")
    subwords = None
    if isinstance(inputs, SubwordTable):
        subwords = Subwords(inputs.rows[len(corpus.words) :].numpy(), settings.shortest, settings.longest)
    return StaticVectors(corpus.words, inputs.all().numpy(), subwords)


def _inputs(corpus: WordCorpus, settings: StaticSettings) -> AnyTable:
    words, subwords = len(corpus.words), settings.method == "fasttext"
    generator = torch.Generator().manual_seed(settings.seed)
    size = words + (settings.buckets if subwords else 0)
    rows = (torch.rand(size, settings.width, generator=generator) - 0.5) / settings.width
    if not subwords:
        return WordTable(rows)
    split = partial(ngram_buckets, shortest=settings.shortest, longest=settings.longest, buckets=settings.buckets)
    return SubwordTable(rows, [[n, *(words + b for b in split(word))] for n, word in enumerate(corpus.words)])


def _train_stretch(inputs: AnyTable, outputs: WordTable, maker: BlockMaker, epoch: int, start: int) -> int:
    """One stretch of one epoch; gives back how many words it had. The rate is a function of the place alone."""
    settings, size = maker.settings, len(maker.corpus.ids)
    inputs, outputs, step = inputs.beside(), outputs.beside(), STEPS[settings.method]
    length = min(STRETCH, size - start)
    for share, blocks in maker.blocks(epoch, start):
        done = (epoch * size + start + share * length) / (settings.epochs * size)
        step(inputs, outputs, blocks, settings.rate * max(1 - done, SLOWEST), settings.negatives)
    return length


def _train_glove(corpus: WordCorpus, settings: StaticSettings, threads: int, show: ShowProgress) -> StaticVectors:
    with show("counting pairs", len(corpus.ids)) as meter:
        near = near_counts(corpus, settings.window, meter.update).shuffled(settings.seed)
    tables = GloveTables(len(corpus.words), settings)
    jobs = [
        partial(glove_run, tables, near, start, settings.rate, [settings.seed, epoch, start])
        for epoch in range(settings.epochs)
        for start in range(0, len(near.counts), RUN)
    ]
    with show("training glove", settings.epochs * len(near.counts)) as meter:
        _run(jobs, threads, meter, "pairs/s")
    return StaticVectors(corpus.words, tables.vectors().numpy())


def _run(jobs: Sequence[Work], threads: int, meter: Meter, unit: str) -> None:
    """Every job once, in order, on so many threads; torch itself computes with one in each."""
    began, done = time.perf_counter(), 0
    with ThreadPoolExecutor(threads, initializer=set_own_threads, initargs=(1,)) as pool:
        waiting = [pool.submit(job) for job in jobs]
        try:
            for finished in as_completed(waiting):
                done += finished.result()
                meter.update(done, {unit: f"{done / (time.perf_counter() - began):,.0f}"})
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
