"""Tags for words: each scored exactly once whatever its length or script, and the same however it is run."""

from itertools import chain, pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from span_helpers import ODD, PLACE, assert_near, byte_tokenizer, odd_words, outputs_of, pack, three_ways, tiny_model

from bertkit.data.examples import TaggedExample
from bertkit.errors import RequestError
from bertkit.model.word_loss import IGNORE
from bertkit.tasks.shared.decision import Decision
from bertkit.tasks.shared.length import LengthPolicy, Seen, window_spans
from bertkit.tasks.shared.word_task import split_words, word_pieces, words_of_windows
from bertkit.tasks.tag import Tag, with_characters
from bertkit.tasks.task import LossSettings
from bertkit.text.tokenizer import Tokenizer
from bertkit.text.windows import best_window

LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")


@pytest.fixture(scope="module")
def tokenizer(uncased_vocab):
    return Tokenizer.from_vocab(uncased_vocab)


@pytest.fixture(scope="module", params=["wordpiece", "bytes"])
def any_tokenizer(request, tokenizer):
    return tokenizer if request.param == "wordpiece" else byte_tokenizer()


def task_of(tokenizer, limit=64, **options):
    return Tag(tokenizer=tokenizer, limit=limit, labels=LABELS, **options)


def example_of(words, tags=None):
    return TaggedExample(tuple(words), None if tags is None else tuple(tags), PLACE)


def perfect(windows):
    """Outputs that are sure of every gold label."""
    rows = []
    for window in windows:
        logits = np.zeros((len(window.ids), len(LABELS)), dtype=np.float32)
        for place, label in enumerate(window.target):
            if label != IGNORE:
                logits[place, label] = 9
        rows.append(logits)
    return rows


sentences = st.lists(odd_words | st.just("abcdefgh" * 12), max_size=40)


@settings(max_examples=60)
@given(sentences, st.integers(8, 40), st.none() | st.integers(0, 60), st.data())
def test_every_gold_tag_is_scored_exactly_once(any_tokenizer, words, limit, stride, data):
    tags = data.draw(st.lists(st.sampled_from(LABELS), min_size=len(words), max_size=len(words)))
    task = task_of(any_tokenizer, limit, length=LengthPolicy("windows", stride))
    example = example_of(words, tags)
    windows = task.windows(example, 3)
    assert all(len(window.ids) == len(window.segments) == len(window.target) <= limit for window in windows)
    assert [word for window in windows for word in window.detail.words] == list(range(len(words)))
    scored = [label for window in windows for label in window.target if label != IGNORE]
    assert [LABELS[label] for label in scored] == tags
    assert task.count_targets(windows) == len(words)
    [tagged] = task.decode([example], windows, perfect(windows), Decision())
    assert tagged.tags == tuple(tags)
    assert len(tagged.probabilities) == len(words)
    assert tagged.seen == Seen(len(word_pieces(any_tokenizer, words)[0]), 0, len(windows))


@settings(max_examples=40)
@given(sentences, st.integers(8, 40))
def test_a_word_is_scored_at_its_first_piece_in_its_best_window(any_tokenizer, words, limit):
    pieces, firsts = word_pieces(any_tokenizer, words)
    spans = window_spans(len(pieces), limit - 2)
    windows = task_of(any_tokenizer, limit).windows(example_of(words), 0)
    shown = set().union(*(range(start, stop) for start, stop in spans))
    assert shown == set(range(len(pieces)))
    for window, (start, stop) in zip(windows, spans, strict=True):
        assert window.ids == (any_tokenizer.cls_id, *pieces[start:stop], any_tokenizer.sep_id)
        for word, place in zip(window.detail.words, window.detail.positions, strict=True):
            assert place - 1 + start == firsts[word]
            best = spans[best_window(spans, firsts[word])]
            context = [min(firsts[word] - a, b - 1 - firsts[word]) for a, b in (best, (start, stop))]
            assert context[0] == context[1], "as good as the slow twin's window"


def test_words_of_windows():
    assert words_of_windows([(0, 4), (3, 7)], [0, 3, 4, 6]) == [(0, 1), (2, 3)]
    assert words_of_windows([(0, 0)], []) == [()]


@pytest.mark.parametrize("word", ["\u200b", "\x00", "\ufeff\x07", " ", ""])
def test_a_word_of_nothing_still_gets_a_label(tokenizer, word):
    pieces, firsts = word_pieces(tokenizer, ["Ada", word, "runs"])
    assert pieces[1] == tokenizer.unknown_id
    assert firsts == [0, 1, 2]
    task, example = task_of(tokenizer), example_of(["Ada", word, "runs"], ["B-PER", "I-PER", "O"])
    windows = task.windows(example, 0)
    [tagged] = task.decode([example], windows, perfect(windows), Decision())
    assert tagged.tags == example.tags


