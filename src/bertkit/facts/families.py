"""Facts about other families: ELECTRA, ALBERT, RoBERTa, XLNet, causal models."""

from collections.abc import Mapping

import torch
from torch import Tensor

from bertkit.config import family_config
from bertkit.facts.by_hand import largest_gap
from bertkit.facts.fact import Facts, Outcome, close, equal, holds
from bertkit.facts.pretraining import examples, small_model
from bertkit.facts.setup import CPU, shape_only
from bertkit.model.batch import Batch
from bertkit.model.model import new_model, parameter_count
from bertkit.model.two_streams import query_vectors
from bertkit.pretraining.examples.inputs import to_inputs
from bertkit.pretraining.objectives.rtd_module import ReplacedTokens
from bertkit.train.distributed import Ranks
from bertkit.train.loop import LoopSettings, MicroBatch, train
from bertkit.train.optimizer import Optimizers
from bertkit.train.runs import Progress
from bertkit.train.schedule import Budget, Schedule

facts = Facts()
FAMILIES = ("bert", "roberta", "albert", "electra", "xlnet")


def electra() -> ReplacedTokens:
    """A tiny generator and discriminator of the same width."""
    return ReplacedTokens(
        small_model({"masked_word": None}, "electra"), small_model({"replaced_token": None}, "electra")
    )


class GradientRecorder(Optimizers):
    """Records the gradients of a step instead of changing the weights."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__([])
        self.module = module
        self.gradient = torch.empty(0)

    def step(self, rate: float | Tensor, norm: Tensor | None = None) -> None:
        """Called by the training loop once per step."""
        self.gradient = _flat({name: p.grad for name, p in self.module.named_parameters()}, self.module)


def _flat(gradients: Mapping[str, Tensor | None], module: torch.nn.Module) -> Tensor:
    parts = ((gradients[name], p) for name, p in module.named_parameters())
    return torch.cat([(torch.zeros_like(p) if grad is None else grad).detach().flatten() for grad, p in parts])


def weights_in_a_step(pair: ReplacedTokens, micro: MicroBatch) -> dict[str, float]:
    """The weight of each loss's gradient in the gradient of one step of the training loop, by least squares."""
    optimizer = GradientRecorder(pair)
    settings = LoopSettings(budget=Budget(steps=1), schedule=Schedule(peak=0.0, warmup=0), clip=torch.inf)
    list(train(pair, pair.weights, lambda step: [micro], optimizer, settings, Ranks(), Progress()))
    gradients = {}
    for name, count in micro.counts.items():
        torch.manual_seed(micro.seed)  # the generator samples the same words again
        mean = pair(*micro.inputs)[name][0] / count
        names, tensors = zip(*pair.named_parameters(), strict=True)
        gradient = torch.autograd.grad(mean, tensors, allow_unused=True)
        gradients[name] = _flat(dict(zip(names, gradient, strict=True)), pair)
    columns = torch.stack(list(gradients.values()), dim=1).double()
    solved = torch.linalg.lstsq(columns, optimizer.gradient.double()[:, None])
    return dict(zip(gradients, solved.solution[:, 0].tolist(), strict=True))


@facts("P14", "D964-968", "ELECTRA classifies every token; the loss is generator loss + 50 x discriminator loss")
def every_token() -> Outcome:
    pair, data = electra(), examples(objective=("rtd",), block=4)
    inputs, tokens = to_inputs(data, CPU), len(data.ids)
    classified = int(pair(*inputs)["rtd"][1])
    micro = MicroBatch(inputs, {"mlm": len(data.chosen), "rtd": tokens}, tokens, seed=0)
    with torch.enable_grad(), torch.random.fork_rng():
        weights = weights_in_a_step(pair, micro)
    measured = f"{classified} of {tokens} tokens; {weights['mlm']:.2f} and {weights['rtd']:.2f}"
    ok = classified == tokens and abs(weights["mlm"] - 1) < 0.01 and abs(weights["rtd"] - 50) < 0.5
    return holds("all tokens; 1 and 50", measured, ok)


@facts("P14b", "D964-968", 'a token that equals the original is not "replaced", even if the generator predicted it')
def correct_is_not_replaced() -> Outcome:
    pair, (batch, targets) = electra(), to_inputs(examples(objective=("rtd",), block=4), CPU)

    def replaced(samples: Tensor) -> int:
        return int(pair.replace(batch, targets, samples)[1].sum())

    return equal((0, len(targets.words)), (replaced(targets.words), replaced(targets.words - 1)))


@facts("P16", "D928", "ALBERT: factorized embeddings and one shared layer, 11.7 M parameters in base")
def albert() -> Outcome:
    model = shape_only(family_config("albert", "base"))
    layers = len({id(layer) for layer in model.encoder.stack})
    table = tuple(model.encoder.embeddings.word.weight.shape)
    return equal(((30_000, 128), 1, 11_683_584), (table, layers, parameter_count(model)))


@facts("P17", "D103, D924", "one computation for BERT, RoBERTa, ALBERT, ELECTRA and XLNet: they differ in the task")
def one_computation() -> Outcome:
    gaps = {}
    for family in FAMILIES:
        encoder = new_model(family_config(family, "tiny", vocab_size=60, init_std=0.2)).eval().encoder
        gaps[family] = largest_gap(encoder, [5, 9, 7, 31, 9])
    measured = ", ".join(f"{family} {worst:.0e}" for family, worst in gaps.items())
    return holds("all five by hand to 1e-4", measured, max(gaps.values()) < 1e-4)


@facts("P17b", "D103, D924", "XLNet's task: words in a random order, each predicted from those before it in the order")
def permuted_words() -> Outcome:
    encoder = small_model({}, "xlnet").encoder
    ids, chosen, order = torch.arange(5, 13), torch.tensor([2, 4, 5, 7]), torch.tensor([3, 1, 4, 2])
    batch = Batch.pack([ids.tolist()])
    vectors = query_vectors(encoder, batch, chosen, order)
    seen = []
    for position, place in zip(chosen.tolist(), order.tolist(), strict=True):
        other = ids.clone()
        other[position] += 20
        change = query_vectors(encoder, Batch.pack([other.tolist()]), chosen, order) - vectors
        seen.append(sorted(later - place for later, moved in zip(order.tolist(), change, strict=True) if moved.any()))
    return equal([[1], [1, 2, 3], [], [1, 2]], seen)  # how much later in the order are those that see each word


@facts("P18", "D516, B71", "a causal model has 1/0.15 = 6.7 times the targets of a masked one on the same text")
def targets_compared() -> Outcome:
    masked_words = len(to_inputs(examples(block=2000), CPU)[1].words)
    causal = len(to_inputs(examples(block=2000, objective=("causal",)), CPU, objective=("causal",))[1].words)
    return close(1 / 0.15, causal / masked_words, 0.1)
