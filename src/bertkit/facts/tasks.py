"""Facts about the tasks: inputs, targets, metrics, and the published file formats."""

import math

import numpy as np

from bertkit.data.examples import AnswerSpan, ChoiceExample, QuestionExample, TaggedExample, TextExample
from bertkit.facts.fact import Facts, Outcome, equal, holds
from bertkit.facts.finetuning import start_of
from bertkit.facts.setup import PLACE, text_file
from bertkit.facts.tokenizer import small
from bertkit.facts.topics import topic_examples, topic_tokenizer
from bertkit.finetuning.evaluate import predict
from bertkit.finetuning.explore.glue import glue_table
from bertkit.finetuning.explore.seeds import Seeds
from bertkit.finetuning.result import FineTuned
from bertkit.model.word_loss import IGNORE
from bertkit.tasks.answer import Answer
from bertkit.tasks.choose import Choose
from bertkit.tasks.classify import Classified, Classify
from bertkit.tasks.metrics.spans import span_f1
from bertkit.tasks.metrics.squad import squad_scores
from bertkit.tasks.metrics.table import choice_scores
from bertkit.tasks.read import ExampleFile, read_examples
from bertkit.tasks.regress import Rated, Regress
from bertkit.tasks.shared.decision import Decision
from bertkit.tasks.shared.length import LengthPolicy, Seen
from bertkit.tasks.table import TASKS
from bertkit.tasks.tag import Tag
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.wordpiece import SPECIALS

facts = Facts()
PAIR_ROW = "A cat sleeps.\tAn animal sleeps."
# A line or two of each of the eleven tasks, in the published format: (file, task, content).
ELEVEN: dict[str, tuple[str, str, str]] = {
    "MNLI": ("m.tsv", "classify", f"sentence1\tsentence2\tgold_label\n{PAIR_ROW}\tentailment\n{PAIR_ROW}\t-\n"),
    "QQP": (
        "q.tsv",
        "classify",
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\t3\tWho is it?\tWho's that?\t1\n",
    ),
    "QNLI": ("n.tsv", "classify", "index\tquestion\tsentence\tlabel\n0\tWho came?\tAda came.\tentailment\n"),
    "SST-2": ("s.tsv", "classify", "sentence\tlabel\na fine film\t1\n"),
    "CoLA": ("c.tsv", "classify", "gj04\t1\t\tThe cat slept.\ngj04\t0\t*\tCat the slept.\n"),
    "STS-B": ("b.tsv", "regress", f"index\tsentence1\tsentence2\tscore\n0\t{PAIR_ROW}\t3.8\n"),
    "MRPC": ("p.tsv", "classify", f"Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\t{PAIR_ROW}\n"),
    "RTE": ("r.tsv", "classify", f"index\tsentence1\tsentence2\tlabel\n0\t{PAIR_ROW}\tnot_entailment\n"),
    "SQuAD 1.1": (
        "1.json",
        "answer",
        '{"version": "1.1", "data": [{"title": "t", "paragraphs": [{"context": "Ada lives in Rome.", "qas": '
        '[{"id": "1", "question": "Where?", "answers": [{"text": "Rome", "answer_start": 13}]}]}]}]}',
    ),
    "SQuAD 2.0": (
        "2.json",
        "answer",
        '{"version": "v2.0", "data": [{"title": "t", "paragraphs": [{"context": "Ada lives in Rome.", "qas": '
        '[{"id": "1", "question": "When?", "answers": [], "is_impossible": true}]}]}]}',
    ),
    "SWAG": (
        "w.csv",
        "choose",
        "startphrase,ending0,ending1,ending2,ending3,label\nShe opens the door and,leaves,eats it,sings,is it,0\n",
    ),
}


def read_text(name: str, task: str, content: str) -> ExampleFile:
    """The examples of a file with this name and content."""
    with text_file(content, name) as path:
        return read_examples(task, path)


@facts("F6", "D400, E194, E880", "tags: CoNLL columns, a label for each word, predicted at its first piece")
def word_labels() -> Outcome:
    [example] = read_text("a.conll", "tag", "xyz B-PER\nx I-PER\nyyx O\n").examples
    tokenizer = Tokenizer.from_vocab([*SPECIALS, "x", "y", "##x", "##y", "##z"])
    task = Tag(tokenizer=tokenizer, limit=64, labels=("O", "B-PER", "I-PER"))
    [window] = task.windows(example, 0)
    positions = list(window.detail.positions)
    others = {target for position, target in enumerate(window.target) if position not in positions}
    # [CLS] x ##y ##z | x | y ##y ##x [SEP]
    return equal(([1, 4, 5], [1, 2, 0], {IGNORE}), (positions, [window.target[n] for n in positions], others))


