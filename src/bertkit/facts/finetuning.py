"""Facts about fine-tuning: what is replaced, what moves, how little data and time it takes.

What the tasks read and answer is in `tasks`; F11, on the bundled model, is in `trained`.
"""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bertkit.checkpoint.save_load import Checkpoint, load_checkpoint
from bertkit.data.examples import ChoiceExample, Example, TextExample
from bertkit.facts.fact import Facts, Outcome, Vocabularies, at_most, equal, holds
from bertkit.facts.pretraining import examples, small_model
from bertkit.facts.topics import PLACE, SMALL_MODEL, TOPICS, draw_words, prepared, pretrained, topic_tokenizer
from bertkit.finetuning.evaluate import run_model
from bertkit.finetuning.explore.curve import CurvePoint, learning_curve
from bertkit.finetuning.explore.features import gold, layer_features, mix_classes, regress_classes
from bertkit.finetuning.explore.search import subset
from bertkit.finetuning.fine_tuning import run_prepared
from bertkit.finetuning.learner import load_start, pack
from bertkit.finetuning.prepare import Prepared
from bertkit.finetuning.result import FineTuned
from bertkit.finetuning.settings import FineTuneSettings, LearningSettings, change_settings, read_settings
from bertkit.model.batch import Batch
from bertkit.model.heads import ScalarMix
from bertkit.model.model import BertModel
from bertkit.pretraining.examples.inputs import to_inputs
from bertkit.pretraining.objectives.module import ForPretraining
from bertkit.pretraining.objectives.table import objective_rows
from bertkit.tasks.choose import Choose
from bertkit.tasks.decision import Decision
from bertkit.tasks.metrics.classes import accuracy
from bertkit.tasks.multilabel import Multilabel
from bertkit.tasks.regress import Regress
from bertkit.tasks.table import TASKS
from bertkit.tasks.task import LossSettings, Part, task_class
from bertkit.text.wordpiece import SPECIALS
from bertkit.train.runs import Run

facts = Facts()
FEW, FEWEST = 16, 10  # labeled texts
EPOCHS = 3  # through 384 of them
POOLINGS = ("model", "first", "mean", "max", "attention")


def start_of(name: str, settings: FineTuneSettings | None = None) -> Checkpoint:
    """The pre-trained model with the head of a task put on it."""
    labels = ("a", "b", "c") if TASKS[name].labeled else ()
    task = task_class(TASKS[name])(tokenizer=topic_tokenizer(), limit=64, labels=labels)
    return load_start(pretrained(), task, settings or FineTuneSettings())


@cache
def taught(examples: int, **changes: str) -> tuple[FineTuned, Mapping[str, Tensor], Checkpoint]:
    """A run on labeled texts: what came of it, the weights it began with, and the model it ended with."""
    data, settings = prepared(dev=100)
    settings = change_settings(settings, changes)
    data = subset(data, examples, 0)
    start = load_start(pretrained(), data.task, settings)
    before = {name: tensor.clone() for name, tensor in start.model.state_dict().items()}
    with tempfile.TemporaryDirectory() as folder, torch.enable_grad():
        result = run_prepared(Run(Path(folder)), data, start, settings, device="cpu")
        return result, before, load_checkpoint(Path(folder) / "model")


def taught_topics() -> tuple[FineTuned, Mapping[str, Tensor], Checkpoint]:
    """The run on all labeled texts."""
    return taught(384, epochs=str(EPOCHS))


@cache
def curve() -> list[CurvePoint]:
    """The accuracy with few and with many labeled texts, from the pre-trained model and from random weights."""
    data, settings = prepared(train=96, dev=100)[0], read_settings(*SMALL_MODEL, "epochs=10")
    with tempfile.TemporaryDirectory() as folder, torch.enable_grad():
        return learning_curve(data, pretrained(), settings, (FEW, 96), Path(folder))


@facts("F1", "D171-177, D202, E854", "a task is one new layer on the same encoder: a matrix and a bias")
def one_new_layer(_: Vocabularies) -> Outcome:
    known, kept, new = pretrained().model.state_dict(), 0, set()
    for name in TASKS:
        found = start_of(name).model.state_dict()
        same = {key for key in found if key.startswith("encoder.") and torch.equal(found[key], known[key])}
        kept += same == {key for key in known if key.startswith("encoder.")}
        new |= {key.split(".", 2)[2] for key in found if key.startswith("heads.")}
    return equal((len(TASKS), ["out.bias", "out.weight"]), (kept, sorted(new)))


