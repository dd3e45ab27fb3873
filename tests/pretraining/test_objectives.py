"""Losses and gradients against transformers, and every fast form against its slow twin."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from memory_corpus import FIRST, PAD, random_corpus

from bertkit.checkpoint.save_load import Checkpoint, load_checkpoint, save_checkpoint
from bertkit.config import BertConfig, family_config, override
from bertkit.errors import RequestError
from bertkit.model.batch import Batch
from bertkit.model.model import new_model
from bertkit.model.word_loss import IGNORE, plain_sample, sampled_words
from bertkit.pretraining.examples.batches import DataSettings, ExampleSource
from bertkit.pretraining.examples.inputs import to_inputs
from bertkit.pretraining.objectives.causal import next_words
from bertkit.pretraining.objectives.module import ForPretraining
from bertkit.pretraining.objectives.rtd_module import ReplacedTokens
from bertkit.pretraining.objectives.table import objective_rows
from bertkit.pretraining.objectives.targets import Targets, class_sums

CPU = torch.device("cpu")
SHAPE = ("width=32", "depth=2", "heads=2", "inner=48", "max_length=48", "dropout=0", "attention_dropout=0")
SHAPE += ("vocab_size=1000", "init_std=0.1")


def shape(family: str, **changes) -> BertConfig:
    return override(family_config(family, "tiny"), *SHAPE, *(f"{name}={value}" for name, value in changes.items()))


def examples(objective, block=8, seed=0):
    corpus = random_corpus(30, seed=seed, distinct=False)
    return ExampleSource(corpus, DataSettings(length=48, objective=objective, block=block, seed=seed)).block(0)


def masked_words(objective=("mlm", "nsp"), family="bert") -> ForPretraining:
    heads = {"masked_word": None} | ({"next_sentence": None} if len(objective) > 1 else {})
    return ForPretraining(new_model(shape(family), heads, seed=1), objective_rows(objective)).eval()


def next_words_module() -> ForPretraining:
    model = new_model(override(shape("bert"), "causal=true"), {"masked_word": None}, seed=1)
    return ForPretraining(model, objective_rows(["causal"])).eval()


def electra(fill=0.0) -> ReplacedTokens:
    heads = {"replaced_token": None} | ({"masked_word": None} if fill else {})
    discriminator = new_model(shape("electra", embedding_width=24), heads, seed=1)
    config = override(shape("electra", embedding_width=24), "width=16", "heads=1", "inner=24")
    return ReplacedTokens(new_model(config, {"masked_word": None}, seed=2), discriminator, fill).eval()


def total(sums, weights=None) -> torch.Tensor:
    """What is minimized: each mean times its weight."""
    return sum((weights or {}).get(name, 1.0) * loss / count for name, (loss, count, _) in sums.items())


def gradients(module, loss) -> dict[str, torch.Tensor]:
    module.zero_grad(set_to_none=True)
    loss.backward()
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


def assert_close(ours, theirs, tolerance=1e-5):
    assert ours.keys() == theirs.keys()
    assert ours
    for name in ours:
        scale = theirs[name].abs().max().clamp(min=1.0)
        assert (ours[name] - theirs[name]).abs().max() / scale < tolerance, name


def dense(batch: Batch, targets: Targets) -> dict[str, torch.Tensor]:
    """transformers' form of a batch: padded, with a label or -100 at every token."""
    labels = torch.full_like(batch.ids, IGNORE).index_put((targets.chosen,), targets.words)
    return {
        "input_ids": batch.pad(batch.ids, PAD),
        "attention_mask": batch.mask.long(),
        "token_type_ids": batch.pad(batch.segments),
        "labels": batch.pad(labels, IGNORE),
    }


def test_loss_and_gradients_are_those_of_bert_for_pre_training(tmp_path):
    module = masked_words()
    save_checkpoint(Checkpoint(model=module.model), tmp_path / "ours")
    theirs = transformers.BertForPreTraining.from_pretrained(tmp_path / "ours").eval()
    batch, targets = to_inputs(examples(("mlm", "nsp")), CPU)
    loss = total(module(batch, targets))
    expected = theirs(**dense(batch, targets), next_sentence_label=targets.pairs).loss
    assert float((loss - expected).detach().abs()) < 1e-5
    loss.backward()
    expected.backward()
    with torch.no_grad():  # one step of plain descent, and the weights must still agree: the gradients are equal
        for model in (module, theirs):
            for parameter in model.parameters():
                parameter -= parameter.grad
    theirs.save_pretrained(tmp_path / "theirs")
    stepped = load_checkpoint(tmp_path / "theirs", heads=dict.fromkeys(module.model.heads)).model
    assert_close(dict(module.model.state_dict()), dict(stepped.state_dict()))