def test_an_empty_sentence_is_one_empty_window(tokenizer):
    task, example = task_of(tokenizer), example_of([], [])
    windows = task.windows(example, 0)
    assert [window.ids for window in windows] == [(tokenizer.cls_id, tokenizer.sep_id)]
    [tagged] = task.decode([example], windows, perfect(windows), Decision())
    assert (tagged.tags, tagged.spans) == ((), ())


def test_a_word_longer_than_a_window(tokenizer):
    words = ["before", "xqz" * 30, "after"]
    assert len(word_pieces(tokenizer, words)[0]) > 30
    windows = task_of(tokenizer, 16).windows(example_of(words, ["O", "B-PER", "I-PER"]), 0)
    assert len(windows) > 2
    assert [word for window in windows for word in window.detail.words] == [0, 1, 2]


def test_packed_padded_and_alone_agree(tokenizer, monkeypatch):
    task = task_of(tokenizer, 24)
    examples = [example_of(["Ada", "lives", "in", "London"]), example_of(ODD), example_of(["word"] * 70)]
    windows = [window for number, example in enumerate(examples) for window in task.windows(example, number)]
    packed, alone, padded = three_ways(tiny_model(tokenizer, "tag", len(LABELS)), "tag", windows, monkeypatch)
    assert_near(packed, alone)
    assert_near(packed, padded)
    tags = [[t.tags for t in task.decode(examples, windows, way, Decision())] for way in (packed, alone, padded)]
    assert tags[0] == tags[1] == tags[2]
    assert len(set(chain(*tags[0]))) > 1


def test_windowed_equals_whole_where_the_text_fits(tokenizer):
    words = ["Ada", "Lovelace", "wrote", "the", "first", "program", "naïvely"]
    example, model = example_of(words), tiny_model(tokenizer, "tag", len(LABELS))
    fits = len(word_pieces(tokenizer, words)[0]) + 2
    found = []
    for limit in (fits, 512):
        task = task_of(tokenizer, limit)
        windows = task.windows(example, 0)
        assert len(windows) == 1
        found += task.decode([example], windows, outputs_of(model, "tag", windows), Decision())
    assert found[0] == found[1]


def test_spans_stand_at_their_characters(tokenizer):
    text = "\u200b Ada  Lovelace's caf\u00e9 in Sao\u0303 Paulo\u0301\u0301, 日本 👩‍👩‍👧!"
    characters = split_words(tokenizer, text)
    words = [text[start:end] for start, end in characters]
    assert words[:4] == ["Ada", "Lovelace", "'", "s"]
    assert words[-7:] == ["Sao\u0303", "Paulo\u0301\u0301", ",", "日", "本", "👩‍👩‍👧", "!"]
    tags = ["O"] * len(words)
    tags[0:2] = ["B-PER", "I-PER"]
    tags[words.index("Sao\u0303")] = "B-LOC"
    tags[words.index("Sao\u0303") + 1] = "I-LOC"
    task, example = task_of(tokenizer), example_of(words, tags)
    windows = task.windows(example, 0)
    [tagged] = task.decode([example], windows, perfect(windows), Decision())
    assert [span.characters for span in tagged.spans] == [None, None]
    placed = with_characters(tagged, text, characters)
    assert [(span.label, span.text) for span in placed.spans] == [
        ("PER", "Ada  Lovelace"),
        ("LOC", "Sao\u0303 Paulo\u0301\u0301"),
    ]
    assert all(text[slice(*span.characters)] == span.text for span in placed.spans)
    assert all(span.probability == min(placed.probabilities[slice(*span.words)]) for span in placed.spans)


@settings(max_examples=80)
@given(st.lists(odd_words | st.just(" "), max_size=12).map("".join))
def test_words_of_any_text_are_its_tokens(any_tokenizer, text):
    characters = split_words(any_tokenizer, text)
    assert all(0 <= start < end <= len(text) for start, end in characters)
    assert all(left[1] <= right[0] for left, right in pairwise(characters))
    words = [text[start:end] for start, end in characters]
    if any_tokenizer.lowercase:  # byte-level pieces carry the space before them, which words do not have
        assert any_tokenizer.encode_words(words).ids == any_tokenizer.encode(text).ids


