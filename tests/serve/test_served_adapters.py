"""Adapters on one trunk: each answers as by itself, they share batches, and come and go while requests are answered."""

import shutil
import sys
import threading
from pathlib import Path

import httpx
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "finetuning"))
from serving import running, same, wait_until
from tiny import tiny_adapter, tiny_folder

import bertkit
from bertkit.checkpoint.adapters import WEIGHTS
from bertkit.cli.serve import serve
from bertkit.errors import RequestError
from bertkit.serve.engine import SharedEncoder
from bertkit.serve.models import load_models

CPU = torch.device("cpu")
TEXTS = ["the film was good", "ada lives in london", "it is very dull . who is it ?"]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A trunk, and a folder of adapters beside it."""
    home = tmp_path_factory.mktemp("home")
    trunk = tiny_folder(home / "trunk")
    for seed, name in enumerate("abc"):
        tiny_adapter(trunk, home / "adapters" / name, seed)
    tiny_adapter(tiny_folder(home / "elsewhere", seed=9), home / "adapters" / "foreign", 9)
    (home / "adapters" / ".hidden").mkdir()
    return home


@pytest.fixture(scope="module")
def server(home):
    arguments = [f"trunk={home / 'trunk'}", *(f"{name}={home / 'adapters' / name}" for name in "ab")]
    with running(load_models(arguments, CPU, as_trunks=True), adapters=home / "adapters") as found:
        yield found


def probabilities(server, name, texts=TEXTS):
    reply = server.post("/classify", {"texts": texts, "model": name})
    assert reply.status_code == 200, reply.text
    assert reply.json()["model"] == name
    return [result["probabilities"] for result in reply.json()["results"]]


def alone(home, name, texts=TEXTS):
    return [dict(each.probabilities) for each in bertkit.load(home / "adapters" / name).classify(texts)]


@pytest.mark.parametrize("name", ["a", "b"])
def test_an_adapter_answers_as_the_merged_model_does(name, server, home):
    same(probabilities(server, name), alone(home, name))
    vectors = server.post("/v1/embeddings", {"input": TEXTS, "model": name}).json()["data"]
    expected = bertkit.load(home / "adapters" / name).embed(TEXTS).tolist()
    same([row["embedding"] for row in vectors], expected)


def test_the_trunk_is_in_memory_once_and_answers_as_before(server, home):
    served = server.service.models.by_name
    assert len({id(each.bert.model.encoder) for each in served.values()}) == 1
    vectors = server.post("/v1/embeddings", {"input": TEXTS, "model": "trunk"}).json()["data"]
    same([row["embedding"] for row in vectors], bertkit.load(home / "trunk").embed(TEXTS).tolist())
    cards = {card["id"]: card for card in server.http.get("/v1/models").json()["data"]}
    assert [cards[name]["adapter_of"] for name in ("trunk", "a", "b")] == [None, "trunk", "trunk"]
    assert len({card["encoder"] for card in cards.values()}) == 3
    # Each of 2 layers has 12 sides of its 6 maps, queries, keys and values in one; then the pooler and the head.
    assert cards["a"]["parameters"] < cards["trunk"]["parameters"]


def test_requests_of_several_adapters_and_the_trunk_share_a_batch(server, home, monkeypatch):
    batches, plain, busy, go = [], SharedEncoder.compute, threading.Event(), threading.Event()

    def counted(own, sequences):
        batches.append({sequence.adapter for sequence in sequences})
        busy.set()
        go.wait(20)
        return plain(own, sequences)

    monkeypatch.setattr(SharedEncoder, "compute", counted)
    found = {}

    def ask(number, name):
        found[number] = probabilities(server, name)

    threads = [threading.Thread(target=ask, args=(n, name)) for n, name in enumerate(["a", "a", "b", "a", "b"])]
    threads[0].start()
    assert busy.wait(20)
    for thread in threads[1:]:
        thread.start()
    wait_until(lambda: server.service.workers.depth[0] == 4)
    go.set()
    for thread in threads:
        thread.join(20)
    assert [len(batch) for batch in batches] == [1, 2]
    for number, name in enumerate(["a", "a", "b", "a", "b"]):
        same(found[number], alone(home, name))


def test_an_adapter_comes_and_goes(server, home):
    assert server.post("/classify", {"texts": TEXTS, "model": "new"}).status_code == 404
    loaded = server.post("/adapters/load", {"name": "new", "folder": "c"})
    assert (loaded.status_code, loaded.json()["adapter_of"], loaded.json()["labels"]) == (200, "trunk", ["no", "yes"])
    same(probabilities(server, "new"), alone(home, "c"))
    dropped = server.post("/adapters/drop", {"name": "new"}).json()
    assert dropped == {"dropped": "new", "models": ["trunk", "a", "b"]}
    refused = server.post("/classify", {"texts": TEXTS, "model": "new"})
    assert refused.json()["error"] == "no model 'new' here; choose from: trunk, a, b"


def test_a_request_in_progress_is_answered_by_an_adapter_that_was_dropped(server, home, monkeypatch):
    plain, busy, go = SharedEncoder.compute, threading.Event(), threading.Event()

    def held(own, sequences):
        busy.set()
        go.wait(20)
        return plain(own, sequences)

    server.post("/adapters/load", {"name": "c"})
    monkeypatch.setattr(SharedEncoder, "compute", held)
    found = []
    thread = threading.Thread(target=lambda: found.append(probabilities(server, "c")))
    thread.start()
    assert busy.wait(20)
    assert server.post("/adapters/drop", {"name": "c"}).status_code == 200
    go.set()
    thread.join(20)
    same(found[0], alone(home, "c"))


REFUSED = [
    ("load", {"name": "a"}, 409, "the name 'a' is taken; drop that adapter first, or choose another name"),
    ("load", {"name": "trunk", "folder": "c"}, 409, "the name 'trunk' is taken"),
    ("load", {"name": "none"}, 404, "no adapter 'none' in the server's folder; it has a, b, c, foreign"),
    ("load", {"name": "x", "folder": "../trunk"}, 422, "folder"),
    ("load", {"name": "x", "folder": ".hidden"}, 422, "folder"),
    ("load", {"name": "/etc"}, 422, "name"),
    ("load", {"name": "foreign"}, 422, "its trunk is"),
    ("load", {}, 422, "name"),
    ("drop", {"name": "none"}, 404, "no model 'none' here; choose from: trunk, a, b"),
    ("drop", {"name": "trunk"}, 409, "'trunk' is no adapter, and adapters use it (a, b); stop the server to drop it"),
]


@pytest.mark.parametrize(("verb", "body", "status", "message"), REFUSED, ids=range(len(REFUSED)))
def test_what_cannot_be_loaded_or_dropped_is_one_sentence(verb, body, status, message, server):
    reply = server.post(f"/adapters/{verb}", body)
    assert reply.status_code == status
    assert message in reply.json()["error"]
    assert list(server.service.models.by_name) == ["trunk", "a", "b"]


def test_a_damaged_adapter_is_refused_without_the_servers_folder(server, home):
    folder = home / "adapters" / "damaged"
    shutil.copytree(home / "adapters" / "a", folder)
    (folder / WEIGHTS).write_bytes(b"no tensors")
    reply = server.post("/adapters/load", {"name": "damaged"})
    assert reply.status_code == 422
    assert reply.json()["error"].startswith(f"damaged/{WEIGHTS} is truncated or corrupt")
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("path", "what"), [("/attention", "its attention"), ("/neuron", "its attention"), ("/why", "gradients")]
)
def test_what_reads_the_weights_themselves_is_refused(path, what, server):
    reply = server.post(path, {"text": TEXTS[0], "model": "a"})
    assert reply.status_code == 422
    assert reply.json()["error"].startswith(f"'a' is an adapter on 'trunk', which a server computes without {what}")


def test_a_server_without_a_folder_of_adapters_has_no_such_route(home):
    with running(load_models([f"trunk={home / 'trunk'}"], CPU)) as found:
        assert found.post("/adapters/load", {"name": "a"}).status_code == 404


def test_the_folder_of_adapters_has_to_be_there(tmp_path):
    with pytest.raises(RequestError, match="--adapters .*nowhere is not a folder; make it"):
        serve(adapters=tmp_path / "nowhere")


def test_an_adapter_alone_is_served_as_any_model(home):
    models = load_models([f"a={home / 'adapters' / 'a'}"], CPU)
    assert models.named("a").trunk is None
    with running(models) as found:
        same(probabilities(found, "a"), alone(home, "a"))
        assert found.post("/attention", {"text": TEXTS[0]}).status_code == 200


def test_an_adapter_needs_its_own_trunk_beside_it(home):
    adapters = home / "adapters"
    with pytest.raises(
        RequestError, match=r"a and b: adapters need their trunk beside them: bertkit serve .*trunk \.\.\."
    ):
        load_models([str(adapters / "a"), str(adapters / "b")], CPU)
    with pytest.raises(
        RequestError, match=r"foreign: its trunk is .*elsewhere \(encoder \w+\), and the models here are 't'"
    ):
        load_models([f"t={home / 'trunk'}", str(adapters / "foreign")], CPU)
    with pytest.raises(RequestError, match="two models are called 'a'"):
        load_models([f"a={home / 'trunk'}", str(adapters / "a")], CPU)


def test_no_request_is_lost_while_adapters_come_and_go(server, home):
    """Two answer all the time, a third is loaded and dropped: every reply is right, or says that it is not there."""
    expected = {name: alone(home, name) for name in "abc"}
    stop, wrong, answered = threading.Event(), [], {name: 0 for name in "abc"}

    def ask(name):
        with httpx.Client(base_url=server.url, timeout=30) as http:
            while not stop.is_set():
                reply = http.post("/classify", json={"texts": TEXTS, "model": name})
                if reply.status_code == 404 and name == "c":
                    continue
                if reply.status_code != 200:
                    wrong.append(reply.text)
                    continue
                same([result["probabilities"] for result in reply.json()["results"]], expected[name])
                answered[name] += 1

    def checked(name):
        try:
            ask(name)
        except Exception as error:
            wrong.append(repr(error))

    threads = [threading.Thread(target=checked, args=(name,)) for name in "aabbcc"]
    for thread in threads:
        thread.start()
    for _ in range(15):
        assert server.post("/adapters/load", {"name": "c"}).status_code == 200
        before = answered["c"]
        wait_until(lambda before=before: answered["c"] > before or wrong)
        assert server.post("/adapters/drop", {"name": "c"}).status_code == 200
    stop.set()
    for thread in threads:
        thread.join(30)
    assert not wrong
    assert min(answered.values()) >= 15
