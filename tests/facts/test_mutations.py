"""Facts notice when the product is changed: each change below is a fault that its facts must call FAIL."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from bertkit.facts import decoders, finetuning, languages
from bertkit.facts.fact import Vocabularies
from bertkit.facts.run import run_facts
from bertkit.finetuning import learner
from bertkit.finetuning.explore import glue
from bertkit.model import attention, decoder, embeddings
from bertkit.model.attention import AttentionPattern, AttentionWindow
from bertkit.model.embeddings import Segments
from bertkit.model.encoder import AttentionRecorder, Encoder
from bertkit.model.layer import PostNormLayer, SelfAttention
from bertkit.model.operations import Operations
from bertkit.model.recurrent.cell import AttendingCell
from bertkit.predict.write import Writer
from bertkit.pretraining.objectives.rtd_module import ReplacedTokens
from bertkit.tasks.metrics.correlation import pearson
from bertkit.tasks.shared.text_task import TextTask
from bertkit.text.tokenizer import Tokenizer
from bertkit.train import loop

pytestmark = pytest.mark.usefixtures("_one_thread", "_nothing_kept")
KEPT = (
    finetuning.fine_tuned,
    languages.tokenizer_of,
    decoders.random_decoder,
    decoders.translator,
)  # what a mutation would change, and facts keep


@pytest.fixture
def _nothing_kept():
    for each in KEPT:
        each.cache_clear()
    yield
    for each in KEPT:
        each.cache_clear()


Patch = pytest.MonkeyPatch


def positions_before_every_layer(patch: Patch) -> None:
    def forward(self, batch, ids=None, ops=None):
        self.refuse_too_long(batch)
        x_TD = self.embeddings(batch, ids)
        for number, layer in enumerate(self.stack):
            x_TD = layer(x_TD + self.embeddings.position(batch) if number else x_TD, batch)
        return self.norm(x_TD)

    patch.setattr(Encoder, "forward", forward)


def no_output_projection(patch: Patch) -> None:
    def mixed(self, x_TD, batch, ops):
        return ops.attend(ops.project(self.qkv, x_TD), batch, self.pattern, 0.0)

    patch.setattr(SelfAttention, "forward", mixed)


def the_loop_ignores_weights(patch: Patch) -> None:
    taken = loop.take_step
    patch.setattr(
        loop, "take_step", lambda setup, *rest: taken(replace(setup, weights=dict.fromkeys(setup.weights, 1.0)), *rest)
    )


def the_objective_weighs_alike(patch: Patch) -> None:
    made = ReplacedTokens.__init__

    def init(self, *given, **named):
        made(self, *given, **named)
        self.weights = dict.fromkeys(self.weights, 1.0)

    patch.setattr(ReplacedTokens, "__init__", init)


def cola_by_accuracy(patch: Patch) -> None:
    patch.setitem(glue.GLUE_TASKS, "cola", replace(glue.GLUE_TASKS["cola"], metric="accuracy"))


def similarity_by_pearson(patch: Patch) -> None:
    patch.setattr("bertkit.tasks.metrics.table.spearman", pearson)


def one_projection_for_all_heads(patch: Patch) -> None:
    split = AttentionPattern.split

    def first_head(self, qkv_TX, batch):
        qkv = split(self, qkv_TX, batch)
        return qkv[:, :, :1].expand_as(qkv)

    patch.setattr(AttentionPattern, "split", first_head)


def causal_mask_one_ahead(patch: Patch) -> None:
    def mask(self, length, device):
        if not self.causal:
            return None
        place = torch.arange(length, device=device)
        return place[None, :] - place[:, None] <= 1

    patch.setattr(AttentionWindow, "mask", mask)


def always_left_to_right(patch: Patch) -> None:
    mask = AttentionWindow.mask
    patch.setattr(AttentionWindow, "mask", lambda self, *given: mask(AttentionWindow(self.radius, causal=True), *given))


def all_weights_alike(patch: Patch) -> None:
    def grouped(qkv, batch, window, dropout, bias):
        return torch.cat([part[:, 2].mean(dim=0, keepdim=True).expand_as(part[:, 2]) for part in batch.split(qkv)])

    patch.setattr(attention, "grouped", grouped)


def scores_that_are_not_the_models(patch: Patch) -> None:
    attend = AttentionRecorder.attend

    def larger(self, *given):
        mixed = attend(self, *given)
        queries, *rest = self.seen[-1]
        self.seen[-1] = (1.01 * queries, *rest)
        return mixed

    patch.setattr(AttentionRecorder, "attend", larger)


def no_dropout(patch: Patch) -> None:
    def forward(self, x_TD, batch, ops=None):
        x_TD = self.attention_norm(x_TD + self.attention(x_TD, batch))
        return self.feed_forward_norm(x_TD + self.feed_forward(x_TD))

    patch.setattr(PostNormLayer, "forward", forward)


def every_layer_reads_the_embeddings(patch: Patch) -> None:
    def hidden_states(self, batch, depth=None):
        first = self.embeddings(batch)
        return [first, *(layer(first, batch) for layer in self.stack)]

    patch.setattr(Encoder, "hidden_states", hidden_states)


def no_positions_in_sinusoids(patch: Patch) -> None:
    patch.setattr(embeddings, "sinusoid", lambda positions, width: torch.zeros(len(positions), width))


def segments_left_out(patch: Patch) -> None:
    patch.setattr(Segments, "forward", lambda self, batch: torch.zeros(len(batch.ids), self.weight.shape[1]))


def masks_in_fine_tuning(patch: Patch) -> None:
    windows = TextTask.windows

    def masked(self, example, number):
        found = windows(self, example, number)
        return [replace(each, ids=(each.ids[0], self.tokenizer.mask_id, *each.ids[2:])) for each in found]

    patch.setattr(TextTask, "windows", masked)


def a_fresh_encoder_for_every_task(patch: Patch) -> None:
    patch.setattr(learner, "with_config", lambda model, config, heads, **_: learner.new_model(config, heads, seed=5))


def accents_stripped(patch: Patch) -> None:
    made = Tokenizer.from_vocab
    patch.setattr(
        Tokenizer, "from_vocab", lambda pieces, **settings: made(pieces, **settings | {"strip_accents": True})
    )


def layers_not_shared(patch: Patch) -> None:
    """Layer 2 of a model that shares its layer is another one."""
    in_order = Encoder.ordered_layers.fget

    def unshared(self):
        layers = in_order(self)
        if self.config.parts.shared_layers:
            torch.manual_seed(0)
            layers[1] = PostNormLayer(self.config, 1).eval()
        return layers

    patch.setattr(Encoder, "ordered_layers", property(unshared))


def a_decoder_sees_what_follows(patch: Patch) -> None:
    patch.setattr(decoder, "decoder_config", lambda config: replace(config, depth=config.decoder_depth))


def source_tokens_mixed_up(patch: Patch) -> None:
    project = Operations.project_source
    patch.setattr(
        Operations,
        "project_source",
        lambda self, layer, source: project(self, layer, replace(source, hidden_SD=source.hidden_SD.roll(1, 0))),
    )


def alignment_without_tanh(patch: Patch) -> None:
    def align(self, state_ND, memory):
        scores = self.score(self.query(state_ND)[:, None] + memory.keys).squeeze(-1)
        return scores.masked_fill(~memory.mask, -torch.inf).softmax(dim=-1)

    patch.setattr(AttendingCell, "align", align)


def never_ends(patch: Patch) -> None:
    patch.setattr(Writer, "_id", lambda self, checkpoint, name, default: 0 if name == "eos_token_id" else default)


MUTATIONS: dict[Callable[[Patch], None], list[str]] = {
    positions_before_every_layer: ["T16"],
    no_output_projection: ["M14", "!A72", "P17"],
    the_loop_ignores_weights: ["P14"],
    the_objective_weighs_alike: ["P14"],
    cola_by_accuracy: ["F17"],
    similarity_by_pearson: ["F17"],
    one_projection_for_all_heads: ["M3", "M10"],
    causal_mask_one_ahead: ["M16"],
    always_left_to_right: ["M16", "M23"],
    all_weights_alike: ["M7", "M8", "M14"],
    scores_that_are_not_the_models: ["M9", "M11", "!A59", "!E429"],
    no_dropout: ["M14b"],
    every_layer_reads_the_embeddings: ["M15"],
    no_positions_in_sinusoids: ["T17c"],
    segments_left_out: ["!B83", "T18"],
    masks_in_fine_tuning: ["P24"],
    a_fresh_encoder_for_every_task: ["P22"],
    accents_stripped: ["P20", "F14"],
    layers_not_shared: ["P17"],
    a_decoder_sees_what_follows: ["M17", "M19"],
    source_tokens_mixed_up: ["M17b"],
    alignment_without_tanh: ["M20"],
    never_ends: ["M19"],
}


def statuses(numbers: list[str]) -> dict[str, str]:
    found = {result.fact.number: result.status for result in run_facts(Vocabularies(), numbers)}
    return {number: found[number] for number in numbers}


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_fault_makes_its_facts_fail(mutation, monkeypatch):
    with monkeypatch.context() as patch:
        mutation(patch)
        assert set(statuses(MUTATIONS[mutation]).values()) == {"FAIL"}


def test_without_a_fault_they_hold():
    numbers = sorted({number for numbers in MUTATIONS.values() for number in numbers})
    assert set(statuses(numbers).values()) == {"ok"}
