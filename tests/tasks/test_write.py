"""Text to text: what is read, what the loss asks, how models start, what is written, and what is refused."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import sacrebleu
import tiny
import torch
import torch.nn.functional as F
import transformers
from serving import running

import bertkit
from bertkit.checkpoint.save_load import load_checkpoint
from bertkit.data.tables import Columns, Location, open_table
from bertkit.errors import RequestError
from bertkit.finetuning.fine_tuning import fine_tune, open_data
from bertkit.finetuning.learner import load_start, pack
from bertkit.finetuning.settings import read_settings, read_task_request
from bertkit.serve.models import load_models
from bertkit.tasks.metrics import texts as text_metrics
from bertkit.tasks.metrics.texts import TextScores, text_scores
from bertkit.tasks.read import guess_task, read_examples
from bertkit.tasks.rows.write import SourceExample
from bertkit.tasks.table import TASKS
from bertkit.tasks.task import LossSettings
from bertkit.tasks.write import Write
from bertkit.text.tokenizer import Tokenizer

pytestmark = pytest.mark.usefixtures("_one_thread")
PLACE = Location(Path("f"), 1)
SHAPE = ("width=32", "depth=1", "heads=2", "inner=64", "vocab_size=320", "max_length=24", "dropout=0")
TRAINING = (*SHAPE, "batch=16", "epochs=12", "learning_rate=5e-3", "warmup_steps=10")


def settings(*pairs: str, start: str = "new"):
    return read_task_request(TASKS["write"], start, *pairs)[0]


@pytest.fixture(scope="module")
def taught(tmp_path_factory):
    """A run from nothing on names and places, which it learns in seconds."""
    folder = tmp_path_factory.mktemp("write")
    train, dev = tiny.files(folder, "write", 128, 16)
    result = fine_tune("write", settings(*TRAINING), Path("new"), train, dev, folder / "run")
    return result, folder / "run" / "model"


def test_two_files_are_read_line_by_line_and_must_be_as_long(tmp_path):
    (tmp_path / "c.en").write_text("one dog\ntwo dogs\n", encoding="utf-8")
    (tmp_path / "c.de").write_text("ein Hund\nzwei Hunde\n", encoding="utf-8")
    both = tmp_path / "c.{en,de}"
    assert guess_task(both) == "write"
    pairs = [(example.source, example.target) for example in read_examples("write", both).examples]
    assert pairs == [("one dog", "ein Hund"), ("two dogs", "zwei Hunde")]
    (tmp_path / "c.en").write_text("one dog\n", encoding="utf-8")
    with pytest.raises(RequestError, match=r"c\.de has a line 2, and .*c\.en has none: each line needs its partner"):
        read_examples("write", both)
    with pytest.raises(RequestError, match=r"c\.fr does not exist"):
        read_examples("write", tmp_path / "c.{en,fr}")
    with pytest.raises(RequestError, match=r"is one file; name both"):
        open_table(tmp_path / "c.en", Columns(), format="parallel")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return tiny.tiny_folder(tmp_path_factory.mktemp("encoder") / "model")


def test_a_new_model_learns_to_write_and_is_loaded_by_other_tools(taught):
    result, folder = taught
    assert result.scores["exact_match"] == 1.0
    bert = bertkit.load(folder)
    assert bert.write("ada lives in rome").text == "rome ada"
    assert bert.write(["alan lives in paris"], beams=3)[0].text == "paris alan"
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["MarianMTModel"]
    assert config["decoder_start_token_id"] == bert.tokenizer.cls_id


def test_transformers_writes_the_same(taught):
    _, folder = taught
    model = transformers.MarianMTModel.from_pretrained(folder).eval()
    bert = bertkit.load(folder)
    ids = torch.tensor([bert.tokenizer.encode("grace lives in london").ids])
    out = model.generate(ids, max_new_tokens=10, num_beams=1, do_sample=False)
    assert bert.tokenizer.decode(out[0].tolist()).strip() == bert.write("grace lives in london").text == "london grace"


def test_the_vocabulary_of_the_pairs_gives_any_text_back():
    tokenizer = Tokenizer.train_bytes(["ein T-Shirt, l'homme"] * 3, 320)
    for text in ("Ein T-Shirt - l'homme “würde” 1999-03-02", "日本 🙂", "a  b"):
        assert tokenizer.decode(tokenizer.encode_ids([text])[0]).lstrip() == text
    assert tokenizer.size <= 320


def test_a_vocabulary_can_be_given(tmp_path):
    train, dev = tiny.files(tmp_path, "write", 8, 4)
    tiny.tokenizer().save(tmp_path)
    base, _ = open_data("write", settings(*SHAPE, f"vocab={tmp_path}"), Path("new"), train, dev)
    assert base.tokenizer.hash == tiny.tokenizer().hash


def test_the_loss_is_the_cross_entropy_of_each_next_token(encoder, tmp_path):
    train, dev = tiny.files(tmp_path, "write", 6, 4)
    base, prepared = open_data("write", read_settings(), encoder, train, dev)
    task, model = prepared.task, load_start(base, prepared.task, read_settings()).model.eval()
    windows = prepared.train.flat
    batch = task.pack(pack(windows, model.config), windows)
    logits = task.read_head(model, model(batch), batch, windows)
    total, count = task.loss(logits, batch, windows, LossSettings(label_smoothing=0.1))
    by_hand = 0.0
    for window, logits_LV in zip(windows, logits.split([len(window.target) for window in windows]), strict=True):
        assert window.target[-1] == task.end_id
        logs = logits_LV.log_softmax(-1)
        gold = F.nll_loss(logs, torch.tensor(window.target), reduction="sum")
        by_hand += float(0.9 * gold - 0.1 * logs.mean(-1).sum())
    assert float(total) == pytest.approx(by_hand, rel=1e-5)
    assert int(count) == sum(len(window.target) for window in windows)
    alone = pack(windows, model.config)  # as evaluation packs it
    assert torch.equal(task.read_head(model, model(alone), alone, windows), logits)


def test_a_decoder_starts_as_the_encoder_and_its_cross_attention_is_new(encoder, tmp_path):
    train, dev = tiny.files(tmp_path, "write", 6, 4)
    base, prepared = open_data("write", read_settings(), encoder, train, dev)
    state = load_start(base, prepared.task, read_settings()).model.state_dict()
    stack = "heads.decoder.stack."
    for name, tensor in base.model.state_dict().items():
        if name.startswith("encoder."):
            assert torch.equal(state[name.replace("encoder.", stack, 1)], tensor), name
    assert state[f"{stack}layers.0.cross_attention.query.weight"].std() > 0


def test_a_model_with_a_decoder_goes_on_from_it(taught, tmp_path):
    _, folder = taught
    train, dev = tiny.files(tmp_path, "write", 16, 8)
    result = fine_tune("write", settings("epochs=1", start=str(folder)), folder, train, dev, tmp_path / "run")
    assert result.scores["exact_match"] == 1.0
    before, after = (load_checkpoint(path).model.state_dict() for path in (folder, tmp_path / "run" / "model"))
    assert before.keys() == after.keys()


def test_scores_without_sacrebleu(monkeypatch):
    monkeypatch.setattr(text_metrics, "has_sacrebleu", lambda: False)
    assert text_scores(["a red ball", "yes"], ["a ball", "yes "]) == {"exact_match": 0.5, "token_f1": 0.9}


def test_bleu_is_sacrebleus():
    gold, written = ["a man in a red hat .", "two dogs play"], ["a man in a hat .", "two dogs play outside"]
    scores = text_scores(gold, written)
    assert scores["bleu"] == pytest.approx(sacrebleu.corpus_bleu(written, [gold]).score)
    assert scores["chrf"] == pytest.approx(sacrebleu.corpus_chrf(written, [gold]).score)
    assert text_scores(gold, gold)["bleu"] == pytest.approx(100)
    chosen = [1, 1, 0]
    selected = TextScores(gold, written)(chosen)
    assert selected == pytest.approx(text_scores([gold[n] for n in chosen], [written[n] for n in chosen]))
    assert selected["chrf"] == pytest.approx(
        sacrebleu.corpus_chrf([written[n] for n in chosen], [[gold[n] for n in chosen]]).score
    )


def test_generated_texts_have_intervals(taught, tmp_path):
    """Half of the texts are correct, so every score varies with the selection."""
    _, folder = taught
    train, dev = tiny.files(tmp_path, "write", 16, 8)
    lines = dev.read_text().splitlines()
    dev.write_text("".join(f"{line}{' rome' if n % 2 else ''}\n" for n, line in enumerate(lines)))
    fine_tune("write", settings("epochs=1", start=str(folder)), folder, train, dev, tmp_path / "run")
    page = (tmp_path / "run" / "report.html").read_text()
    [row] = re.findall(r"chrf.*?</th><td>([\d.]+)</td><td>([\d.]+)–([\d.]+)</td>", page)
    score, low, high = map(float, row)
    assert low < score < high


def test_pairs_are_read_from_columns_with_and_without_names(tmp_path):
    named, plain = tmp_path / "a.tsv", tmp_path / "b.tsv"
    named.write_text("target\tsource\nhallo welt\thello world\n")
    plain.write_text("hello world\thallo welt\n")
    for path in (named, plain):
        [example] = read_examples("write", path).examples
        assert (example.source, example.target) == ("hello world", "hallo welt")
    assert guess_task(named) == "write"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("source\ttarget\na\tb\nc\t \n", "line 3: the target in 'target' is empty; fill it in or remove the row"),
        ("source\ttarget\na\tb\nc\n", "line 3: 1 columns where the header has 2"),
        ("source\tother\na\tb\n", "no column looks like the text to write; name it with label="),
    ],
)
def test_files_that_do_not_fit_are_refused(lines, message, tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text(lines)
    with pytest.raises(RequestError, match=message):
        read_examples("write", path)


def test_a_row_without_its_target_is_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"source": "a", "target": "b"}\n{"source": "a"}\n')
    with pytest.raises(RequestError, match=r"line 2: no column 'target' \(the row has: source\)"):
        read_examples("write", path)


def test_a_target_over_the_positions_is_refused_and_a_source_is_cut():
    task = Write(tokenizer=tiny.tokenizer(), limit=8, start_id=2, end_id=3)
    with pytest.raises(RequestError, match="the target has 9 tokens with its end, over the 8 that the model can write"):
        task.windows(SourceExample("good", "good " * 8, PLACE), 0)
    [window] = task.windows(SourceExample("good " * 20, "bad", PLACE), 0)
    assert (len(window.ids), window.detail.cut) == (8, 14)


def test_a_vocabulary_without_an_end_token_is_refused(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(piece for piece in tiny.PIECES if piece != "[SEP]"))
    train, dev = tiny.files(tmp_path, "write", 8, 4)
    with pytest.raises(RequestError, match=r"\[SEP\]"):
        open_data("write", settings(*SHAPE, f"vocab={tmp_path}"), Path("new"), train, dev)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"beams": 0}, "beams=0 must be"),
        ({"temperature": 0.0}, "temperature=0.0 must be over 0"),
        ({"temperature": math.nan}, "temperature=nan"),
        ({"tokens": 0}, "tokens=0 must be"),
        ({"top_p": 1.5}, "top_p=1.5 must be"),
        ({"beams": 2, "temperature": 1.0}, "exclude each other"),
        ({"warmth": 1}, "unknown option for generation .*choose from: tokens, beams"),
    ],
)
def test_generation_that_makes_no_sense_is_refused(option, message, taught):
    with pytest.raises(RequestError, match=message):
        bertkit.load(taught[1]).write("ada lives in rome", **option)


def test_settings_that_do_not_fit_are_refused(encoder, tmp_path):
    train, dev = tiny.files(tmp_path, "write", 8, 4)
    with pytest.raises(RequestError, match="beams=0 must be"):
        settings("beams=0")
    with pytest.raises(RequestError, match="is fixed; leave out width"):
        open_data("write", settings("width=32"), encoder, train, dev)
    causal = tiny.tiny_folder(tmp_path / "causal", causal=True)
    with pytest.raises(RequestError, match="reads from left to right and continues a text"):
        fine_tune("write", read_settings("epochs=1"), causal, train, dev, tmp_path / "run")
    labeled, _ = tiny.files(tmp_path, "classify", 8, 4)
    with pytest.raises(RequestError, match="go with write, and not with 'classify'"):
        open_data("classify", read_settings("beams=2"), encoder, labeled, labeled)
    with pytest.raises(RequestError, match="'classify' starts from a pre-trained model"):
        open_data("classify", read_settings(), Path("new"), labeled, labeled)


def test_a_text_over_the_limit_and_the_wrong_kind_of_model_are_refused(encoder, taught):
    bert = bertkit.load(taught[1])
    with pytest.raises(
        RequestError, match=r"text 1 \(counted from 1\) has .* tokens, over the 24 that this model takes"
    ):
        bert.write("ada lives in rome " * 20)
    with pytest.raises(RequestError, match="cannot fill|no masked-word head|does not have"):
        bert.fill(f"ada {bert.tokenizer.mask_token} in rome")
    with pytest.raises(RequestError, match="it is an encoder, which sees both sides of every word"):
        bertkit.load(encoder).write("ada")


def test_generation_that_does_not_end_says_so(taught, command_here):
    bert = bertkit.load(taught[1])
    written = bert.write("ada lives in rome", tokens=1)
    assert (written.tokens, written.ended) == (1, False)
    done = command_here("write", "ada lives in rome", "--model", taught[1], "--max-new", 1)
    assert done.returncode == 0
    assert "stopped at the limit of 1 tokens; --max-new N allows more" in done.stderr


def test_the_command_line_writes(taught, command_here):
    done = command_here("write", "ada lives in rome", "--model", taught[1], "--beams", 2)
    assert done.stdout == "rome ada\n"
    done = command_here("write", "ada lives in rome", "--model", taught[1], "--json")
    assert json.loads(done.stdout)["text"] == "rome ada"


def events(reply) -> list[object]:
    lines = [line.removeprefix("data: ") for line in reply.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_the_server_streams_and_speaks_openai(taught):
    with running(load_models([f"w={taught[1]}"], torch.device("cpu"))) as server:
        whole = server.post("/write", {"texts": ["ada lives in rome"], "beams": 2}).json()["results"]
        streamed = events(server.post("/write", {"texts": "ada lives in rome", "stream": True}))
        prompt = {"prompt": "ada lives in rome", "temperature": 0}
        completed = server.post("/v1/completions", prompt).json()
        pieces = events(server.post("/v1/completions", {**prompt, "stream": True}))
        two = server.post("/write", {"texts": ["a", "b"], "stream": True})
        long = server.post("/write", {"texts": ["ada " * 40], "stream": True})
        zero = server.post("/write", {"texts": ["a"], "beams": 0})
        cold = server.post("/write", {"texts": ["a"], "temperature": 0})
        client = bertkit.Client(server.url)
        assert client.write("ada lives in rome", tokens=8)["text"] == "rome ada"
        assert len(client.write(["ada lives in rome"] * 2)) == 2
    assert whole[0]["text"] == "rome ada"
    assert "".join(event["text"] for event in streamed) == "rome ada"
    assert streamed[-1]["result"] == {**whole[0], "tokens": streamed[-1]["result"]["tokens"]}
    [choice] = completed["choices"]
    assert (choice["text"], choice["finish_reason"], completed["object"]) == ("rome ada", "stop", "text_completion")
    assert completed["usage"]["total_tokens"] > 2
    assert "".join(piece["choices"][0]["text"] for piece in pieces) == "rome ada"
    assert pieces[-1]["choices"][0]["finish_reason"] == "stop"
    assert (two.status_code, long.status_code, zero.status_code, cold.status_code) == (422, 422, 422, 422)
    assert "one can be streamed" in two.text
    assert "over the 24 that this model takes" in long.text


def test_a_run_of_minutes_averages_its_last_weights_and_evaluates_rarely(tmp_path):
    train, dev = tiny.files(tmp_path, "write", 32, 8)
    few = settings(*SHAPE, "batch=16", "epochs=20", "minutes=5", "evaluations=0.1", "average=0.5", "warmup_steps=2")
    result = fine_tune("write", few, Path("new"), train, dev, tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "evaluation" in line] == [20, 40]
    assert result.steps == 40
    last = replace(few, run=replace(few.run, keep="last"))
    fine_tune("write", last, Path("new"), train, dev, tmp_path / "last")
    one, other = (load_checkpoint(tmp_path / name / "model").model.state_dict() for name in ("run", "last"))
    plain = replace(few, run=replace(few.run, keep="last", average=0.0))
    fine_tune("write", plain, Path("new"), train, dev, tmp_path / "plain")
    alone = load_checkpoint(tmp_path / "plain" / "model").model.state_dict()
    name = "encoder.layers.0.feed_forward.up.weight"
    assert not torch.equal(other[name], alone[name])
    assert one.keys() == other.keys()
