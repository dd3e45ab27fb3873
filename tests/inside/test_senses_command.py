"""`bertkit senses` and `bertkit word2vec` as a person meets them."""

import json

import pytest

from bertkit.cli.main import run

RIVER = "reeds grew on the muddy bank of the slow {} stream|we sat on the grassy bank and fished for {} trout"
MONEY = "the bank raised interest on every {} loan|she paid the {} cheque into her bank account"
NAMES = ["long", "cold", "small", "large", "green", "brown", "northern", "southern", "old", "new"]


@pytest.fixture(scope="module")
def labeled(tmp_path_factory):
    path = tmp_path_factory.mktemp("senses") / "bank.tsv"
    rows = [
        f"{sentence.format(name)}\t{sense}"
        for sense, sentences in (("river", RIVER), ("money", MONEY))
        for sentence in sentences.split("|")
        for name in NAMES
    ]
    path.write_text("\n".join(["text\tsense", *rows]) + "\n")
    return path


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "corpus.txt"
    lines = [f"{word} {other} goes to the {place}." for place in NAMES for word in NAMES for other in ("king", "queen")]
    path.write_text("\n".join(lines * 3) + "\n")
    return path


@pytest.fixture
def call(capsys):
    """The command line in this process: code, what was printed, and what was said."""

    def called(*arguments: object) -> tuple[int, str, str]:
        code = run([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return called


def test_senses_of_a_real_word_lie_apart(bertkit_command, labeled, minilm, tmp_path):
    out = tmp_path / "bank.html"
    done = bertkit_command("senses", "bank", labeled, "--model", minilm, "--out", out, "--clusters", 2)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("40 uses of 'bank' in 2 clusters, silhouette 0.")
    assert "nearest use of the same sense: 100.0%; one static vector per word, which is chance: 48.7%" in done.stdout
    assert out.read_text().count('class="use"') == 40


def test_senses_as_json_and_beside_static_vectors(call, labeled, corpus, minilm, tmp_path):
    code, _, said = call("word2vec", corpus, "--out", tmp_path / "v", "width=8", "epochs=1", "min_count=1")
    assert code == 0, said
    _, printed, _ = call("senses", "bank", labeled, "--model", minilm, "--vectors", tmp_path / "v", "--json")
    found = json.loads(printed)
    assert found["word"] == "bank"
    assert len(found["uses"]) == len(found["points"]) == len(found["clusters"]) == 40
    assert found["scores"]["contextual"] == 1
    assert 0 <= found["scores"]["neighbors"] <= 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["senses", "zebra", "{labeled}"], "the text has no word 'zebra'"),
        (["senses", "zebra", "{corpus}"], "'zebra' never occurs in"),
        (["senses", "king", "{corpus}", "--out", "{folder}"], "is a folder; name a file in it"),
        (["senses", "king", "{corpus}", "--vectors", "{folder}"], "holds no static vectors"),
        (["senses", "king", "missing.txt"], "missing.txt does not exist"),
        (["word2vec", "{corpus}"], "name the output, --out DIR"),
        (
            ["word2vec", "{corpus}", "--out", "{folder}/v", "--method", "elmo"],
            "unknown method 'elmo'; choose from: cbow",
        ),
        (["word2vec", "{corpus}", "--out", "{folder}/v", "windw=2"], "unknown setting 'windw'"),
        (["word2vec", "{corpus}", "--out", "{folder}/v", "min_count=10000"], "has 0 words that occur 10000 times"),
        (["word2vec", "{corpus}", "--out", "{corpus}"], "exists already"),
        (["word2vec", "{corpus}", "--out", "{folder}/v", "--threads", "0"], "--threads 0 must be from 1"),
        (["word2vec", "width=3"], "name text files"),
        (["word2vec", "none.vec"], "none.vec"),
    ],
)
def test_wrong_requests_get_one_sentence(call, arguments, said, labeled, corpus, tmp_path):
    places = {"labeled": labeled, "corpus": corpus, "folder": tmp_path}
    code, printed, heard = call(*(argument.format(**places) for argument in arguments))
    assert (code, printed) == (2, "")
    assert said in heard.splitlines()[-1]
    assert not list(tmp_path.iterdir())


def test_vectors_are_trained_asked_and_converted(call, corpus, tmp_path):
    folder, text = tmp_path / "v", tmp_path / "v.vec"
    code, printed, said = call(
        "word2vec", corpus, "--out", folder, "--method", "fasttext", "width=8", "buckets=100", "epochs=2"
    )
    assert (code, printed) == (0, f"15 words of 8 numbers, with subwords in {folder}\n"), said
    _, printed, _ = call("word2vec", folder, "--nearest", "kings", "--top", 2, "--json")
    assert [set(each) for each in json.loads(printed)["nearest"]] == [{"word", "cosine"}] * 2
    _, printed, _ = call("word2vec", folder, "--out", text, "--arithmetic", "king - old + new", "--top", 3)
    assert printed.startswith(f"15 words of 8 numbers in {text}\n")
    assert len(printed.splitlines()) == 4
    assert text.read_text().startswith("15 8\n")
    code, printed, said = call("word2vec", text, "--nearest", "zebra")
    assert (code, printed) == (2, "")
    assert "there is no vector for 'zebra'" in said
    code, _, said = call("word2vec", folder, "epochs=3")
    assert code == 2
    assert "holds vectors already: epochs=3 is for training" in said