@facts("F6b", "E880", "long sentences are read through windows: each of 1,000 words is tagged exactly once")
def no_word_lost() -> Outcome:
    task = Tag(tokenizer=topic_tokenizer(), limit=64, labels=("O", "B-X"))
    words = tuple(f"t{n % 3}w{n % 40}" for n in range(1000))
    windows = task.windows(TaggedExample(words, ("O",) * 1000, PLACE), 0)
    scored = [word for window in windows for word in window.detail.words]
    longest = max(len(window.ids) for window in windows)
    return equal((True, 64), (scored == list(range(1000)), longest))


@facts("F6c", "D400", "a name counts only if all of it is found: span F1, not the share of correct words")
def whole_names() -> Outcome:
    gold, predicted = ["B-PER", "I-PER", "O", "B-LOC"], ["B-PER", "O", "O", "B-LOC"]
    accuracy = sum(a == b for a, b in zip(gold, predicted, strict=True)) / 4
    return equal((0.75, 0.5), (accuracy, span_f1([gold], [predicted])))


@facts("F7", "D402, D472", "the question is text A, the passage text B; start and end are tokens of the passage")
def question_and_passage() -> Outcome:
    tokenizer = topic_tokenizer()
    passage = "c1 c2  t0w1 t0w2 c3"
    example = QuestionExample("1", "t0w9 c9", passage, (AnswerSpan(7, "t0w1 t0w2"),), "", PLACE)
    [window] = Answer(tokenizer=tokenizer, limit=64).windows(example, 0)
    start, end = window.target
    answer = tokenizer.tokens(list(window.ids[start : end + 1]))
    return equal(([0] * 4 + [1] * 6, ["t0w1", "t0w2"]), (list(window.segments), answer))


@facts("F7b", "D402", "an answer is a span of the original text: each candidate is passage[start:end], in any window")
def offsets_in_the_original() -> Outcome:
    task = Answer(tokenizer=small(), limit=24, length=LengthPolicy("windows", stride=4))
    passage = "  Zoë’s  café — it was\tin the  city;\n" * 12
    example = QuestionExample("1", "Where is it?", passage, (), "", PLACE, labeled=False)
    windows = task.windows(example, 0)
    rng = np.random.default_rng(0)
    outputs = [rng.normal(size=(len(window.ids), 2)) for window in windows]
    [prediction] = task.decode([example], windows, outputs, Decision())
    candidates = prediction.candidates
    same = all(passage[answer.start : answer.end] == answer.text for answer in candidates)
    measured = f"{len(windows)} windows, {len(candidates)} candidates, all spans correct: {same}"
    return holds("several windows, all correct", measured, same and len(windows) > 5 and len(candidates) > 10)


@facts("F8", "D449-470", "pairs: [CLS] A [SEP] B [SEP] in one sequence, three labels for inference, two for duplicates")
def pairs() -> Outcome:
    labels = ("contradiction", "entailment", "neutral")
    rows = "".join(f"t0w1\tt1w2 c1\t{label}\n" for label in labels)
    data = read_text("nli.tsv", "classify", "premise\thypothesis\tlabel\n" + rows)
    task = Classify(tokenizer=topic_tokenizer(), limit=64, labels=labels)
    [window] = task.windows(data.examples[0], 0)
    tokens = topic_tokenizer().tokens(list(window.ids))
    head = start_of("classify").model.state_dict()["heads.classify.out.weight"]
    expected = ("[CLS] t0w1 [SEP] t1w2 c1 [SEP]", (0, 0, 0, 1, 1, 1), 3)
    return equal(expected, (" ".join(tokens), window.segments, head.shape[0]))


@facts("F13", "E849-850", "documents over 512 tokens, hundreds of labels: every token is read, through windows")
def documents() -> Outcome:
    labels = tuple(f"class {n}" for n in range(500))
    task = Classify(tokenizer=topic_tokenizer(), limit=512, labels=labels, length=LengthPolicy("windows"))
    [long] = topic_examples(1, seed=3, words=3000)
    assert isinstance(long, TextExample)
    document = TextExample(long.text, None, "class 499", PLACE)
    windows = task.windows(document, 0)
    [prediction] = task.decode([document], windows, [np.eye(500)[499]] * len(windows), Decision())
    cut = Classify(tokenizer=topic_tokenizer(), limit=512, labels=labels).windows(document, 0)[0].detail
    expected = ("class 499", "read through 8 windows", "2490 of 3000 tokens were cut")
    return equal(expected, (prediction.label, str(prediction.seen), str(cut)))


