"""Training of static vectors: several threads update the same tables, each with its own part of the text."""

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
from bertkit.inside.static.blocks import WORDS_PER_JOB, BlockMaker, Blocks
from bertkit.inside.static.corpus import WordCorpus
from bertkit.inside.static.glove import PAIRS_PER_JOB, GloveTables, count_pairs, train_pairs
from bertkit.inside.static.settings import StaticSettings
from bertkit.inside.static.tables import AnyTable, SubwordTable, WordTable
from bertkit.inside.static.vectors import StaticVectors, Subwords, ngram_buckets
from bertkit.progress import Meter, ShowProgress, silent

MIN_RATE_SHARE = 1e-3  # of the initial learning rate, at the end of training
MAX_VALUE = 1e3  # in a vector; normal values are under 10
Job = Callable[[], int]  # returns the number of words or pairs


def skip_gram(inputs: AnyTable, outputs: WordTable, blocks: Blocks, rate: float, negatives: int) -> None:
    """One step: each word predicts its context words, against negative samples."""
    contexts = blocks.contexts.shape[1]
    columns = torch.cat([blocks.contexts, blocks.samples], dim=1)
    x_BLD, y_BMD = inputs.read(blocks.centers), outputs.read(columns)
    pairs = blocks.weights.sum(dim=2, keepdim=True)
    samples = (pairs * (negatives / blocks.samples.shape[1])).expand(-1, -1, blocks.samples.shape[1])
    strength_BLM = torch.cat([blocks.weights, samples], dim=2).mul_(rate)
    error_BLM = torch.bmm(x_BLD, y_BMD.transpose(1, 2)).sigmoid_().neg_()  # label - prediction
    error_BLM[:, :, :contexts] += 1
    error_BLM *= strength_BLM
    x_steps, y_steps = torch.bmm(error_BLM, y_BMD), torch.bmm(error_BLM.transpose(1, 2), x_BLD)
    inputs.add(blocks.centers.flatten(), x_steps.flatten(0, 1), strength_BLM.sum(dim=2).flatten())
    outputs.add(columns.flatten(), y_steps.flatten(0, 1), strength_BLM.sum(dim=1).flatten())


def cbow(inputs: AnyTable, outputs: WordTable, blocks: Blocks, rate: float, negatives: int) -> None:
    """One step: the mean of the context words predicts the center word, against negative samples.

    As in word2vec.c, every context word gets the full step times its weight, not its share of the mean.
    """
    samples = blocks.samples.shape[1]
    pairs_BL1 = blocks.weights.sum(dim=2, keepdim=True)
    strength_BL1 = (pairs_BL1 > 0) * rate
    x_BCD, y_BLD, z_BKD = inputs.read(blocks.contexts), outputs.read(blocks.centers), outputs.read(blocks.samples)
    mean_BLD = torch.bmm(blocks.weights / pairs_BL1.clamp(min=1e-6), x_BCD)
    center_error_BL1 = (1 - (mean_BLD * y_BLD).sum(dim=2, keepdim=True).sigmoid()) * strength_BL1
    sample_error_BLK = -torch.bmm(mean_BLD, z_BKD.transpose(1, 2)).sigmoid_() * (strength_BL1 * (negatives / samples))
    step_BLD = center_error_BL1 * y_BLD + torch.bmm(sample_error_BLK, z_BKD)
    columns = torch.cat([blocks.centers, blocks.samples], dim=1)
    y_steps = torch.cat([center_error_BL1 * mean_BLD, torch.bmm(sample_error_BLK.transpose(1, 2), mean_BLD)], dim=1)
    shared = strength_BL1.sum(dim=1).expand(-1, samples) * (negatives / samples)
    outputs.add(columns.flatten(), y_steps.flatten(0, 1), torch.cat([strength_BL1[:, :, 0], shared], dim=1).flatten())
    x_steps = torch.bmm(blocks.weights.transpose(1, 2), step_BLD)
    inputs.add(
        blocks.contexts.flatten(), x_steps.flatten(0, 1), blocks.weights.sum(dim=1).flatten() * (rate * (1 + negatives))
    )


def skip_gram_by_pairs(x: Tensor, y: Tensor, blocks: Blocks, rate: float, negatives: int) -> tuple[Tensor, Tensor]:
    """The readable reference of `skip_gram`, pair by pair: the tables W D after the step."""
    new_x, new_y = x.clone(), y.clone()
    share = negatives / blocks.samples.shape[1]

    def update(word: int, other: int, label: int, weight: float) -> None:
        error = rate * weight * (label - torch.sigmoid(x[word] @ y[other]))
        new_x[word] += error * y[other]
        new_y[other] += error * x[word]

    for block, words in enumerate(blocks.centers.tolist()):
        for index, word in enumerate(words):
            weights = blocks.weights[block, index].tolist()
            for other, weight in zip(blocks.contexts[block].tolist(), weights, strict=True):
                update(word, other, 1, weight)
            for other in blocks.samples[block].tolist():
                update(word, other, 0, sum(weights) * share)
    return new_x, new_y


