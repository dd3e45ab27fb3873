"""Facts about fine-tuning: the new layer, which weights change, how little data and time it takes.

The inputs and outputs of the tasks are in `tasks`; F11, on the bundled model, is in `trained`.
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
from bertkit.facts.fact import Facts, Outcome, at_most, equal, holds
from bertkit.facts.pretraining import examples, small_model
from bertkit.facts.setup import CPU, PLACE, make_part
from bertkit.facts.topics import SMALL_MODEL, TOPICS, draw_words, prepared, pretrained, topic_tokenizer
from bertkit.finetuning.evaluate import run_model
from bertkit.finetuning.explore.curve import CurvePoint, learning_curve
from bertkit.finetuning.explore.features import gold, layer_features, predict_from_mixture, predict_labels
from bertkit.finetuning.explore.search import training_subset
from bertkit.finetuning.fine_tuning import run_prepared
from bertkit.finetuning.learner import load_start, pack
from bertkit.finetuning.prepare import Prepared
from bertkit.finetuning.result import FineTuned
from bertkit.finetuning.settings import FineTuneSettings, LearningSettings, read_settings
from bertkit.model.batch import Batch
from bertkit.model.heads import ScalarMix
from bertkit.model.model import BertModel
from bertkit.pretraining.examples.inputs import to_inputs
from bertkit.pretraining.objectives.module import ForPretraining
from bertkit.pretraining.objectives.table import objective_rows
from bertkit.settings import change
from bertkit.tasks.choose import Choose
from bertkit.tasks.metrics.classes import accuracy
from bertkit.tasks.multilabel import Multilabel
from bertkit.tasks.regress import Regress
from bertkit.tasks.shared.decision import Decision
from bertkit.tasks.table import TASKS
from bertkit.tasks.task import LossSettings, task_class
from bertkit.text.wordpiece import SPECIALS
from bertkit.train.runs import Run

facts = Facts()
FEW, FEWEST = 16, 10  # labeled texts
ALL = 384  # labeled texts
EPOCHS = 3  # over all of them
POOLINGS = ("model", "first", "mean", "max", "attention")


def start_of(name: str, settings: FineTuneSettings | None = None) -> Checkpoint:
    """The pre-trained model with the head of a task."""
    labels = ("a", "b", "c") if TASKS[name].labeled else ()
    task = task_class(TASKS[name])(tokenizer=topic_tokenizer(), limit=64, labels=labels)
    return load_start(pretrained(), task, settings or FineTuneSettings())


def run(data: Prepared, start: Checkpoint, settings: FineTuneSettings) -> tuple[FineTuned, Checkpoint]:
    """Fine-tune `start`: the result, and the model that was saved."""
    with tempfile.TemporaryDirectory() as folder, torch.enable_grad():
        result = run_prepared(Run(Path(folder)), data, start, settings, device="cpu")
        return result, load_checkpoint(Path(folder) / "model")


@cache
def fine_tuned(examples: int, **changes: str) -> tuple[FineTuned, Mapping[str, Tensor], Checkpoint]:
    """A run on labeled texts: the result, the initial weights, and the final model."""
    data, settings = prepared(dev=100)
    settings = change(settings, changes)
    data = training_subset(data, examples, 0)
    start = load_start(pretrained(), data.task, settings)
    before = {name: tensor.clone() for name, tensor in start.model.state_dict().items()}
    result, model = run(data, start, settings)
    return result, before, model


def fine_tuned_on_all() -> tuple[FineTuned, Mapping[str, Tensor], Checkpoint]:
    """The run on all labeled texts."""
    return fine_tuned(ALL, epochs=str(EPOCHS))


@cache
def curve() -> list[CurvePoint]:
    """The accuracy with few and with many labeled texts, from the pre-trained model and from random weights."""
    data, settings = prepared(train=96, dev=60)[0], read_settings(*SMALL_MODEL, "epochs=7")
    with tempfile.TemporaryDirectory() as folder, torch.enable_grad():
        return learning_curve(data, pretrained(), settings, (FEW, 96), Path(folder))


@facts("F1", "D171-177, D202, E854", "a task that reads adds one layer to the same encoder: a matrix and a bias")
def one_new_layer() -> Outcome:
    before, kept, new = pretrained().model.state_dict(), 0, set()
    reading = [name for name, row in TASKS.items() if row.head != "decoder"]
    for name in reading:
        state = start_of(name).model.state_dict()
        same = {key for key in state if key.startswith("encoder.") and torch.equal(state[key], before[key])}
        kept += same == {key for key in before if key.startswith("encoder.")}
        new |= {key.split(".", 2)[2] for key in state if key.startswith("heads.")}
    return equal((len(reading), ["out.bias", "out.weight"]), (kept, sorted(new)))


@facts("F1b", "E854", "the layer is followed by a softmax: probabilities over the labels that sum to 1")
def softmax_follows() -> Outcome:
    data, _settings = prepared()
    start = load_start(pretrained(), data.task, FineTuneSettings())
    rows = run_model(start.model, data.task, data.dev.flat[:50]).rows
    predictions = data.task.decode(data.dev.examples[:50], data.dev.flat[:50], rows, Decision())
    sums = [sum(prediction.probabilities.values()) for prediction in predictions]
    softmax = F.softmax(torch.tensor(np.stack(rows)), dim=-1).max(dim=-1).values.tolist()
    gaps = [abs(prediction.probability - top) for prediction, top in zip(predictions, softmax, strict=True)]
    return at_most(1e-6, max(*gaps, *(abs(total - 1) for total in sums)), "difference")


@facts("F2", "D191", "two to four epochs are enough: three reach over 90 %, and are the default for large data")
def few_epochs() -> Outcome:
    result, default = fine_tuned_on_all()[0], LearningSettings()
    epochs, per_epoch = result.steps / (ALL / 8), 10_000 // default.batch
    usual = default.total_steps(per_epoch) / per_epoch
    measured = f"{epochs:g} epochs, accuracy {result.score:.1%}; default for 10,000 texts {usual:g}"
    return holds("2 to 4 epochs, over 90 %", measured, 2 <= epochs <= 4 and 2 <= usual <= 4 and result.score > 0.9)


@facts("F3", "A85, C220", "all weights are updated")
def all_weights_change() -> Outcome:
    _, before, model = fine_tuned_on_all()
    changed = [name for name, after in model.model.state_dict().items() if not torch.equal(before[name], after)]
    return equal((len(before), set()), (len(changed), before.keys() - set(changed)))


@facts("F3b", "A85, C220", "freezing is optional: with frozen=1 the embeddings and the first layer do not change")
def frozen_weights() -> Outcome:
    _, before, model = fine_tuned(FEW, frozen="1", epochs="2")
    same = {name for name, after in model.model.state_dict().items() if torch.equal(before[name], after)}
    lower = {name for name in before if name.startswith(("encoder.embeddings.", "encoder.layers.0."))}
    return equal((len(lower), set()), (len(same), same ^ lower))


@facts("F4", "D193-197, B14", "less data: with 16 labeled texts a pre-trained model is far better than a random one")
def less_data() -> Outcome:
    few, many = curve()
    measured = f"{few.examples} texts: {few.pretrained:.0%} and {few.random:.0%}; "
    measured += f"{many.examples}: {many.pretrained:.0%} and {many.random:.0%}"
    ahead = few.pretrained - few.random
    return holds("ahead by 20 % or more; random needs more", measured, ahead >= 0.2 and many.random > few.random)


@facts("F5", "D405-427", "the classifier reads the final [CLS]; with mean, max and attention pooling, every token")
def what_a_classifier_reads() -> Outcome:
    batch = Batch.pack([[2, 7, 8, 9, 3]])
    tokens_read = {}
    for pooling in POOLINGS:
        settings = change(FineTuneSettings(), {"pooling": pooling})
        model = start_of("classify", settings).model.eval()
        hidden = model(batch)
        changes = []
        for token in range(5):
            other = hidden.clone()
            other[token] += 3 * torch.arange(other.shape[1]).sin()
            changes.append(bool((model.read("classify", other, batch) - model.read("classify", hidden, batch)).any()))
        tokens_read[pooling] = sum(changes) if changes[0] else 0
    return equal(dict(zip(POOLINGS, (1, 1, 5, 5, 5), strict=True)), tokens_read)


@facts("F9", "D394", "regression: a text or a pair gets a number, trained with squared error, in the units of the data")
def regression() -> Outcome:
    task = Regress(tokenizer=topic_tokenizer(), limit=64, center=300.0, spread=50.0)
    texts = [TextExample("t0w1", pair, 275.0, PLACE) for pair in (None, "t1w2")]
    windows = [window for number, text in enumerate(texts) for window in task.windows(text, number)]
    model = start_of("regress").model
    batch = pack(windows, model.config)
    logits = model.logits(batch, "classify")
    total, count = task.loss(logits, batch, windows, LossSettings())
    by_hand = ((logits[:, 0] * 50 + 300 - 275) / 50).square().sum()
    predictions = task.decode(texts, windows, [row.numpy() for row in logits], Decision())
    gap = max(abs(rated.value - (300 + 50 * float(row))) for rated, row in zip(predictions, logits, strict=True))
    return at_most(1e-5, max(abs(float(total / by_hand) - 1), gap / 50, abs(int(count) - 2)), "difference")


@facts("F10", "E855", "several labels at once: a sigmoid for each; a softmax would make them exclude each other")
def sigmoids() -> Outcome:
    task = Multilabel(tokenizer=topic_tokenizer(), limit=64, labels=("a", "b", "c"))
    text = TextExample("t0w1", None, ("a", "c"), PLACE)
    [window] = task.windows(text, 0)
    logits = torch.tensor([[2.0, -1.0, 3.0]])
    [prediction] = task.decode([text], [window], [logits[0].numpy()], Decision())
    total, _ = task.loss(logits, Batch.pack([window.ids]), [window], LossSettings())
    p = torch.sigmoid(logits[0])
    by_hand = -(p[0].log() + (1 - p[1]).log() + p[2].log()) / 3
    same_loss = abs(float(total - by_hand)) < 1e-6
    summed = sum(prediction.probabilities.values())
    measured = f"{', '.join(prediction.labels)}; probabilities sum to {summed:.2f}; binary cross entropy: {same_loss}"
    return holds("a, c; sum over 1", measured, prediction.labels == ("a", "c") and summed > 1 and same_loss)


@facts("F10b", "E855", "each label has its own threshold on its sigmoid: any, none or all may be predicted")
def own_thresholds() -> Outcome:
    decision = Decision(thresholds={"a": 0.9, "b": 0.2})
    logits = np.array([[2.0, -1.0], [3.0, -3.0], [2.0, -3.0], [3.0, -1.0]])  # sigmoids: 0.88 and 0.95, 0.27 and 0.05
    predicted = decision.accepted(decision.label_probabilities(logits), ("a", "b"))
    return equal([[False, True], [True, False], [False, False], [True, True]], np.asarray(predicted).tolist())


@facts("F12", "E858-861", "features from several layers: concatenated, or mixed with learned weights that sum to 1")
def mixed_layers() -> Outcome:
    data = training_subset(prepared()[0], FEW, 0)
    train_labels, dev_labels = gold(data.task, data.train), gold(data.task, data.dev)
    train, dev = (layer_features(pretrained().model, data.task, part) for part in (data.train, data.dev))
    with torch.enable_grad():
        mixed, weights = predict_from_mixture(train, train_labels, dev)
    joined = predict_labels(train[:, 1:].reshape(len(train), -1), train_labels, dev[:, 1:].reshape(len(dev), -1))
    scores = [accuracy(dev_labels, predicted) for predicted in (mixed, joined)]
    change = float(np.abs(weights - 1 / len(weights)).max())
    ok = abs(float(weights.sum()) - 1) < 1e-6 and change > 1e-3 and min(scores) > 0.9
    measured = f"{scores[0]:.0%}, {scores[1]:.0%}; weights {', '.join(f'{w:.2f}' for w in weights)}"
    return holds("both over 90 %, weights learned, sum 1", measured, ok)


@facts("F12b", "E858-861", "the mixture is gamma times the softmax-weighted sum of the layers")
def mixture_by_hand() -> Outcome:
    generator = torch.Generator().manual_seed(0)
    states = list(torch.randn(3, 5, 8, generator=generator))
    mix = ScalarMix(3)
    mix.weights.copy_(torch.tensor([0.0, 1.0, -1.0]))
    mix.gamma.fill_(2.0)
    shares = [1.0, np.e, 1 / np.e]
    by_hand = sum(2 * share / sum(shares) * state for share, state in zip(shares, states, strict=True))
    return at_most(1e-5, float((mix(states) - by_hand).abs().max()), "difference")


@facts("F12c", "E858-859", "fine-tuning the encoder is better than keeping it frozen")
def tuned_beats_frozen() -> Outcome:
    tuned, frozen = (fine_tuned(FEWEST, frozen=layers)[0].score for layers in ("0", "2"))
    return holds("tuned over frozen", f"{tuned:.0%}, {frozen:.0%}", tuned > frozen)


def stories(count: int, seed: int) -> list[Example]:
    """The start of a story on a topic, and two endings: one on the same topic, one on another."""
    rng, tokenizer, examples = np.random.default_rng(seed), topic_tokenizer(), list[Example]()
    for _ in range(count):
        topic, other = rng.choice(TOPICS, 2, replace=False).tolist()
        correct = int(rng.integers(2))
        topics = [topic, topic, other] if correct == 0 else [topic, other, topic]
        story, *endings = (" ".join(tokenizer.tokens(draw_words(rng, n, 5).tolist())) for n in topics)
        examples.append(ChoiceExample(story, tuple(endings), correct, PLACE))
    return examples


@facts("P22", "E844", "TransBERT: an encoder is pre-trained, fine-tuned on topics, then on story endings")
def chained() -> Outcome:
    settings = read_settings(*SMALL_MODEL, "epochs=8")
    task = Choose(tokenizer=topic_tokenizer(), limit=64)
    train, dev = (make_part(task, examples) for examples in (stories(32, seed=5), stories(50, seed=6)))
    _, initial, on_topics = fine_tuned_on_all()
    scores, kept = [], []
    for before in (on_topics, pretrained()):
        start = load_start(before, task, settings)
        old, new = before.model.state_dict(), start.model.state_dict()
        kept.append(all(torch.equal(old[name], new[name]) for name in new if name.startswith("encoder.")))
        scores.append(run(Prepared(task, train, dev, ()), start, settings)[0].score)
    name = "encoder.layers.0.attention.qkv.weight"
    changed = not torch.equal(initial[name], on_topics.model.state_dict()[name])
    measured = f"{scores[0]:.0%}; without topics in between {scores[1]:.0%}; encoders kept: {all(kept)}"
    return holds("over 80 %, each encoder kept", measured, scores[0] > 0.8 and all(kept) and changed)


@contextmanager
def input_ids(model: BertModel) -> Iterator[list[Tensor]]:
    """The token ids that the model reads inside the context."""
    ids: list[Tensor] = []
    hook = model.encoder.embeddings.word.register_forward_pre_hook(lambda _, inputs: ids.append(inputs[0].flatten()))
    try:
        yield ids
    finally:
        hook.remove()


@facts("P24", "E799", "of the tokens that a model reads, 12 % are [MASK] in pre-training and none in fine-tuning")
def mask_is_absent_later() -> Outcome:
    model = small_model({"masked_word": None})
    with input_ids(model) as batches:
        ForPretraining(model, objective_rows(["mlm"]))(*to_inputs(examples(block=200), CPU))
    data, settings = prepared(train=FEW, dev=FEW)[0], read_settings(*SMALL_MODEL, "epochs=3")
    start = load_start(pretrained(), data.task, settings)
    with input_ids(start.model) as tuned_batches:
        run(data, start, settings)
    ids = [torch.cat(batches), torch.cat(tuned_batches)]
    shares = [(tokens == SPECIALS.index("[MASK]")).float().mean().item() for tokens in ids]
    measured = f"{shares[0]:.1%} of {len(ids[0]):,} and {shares[1]:.1%} of {len(ids[1]):,}"
    ok = abs(shares[0] - 0.12) < 0.005 and shares[1] == 0 and len(tuned_batches) > 5
    return holds("12 ± 0.5 % and 0 %", measured, ok)