@facts("F1b", "E854", "the layer is followed by a softmax: probabilities over the labels that sum to 1")
def softmax_follows(_: Vocabularies) -> Outcome:
    data, _settings = prepared()
    start = load_start(pretrained(), data.task, FineTuneSettings())
    rows = run_model(start.model, data.task, data.dev.flat[:50]).rows
    found = data.task.decode(data.dev.examples[:50], data.dev.flat[:50], rows, Decision())
    sums = [sum(each.probabilities.values()) for each in found]
    softmax = F.softmax(torch.tensor(np.stack(rows)), dim=-1).max(dim=-1).values
    gap = max(abs(each.probability - top) for each, top in zip(found, softmax.tolist(), strict=True))
    return at_most(1e-6, max(gap, *(abs(total - 1) for total in sums)), "difference")


@facts(
    "F2", "D191", "two to four epochs are enough: three teach the task, and are the default where there is much data"
)
def few_epochs(_: Vocabularies) -> Outcome:
    result, default = taught_topics()[0], LearningSettings()
    epochs, per_epoch = result.steps / (384 / 8), 10_000 // default.batch
    usual = default.total_steps(per_epoch) / per_epoch
    measured = f"{epochs:g} epochs, accuracy {result.score:.1%}; default for 10,000 texts {usual:g}"
    return holds("2 to 4 epochs, over 90 %", measured, 2 <= epochs <= 4 and 2 <= usual <= 4 and result.score > 0.9)


@facts("F3", "A85, C220", "all weights are updated")
def everything_moves(_: Vocabularies) -> Outcome:
    before, after = taught_topics()[1], taught_topics()[2].model.state_dict()
    moved = [name for name in before if not torch.equal(before[name], after[name])]
    return equal((len(before), set()), (len(moved), before.keys() - set(moved)))


@facts("F3b", "A85, C220", "freezing is a choice: with frozen=1 the embeddings and the first layer stay as they were")
def frozen_stay(_: Vocabularies) -> Outcome:
    _result, before, model = taught(FEW, frozen="1")
    after = model.model.state_dict()
    still = {name for name in before if torch.equal(before[name], after[name])}
    lower = {name for name in before if name.startswith(("encoder.embeddings.", "encoder.layers.0."))}
    return equal((len(lower), set()), (len(still), still ^ lower))


@facts("F4", "D193-197, B14", "less data: with 16 labeled texts a pre-trained model knows what a random one does not")
def less_data(_: Vocabularies) -> Outcome:
    few, many = curve()
    measured = f"{few.examples} texts: {few.pretrained:.0%} and {few.random:.0%}; "
    measured += f"{many.examples}: {many.pretrained:.0%} and {many.random:.0%}"
    ahead = few.pretrained - few.random
    return holds("ahead by 20 % or more; random needs more", measured, ahead >= 0.2 and many.random > few.random)


@facts("F5", "D405-427", "a class is read from the final [CLS]; mean, max and attention read every token")
def what_a_class_reads(_: Vocabularies) -> Outcome:
    batch = Batch.pack([[2, 7, 8, 9, 3]])
    found = {}
    for pooling in POOLINGS:
        settings = change_settings(FineTuneSettings(), {"pooling": pooling})
        model = start_of("classify", settings).model.eval()
        hidden = model(batch)
        gaps = []
        for place in range(5):
            other = hidden.clone()
            other[place] += 3 * torch.arange(other.shape[1]).sin()
            gaps.append(bool((model.read("classify", other, batch) - model.read("classify", hidden, batch)).any()))
        found[pooling] = sum(gaps) if gaps[0] else 0
    return equal(dict(zip(POOLINGS, (1, 1, 5, 5, 5), strict=True)), found)