def cbow_by_words(x: Tensor, y: Tensor, blocks: Blocks, rate: float, negatives: int) -> tuple[Tensor, Tensor]:
    """The readable reference of `cbow`, word by word: the tables W D after the step."""
    new_x, new_y = x.clone(), y.clone()
    for block, words in enumerate(blocks.centers.tolist()):
        samples = blocks.samples[block].tolist()
        for index, word in enumerate(words):
            pairs = zip(blocks.contexts[block], blocks.weights[block, index], strict=True)
            context = [(n, w) for n, w in pairs if w > 0]
            if not context:
                continue
            mean = sum(x[n] * w for n, w in context) / sum(w for _, w in context)
            step = torch.zeros_like(mean)
            for other, label, weight in [(word, 1, 1.0), *((n, 0, negatives / len(samples)) for n in samples)]:
                error = rate * weight * (label - torch.sigmoid(mean @ y[other]))
                step += error * y[other]
                new_y[other] += error * mean
            for n, w in context:
                new_x[n] += w * step
    return new_x, new_y


STEP_FUNCTIONS = {"skip-gram": skip_gram, "fasttext": skip_gram, "cbow": cbow}


def train_vectors(
    corpus: WordCorpus, settings: StaticSettings, *, threads: int | None = None, show: ShowProgress = silent
) -> StaticVectors:
    """Train with the method of the settings. One thread is reproducible; with several, runs differ slightly."""
    threads = threads or os.cpu_count() or 1
    start = time.perf_counter()
    train = _train_glove if settings.method == "glove" else _train_word2vec
    vectors = train(corpus, settings, threads, show)
    if not np.abs(vectors.vectors).max() < MAX_VALUE:  # also for NaN
        raise BertkitError(f"the vectors grew without bound at rate={settings.rate}; try a smaller one")
    seconds = round(time.perf_counter() - start, 1)
    text = {"text words": len(corpus.ids), "sentences": len(corpus.starts) - 1, "seconds": seconds}
    return StaticVectors(vectors.words, vectors.vectors, vectors.subwords, {**asdict(settings), **text})


def _train_word2vec(corpus: WordCorpus, settings: StaticSettings, threads: int, show: ShowProgress) -> StaticVectors:
    inputs = _input_table(corpus, settings)
    outputs = WordTable(torch.zeros(len(corpus.words), settings.width))
    maker = BlockMaker.of(corpus, settings)
    jobs = [
        partial(_train_part, inputs, outputs, threads, maker, epoch, start)
        for epoch in range(settings.epochs)
        for start in range(0, len(corpus.ids), WORDS_PER_JOB)
    ]
    with show(f"training {settings.method}", settings.epochs * len(corpus.ids)) as meter:
        _run_jobs(jobs, threads, meter, "words/s")
    subwords = None
    if isinstance(inputs, SubwordTable):
        subwords = Subwords(inputs.rows[len(corpus.words) :].numpy(), settings.shortest, settings.longest)
    return StaticVectors(corpus.words, inputs.all().numpy(), subwords)


def _input_table(corpus: WordCorpus, settings: StaticSettings) -> AnyTable:
    words, subwords = len(corpus.words), settings.method == "fasttext"
    generator = torch.Generator().manual_seed(settings.seed)
    size = words + (settings.buckets if subwords else 0)
    rows = (torch.rand(size, settings.width, generator=generator) - 0.5) / settings.width
    if not subwords:
        return WordTable(rows)
    split = partial(ngram_buckets, shortest=settings.shortest, longest=settings.longest, buckets=settings.buckets)
    return SubwordTable(rows, [[n, *(words + b for b in split(word))] for n, word in enumerate(corpus.words)])


def _train_part(inputs: AnyTable, outputs: WordTable, threads: int, maker: BlockMaker, epoch: int, start: int) -> int:
    """Train on one part of the text in one epoch, as one of `threads`; return its number of words."""
    settings, size = maker.settings, len(maker.corpus.ids)
    inputs, outputs = inputs.for_thread(threads), outputs.for_thread(threads)
    step = STEP_FUNCTIONS[settings.method]
    length = min(WORDS_PER_JOB, size - start)
    for share, blocks in maker.blocks(epoch, start):
        done = (epoch * size + start + share * length) / (settings.epochs * size)
        step(inputs, outputs, blocks, settings.rate * max(1 - done, MIN_RATE_SHARE), settings.negatives)
    return length


def _train_glove(corpus: WordCorpus, settings: StaticSettings, threads: int, show: ShowProgress) -> StaticVectors:
    with show("counting pairs", len(corpus.ids)) as meter:
        pairs = count_pairs(corpus, settings.window, meter.update).shuffled(settings.seed)
    tables = GloveTables(len(corpus.words), settings)
    jobs = [
        partial(train_pairs, tables, pairs, start, settings.rate, [settings.seed, epoch, start])
        for epoch in range(settings.epochs)
        for start in range(0, len(pairs.counts), PAIRS_PER_JOB)
    ]
    with show("training glove", settings.epochs * len(pairs.counts)) as meter:
        _run_jobs(jobs, threads, meter, "pairs/s")
    return StaticVectors(corpus.words, tables.vectors().numpy())


def _run_jobs(jobs: Sequence[Job], threads: int, meter: Meter, unit: str) -> None:
    """Run the jobs in order on several threads; torch uses one thread in each of them."""
    start, done = time.perf_counter(), 0
    with ThreadPoolExecutor(threads, initializer=set_thread_count, initargs=(1,)) as pool:
        futures = [pool.submit(job) for job in jobs]
        try:
            for finished in as_completed(futures):
                done += finished.result()
                meter.update(done, {unit: f"{done / (time.perf_counter() - start):,.0f}"})
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
