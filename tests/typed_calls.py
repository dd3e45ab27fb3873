"""A program with every public call, as type checkers see it: a str gives one, a list gives many. Never run.

mypy checks it with the sources. Calls that must be refused are marked with the error that they give.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import assert_type

import numpy as np
import torch
from numpy.typing import NDArray

import bertkit
from bertkit import (
    Answered,
    AsyncClient,
    Bert,
    BertClient,
    Chosen,
    Classified,
    Classifier,
    Client,
    EvaluationResult,
    Filled,
    FilledTogether,
    Found,
    JudgedWord,
    Labeled,
    Look,
    Ranked,
    Rated,
    RatedWords,
    Report,
    SparseVector,
    Tagged,
    Tokenizer,
    TrainingResult,
    Why,
    Written,
)
from bertkit.client import (
    AnsweredReply,
    AttentionReply,
    ChosenReply,
    ClassifiedReply,
    FilledReply,
    JudgedReply,
    ModelReply,
    RankedReply,
    RatedWordsReply,
    TaggedReply,
    WrittenReply,
)
from bertkit.connection import Json
from bertkit.predict.onnx.export import Exported
from bertkit.predict.trace import TextTrace
from bertkit.report.page import PageResult
from bertkit.text.tokenizer import Encoding

Vectors = NDArray[np.float32]


def vectors_of_a_model(bert: Bert, text: str, texts: Sequence[str]) -> None:
    assert_type(bert.embed(text), Vectors)
    assert_type(bert.embed(text, pooling="none"), Vectors)
    assert_type(bert.embed(texts, layers=[-1, -2], normalize=True), Vectors)
    assert_type(bert.embed(texts, pooling="max", too_long="window"), Vectors)
    assert_type(bert.embed(texts, dimensions=64, prompt_name="query"), Vectors)
    assert_type(bert.embed(texts, pooling="none"), list[Vectors])
    assert_type(bert.sparse(text), SparseVector)
    assert_type(bert.sparse(texts, query=True), list[SparseVector])
    assert_type(bert.token_vectors(text, query=True), Vectors)
    assert_type(bert.token_vectors(texts), list[Vectors])
    assert_type(bert.similarity(texts), Vectors)
    assert_type(bert.similarity(texts, texts), Vectors)
    assert_type(bert.search(text, texts), list[Found])
    assert_type(bert.search(texts, texts, 3), list[list[Found]])
    assert_type(bert.search(text, vectors="vectors.npy", k=1)[0].score, float)
    assert_type(bert.embedder, Bert)
    bert.embed(texts, pooling="none", unknown=3)  # type: ignore[call-overload]
    bert.embed(texts, pooling="median")  # type: ignore[call-overload]


def words_of_a_model(bert: Bert, text: str, texts: Sequence[str]) -> None:
    assert_type(bert.fill(text), list[Filled])
    assert_type(bert.fill(texts, top=3), list[list[Filled]])
    assert_type(bert.fill(text, candidates=["a", "b"]), list[Filled])
    assert_type(bert.fill(text, together=True), list[FilledTogether])
    assert_type(bert.fill(texts, together=True), list[list[FilledTogether]])
    assert_type(bert.follows(text, text), float)
    assert_type(bert.follows(texts, texts), list[float])
    assert_type(bert.replaced(text), list[JudgedWord])
    assert_type(bert.replaced(texts), list[list[JudgedWord]])
    assert_type(bert.write(text, beams=2), Written)
    assert_type(bert.write(texts, stop=["."]), list[Written])
    assert_type(bert.stream(text, tokens=5), Iterator[str])
    assert_type(bert.perplexity(texts), list[float])


def answers_of_a_model(bert: Bert, text: str, texts: Sequence[str]) -> None:
    assert_type(bert.classify(text, text), Classified | Labeled | Rated)
    assert_type(bert.classify(texts=texts), list[Classified | Labeled | Rated])
    assert_type(bert.classify(text, labels=["a", "b"]), Classified)
    assert_type(bert.classify(texts, labels={"a": "It is one."}, multi_label=True), list[Classified])
    assert_type(bert.tag(text), Tagged)
    assert_type(bert.tag([["a", "word"], "a text"]), list[Tagged])
    assert_type(bert.answer(text, text), Answered)
    assert_type(bert.answer(texts, texts), list[Answered])
    assert_type(bert.choose(text, texts), Chosen)
    assert_type(bert.choose(texts, [texts]), list[Chosen])
    assert_type(bert.rank(text, texts, top=3), list[Ranked])
    assert_type(bert.rank(texts, [texts]), list[list[Ranked]])
    assert_type(bert.rate_words(text), RatedWords)
    assert_type(bert.rate_words(texts), list[RatedWords])
    bert.classify(3)  # type: ignore[call-overload]
    bert.classify(text, labels=3)  # type: ignore[call-overload]


def a_model_itself(path: Path, text: str, texts: Sequence[str]) -> None:
    bert = bertkit.load()
    assert_type(bert, Bert)
    assert_type(bertkit.load(path, tokenizer="vocab.txt", device="cpu", quantize="int8", backend="onnx"), Bert)
    assert_type(bert.to("cuda", "bfloat16"), Bert)
    assert_type(bert.quantize(samples=texts).use_onnx().refresh(), Bert)
    assert_type(bert.name, str)
    assert_type(bert.path, Path | None)
    assert_type(bert.device, torch.device)
    assert_type(bert.dtype, str)
    assert_type(bert.report.used, tuple[str, ...])
    assert_type(bert.model.training, bool)
    assert_type(bert.export_onnx(path), Exported)
    bert.save(path)
    bert.encode(text)  # type: ignore[attr-defined]


def inside_a_model(bert: Bert, text: str) -> None:
    assert_type(bert.trace(text, text), TextTrace)
    assert_type(bert.look(text), PageResult)
    assert_type(bert.look(text, text).html, str)
    assert_type(bert.why(text, target="good"), Why)
    assert_type(bert.why(text).top(3)[0].share, float)
    assert_type(bertkit.look(bert, text), Look)
    assert_type(bertkit.why(bert, text, word="London").complete, bool)


def a_tokenizer(bert: Bert, text: str, texts: Sequence[str]) -> None:
    tokenizer = bert.tokenizer
    assert_type(tokenizer, Tokenizer)
    assert_type(tokenizer.encode(text), Encoding)
    assert_type(tokenizer.encode_batch(texts), list[Encoding])
    assert_type(tokenizer.decode([1, 2]), str)
    assert_type(tokenizer.tokens([1, 2]), list[str])
    assert_type(tokenizer.count(texts), list[int])
    assert_type(Tokenizer.load("folder").vocab, Mapping[str, int])
    assert_type(Tokenizer.from_vocab(["[UNK]", "a"], lowercase=False).size, int)


def training(rows: list[tuple[str, str]], path: Path) -> None:
    run = bertkit.finetune("classify", train=rows, dev=path, epochs=3, learning_rate=1e-4)
    assert_type(run, TrainingResult)
    assert_type(run.model, Bert)
    assert_type(run.report, Report)
    assert_type(run.scores["accuracy"], float)
    assert_type(bertkit.finetune_chain([{"task": "classify", "train": rows}]), list[TrainingResult])
    assert_type(bertkit.pretrain("recipe.toml", shards=path, steps=10).finished, bool)
    result = bertkit.evaluate(run.model, rows, text="review")
    assert_type(result, EvaluationResult)
    assert_type(result.score, float)


def an_estimator(texts: list[str], labels: list[int], bert: Bert, path: Path) -> None:
    estimator = Classifier(bert, layer=None).fit(texts, labels)
    assert_type(estimator, Classifier)
    assert_type(estimator.predict_proba(texts), NDArray[np.float64])
    assert_type(estimator.score(texts, labels), float)
    assert_type(estimator.bert_, Bert)
    assert_type(estimator.predict(texts), np.ndarray)
    assert_type(estimator.set_params(layer=-1).get_params(), dict[str, object])
    estimator.save(path)


def a_server(client: Client, text: str, texts: Sequence[str]) -> None:
    assert_type(client.embed(text, pooling="none"), Vectors)
    assert_type(client.embed(texts, pairs=True), Vectors)
    assert_type(client.embed(texts, dimensions=64, prompt_name="query"), Vectors)
    assert_type(client.embed(texts, pooling="none"), list[Vectors])
    assert_type(client.fill(text, top=3), list[FilledReply])
    assert_type(client.fill(texts), list[list[FilledReply]])
    assert_type(client.follows(text, text), float)
    assert_type(client.follows(texts, texts), list[float])
    assert_type(client.replaced(text), list[JudgedReply])
    assert_type(client.replaced(texts), list[list[JudgedReply]])
    assert_type(client.classify(text, pairs=text), ClassifiedReply)
    assert_type(client.classify(texts), list[ClassifiedReply])
    assert_type(client.classify(texts, labels=["a", "b"], template="It is {}."), list[ClassifiedReply])
    assert_type(client.classify(text)["label"], str | None)
    assert_type(client.tag(text)["spans"][0]["text"], str)
    assert_type(client.tag(texts), list[TaggedReply])
    assert_type(client.answer(question=text, passage=text, best=2), AnsweredReply)
    assert_type(client.answer(texts, texts), list[AnsweredReply])
    assert_type(client.choose(text, texts), ChosenReply)
    assert_type(client.choose(texts, [texts]), list[ChosenReply])
    assert_type(client.rank(text, texts), list[RankedReply])
    assert_type(client.rank(texts, [texts], 3), list[list[RankedReply]])
    assert_type(client.rate_words(text), RatedWordsReply)
    assert_type(client.rate_words(texts), list[RatedWordsReply])
    assert_type(client.write(text, tokens=5), WrittenReply)
    assert_type(client.write(texts), list[WrittenReply])
    assert_type(client.attention(text, layer=1), AttentionReply)
    assert_type(client.models(), list[ModelReply])
    assert_type(client.get("/info"), Json)
    assert_type(client.post("/tokenize", {"inputs": text}), Json)
    client.answer(text, text, bset=2)  # type: ignore[call-overload]
    client.classify(text)["lable"]  # type: ignore[typeddict-item]


async def a_server_awaited(client: AsyncClient, text: str, texts: Sequence[str]) -> None:
    assert_type(await client.embed(text), Vectors)
    assert_type(await client.embed(texts, pooling="none"), list[Vectors])
    assert_type(await client.fill(texts), list[list[FilledReply]])
    assert_type(await client.follows(text, text), float)
    assert_type(await client.replaced(text), list[JudgedReply])
    assert_type(await client.classify(text), ClassifiedReply)
    assert_type(await client.classify(texts, pairs=texts), list[ClassifiedReply])
    assert_type(await client.tag(text), TaggedReply)
    assert_type(await client.answer(texts, texts, best=2), list[AnsweredReply])
    assert_type(await client.choose(text, texts), ChosenReply)
    assert_type(await client.rank(text, texts), list[RankedReply])
    assert_type(await client.rate_words(texts), list[RatedWordsReply])
    assert_type(await client.write(texts), list[WrittenReply])
    assert_type(await client.attention(text, layer=1), AttentionReply)
    assert_type(await client.models(), list[ModelReply])
    assert_type(await client.get("/info"), Json)
    assert_type(await client.post("/tokenize", {"inputs": text}), Json)
    await client.close()
    await client.attention()  # type: ignore[call-arg]


def a_server_as_bert_as_a_service(client: BertClient, texts: list[str]) -> None:
    assert_type(client.encode(texts), object)
    assert_type(client.encode_async([texts]), Iterator[object])
    assert_type(client.status, dict[str, Json])
    assert_type(client.server_status, dict[str, Json])