@facts("F15", "E844", "endings of a story: each is read after the story, and a softmax compares them in any order")
def endings() -> Outcome:
    task, model = Choose(tokenizer=topic_tokenizer(), limit=64), start_of("choose").model.eval()
    choices = ("t0w1", "t1w2 c3", "t2w3")
    orders = (choices, choices[::-1])
    dict(model.named_parameters())["heads.choose.out.weight"].mul_(100)  # the logits of a new layer are about equal
    examples = [ChoiceExample("c1 t0w5", order, None, PLACE) for order in orders]
    first, second = (prediction.probabilities for prediction in predict(model, task, examples))
    gaps = [abs(a - b) for a, b in zip(first, second[::-1], strict=True)]
    window = task.windows(examples[0], 0)[1]
    shown = " ".join(topic_tokenizer().tokens(list(window.ids)))
    ok = max(*gaps, abs(sum(first) - 1)) < 1e-5 and max(first) - min(first) > 0.01
    return holds("[CLS] c1 t0w5 [SEP] t1w2 c3 [SEP]; sum 1, same in any order", f"{shown}; {ok}", ok)


@facts("F17b", "D142, C5", "eleven tasks are read in their published formats")
def eleven_tasks() -> Outcome:
    counts = {name: len(read_text(*row).examples) for name, row in ELEVEN.items()}
    expected = dict.fromkeys(ELEVEN, 1) | {"CoLA": 2}  # MNLI's second row has no agreed label and is left out
    return equal(expected, counts)


# Four true positives, one false negative, one false positive.
GOLD, PREDICTED = [1, 1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 0, 1, 0, 0]
GOLD_RATINGS, PREDICTED_RATINGS = [0.0, 1.0, 2.0, 3.0, 5.0], [0.5, 0.4, 2.0, 4.0, 4.5]


def by_hand() -> dict[str, float]:
    """The published metric of each task for these predictions, times 100, from its definition."""
    tp, fn, fp, tn = 4, 1, 1, 2
    accuracy = (tp + tn) / 8
    f1 = 2 * tp / (2 * tp + fn + fp)
    matthews = (tp * tn - fn * fp) / math.sqrt(5 * 5 * 3 * 3)
    spearman = 1 - 6 * (1**2 + 1**2) / (5 * (5**2 - 1))  # the first two ratings are in the wrong order
    scores = {name: accuracy for name in ("MNLI", "QNLI", "SST-2", "RTE")} | {"QQP": f1, "MRPC": f1}
    return {name: 100 * score for name, score in (scores | {"CoLA": matthews, "STS-B": spearman}).items()}


@facts("F17", "D142, C5", "`bertkit finetune glue` shows each GLUE task with its published metric")
def published_metrics() -> Outcome:
    labels, seen, results = ("0", "1"), Seen(1, 0), {}
    probabilities = [{"0": 1.0 - label, "1": float(label)} for label in PREDICTED]
    classified = [Classified(labels[n], 1.0, p, seen) for n, p in zip(PREDICTED, probabilities, strict=True)]
    rated = [Rated(rating, seen) for rating in PREDICTED_RATINGS]
    classify = Classify(tokenizer=topic_tokenizer(), limit=64, labels=labels)
    regress = Regress(tokenizer=topic_tokenizer(), limit=64)
    scores = {
        "classify": classify.score([TextExample("", None, str(label), PLACE) for label in GOLD], classified),
        "regress": regress.score([TextExample("", None, rating, PLACE) for rating in GOLD_RATINGS], rated),
    }
    for task in ("MNLI", "QQP", "QNLI", "SST-2", "CoLA", "STS-B", "MRPC", "RTE"):
        kind = ELEVEN[task][1]
        results[task] = Seeds((_result(kind, scores[kind]),))
    names, row = glue_table(results, "model").splitlines()[:2]
    shown = dict(zip(names.split(), row.removeprefix("model (dev)").split(), strict=True))
    return equal({name: f"{score:.1f}" for name, score in sorted(by_hand().items())}, dict(sorted(shown.items())))


def _result(kind: str, scores: dict[str, float]) -> FineTuned:
    """A run that ended with these scores."""
    return FineTuned(
        task=kind,
        metric=TASKS[kind].metrics.main,
        scores=scores,
        plain=scores,
        calibration={},
        best_step=1,
        steps=1,
        finished=True,
        notes=(),
    )


@facts("F17c", "D142", "SQuAD is scored by F1 over words and exact match, SWAG by accuracy")
def squad_and_swag() -> Outcome:
    answers = squad_scores([["the city of Rome"], ["in 1871"]], ["Rome city", "1871"])  # articles do not count
    choices = choice_scores([0, 2, 3, 1], [0, 2, 1, 1])
    f1 = (2 * 2 / (3 + 2) + 2 * 1 / (2 + 1)) / 2
    spans, chosen = TASKS["answer"].metrics.main, TASKS["choose"].metrics.main
    shown = [spans, f"{answers[spans]:.4f}", f"{answers['exact_match']:.4f}"]
    shown += [chosen, f"{choices[chosen]:.4f}"]
    return equal(["f1", f"{f1:.4f}", "0.0000", "accuracy", "0.7500"], shown)
