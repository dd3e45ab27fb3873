"""One step of skip-gram and of CBOW with negative sampling, and their slow twins.

Shapes: B blocks of L words that see C words around them and K drawn ones; D numbers in a vector.
"""

import torch
from torch import Tensor

from bertkit.inside.static.blocks import Blocks
from bertkit.inside.static.tables import AnyTable, WordTable


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