@facts("F9", "D394", "regression: a text or a pair gets a number, learned by squared error, in the units of the data")
def regression(_: Vocabularies) -> Outcome:
    task = Regress(tokenizer=topic_tokenizer(), limit=64, center=300.0, spread=50.0)
    texts = [TextExample("t0w1", pair, 275.0, PLACE) for pair in (None, "t1w2")]  # a text, and a pair
    windows = [window for number, text in enumerate(texts) for window in task.windows(text, number)]
    model = start_of("regress").model
    logits = model.logits(pack(windows, model.config), "classify")
    total, count = task.loss(logits, pack(windows, model.config), windows, LossSettings())
    by_hand = ((logits[:, 0] * 50 + 300 - 275) / 50).square().sum()
    said = task.decode(texts, windows, [row.numpy() for row in logits], Decision())
    gap = max(abs(each.value - (300 + 50 * float(row))) for each, row in zip(said, logits, strict=True))
    return at_most(1e-5, max(abs(float(total / by_hand) - 1), gap / 50, abs(int(count) - 2)), "difference")


@facts("F10", "E855", "several labels at once: a sigmoid for each; a softmax would make them exclude each other")
def sigmoids(_: Vocabularies) -> Outcome:
    task = Multilabel(tokenizer=topic_tokenizer(), limit=64, labels=("a", "b", "c"))
    text = TextExample("t0w1", None, ("a", "c"), PLACE)
    [window] = task.windows(text, 0)
    logits = torch.tensor([[2.0, -1.0, 3.0]])
    [said] = task.decode([text], [window], [logits[0].numpy()], Decision())
    total, _count = task.loss(logits, Batch.pack([window.ids]), [window], LossSettings())
    chances = torch.sigmoid(logits[0])
    by_hand = -(chances[0].log() + (1 - chances[1]).log() + chances[2].log()) / 3
    right = abs(float(total - by_hand)) < 1e-6
    summed = sum(said.probabilities.values())
    measured = f"{', '.join(said.labels)}; probabilities sum to {summed:.2f}; binary cross entropy: {right}"
    return holds("a, c; sum over 1", measured, said.labels == ("a", "c") and summed > 1 and right)


@facts("F10b", "E855", "the score is the logit; each label has its own threshold: any may be said, none, or all")
def own_thresholds(_: Vocabularies) -> Outcome:
    decision = Decision(thresholds={"a": 0.9, "b": 0.2})
    logits = np.array([[2.0, -1.0], [3.0, -3.0], [2.0, -3.0], [3.0, -1.0]])  # sigmoids: 0.88 and 0.95, 0.27 and 0.05
    said = decision.accepted(decision.label_probabilities(logits), ("a", "b"))
    return equal([[False, True], [True, False], [False, False], [True, True]], np.asarray(said).tolist())


@facts("F12", "E858-861", "a mix of layers: one by one, the last side by side, or learned weights that sum to 1")
def mixed_layers(_: Vocabularies) -> Outcome:
    data = subset(prepared()[0], FEW, 0)
    known, wanted = gold(data.task, data.train), gold(data.task, data.dev)
    train, dev = (layer_features(pretrained().model, data.task, part) for part in (data.train, data.dev))
    with torch.enable_grad():
        said, weights = mix_classes(train, known, dev)
    beside = regress_classes(train[:, 1:].reshape(len(train), -1), known, dev[:, 1:].reshape(len(dev), -1))
    scores = [accuracy(wanted, each) for each in (said, beside)]
    moved = float(np.abs(weights - 1 / len(weights)).max())
    right = abs(float(weights.sum()) - 1) < 1e-6 and moved > 1e-3 and min(scores) > 0.9
    measured = f"{scores[0]:.0%}, {scores[1]:.0%}; weights {', '.join(f'{w:.2f}' for w in weights)}"
    return holds("both over 90 %, weights learned, sum 1", measured, right)


@facts("F12b", "E858-861", "the mixture is gamma times the softmax-weighted sum of the layers")
def mixture_by_hand(_: Vocabularies) -> Outcome:
    generator = torch.Generator().manual_seed(0)
    states = list(torch.randn(3, 5, 8, generator=generator))
    mix = ScalarMix(3)
    mix.weights.copy_(torch.tensor([0.0, 1.0, -1.0]))
    mix.gamma.fill_(2.0)
    shares = [1.0, np.e, 1 / np.e]
    by_hand = sum(2 * share / sum(shares) * state for share, state in zip(shares, states, strict=True))
    return at_most(1e-5, float((mix(states) - by_hand).abs().max()), "difference")


