"""A fine-tuned recurrent model answers, explains and is served as any other."""

import pytest
import tiny
from serving import running

import bertkit
from bertkit.finetuning.fine_tuning import fine_tune
from bertkit.finetuning.settings import read_settings
from bertkit.serve.models import Models, share_encoders

pytestmark = pytest.mark.usefixtures("_one_thread")
TEXT = "the film was awful"


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recurrent")
    start = tiny.tiny_folder(folder / "start", "awd-lstm", causal=True)
    train, dev = tiny.files(folder, "classify")
    settings = read_settings("epochs=8", "learning_rate=1e-2", "batch=16")
    fine_tune("classify", settings, start, train, dev, folder / "run")
    return bertkit.load(folder / "run" / "model")


def test_the_word_that_decides_is_found(bert):
    found = bertkit.why(bert, TEXT)
    assert max(found.words, key=lambda word: word.share).word == "awful"
    assert abs(found.gap) < 0.05


def test_routes(bert):
    with running(Models(share_encoders({"lm": bert}))) as server:
        [answer] = server.post("/classify", {"texts": [TEXT]}).json()["results"]
        assert answer["label"] == bert.classify(TEXT).label == "negative"
        [vector] = server.post("/embed", {"inputs": [TEXT], "normalize": False}).json()
        assert vector == pytest.approx(bert.embed(TEXT).tolist(), abs=1e-5)
        refused = server.post("/attention", {"text": TEXT})
        assert refused.status_code == 422
        assert "layers are recurrent and have no attention heads" in refused.text
        assert server.http.get("/v1/models").json()["data"][0]["heads"] == 0
