"""Questions to the heads of pre-training: what they answer equals the head's own logits, and others are refused."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "serve"))
from serving import fill_folder, running, same

import bertkit
from bertkit.cli.main import run
from bertkit.engine.batches import Passage, known_segments, make_batch
from bertkit.predict.questions import QUESTIONS
from bertkit.serve.models import load_models

LIMIT = 32
TEXTS = ["a b c", "hello world . a", "ab cd ? e"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    base = tmp_path_factory.mktemp("asked")
    rows = {"bert": "next_sentence", "albert": "next_sentence", "electra": "replaced_token"}
    return {family: fill_folder(base / family, family=family, head=head) for family, head in rows.items()}


def logits_of(bert, head: str, text: str, pair: str | None = None):
    """The head's logits for one sequence, by torch's operations."""
    encoding = bert.tokenizer.encode(text, pair)
    with torch.inference_mode():
        batch = make_batch(
            [Passage(encoding.ids, known_segments(bert.model.config, encoding.segments))], torch.device("cpu")
        )
        return encoding, bert.model.logits(batch, head)


@pytest.mark.parametrize("family", ["bert", "albert"])
def test_follows_is_the_probability_of_the_order_of_the_document(folders, family):
    bert = bertkit.load(folders[family])
    found = bert.follows(TEXTS, TEXTS[::-1])
    for text, pair, probability in zip(TEXTS, TEXTS[::-1], found, strict=True):
        _, logits = logits_of(bert, "next_sentence", text, pair)
        assert probability == pytest.approx(float(logits.softmax(-1)[0, 0]), abs=1e-5)
    assert bert.follows(TEXTS[0], TEXTS[2]) == pytest.approx(found[0], abs=1e-6)
    assert bert.follows([], []) == []


def test_replaced_is_the_highest_judgement_of_a_words_pieces(folders):
    bert = bertkit.load(folders["electra"])
    text = "hello wörld, a"
    encoding, logits = logits_of(bert, "replaced_token", text)
    found = bert.replaced(text)
    assert (
        [text[each.start : each.end] for each in found] == [each.word for each in found] == ["hello", "wörld", ",", "a"]
    )
    for number, each in enumerate(found):
        pieces = [position for position, word in enumerate(encoding.words) if word == number]
        assert each.probability == pytest.approx(float(logits[pieces].sigmoid().max()), abs=1e-5)
    again, none = bert.replaced([text, ""])
    same([asdict(each) for each in again], [asdict(each) for each in found])
    assert none == []


def test_a_long_text_is_judged_through_windows(folders):
    bert = bertkit.load(folders["electra"])
    text = "a b c d e f g h i j " * 5
    with pytest.warns(bertkit.BertkitWarning, match=f"read through windows of {LIMIT}"):
        found = bert.replaced(text)
    assert [each.word for each in found] == text.split()


@pytest.mark.parametrize(
    ("family", "ask", "message"),
    [
        ("electra", lambda bert: bert.follows("a", "b"), "no next-sentence head"),
        ("bert", lambda bert: bert.replaced("a"), "no replaced-token head"),
        ("bert", lambda bert: bert.follows(["a"], ["b", "c"]), "1 first came with 2 second"),
        ("bert", lambda bert: bert.follows("a " * LIMIT, "b"), f"tokens, over the limit of {LIMIT}"),
        ("bert", lambda bert: bert.follows("a", None), "not NoneType"),
        ("electra", lambda bert: bert.replaced([3]), "is int, not a str"),
    ],
)
def test_what_cannot_be_asked_is_refused(folders, family, ask, message):
    with pytest.raises(bertkit.RequestError, match=message):
        ask(bertkit.load(folders[family]))


def test_the_command_line_prints_the_same(folders, capsys):
    bert = bertkit.load(folders["bert"])
    assert run(["follows", "a b", "c", "--model", str(folders["bert"]), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"probability": pytest.approx(bert.follows("a b", "c"))}
    assert run(["replaced", "a b", "--model", str(folders["electra"]), "--json"]) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert printed == [asdict(each) for each in bertkit.load(folders["electra"]).replaced("a b")]
    assert run(["replaced", "a b", "--model", str(folders["bert"])]) == 2
    assert "no replaced-token head" in capsys.readouterr().err


def test_the_server_answers_as_python_does(folders):
    berts = {name: bertkit.load(folder) for name, folder in folders.items()}
    long = "a b c d e f g h i j " * 5
    with running(load_models([f"{name}={folder}" for name, folder in folders.items()], torch.device("cpu"))) as server:
        client = bertkit.Client(server.url)
        assert client.follows(TEXTS, TEXTS[::-1]) == pytest.approx(berts["bert"].follows(TEXTS, TEXTS[::-1]), abs=1e-5)
        own = [asdict(each) for each in berts["electra"].replaced("a b")]
        same(client.replaced("a b"), own)
        with pytest.warns(bertkit.BertkitWarning):
            same(client.replaced([long])[0], [asdict(each) for each in berts["electra"].replaced(long)])
        reply = server.post("/replaced", {"text": [long]}).json()
        assert reply["long_texts"]["policy"] == "window"
        assert client.models()[0]["abilities"] == ["fill", "follows", "embed"]
        with pytest.raises(bertkit.RequestError, match="422: this model has no replaced-token head"):
            bertkit.Client(server.url, model="bert").replaced("a")
        with pytest.raises(bertkit.RequestError, match=f"over the limit of {LIMIT}"):
            client.follows("a " * LIMIT, "b")


def test_every_question_has_its_method_and_tool():
    from bertkit.serve.http.static import static_files

    for name in QUESTIONS:
        assert all(callable(getattr(kind, name)) for kind in (bertkit.Bert, bertkit.Client, bertkit.AsyncClient))
        assert f"/page/{name}.js" in static_files()