@facts("F12c", "E858-859", "fine-tune instead of frozen weights: an encoder that learns too does better")
def tuned_beats_frozen(_: Vocabularies) -> Outcome:
    tuned, frozen = (taught(FEWEST, frozen=layers)[0].score for layers in ("0", "2"))
    return holds("tuned over frozen", f"{tuned:.0%}, {frozen:.0%}", tuned > frozen)


def stories(count: int, seed: int) -> list[Example]:
    """The beginning of a story on a topic, and two endings: one on the same topic, one on another."""
    rng, tokenizer, made = np.random.default_rng(seed), topic_tokenizer(), list[Example]()
    for _ in range(count):
        topic, other = rng.choice(TOPICS, 2, replace=False).tolist()
        right = int(rng.integers(2))
        topics = [topic, topic, other] if right == 0 else [topic, other, topic]
        story, *endings = (" ".join(tokenizer.tokens(draw_words(rng, each, 5).tolist())) for each in topics)
        made.append(ChoiceExample(story, tuple(endings), right, PLACE))
    return made


@facts("P22", "E844", "TransBERT's chain: pre-trained, taught topics, then taught story endings, on one encoder")
def chained(_: Vocabularies) -> Outcome:
    settings = read_settings(*SMALL_MODEL, "epochs=8")
    task = Choose(tokenizer=topic_tokenizer(), limit=64)
    train, dev = (
        Part(examples, [task.windows(example, number) for number, example in enumerate(examples)])
        for examples in (stories(32, seed=5), stories(50, seed=6))
    )
    scores, kept = [], []
    for before in (taught_topics()[2], pretrained()):
        start = load_start(before, task, settings)
        known, found = (each.model.state_dict() for each in (before, start))
        kept.append(all(torch.equal(known[name], found[name]) for name in found if name.startswith("encoder.")))
        with tempfile.TemporaryDirectory() as folder, torch.enable_grad():
            run = Run(Path(folder))
            scores.append(run_prepared(run, Prepared(task, train, dev, ()), start, settings, device="cpu").score)
    moved = (
        taught_topics()[1]["encoder.layers.0.attention.qkv.weight"]
        - taught_topics()[2].model.encoder.stack[0].attention.qkv.weight
    )
    measured = f"{scores[0]:.0%}; without topics in between {scores[1]:.0%}; encoders handed on: {all(kept)}"
    return holds("over 80 %, each encoder handed on", measured, scores[0] > 0.8 and all(kept) and bool(moved.any()))


@contextmanager
def reads(model: BertModel) -> Iterator[list[Tensor]]:
    """The token ids that the model looks up from now on."""
    found: list[Tensor] = []
    hook = model.encoder.embeddings.word.register_forward_pre_hook(lambda _, given: found.append(given[0].flatten()))
    try:
        yield found
    finally:
        hook.remove()


@facts("P24", "E799", "of the tokens that a model reads, 12 % are [MASK] in pre-training and none in fine-tuning")
def mask_is_absent_later(_: Vocabularies) -> Outcome:
    model = small_model({"masked_word": None})
    with reads(model) as before:
        ForPretraining(model, objective_rows(["mlm"]))(*to_inputs(examples(block=200), torch.device("cpu")))
    data, settings = prepared(train=FEW, dev=FEW)[0], read_settings(*SMALL_MODEL, "epochs=3")
    start = load_start(pretrained(), data.task, settings)
    with reads(start.model) as later, tempfile.TemporaryDirectory() as folder, torch.enable_grad():
        run_prepared(Run(Path(folder)), data, start, settings, device="cpu")
    mask_id = SPECIALS.index("[MASK]")
    read, taught_with = torch.cat(before), torch.cat(later)
    shares = [(tokens == mask_id).float().mean().item() for tokens in (read, taught_with)]
    measured = f"{shares[0]:.1%} of {len(read):,} and {shares[1]:.1%} of {len(taught_with):,}"
    return holds("12 ± 0.5 % and 0 %", measured, abs(shares[0] - 0.12) < 0.005 and shares[1] == 0 and len(later) > 5)
