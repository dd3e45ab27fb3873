"""Sparse and token vectors against sentence-transformers: its folders here, and ours there."""

import json
import shutil
import string

import numpy as np
import pytest
import torch

import bertkit

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]", "[unused1]", *string.punctuation]
PIECES += [*"abcdefghij", *(f"##{letter}" for letter in "abcdefghij"), "the", "cat", "dog", "query", "document"]
TEXTS = ["the cat a b c", "dog, the! (query) b?", "", "document " + "a b c d e f g " * 20, "a", "?!"]
CLOSE = {"atol": 1e-5, "rtol": 0}
pytestmark = [
    pytest.mark.filterwarnings("ignore::bertkit.errors.BertkitWarning"),  # one text is over the limit on purpose
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module")
def trunk(tmp_path_factory):
    """A tiny random BERT with the masked-word head."""
    from transformers import BertConfig, BertForMaskedLM, BertTokenizerFast

    folder = tmp_path_factory.mktemp("trunk")
    (folder / "vocab.txt").write_text("\n".join(PIECES), encoding="utf-8")
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    torch.manual_seed(0)
    BertForMaskedLM(
        BertConfig(vocab_size=len(PIECES), max_position_embeddings=64, initializer_range=0.1, **shape)
    ).save_pretrained(folder)
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    return folder


def sparse_encoder(trunk, **pooling):
    from sentence_transformers import SparseEncoder
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sparse_encoder.modules import SpladePooling

    transformer = Transformer(str(trunk), transformer_task="fill-mask")
    prompts = {"query": "query ", "document": "the "}
    return SparseEncoder(modules=[transformer, SpladePooling(**pooling)], prompts=prompts, device="cpu").eval()


def multi_vector_encoder(trunk, *, skiplist=(), normalize=True, similarity="maxsim", **transformer):
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    encoder = Transformer(str(trunk), **transformer)
    torch.manual_seed(1)
    dense = Dense(
        encoder.get_embedding_dimension(), 8, activation_function=torch.nn.Tanh(), module_input_name="token_embeddings"
    )
    modules = [encoder, dense, MultiVectorMask(list(skiplist)), *[Normalize("token_embeddings")] * normalize]
    prompts = {"query": "[unused0] ", "document": "[unused1] "}
    return MultiVectorEncoder(modules=modules, prompts=prompts, similarity_fn_name=similarity, device="cpu").eval()


def there(model, texts, *, query, **how):
    return (model.encode_query if query else model.encode_document)(texts, **how)


def assert_same_sparse(model, bert, texts):
    for query in (False, True):
        expected = there(model, texts, query=query, convert_to_tensor=True).to_dense().numpy()
        got = np.zeros_like(expected)
        for row, vector in zip(got, bert.sparse(texts, query=query), strict=True):
            row[vector.ids] = vector.weights
        np.testing.assert_allclose(got, expected, **CLOSE)


def assert_same_tokens(model, bert, texts):
    for query in (False, True):
        expected = there(model, texts, query=query, convert_to_numpy=True)
        got = bert.token_vectors(texts, query=query)
        assert [each.shape for each in got] == [each.shape for each in expected]
        for ours, theirs in zip(got, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, **CLOSE)


@pytest.mark.parametrize(
    "pooling",
    [{}, {"pooling_strategy": "sum", "activation_function": "log1p_relu"}, {"activation_function": "log1p_relu"}],
    ids=str,
)
def test_sparse_encoders_in_both_directions(trunk, tmp_path, pooling):
    from sentence_transformers import SparseEncoder

    theirs = sparse_encoder(trunk, **pooling)
    theirs.save(str(tmp_path / "theirs"))
    ours = bertkit.load(tmp_path / "theirs")
    assert_same_sparse(theirs, ours, TEXTS)
    ours.save(tmp_path / "ours")
    assert_same_sparse(SparseEncoder(str(tmp_path / "ours"), device="cpu"), bertkit.load(tmp_path / "ours"), TEXTS)


def test_the_old_module_of_sparse_models_is_read(trunk, tmp_path):
    theirs = sparse_encoder(trunk)
    theirs.save(str(tmp_path))
    modules = (tmp_path / "modules.json").read_text()
    old = "sentence_transformers.sparse_encoder.models.MLMTransformer"
    renamed = modules.replace("sentence_transformers.base.modules.transformer.Transformer", old)
    assert renamed != modules
    (tmp_path / "modules.json").write_text(renamed)
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 64, "do_lower_case": false}')
    assert_same_sparse(theirs, bertkit.load(tmp_path), TEXTS)


@pytest.mark.parametrize(
    "prompts", [{"document": "dog "}, {"passage": "dog ", "query": None}, {"other": "cat ", "query": "the "}], ids=str
)
def test_only_the_prompts_of_the_two_sides_are_used(trunk, tmp_path, prompts):
    from sentence_transformers import SparseEncoder

    sparse_encoder(trunk).save(str(tmp_path))
    path = tmp_path / "config_sentence_transformers.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"prompts": prompts, "default_prompt_name": next(iter(prompts))}))
    assert_same_sparse(SparseEncoder(str(tmp_path), device="cpu"), bertkit.load(tmp_path), TEXTS)


COLBERT = {"strategy": "fixed", "length": 12, "attend": False}


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"skiplist": string.punctuation, "document_length": 24, "query_expansion": COLBERT},
        {"query_expansion": {"strategy": "min", "length": 8, "attend": True}, "query_length": 16, "normalize": False},
        {"query_expansion": {**COLBERT, "strategy": "min", "token": "dog"}, "similarity": "meanmaxsim"},
    ],
    ids=["plain", "colbert", "attending", "other token"],
)
def test_multi_vector_encoders_in_both_directions(trunk, tmp_path, how):
    from sentence_transformers import MultiVectorEncoder

    theirs = multi_vector_encoder(trunk, **how)
    theirs.save(str(tmp_path / "theirs"))
    ours = bertkit.load(tmp_path / "theirs")
    assert_same_tokens(theirs, ours, TEXTS)
    ours.save(tmp_path / "ours")
    again = MultiVectorEncoder(str(tmp_path / "ours"), device="cpu")
    assert again.similarity_fn_name == how.get("similarity", "maxsim")
    assert_same_tokens(again, bertkit.load(tmp_path / "ours"), TEXTS)


def test_minilm_with_random_heads(minilm, tmp_path):
    """The real trunk; SPLADE's head and ColBERT's projection are drawn."""
    torch.manual_seed(2)
    texts = ["How do I pay?", "What are the payment options?", "Paris, the capital of France."]
    late = multi_vector_encoder(
        minilm, skiplist=string.punctuation, query_expansion={"strategy": "fixed", "length": 32}
    )
    late.save(str(tmp_path / "late"))
    assert_same_tokens(late, bertkit.load(tmp_path / "late"), texts)
    shutil.rmtree(tmp_path / "late")
    sparse = sparse_encoder(minilm)
    sparse.save(str(tmp_path / "sparse"))
    ours = bertkit.load(tmp_path / "sparse")
    assert_same_sparse(sparse, ours, texts)
    ours.save(tmp_path / "ours")
    assert_same_sparse(type(sparse)(str(tmp_path / "ours"), device="cpu"), ours, texts)
