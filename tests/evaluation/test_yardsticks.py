"""Yardsticks for pre-trained models: sentences scored beside slow twins, blanks, similarities; files of other kinds."""

import json
import math

import numpy as np
import pytest
import torch

import bertkit
from bertkit.checkpoint.save_load import Checkpoint
from bertkit.config import family_config
from bertkit.errors import RequestError
from bertkit.evaluation.minimal_pairs import scored_how, sentence_scores
from bertkit.model.batch import Batch
from bertkit.model.model import hide_masks, new_model
from bertkit.text.tokenizer import Tokenizer

WORDS = ["the", "cat", "sat", "on", "mat", "dogs", "bark", "runs"]
TOKENIZER = Tokenizer.from_vocab(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])
TEXTS = ["the cat sat on the mat", "dogs bark", "the cat runs"]


def model_of(family: str, head: str = "masked_word"):
    shape = {"vocab_size": TOKENIZER.size, "pad_id": 0, "init_std": 0.3, "max_length": 32}
    model = new_model(family_config(family, "tiny", **shape), {head: None}).eval()
    hide_masks(model, TOKENIZER.mask_id)
    return model


def scores(model, texts=TEXTS) -> list[float]:
    sequences = [ids for ids, _ in TOKENIZER.encode_plain(texts)]
    return sentence_scores(model, sequences, scored_how(model), TOKENIZER.mask_id)


@pytest.mark.parametrize("family", ["openai-gpt", "awd-lstm"])
def test_a_causal_model_s_score_is_its_perplexity(family):
    model = model_of(family)
    bert = bertkit.Bert(Checkpoint(model=model, tokenizer=TOKENIZER))
    counts = [len(ids) - 1 for ids, _ in TOKENIZER.encode_plain(TEXTS)]
    expected = [-math.log(each) * count for each, count in zip(bert.perplexity(TEXTS), counts, strict=True)]
    assert scores(model) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("family", ["bert", "xlnet"])
def test_a_masked_model_s_score_is_that_of_each_token_alone(family):
    model = model_of(family)
    expected = []
    for ids, _ in TOKENIZER.encode_plain(TEXTS):
        total = 0.0
        for place in range(1, len(ids) - 1):
            hidden = [*ids[:place], TOKENIZER.mask_id, *ids[place + 1 :]]
            with torch.inference_mode():
                logits = model.logits(Batch.pack([hidden]), "masked_word")[place]
            total += float(logits.log_softmax(-1)[ids[place]])
        expected.append(total)
    assert scores(model) == pytest.approx(expected, rel=1e-4)


def test_elmo_is_asked_in_both_directions_and_electra_for_every_token():
    elmo, expected = model_of("elmo"), []
    for ids, _ in TOKENIZER.encode_plain(TEXTS):
        with torch.inference_mode():
            logs = elmo.logits(Batch.pack([ids]), "masked_word").log_softmax(-1)
        both = [logs[n, 0, ids[n + 1]] + logs[n + 1, 1, ids[n]] for n in range(len(ids) - 1)]
        expected.append(float(sum(both)))
    assert scores(elmo) == pytest.approx(expected, rel=1e-4)
    electra, ids = model_of("electra", "replaced_token"), TOKENIZER.encode_plain(TEXTS)[0][0]
    with torch.inference_mode():
        found = torch.sigmoid(-electra.logits(Batch.pack([ids]), "replaced_token")).log().sum()
    assert scores(electra)[0] == pytest.approx(float(found), rel=1e-4)


@pytest.fixture(scope="module")
def bert():
    return bertkit.Bert(Checkpoint(model=model_of("bert"), tokenizer=TOKENIZER))


PAIRS = [("a", "the cat sat", "cat the sat"), ("a", "dogs bark", "bark dogs"), ("b", "the mat", "mat the")]