def test_the_discriminator_loss_is_that_of_electra_for_pre_training(tmp_path):
    module = electra()
    save_checkpoint(Checkpoint(model=module.discriminator), tmp_path)
    theirs = transformers.ElectraForPreTraining.from_pretrained(tmp_path).eval()
    batch, targets = to_inputs(examples(("rtd",)), CPU)
    torch.manual_seed(3)
    loss, count, _ = module(batch, targets)["rtd"]
    torch.manual_seed(3)
    samples = sampled_words(generator_logits(module, batch, targets), None, 1000)
    replaced, labels = module.replace(batch, targets, samples)
    assert 0 < labels.sum() < len(labels)
    words = dense(replace(batch, ids=replaced), targets)
    del words["labels"]
    expected = theirs(**words, labels=batch.pad(labels.long())).loss
    assert float((loss / count - expected).detach().abs()) < 1e-5
    assert int(count) == len(batch.ids)


def generator_logits(module, batch, targets):
    with torch.no_grad():
        return module.generator.heads["masked_word"](module.generator(batch)[targets.chosen])


def test_the_head_on_chosen_positions_is_the_dense_head_with_ignored_labels():
    module = masked_words(("mlm",))
    batch, targets = to_inputs(examples(("mlm",)), CPU)
    sparse = total(module(batch, targets))
    labels = torch.full_like(batch.ids, IGNORE).index_put((targets.chosen,), targets.words)
    logits = module.model.logits(batch, "masked_word")
    full = F.cross_entropy(logits, labels, ignore_index=IGNORE)
    assert float(((sparse - full) / full).detach().abs()) < 1e-6
    assert_close(gradients(module, sparse), gradients(module, full), 1e-6)


def test_other_positions_get_no_gradient():
    logits = torch.randn(20, 11, requires_grad=True)
    labels = torch.full((20,), IGNORE)
    labels[[2, 5, 17]] = torch.tensor([1, 0, 10])
    loss, count, _ = class_sums(logits, labels)
    loss.backward()
    assert int(count) == 3
    assert logits.grad.abs().sum(dim=1).nonzero().squeeze(1).tolist() == [2, 5, 17]


def test_classified_counts_what_is_right_and_nothing_for_an_empty_choice():
    logits = torch.tensor([[9.0, 0], [9.0, 0], [0, 9.0]])
    _, count, right = class_sums(logits, torch.tensor([0, 1, IGNORE]))
    assert (int(count), int(right)) == (2, 1)
    loss, count, right = class_sums(torch.zeros(0, 2, requires_grad=True), torch.zeros(0, dtype=torch.long))
    assert (loss.item(), int(count), int(right)) == (0.0, 0, 0)
    loss.backward()


OBJECTIVES = [("mlm",), ("mlm", "nsp"), ("mlm", "sop"), ("rtd",), ("rtd", "fill"), ("causal",)]


@pytest.mark.parametrize("objective", OBJECTIVES, ids="+".join)
def test_the_fixed_layout_is_the_free_one(objective):
    made = examples(objective, block=6)
    free = to_inputs(made, CPU, objective=objective)
    fixed = to_inputs(made, CPU, objective=objective, fixed_length=48, pad_id=PAD)
    assert len(fixed[0].ids) == 6 * 48
    assert len(fixed[1].words) % 1024 == 0
    plain = next_words_module if objective == ("causal",) else lambda: masked_words(objective)
    module = electra(float("fill" in objective)) if "rtd" in objective else plain()
    results = []
    for batch, targets in (free, fixed):
        torch.manual_seed(5)
        sums = module(batch, targets)
        counts = {name: (int(count), int(right)) for name, (_, count, right) in sums.items()}
        results.append((total(sums, module.weights), counts, gradients(module, total(sums, module.weights))))
    assert results[0][1] == results[1][1]
    assert ((results[0][0] - results[1][0]).abs() / results[0][0]).item() < 1e-6
    assert_close(results[1][2], results[0][2], 2e-5)


def test_no_gradient_flows_from_the_discriminator_to_the_generator():
    module = electra()
    batch, targets = to_inputs(examples(("rtd",)), CPU)
    loss, _, _ = module(batch, targets)["rtd"]
    found = gradients(module, loss)
    shared = {"word", "segment", "position", "norm"}
    own = [name for name in found if name.startswith("generator.") and name.split(".")[3] not in shared]
    assert [name for name in own if found[name].abs().sum() > 0] == []
    assert any(name.startswith("discriminator.") and found[name].abs().sum() > 0 for name in found)


def test_a_sample_equal_to_the_original_counts_as_real():
    module = electra()
    batch, targets = to_inputs(examples(("rtd",)), CPU)
    hit = torch.arange(len(targets.words)) % 2 == 0
    sampled = torch.where(hit, targets.words, (targets.words + 1 - FIRST) % 995 + FIRST)
    replaced, labels = module.replace(batch, targets, sampled)
    assert torch.equal(replaced[targets.chosen], sampled)
    assert torch.equal(labels[targets.chosen], ~hit)
    assert int(labels.sum()) == int((~hit).sum()), "what was not chosen is real"


