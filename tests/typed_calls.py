"""What type checkers see of the public methods: a str gives one, a list gives many. Checked by mypy, never run."""

from collections.abc import Sequence
from typing import Any, assert_type

import numpy as np

from bertkit import AsyncClient, Bert, Client
from bertkit.predict.search import Found
from bertkit.tasks.answer import Answered
from bertkit.tasks.choose import Chosen
from bertkit.tasks.classify import Classified
from bertkit.tasks.multilabel import Labeled
from bertkit.tasks.rate_words import RatedWords
from bertkit.tasks.regress import Rated
from bertkit.tasks.tag import Tagged
from bertkit.tasks.write import Written

Reply = dict[str, Any]


def of_a_model(bert: Bert, text: str, texts: Sequence[str]) -> None:
    assert_type(bert.embed(text), np.ndarray)
    assert_type(bert.embed(text, pooling="none"), np.ndarray)
    assert_type(bert.embed(texts, layers=[-1, -2], normalize=True), np.ndarray)
    assert_type(bert.embed(texts, pooling="none"), list[np.ndarray])
    assert_type(bert.search(text, texts), list[Found])
    assert_type(bert.search(texts, texts, 3), list[list[Found]])
    assert_type(bert.classify(text, text), Classified | Labeled | Rated)
    assert_type(bert.classify(texts=texts), list[Classified | Labeled | Rated])
    assert_type(bert.tag(text), Tagged)
    assert_type(bert.tag([["a", "word"], "a text"]), list[Tagged])
    assert_type(bert.answer(text, text), Answered)
    assert_type(bert.answer(texts, texts), list[Answered])
    assert_type(bert.choose(text, texts), Chosen)
    assert_type(bert.choose(texts, [texts]), list[Chosen])
    assert_type(bert.rate_words(text), RatedWords)
    assert_type(bert.rate_words(texts), list[RatedWords])
    assert_type(bert.write(text, beams=2), Written)
    assert_type(bert.write(texts), list[Written])
    bert.classify(3)  # type: ignore[call-overload]
    bert.embed(texts, pooling="none", unknown=3)  # type: ignore[call-overload]


def of_a_server(client: Client, text: str, texts: Sequence[str]) -> None:
    assert_type(client.embed(text, pooling="none"), np.ndarray)
    assert_type(client.embed(texts, pairs=True), np.ndarray)
    assert_type(client.embed(texts, pooling="none"), list[np.ndarray])
    assert_type(client.fill(text, top=3), list[Reply])
    assert_type(client.fill(texts), list[list[Reply]])
    assert_type(client.follows(text, text), float)
    assert_type(client.follows(texts, texts), list[float])
    assert_type(client.replaced(text), list[Reply])
    assert_type(client.classify(text, pairs=text), Reply)
    assert_type(client.classify(texts), list[Reply])
    assert_type(client.tag(texts), list[Reply])
    assert_type(client.answer(question=text, passage=text, best=2), Reply)
    assert_type(client.choose(texts, [texts]), list[Reply])
    assert_type(client.rate_words(text), Reply)
    assert_type(client.write(text, tokens=5), Reply)
    client.answer(text, text, bset=2)  # type: ignore[call-overload]


async def awaited(client: AsyncClient, text: str, texts: Sequence[str]) -> None:
    assert_type(await client.embed(text), np.ndarray)
    assert_type(await client.embed(texts, pooling="none"), list[np.ndarray])
    assert_type(await client.fill(texts), list[list[Reply]])
    assert_type(await client.classify(text), Reply)
    assert_type(await client.classify(texts, pairs=texts), list[Reply])
    assert_type(await client.tag(text), Reply)
    assert_type(await client.answer(texts, texts, best=2), list[Reply])
    assert_type(await client.choose(text, texts), Reply)
    assert_type(await client.rate_words(texts), list[Reply])
    assert_type(await client.write(texts), list[Reply])
    assert_type(await client.attention(text, layer=1), Reply)
    assert_type(await client.models(), list[Reply])
    await client.attention()  # type: ignore[call-arg]
