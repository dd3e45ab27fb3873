"""Sparse and late retrieval: vectors against slow twins, indexes against brute force, bad folders."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import bertkit
from bertkit.checkpoint.save_load import Checkpoint, save_checkpoint
from bertkit.cli.main import run
from bertkit.config import family_config, override
from bertkit.errors import RequestError
from bertkit.model.batch import Batch
from bertkit.model.model import new_model
from bertkit.model.retrieval import (
    ACTIVATIONS,
    SPARSE_POOLINGS,
    TOKENS_AT_A_TIME,
    Expansion,
    LateSettings,
    SparseSettings,
    word_weights,
)
from bertkit.predict.retrieval import maxsim
from bertkit.search.index import Index, build_index
from bertkit.search.retrievers import late as late_module
from bertkit.text.tokenizer import Tokenizer

WORDS = [f"w{number}" for number in range(60)]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]", ",", "!", *WORDS]
SHAPE = ("width=16", "heads=2", "inner=32", "depth=2", "max_length=80", "init_std=0.3")


def made(retrieval, folder, *, heads=None, seed=0):
    """A folder of a tiny random model."""
    config = override(family_config("bert", "tiny"), f"vocab_size={len(PIECES)}", *SHAPE)
    model = new_model(config, {"masked_word": None} if heads is None else heads, seed=seed).eval()
    tokenizer = Tokenizer.from_vocab(PIECES)
    save_checkpoint(Checkpoint(model=model, tokenizer=tokenizer, retrieval=retrieval, max_length=80), folder)
    return folder


def projection(width=6):
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(16, width, bias=False), nn.Identity()).requires_grad_(False)


@pytest.fixture(scope="module")
def sparse(tmp_path_factory):
    # A bias below zero makes weights rare, as training does.
    folder = made(SparseSettings(query_prefix="w1 "), tmp_path_factory.mktemp("models") / "sparse")
    bert = bertkit.load(folder)
    with torch.no_grad():
        bert.model.heads["masked_word"].decoder.bias.fill_(-0.5)
    bert.save(folder.parent / "rare")
    return folder.parent / "rare"


@pytest.fixture(scope="module")
def late(tmp_path_factory):
    settings = LateSettings(dense=projection(), expansion=Expansion(12), skipped=(",", "!"), document_length=60)
    return made(settings, tmp_path_factory.mktemp("models") / "late")


@pytest.fixture(scope="module")
def documents():
    random = np.random.default_rng(5)
    texts = [" ".join(random.choice(WORDS, size=random.integers(1, 50))) for _ in range(120)]
    return [*texts, texts[3], "w5", "nothing known here"]  # one text twice: equal scores


QUERIES = ["w5 w7", "w1 w2 w3, w4!", "w59"]


@pytest.mark.parametrize("pooling", SPARSE_POOLINGS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_blocks_of_tokens_give_the_weights_of_all_logits_at_once(pooling, activation):
    config = override(family_config("bert", "tiny"), "vocab_size=50", *SHAPE)
    head = new_model(config, {"masked_word": None}, seed=1).heads["masked_word"]
    lengths = (3, TOKENS_AT_A_TIME + 70, 1, 2 * TOKENS_AT_A_TIME, 60)
    x_TD = torch.randn(sum(lengths), 16, requires_grad=True)
    ids = torch.zeros(len(x_TD), dtype=torch.long)
    batch, settings = Batch(ids, ids, lengths), SparseSettings(pooling=pooling, activation=activation)
    values_TV = ACTIVATIONS[activation](head(x_TD))
    slow_NV = torch.stack([SPARSE_POOLINGS[pooling].pool(part) for part in batch.split(values_TV)])
    fast_NV = word_weights(head, x_TD, batch, settings)
    torch.testing.assert_close(fast_NV, slow_NV, atol=1e-5, rtol=1e-5)
    grades_NV = torch.rand_like(slow_NV)
    [slow_TD] = torch.autograd.grad((slow_NV * grades_NV).sum(), x_TD)
    for recompute in (False, True):
        again_NV = word_weights(head, x_TD, batch, settings, recompute=recompute)
        [fast_TD] = torch.autograd.grad((again_NV * grades_NV).sum(), x_TD)
        torch.testing.assert_close(fast_TD, slow_TD, atol=1e-5, rtol=1e-4)
    with torch.no_grad():
        torch.testing.assert_close(word_weights(head, x_TD, batch, settings), slow_NV, atol=1e-5, rtol=1e-5)


def test_sparse_vectors_name_their_word_pieces(sparse):
    bert = bertkit.load(sparse)
    vector = bert.sparse("w5 w7")
    assert 0 < len(vector.ids) < len(PIECES)
    assert list(vector.words.values()) == sorted(vector.weights.tolist(), reverse=True)
    assert {PIECES[number] for number in vector.ids} == set(vector.words)
    [again] = bert.sparse(["w5 w7"])
    assert again.words == vector.words
    assert bert.sparse("w5 w7", query=True).words == bert.sparse("w1 w5 w7").words, "the query's prompt"
    shared = {word: weight * again.words[word] for word, weight in vector.words.items()}
    assert vector @ again == pytest.approx(sum(shared.values()), rel=1e-5)


def test_an_empty_text_has_vectors(sparse, late):
    assert bertkit.load(sparse).sparse("").ids.dtype == np.int32
    bert = bertkit.load(late)
    assert bert.token_vectors("").shape == (2, 6), "[CLS] and [SEP]"
    assert bert.token_vectors(["", "w1 , w2 !"])[1].shape == (4, 6), "punctuation has none"
    assert bert.token_vectors("w1 ,", query=True).shape == (12, 6), "a query has, and is filled up with [MASK]"
    assert bert.token_vectors([]) == [] == bertkit.load(sparse).sparse([])


def test_no_token_sees_the_masks_that_fill_up_a_query(late):
    bert = bertkit.load(late)
    settings = bert.checkpoint.retrieval
    plain = bertkit.Bert(replace(bert.checkpoint, retrieval=replace(settings, expansion=None)))
    attending = bertkit.Bert(
        replace(bert.checkpoint, retrieval=replace(settings, expansion=Expansion(12, attend=True)))
    )
    for query in QUERIES:
        words = plain.token_vectors(query, query=True)
        filled = bert.token_vectors(query, query=True)
        np.testing.assert_allclose(filled[: len(words)], words, atol=1e-5)
        assert np.abs(attending.token_vectors(query, query=True)[: len(words)] - words).max() > 1e-3
    np.testing.assert_allclose(bert.token_vectors(QUERIES, query=True)[2], filled, atol=1e-6)


def brute_force(scores, k):
    order = sorted(range(len(scores)), key=lambda number: (-scores[number], number))
    return [(number, scores[number]) for number in order[:k]]


def assert_found(hits, expected):
    """The same scores; the same documents but where scores are equal to rounding."""
    np.testing.assert_allclose([hit.score for hit in hits], [score for _, score in expected], rtol=1e-5, atol=1e-6)
    firsts = {round(score, 4) for _, score in expected}
    if len(firsts) == len(expected):
        assert [hit.index for hit in hits] == [number for number, _ in expected]


def test_a_sparse_index_finds_what_brute_force_finds(sparse, documents, tmp_path):
    index = build_index(documents[:70], tmp_path / "index", kinds=["sparse"], model=sparse)
    index.append(documents[70:])
    bert = bertkit.load(sparse)
    vectors = bert.sparse(documents)
    for query, hits in zip(QUERIES, index.search(QUERIES, k=20), strict=True):
        own = bert.sparse(query, query=True)
        expected = [(n, score) for n, score in brute_force([own @ vector for vector in vectors], 20) if score > 0]
        assert_found(hits, expected)
        assert len(hits) > 5


def test_a_text_may_stand_for_no_word_piece(sparse, tmp_path):
    bert = bertkit.load(sparse)
    with torch.no_grad():
        bert.model.heads["masked_word"].decoder.bias.fill_(-1000.0)
    bert.save(tmp_path / "none")
    vector = bertkit.load(tmp_path / "none").sparse("w1")
    assert (len(vector.ids), vector.words, vector @ vector) == (0, {}, 0.0)
    index = build_index(["w1", "w2"], tmp_path / "index", kinds=["sparse"], model=tmp_path / "none")
    assert index.search("w1") == []


@pytest.mark.parametrize("stored", ["float16", "int8"])
def test_a_late_index_finds_what_brute_force_finds(late, documents, tmp_path, monkeypatch, stored):
    monkeypatch.setattr(late_module, "TOKENS_PER_BLOCK", 100)  # several blocks in a segment
    index = build_index(documents[:70], tmp_path / "index", kinds=["late"], model=late, token_vectors=stored)
    index.append(documents[70:])
    bert = bertkit.load(late)
    vectors = [rounded(each, stored) for each in bert.token_vectors(documents)]
    for query, hits in zip(QUERIES, index.search(QUERIES, k=20), strict=True):
        own = bert.token_vectors(query, query=True).astype(np.float64)
        expected = brute_force([maxsim(own, vector) for vector in vectors], 20)
        assert_found(hits, expected)
    same = [hit.index for hit in index.search(documents[3], k=2)]
    assert same == [3, 120], "equal scores, in the order of the documents"


def rounded(vectors, stored):
    """What is stored of vectors."""
    if stored == "float16":
        return vectors.astype(np.float16).astype(np.float64)
    levels = np.rint(vectors * (127 / np.abs(vectors).max(axis=1, keepdims=True))).astype(np.float64)
    return levels / np.linalg.norm(levels, axis=1, keepdims=True)


def test_kinds_are_fused(sparse, late, documents, tmp_path):
    index = build_index(documents, tmp_path, kinds=["bm25", "sparse", "late"], model={"sparse": sparse, "late": late})
    [first, *_] = index.search("w5", k=3)
    assert set(first.scores) <= {"bm25", "sparse", "late"}
    assert len(first.scores) > 1
    assert Index(tmp_path).search("w5", k=3, kinds=["late"])[0].scores.keys() == {"late"}


def test_only_the_heaviest_pieces_of_a_document_are_kept(sparse, documents, tmp_path):
    index = build_index(documents, tmp_path, kinds=["sparse"], model=sparse, pieces=1)
    bert = bertkit.load(sparse)
    heaviest = [next(iter(vector.words), None) for vector in bert.sparse(documents)]
    for hit in index.search("w5 w7", k=20):
        assert heaviest[hit.index] in bert.sparse("w5 w7", query=True).words


def test_the_mean_of_best_matches(late, tmp_path):
    bert = bertkit.load(late)
    mean = replace(bert.checkpoint, retrieval=replace(bert.checkpoint.retrieval, mean=True))
    save_checkpoint(mean, tmp_path / "mean")
    texts = ["w1 w2", "w3"]
    sums = build_index(texts, tmp_path / "sums", kinds=["late"], model=late).search("w1", k=1)
    means = build_index(texts, tmp_path / "means", kinds=["late"], model=tmp_path / "mean").search("w1", k=1)
    assert means[0].score == pytest.approx(sums[0].score / 12)


def test_an_index_is_of_one_model(sparse, late, tmp_path):
    build_index(["w1", "w2"], tmp_path / "index", kinds=["late"], model=late)
    other = made(LateSettings(dense=projection(5), expansion=Expansion(12)), tmp_path / "other")
    with pytest.raises(RequestError, match="build the index again"):
        Index(tmp_path / "index", model=other).search("w1")
    for kind, wrong in (("late", sparse), ("sparse", late)):
        with pytest.raises(RequestError, match="was not trained to make .* vectors; load a folder that was"):
            build_index(["w1"], tmp_path / "wrong", kinds=[kind], model=wrong)
        with pytest.raises(
            RequestError, match="vectors are made by a model that was trained for them; name its folder"
        ):
            build_index(["w1"], tmp_path / "none", kinds=[kind])


def test_vectors_of_any_length_are_not_stored_as_int8(tmp_path):
    folder = made(LateSettings(dense=projection(), normalize=False), tmp_path / "long")
    with pytest.raises(RequestError, match="token_vectors=int8 keeps only directions"):
        build_index(["w1"], tmp_path / "index", kinds=["late"], model=folder, token_vectors="int8")


def test_models_that_were_not_trained_for_it(minilm, late):
    with pytest.raises(RequestError, match="was not trained to make sparse vectors; .* SparseEncoder"):
        bertkit.load(minilm).sparse("a dense folder")
    with pytest.raises(RequestError, match="was not trained to make token vectors; .* MultiVectorEncoder"):
        bertkit.load().token_vectors(["the bundled model"])
    with pytest.raises(RequestError, match="was not trained to make sparse vectors"):
        bertkit.load(late).sparse("")


def test_a_sparse_model_without_its_head(sparse, tmp_path):
    bare = made(SparseSettings(), tmp_path / "bare", heads={})
    with pytest.raises(RequestError, match="is a sparse model, but its weights have no masked-word head"):
        bertkit.load(bare)


def test_a_classifier_may_start_from_a_model_for_retrieval(sparse, late, tmp_path):
    rows = [("w1 w2", "a"), ("w3", "b")] * 4
    for name, start in (("sparse", sparse), ("late", late)):
        run = bertkit.finetune("classify", train=rows, dev=rows, model=start, out=tmp_path / name, epochs=1)
        assert bertkit.load(tmp_path / name / "model").checkpoint.retrieval is None
        assert run.model.classify("w1 w2").label in {"a", "b"}
        bertkit.Classifier(str(start)).fit(*zip(*rows, strict=True)).save(tmp_path / f"{name} features")
        assert bertkit.load(tmp_path / f"{name} features").classify("w3").label in {"a", "b"}


def test_info_names_the_vectors(sparse, late, capsys):
    for folder, what in ((sparse, "sparse vectors"), (late, "token vectors")):
        assert run(["info", str(folder)]) == 0
        assert what in capsys.readouterr().out


@pytest.mark.parametrize("call", ["sparse", "token_vectors"])
def test_weights_that_are_not_finite(sparse, late, call):
    bert = bertkit.load(sparse if call == "sparse" else late)
    with torch.no_grad():
        bert.model.encoder.embeddings.word.weight[PIECES.index("w9"), 0] = float("nan")
    with pytest.raises(RequestError, match=r"text [12] \(counted from 1\) gets numbers that are not finite"):
        getattr(bert, call)(["w1", "w9"])


def changed(folder, target, name, change):
    """A copy of a folder in which a JSON file is changed."""
    bertkit.load(folder).save(target)
    data = json.loads((target / name).read_text(encoding="utf-8"))
    change(data)
    (target / name).write_text(json.dumps(data), encoding="utf-8")
    return target


CONFIG, LENGTHS = "config_sentence_transformers.json", "sentence_bert_config.json"


@pytest.mark.parametrize(
    ("kind", "name", "change", "sentence"),
    [
        ("sparse", "modules.json", lambda d: d[1].update(type="x.SparseAutoEncoder"), "'SparseAutoEncoder' is not"),
        ("sparse", "modules.json", lambda d: d.pop(), "a sparse model is a Transformer with"),
        ("sparse", LENGTHS, lambda d: d.update(transformer_task="feature-extraction"), "not Transformer and Splade"),
        ("sparse", "1_SpladePooling/config.json", lambda d: d.update(pooling_strategy="mean"), "unknown pooling of sp"),
        ("sparse", CONFIG, lambda d: d.update(similarity_fn_name="cosine"), "scores by 'cosine' are not supported"),
        ("sparse", CONFIG, lambda d: d.update(prompts=["query"]), "prompts must name texts"),
        ("sparse", CONFIG, lambda d: d.update(prompts={"query": 1}), "prompts must name texts"),
        ("late", "modules.json", lambda d: d[2].update(type="x.HierarchicalTokenPooling"), "TokenPooling' is not supp"),
        ("late", "modules.json", lambda d: d.reverse(), "modules must be in this order"),
        ("late", CONFIG, lambda d: d.update(model_type="ColBERT"), "is PyLate's; load the folder with sentence-transf"),
        ("late", LENGTHS, lambda d: d["query_expansion"].update(length=0), "has no room for a word"),
        ("late", LENGTHS, lambda d: d["query_expansion"].update(strategy="none"), "strategy 'fixed' or 'min'"),
        ("late", LENGTHS, lambda d: d.update(document_length="long"), "document_length='long' must be"),
        ("late", "3_Normalize/config.json", lambda d: d.clear(), "module_input_name must be 'token_embeddings'"),
        ("late", "1_Dense/config.json", lambda d: d.update(module_input_name="sentence_embedding"), "is not supported"),
        ("late", "2_MultiVectorMask/config.json", lambda d: d.update(keep_only_token_ids=[5]), "keep_only_token_ids"),
        ("late", "2_MultiVectorMask/config.json", lambda d: d.update(skiplist_words="all"), "must list"),
    ],
)  # fmt: skip
def test_folders_that_cannot_be_read(sparse, late, tmp_path, kind, name, change, sentence):
    folder = changed({"sparse": sparse, "late": late}[kind], tmp_path / "folder", name, change)
    with pytest.raises(RequestError, match=sentence) as error:
        bertkit.load(folder)
    assert str(tmp_path) in str(error.value)


def test_a_token_for_expansion_that_the_vocabulary_lacks(late, tmp_path):
    change = lambda data: data["query_expansion"].update(token="<fill>")  # noqa: E731
    bert = bertkit.load(changed(late, tmp_path / "folder", LENGTHS, change))
    with pytest.raises(RequestError, match="the vocabulary has no '<fill>', with which the model fills up queries"):
        bert.token_vectors("w1", query=True)
