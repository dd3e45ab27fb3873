"""Words → static vectors: threads that take stretches of the text and move the same tables."""

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from functools import partial

import numpy as np
import torch
from torch import Tensor

from bertkit.engine.threads import set_thread_count
from bertkit.errors import BertkitError
from bertkit.inside.static.blocks import STRETCH, BlockMaker, Blocks
from bertkit.inside.static.corpus import WordCorpus
from bertkit.inside.static.glove import RUN, GloveTables, glove_run, near_counts
from bertkit.inside.static.settings import StaticSettings
from bertkit.inside.static.tables import AnyTable, SubwordTable, WordTable
from bertkit.inside.static.vectors import StaticVectors, Subwords, ngram_buckets
from bertkit.progress import Meter, ShowProgress, silent

SLOWEST = 1e-3  # the rate ends at this share of its start, and not at 0
LARGEST = 1e3  # of a number in a vector; sound vectors have none over 10
Work = Callable[[], int]


def skip_gram(inputs: AnyTable, outputs: WordTable, blocks: Blocks, rate: float, negatives: int) -> None:
    """Each word learns to tell the words around it from drawn ones."""
    seen = blocks.contexts.shape[1]
    columns = torch.cat([blocks.contexts, blocks.drawn], dim=1)
    x_BLD, y_BMD = inputs.read(blocks.centers), outputs.read(columns)
    pairs = blocks.weights.sum(dim=2, keepdim=True)
    noise = (pairs * (negatives / blocks.drawn.shape[1])).expand(-1, -1, blocks.drawn.shape[1])
    pull_BLM = torch.cat([blocks.weights, noise], dim=2).mul_(rate)
    error_BLM = torch.bmm(x_BLD, y_BMD.transpose(1, 2)).sigmoid_().neg_()  # what the answer is short of
    error_BLM[:, :, :seen] += 1
    error_BLM *= pull_BLM
    x_steps, y_steps = torch.bmm(error_BLM, y_BMD), torch.bmm(error_BLM.transpose(1, 2), x_BLD)
    inputs.add(blocks.centers.flatten(), x_steps.flatten(0, 1), pull_BLM.sum(dim=2).flatten())
    outputs.add(columns.flatten(), y_steps.flatten(0, 1), pull_BLM.sum(dim=1).flatten())


def cbow(inputs: AnyTable, outputs: WordTable, blocks: Blocks, rate: float, negatives: int) -> None:
    """The mean of the words around a word learns to tell that word from drawn ones.

    As in word2vec.c every word around takes the whole step, times its weight, and not its share of the mean.
    """
    drawn = blocks.drawn.shape[1]
    pairs_BL1 = blocks.weights.sum(dim=2, keepdim=True)
    pull_BL1 = (pairs_BL1 > 0) * rate
    around_BCD, y_BLD, z_BKD = inputs.read(blocks.contexts), outputs.read(blocks.centers), outputs.read(blocks.drawn)
    mean_BLD = torch.bmm(blocks.weights / pairs_BL1.clamp(min=1e-6), around_BCD)
    right_BL1 = (1 - (mean_BLD * y_BLD).sum(dim=2, keepdim=True).sigmoid()) * pull_BL1
    wrong_BLK = -torch.bmm(mean_BLD, z_BKD.transpose(1, 2)).sigmoid_() * (pull_BL1 * (negatives / drawn))
    step_BLD = right_BL1 * y_BLD + torch.bmm(wrong_BLK, z_BKD)
    columns = torch.cat([blocks.centers, blocks.drawn], dim=1)
    y_steps = torch.cat([right_BL1 * mean_BLD, torch.bmm(wrong_BLK.transpose(1, 2), mean_BLD)], dim=1)
    shared = pull_BL1.sum(dim=1).expand(-1, drawn) * (negatives / drawn)
    outputs.add(columns.flatten(), y_steps.flatten(0, 1), torch.cat([pull_BL1[:, :, 0], shared], dim=1).flatten())
    x_steps = torch.bmm(blocks.weights.transpose(1, 2), step_BLD)
    inputs.add(
        blocks.contexts.flatten(), x_steps.flatten(0, 1), blocks.weights.sum(dim=1).flatten() * (rate * (1 + negatives))
    )


def skip_gram_by_pairs(x: Tensor, y: Tensor, blocks: Blocks, rate: float, negatives: int) -> tuple[Tensor, Tensor]:
    """The same step pair by pair, as the paper has it: the tables [W, D] after it."""
    new_x, new_y = x.clone(), y.clone()
    share = negatives / blocks.drawn.shape[1]

    def move(word: int, other: int, label: int, weight: float) -> None:
        error = rate * weight * (label - torch.sigmoid(x[word] @ y[other]))
        new_x[word] += error * y[other]
        new_y[other] += error * x[word]

    for block, words in enumerate(blocks.centers.tolist()):
        for place, word in enumerate(words):
            weights = blocks.weights[block, place].tolist()
            for other, weight in zip(blocks.contexts[block].tolist(), weights, strict=True):
                move(word, other, 1, weight)
            for other in blocks.drawn[block].tolist():
                move(word, other, 0, sum(weights) * share)
    return new_x, new_y


def cbow_by_words(x: Tensor, y: Tensor, blocks: Blocks, rate: float, negatives: int) -> tuple[Tensor, Tensor]:
    """The same step word by word: the tables [W, D] after it."""
    new_x, new_y = x.clone(), y.clone()
    for block, words in enumerate(blocks.centers.tolist()):
        drawn = blocks.drawn[block].tolist()
        for place, word in enumerate(words):
            around = [
                (n, w) for n, w in zip(blocks.contexts[block], blocks.weights[block, place], strict=True) if w > 0
            ]
            if not around:
                continue
            mean = sum(x[n] * w for n, w in around) / sum(w for _, w in around)
            step = torch.zeros_like(mean)
            for other, label, weight in [(word, 1, 1.0), *((n, 0, negatives / len(drawn)) for n in drawn)]:
                error = rate * weight * (label - torch.sigmoid(mean @ y[other]))
                step += error * y[other]
                new_y[other] += error * mean
            for n, w in around:
                new_x[n] += w * step
    return new_x, new_y


STEPS = {"skip-gram": skip_gram, "fasttext": skip_gram, "cbow": cbow}


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
    with ThreadPoolExecutor(threads, initializer=set_thread_count, initargs=(1,)) as pool:
        waiting = [pool.submit(job) for job in jobs]
        try:
            for finished in as_completed(waiting):
                done += finished.result()
                meter.update(done, {unit: f"{done / (time.perf_counter() - began):,.0f}"})
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