def test_every_fourth_blank_is_left_to_the_discriminator_and_the_others_are_not():
    module = electra(fill=2.0)
    batch, targets = to_inputs(examples(("rtd", "fill")), CPU)
    [blank] = batch.ids[targets.chosen].unique().tolist()
    assert len(targets.words) > 8
    wrong = (targets.words + 1 - FIRST) % 995 + FIRST
    replaced, labels = module.replace(batch, targets, wrong)
    left = torch.arange(len(targets.words)) % 4 == 0
    assert torch.equal(replaced[targets.chosen], torch.where(left, blank, wrong))
    assert torch.equal(labels[targets.chosen], ~left)
    assert torch.equal(replaced == blank, torch.zeros_like(labels).index_fill(0, targets.chosen[left], True))
    unchosen = torch.ones_like(labels).index_fill(0, targets.chosen, False)
    assert torch.equal(replaced[unchosen], batch.ids[unchosen])


def test_what_it_fills_is_the_loss_of_its_own_head_on_the_text_that_it_judges():
    module = electra(fill=2.0)
    batch, targets = to_inputs(examples(("rtd", "fill")), CPU)
    torch.manual_seed(3)
    sums = module(batch, targets)
    torch.manual_seed(3)
    samples = sampled_words(generator_logits(module, batch, targets), None, 1000)
    seen, _ = module.replace(batch, targets, samples)
    logits = module.discriminator.logits(replace(batch, ids=seen), "masked_word")[targets.chosen[::4]]
    loss, count, right = sums["fill"]
    assert int(count) == len(logits)
    torch.testing.assert_close(loss / count, F.cross_entropy(logits, targets.words[::4]))
    assert int(right) == int((logits.argmax(-1) == targets.words[::4]).sum())
    assert module.weights == {"mlm": 1.0, "rtd": 50.0, "fill": 2.0}
    found = gradients(module, loss)
    own = [name for name in found if name.startswith("generator.encoder.layers") and found[name].abs().sum() > 0]
    assert own == [], "the generator learns nothing from it"


def test_one_encoder_that_judges_and_fills_is_both_of_its_classes_in_transformers(tmp_path):
    model = electra(fill=1.0).discriminator
    batch, _ = to_inputs(examples(("rtd", "fill")), CPU)
    save_checkpoint(Checkpoint(model=model), tmp_path)
    words = {"input_ids": batch.pad(batch.ids), "attention_mask": batch.pad(torch.ones_like(batch.ids))}
    words["token_type_ids"] = batch.pad(batch.segments)
    kinds = {"masked_word": transformers.ElectraForMaskedLM, "replaced_token": transformers.ElectraForPreTraining}
    for head, kind in kinds.items():
        theirs = kind.from_pretrained(tmp_path).eval()(**words).logits
        ours = model.logits(batch, head)
        expected = theirs[words["attention_mask"].bool()]
        torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-4)


def test_samples_follow_the_generators_probabilities():
    count = 20_000
    logits = torch.full((count, 8), -1e4)
    logits[:, 5:8] = torch.tensor([0.6, 0.3, 0.1]).log()
    torch.manual_seed(0)
    shares = torch.bincount(sampled_words(logits, None, 8), minlength=8) / count
    assert torch.allclose(shares[5:], torch.tensor([0.6, 0.3, 0.1]), atol=0.012)  # three deviations
    assert shares[:5].sum() == 0
    sure = torch.full((3, 8), -1e4).index_put((torch.arange(3), torch.tensor([0, 7, 4])), torch.tensor(0.0))
    for place in (0.0, 0.5, 1 - 2**-24):
        assert plain_sample(sure, torch.full((3,), place)).tolist() == [0, 7, 4]


def test_embeddings_are_one_set_of_tensors():
    module = electra()
    ours, theirs = module.generator.encoder.embeddings, module.discriminator.encoder.embeddings
    for name in ("word", "segment", "position", "norm"):
        assert getattr(ours, name).weight is getattr(theirs, name).weight
    assert module.generator.heads["masked_word"].decoder.weight is theirs.word.weight
    assert ours.widen.weight is not theirs.widen.weight
    names = [name for name, _ in module.named_parameters()]
    assert len([name for name in names if name.endswith("word.weight")]) == 1


def test_left_to_right_each_word_foretells_the_next():
    ids = np.array([2, 10, 11, 3, 2, 12, 3])
    chosen, words = next_words(ids, np.array([4, 3]))
    assert chosen.tolist() == [0, 1, 2, 4, 5]
    assert words.tolist() == [10, 11, 3, 12, 3]
    batch, targets = to_inputs(examples(("causal",)), CPU, objective=("causal",))
    assert len(targets.words) == len(batch.ids) - len(batch.lengths)
    module = next_words_module()
    changed = batch.ids.clone()
    changed[batch.lengths[0] - 1] = FIRST  # the last word of the first text: nothing before it may notice
    before, after = module.model(batch), module.model(batch, changed)
    keep = batch.lengths[0] - 1
    assert torch.equal(before[:keep], after[:keep])
    assert not torch.equal(before[keep], after[keep])
    assert set(module(batch, targets)) == {"causal"}
    with pytest.raises(RequestError, match="objective=causal needs a model with causal=true"):
        ForPretraining(masked_words(("mlm",)).model, objective_rows(["causal"]))
