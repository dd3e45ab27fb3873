"""Training of sparse and token vectors: losses against slow twins, folders at the end, what does not go together."""

import numpy as np
import pytest
import torch

import bertkit
from bertkit.checkpoint.save_load import Checkpoint, load_checkpoint, save_checkpoint
from bertkit.config import family_config, override
from bertkit.errors import RequestError
from bertkit.finetuning.embeddings.gradient_cache import GradientCache
from bertkit.finetuning.embeddings.kinds import KINDS, VectorKind
from bertkit.finetuning.embeddings.losses import VectorLearner, VectorTargets
from bertkit.finetuning.embeddings.settings import VectorTuning
from bertkit.finetuning.embeddings.tuning import tune_vectors
from bertkit.model.batch import Batch
from bertkit.model.model import new_model
from bertkit.predict.retrieval import maxsim
from bertkit.text.tokenizer import Tokenizer

WORDS = [f"w{number}" for number in range(40)]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
SHAPE = (f"vocab_size={len(PIECES)}", "width=16", "heads=2", "inner=32", "depth=1", "max_length=32")


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """A tiny random model with the masked-word head."""
    folder = tmp_path_factory.mktemp("start") / "model"
    config = override(family_config("bert", "tiny"), *SHAPE, "dropout=0", "attention_dropout=0", "init_std=0.3")
    model = new_model(config, {"masked_word": None}, seed=0).eval()
    save_checkpoint(Checkpoint(model=model, tokenizer=Tokenizer.from_vocab(PIECES), max_length=32), folder)
    return folder


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Questions and answers that share no word: w0 is answered by w20, w1 by w21, ..."""
    path = tmp_path_factory.mktemp("pairs") / "pairs.csv"
    rows = [f"w{n} w{(n + 1) % 20},w{20 + n} w{20 + (n + 1) % 20}" for n in range(20)]
    path.write_text("\n".join(["sentence1,sentence2", *rows * 6]) + "\n", encoding="utf-8")
    return path


def answered(bert, how):
    """The share of questions whose answer has the highest score."""
    questions = [f"w{n} w{(n + 1) % 20}" for n in range(20)]
    answers = [f"w{20 + n} w{20 + (n + 1) % 20}" for n in range(20)]
    scores = how(bert, questions, answers)
    return float(np.mean(np.argmax(scores, axis=1) == np.arange(20)))


def sparse_scores(bert, questions, answers):
    return [[one @ other for other in bert.sparse(answers)] for one in bert.sparse(questions, query=True)]


def late_scores(bert, questions, answers):
    return [[maxsim(a, b) for b in bert.token_vectors(answers)] for a in bert.token_vectors(questions, query=True)]


def test_sparse_vectors_are_learned_from_pairs(start, pairs, tmp_path):
    settings = VectorTuning(vectors="sparse", epochs=8, batch=20, learning_rate=1e-2, flops=0.03, max_length=16)
    tune_vectors(settings, start, pairs, None, tmp_path / "run")
    before, after = load_checkpoint(start), bertkit.load(tmp_path / "run" / "model")
    assert before.retrieval is None
    assert answered(after, sparse_scores) > 0.7
    denser = VectorTuning(vectors="sparse", epochs=8, batch=20, learning_rate=1e-2, flops=0, max_length=16)
    tune_vectors(denser, start, pairs, None, tmp_path / "denser")
    sizes = [
        np.mean([len(vector.ids) for vector in bertkit.load(run / "model").sparse([*WORDS])])
        for run in (tmp_path / "run", tmp_path / "denser")
    ]
    assert sizes[0] < 0.85 * sizes[1], "the penalty makes them sparse"


def test_token_vectors_are_learned_from_pairs(start, pairs, tmp_path):
    settings = VectorTuning(
        vectors="late", epochs=8, batch=20, learning_rate=1e-2, projection=8, temperature=0.1, max_length=16
    )
    tune_vectors(settings, start, pairs, None, tmp_path / "run")
    after = bertkit.load(tmp_path / "run" / "model")
    assert after.token_vectors("w1 w2").shape == (4, 8)
    assert answered(after, late_scores) > 0.9
    again = VectorTuning(vectors="late", epochs=1, batch=20, learning_rate=1e-9, max_length=16)
    tune_vectors(again, tmp_path / "run" / "model", pairs, None, tmp_path / "again")
    np.testing.assert_allclose(
        bertkit.load(tmp_path / "again" / "model").token_vectors("w1 w2"), after.token_vectors("w1 w2"), atol=1e-4
    )


def batch_of(count):
    random = np.random.default_rng(1)
    texts = [random.integers(5, len(PIECES), size=random.integers(3, 12)).tolist() for _ in range(count)]
    return Batch.pack([[2, *text, 3] for text in texts])


@pytest.mark.parametrize("vectors", KINDS)
def test_scores_and_penalty_equal_their_formulas(start, vectors):
    checkpoint, settings = load_checkpoint(start), VectorTuning(vectors=vectors, max_length=16, flops=0.01)
    kind, batch = KINDS[vectors](checkpoint, settings), batch_of(6)
    with torch.no_grad():
        rows = kind.rows(checkpoint.model, batch)
        scores = kind.scores(rows[:2], rows[2:])
        tokens = [each.numpy() for each in batch.split(checkpoint.model(batch))]
    if vectors == "late":
        unit = [each @ kind.dense[0].weight.detach().numpy().T for each in tokens]
        unit = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in unit]
        slow = [[maxsim(unit[n], unit[2 + c]) for c in range(4)] for n in range(2)]
    else:
        slow = [[float(rows[n] @ rows[2 + c]) for c in range(4)] for n in range(2)]
    np.testing.assert_allclose(scores, slow, rtol=1e-4, atol=1e-5)
    expected = 0.01 * sum(float(column.mean()) ** 2 for column in rows.T) if vectors == "sparse" else 0.0
    assert float(kind.penalty(rows)) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("vectors", ["sparse", "late"])
def test_a_step_in_parts_has_the_gradients_of_the_whole(start, vectors):
    """By GradCache's own arithmetic: rows of parts, the loss of all of them, its gradient at each row."""
    checkpoint, settings = load_checkpoint(start), VectorTuning(vectors=vectors, max_length=16)
    learner = VectorLearner(checkpoint.model, "pairs", None, (), KINDS[vectors](checkpoint, settings))
    parameters = [each for each in learner.parameters() if each.requires_grad]
    batch, targets = batch_of(8), VectorTargets(4, torch.arange(8))
    loss, _ = learner.loss(learner.kind.rows(learner.model, batch), targets)
    whole = torch.autograd.grad(loss, parameters, allow_unused=True)
    sequences = [ids.tolist() for ids in batch.split(batch.ids)]
    parts = [Batch.pack(sequences[:3]), Batch.pack(sequences[3:])]
    rows = torch.cat([learner.kind.rows(learner.model, part) for part in parts]).detach().requires_grad_()
    [at_rows] = torch.autograd.grad(GradientCache(learner.loss).loss(rows, targets)[0], rows)
    again = torch.cat([learner.kind.rows(learner.model, part) for part in parts])
    split = torch.autograd.grad((again * at_rows).sum(), parameters, allow_unused=True)
    for one, other in zip(whole, split, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("vectors", ["sparse", "late"])
def test_a_run_in_parts_ends_with_the_weights_of_one_in_whole_steps(start, pairs, tmp_path, vectors):
    how = {"vectors": vectors, "epochs": 1, "batch": 10, "learning_rate": 1e-3, "max_length": 16, "projection": 4}
    ended = []
    for tokens in (4096, 64):
        tune_vectors(VectorTuning(**how, tokens=tokens), start, pairs, None, tmp_path / str(tokens))
        ended.append(load_checkpoint(tmp_path / str(tokens) / "model").model.state_dict())
    before = load_checkpoint(start).model.state_dict()
    for name in set(ended[0]) & set(before):
        torch.testing.assert_close(ended[0][name], ended[1][name], atol=2e-4, rtol=1e-3)
    assert any(not torch.allclose(ended[0][name], before[name], atol=1e-3) for name in set(ended[0]) & set(before))


def test_low_rank_updates_of_a_sparse_model(start, pairs, tmp_path):
    settings = VectorTuning(vectors="sparse", rank=2, epochs=1, batch=20, learning_rate=1e-2, max_length=16)
    tune_vectors(settings, start, pairs, None, tmp_path / "run")
    before, after = (load_checkpoint(path).model.state_dict() for path in (start, tmp_path / "run" / "model"))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert "heads.masked_word.dense.weight" in changed
    assert "encoder.embeddings.word.weight" not in changed


def test_what_does_not_go_together(start, minilm, pairs, tmp_path):
    scored = tmp_path / "scored.csv"
    scored.write_text("sentence1,sentence2,score\nw1,w2,1\nw3,w4,0\nw5,w6,2\n", encoding="utf-8")
    for vectors in ("sparse", "late"):
        kind = {"vectors": vectors, "max_length": 16}
        with pytest.raises(RequestError, match=f"objective=scores does not go with vectors={vectors}"):
            tune_vectors(VectorTuning(**kind), start, scored, None, tmp_path / "run")
        with pytest.raises(RequestError, match=f"dimensions= does not go with vectors={vectors}"):
            tune_vectors(VectorTuning(**kind, dimensions=(8,)), start, pairs, None, tmp_path / "run")
        with pytest.raises(RequestError, match=f"scored dev pairs do not go with vectors={vectors}"):
            tune_vectors(VectorTuning(**kind), start, pairs, scored, tmp_path / "run")
    with pytest.raises(RequestError, match="has no masked-word head, which vectors=sparse starts from"):
        tune_vectors(VectorTuning(vectors="sparse"), minilm, pairs, None, tmp_path / "run")
    with pytest.raises(RequestError, match="rank= does not go with vectors=late"):
        tune_vectors(VectorTuning(vectors="late", rank=2), start, pairs, None, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert KINDS["dense"] is VectorKind