def test_minimal_pairs_are_averaged_by_group_and_ties_are_wrong(bert, tmp_path):
    rows = [{"UID": group, "sentence_good": good, "sentence_bad": bad} for group, good, bad in PAIRS]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = bertkit.evaluate(bert, path)
    flat = scores(bert.model, [text for _, *pair in PAIRS for text in pair])
    right = [float(flat[n] > flat[n + 1]) for n in range(0, len(flat), 2)]
    assert found.groups == {"a": {"accuracy": (right[0] + right[1]) / 2}, "b": {"accuracy": right[2]}}
    assert found.score == ((right[0] + right[1]) / 2 + right[2]) / 2
    assert (found.task, found.examples) == ("minimal-pairs", 3)
    mixed = [{"sentence_good": one, "sentence_bad": other} for one in TEXTS for other in TEXTS if one != other]
    found = bertkit.evaluate(bert, mixed * 10)
    low, high = found.intervals["accuracy"]
    assert (high - low) / 2 == pytest.approx(1.96 * math.sqrt(0.5 * 0.5 / 60), rel=0.2)
    assert (low + high) / 2 == pytest.approx(found.score) == pytest.approx(0.5)
    same = [{"sentence_good": "dogs bark", "sentence_bad": "dogs bark"}]
    assert bertkit.evaluate(bert, same).score == 0.0


def test_blanks_count_the_first_word_and_one_of_five(bert):
    words = [filled.word for filled in bert.fill("the [MASK] sat", top=6)]
    rows = [{"text": "the [MASK] sat", "answers": f"zebra {words[at]}"} for at in (0, 4, 5)]
    assert bertkit.evaluate(bert, rows).scores == pytest.approx({"first": 1 / 3, "first_5": 2 / 3})


def test_similarity_is_the_rank_correlation_of_cosines(bert):
    one, other = bert.embed(["the cat", "dogs bark", "the mat runs"]), bert.embed(["the dogs", "cat", "on the mat"])
    cosines = [np.dot(a, b) / np.linalg.norm(a) / np.linalg.norm(b) for a, b in zip(one, other, strict=True)]
    ranks = np.argsort(np.argsort(cosines)).tolist()
    texts = zip(["the cat", "dogs bark", "the mat runs"], ["the dogs", "cat", "on the mat"], strict=True)
    rows = [{"sentence1": a, "sentence2": b, "score": rank} for (a, b), rank in zip(texts, ranks, strict=True)]
    assert bertkit.evaluate(bert, rows).score == pytest.approx(1.0)
    rows = [{**row, "score": -row["score"]} for row in rows]
    assert bertkit.evaluate(bert, rows, by="similarity").score == pytest.approx(-1.0)


@pytest.mark.parametrize(
    ("rows", "by", "message"),
    [
        ([{"a": "x", "b": "y"}], None, "has the columns a, b, and this model was not fine-tuned"),
        ([{"text": "the [MASK]", "answers": ""}], None, "row 1: a cell is empty"),
        ([{"text": "the cat", "answers": "dog"}], None, "the text has no"),
        ([{"text": "the [MASK]", "answers": "dog"}], "minimal-pairs", "needed are sentence_good, sentence_bad"),
        ([{"text": "the [MASK]", "answers": "dog"}], "mean", "unknown yardstick 'mean'"),
    ],
)
def test_other_files_are_refused_with_one_sentence(bert, rows, by, message):
    with pytest.raises(RequestError, match=message):
        bertkit.evaluate(bert, rows, by=by)


def test_a_model_without_a_head_cannot_score_sentences():
    model = new_model(family_config("bert", "tiny", vocab_size=TOKENIZER.size)).eval()
    bert = bertkit.Bert(Checkpoint(model=model, tokenizer=TOKENIZER))
    with pytest.raises(RequestError, match="has no head that can score a sentence"):
        bertkit.evaluate(bert, [{"sentence_good": "the cat", "sentence_bad": "cat the"}])