@pytest.mark.parametrize("balance", [None, (0.5, 2.0, 1.0, 1.0, 3.0)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_equals_its_slow_twin_and_does_not_depend_on_the_batch(tokenizer, balance, smoothing):
    task = task_of(tokenizer, 16)
    examples = [example_of(["Ada", "runs"], ["B-PER", "O"]), example_of(["naïve", "Bob"] * 9, ["O", "I-LOC"] * 9)]
    windows = [window for number, example in enumerate(examples) for window in task.windows(example, number)]
    assert len(windows) > 2
    weights = LossSettings(label_smoothing=smoothing, class_weights=balance)
    logits = torch.randn(sum(len(window.ids) for window in windows), len(LABELS), generator=torch.manual_seed(0))
    total, count = task.loss(logits, pack(windows), windows, weights)
    parts, start = [], 0
    for window in windows:
        rows = logits[start : start + len(window.ids)]
        start += len(window.ids)
        parts.append(task.loss(rows, pack([window]), [window], weights))
    assert int(count) == sum(int(part[1]) for part in parts) == task.count_targets(windows) == 20
    torch.testing.assert_close(total, torch.stack([part[0] for part in parts]).sum())
    slow, labels = torch.zeros(()), list(chain.from_iterable(window.target for window in windows))
    for row, label in zip(logits, labels, strict=True):
        if label != IGNORE:
            share = torch.full((len(LABELS),), smoothing / len(LABELS))
            share[label] += 1 - smoothing
            slow = slow - (row.log_softmax(0) * share * torch.tensor(balance or [1.0] * len(LABELS))).sum()
    torch.testing.assert_close(total, slow)


def test_a_step_of_training_lowers_the_loss(tokenizer):
    task, model = task_of(tokenizer, 16), tiny_model(tokenizer, "tag", len(LABELS)).eval()  # without dropout's chance
    windows = task.windows(example_of(["Ada", "saw", "London"] * 8, ["B-PER", "O", "B-LOC"] * 8), 0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(20):
        total, count = task.loss(model.logits(pack(windows), "tag"), pack(windows), windows, LossSettings())
        optimizer.zero_grad()
        (total / count).backward()
        optimizer.step()
        losses.append(float(total.detach() / count))
    assert losses[-1] < 0.7 * losses[0]


def test_scores(tokenizer):
    task = task_of(tokenizer)
    examples = [example_of(["Ada", "L", "in", "Rome"], ["B-PER", "I-PER", "O", "B-LOC"])]
    windows = task.windows(examples[0], 0)
    right = task.decode(examples, windows, perfect(windows), Decision())
    assert task.main_metric == "f1"
    assert task.score(examples, right) | {"f1": 1.0, "accuracy": 1.0} == task.score(examples, right)
    wrong = task.decode(examples, windows, [np.roll(rows, 1, axis=-1) for rows in perfect(windows)], Decision())
    assert task.score(examples, wrong)["f1"] == pytest.approx(1 / 3), "of four spans found one is one of the two"


def test_plain_tags_are_scored_by_word(tokenizer):
    task = Tag(tokenizer=tokenizer, limit=16, labels=("NOUN", "VERB", "X"))
    example = example_of(["Ada", "runs"], ["NOUN", "VERB"])
    windows = task.windows(example, 0)
    rows = [np.eye(3, dtype=np.float32)[np.maximum(window.target, 0)] for window in windows]
    [tagged] = task.decode([example], windows, rows, Decision())
    assert (tagged.tags, tagged.spans) == (("NOUN", "VERB"), ())
    assert task.main_metric == "accuracy"
    assert task.score([example], [tagged])["accuracy"] == 1


def test_temperature_moves_probabilities_and_no_tag(tokenizer):
    task, example = task_of(tokenizer), example_of(["Ada", "runs"], ["B-PER", "O"])
    windows = task.windows(example, 0)
    sure, unsure = (task.decode([example], windows, perfect(windows), Decision(temperature=t))[0] for t in (1.0, 5.0))
    assert sure.tags == unsure.tags
    assert all(a > b for a, b in zip(sure.probabilities, unsure.probabilities, strict=True))
    assert sure.probabilities[0] == pytest.approx(float(F.softmax(torch.tensor([9.0, 0, 0, 0, 0]), 0)[0]))


def test_faults_are_named_with_their_place(tokenizer):
    task = task_of(tokenizer)
    with pytest.raises(RequestError, match="train.tsv, line 7: the tag 'B-GPE' is not among the labels: O, B-PER"):
        task.windows(example_of(["Rome"], ["B-GPE"]), 0)
    with pytest.raises(RequestError, match="train.tsv, line 7: 2 words came with 1 tags"):
        task.windows(example_of(["in", "Rome"], ["O"]), 0)
    with pytest.raises(RequestError, match="length policy 'head' does not go with 'tag'"):
        task_of(tokenizer, length=LengthPolicy("head"))
    with pytest.raises(RequestError, match="sequences of 4 tokens leave no room"):
        task_of(tokenizer, 4)
    with pytest.raises(RequestError, match="lone surrogate"):
        task.windows(example_of(["\ud800"]), 0)
