"""The family table: sentences scored beside slow twins, frozen vectors, and a page from a result that lacks rows."""

import json
import math

import numpy as np
import pytest
import torch
from small_models import script

import bertkit
from bertkit.checkpoint.save_load import Checkpoint
from bertkit.config import family_config
from bertkit.inside.static.vectors import StaticVectors
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
    blimp = script("benchmarks/blimp.py")
    sequences = [ids for ids, _ in TOKENIZER.encode_plain(texts)]
    return blimp.sentence_scores(model, sequences, blimp.scored_how(model), TOKENIZER.mask_id)


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


def test_static_vectors_are_means_of_known_words():
    layer = script("benchmarks/frozen_features.py").StaticLayer(StaticVectors(("cat", "sat"), np.eye(2, dtype="f4")))
    assert layer.texts(["Cat, sat!", "no word", "cat"]).tolist() == [[[0.5, 0.5]], [[0.0, 0.0]], [[1.0, 0.0]]]


def test_a_page_of_few_rows_says_what_is_missing(tmp_path):
    family = script("benchmarks/family.py")
    training = {"date": "2026-01-02", "device": "cpu", "minutes": 3.0, "tokens": 4e8, "targets": 6e7, "parameters": 2e7}
    training |= {"parameters_in_layers": 9.5e6, "target_share": 0.15, "heldout": {"mlm_loss": 2.5}}
    training |= {"curve": {"training": [], "heldout": [[2e8, 90.0, 3.0], [4e8, 180.0, 2.5]]}}
    tasks = script("benchmarks/glue_scores.py").METRICS
    row = {"training": training, "blimp": {"score": 70.0}}
    row["features"] = {task: {"mixture": 60.0} for task in tasks}
    row["fine-tuned"] = {task: {"0": {"last": 69.0}, "1": {"last": 71.0}} for task in tasks}
    result = tmp_path / "family.json"
    result.write_text(json.dumps({"rows": {"roberta": row}}))
    assert family.main(["--table", str(result), "--out", str(tmp_path / "page.md")]) == 0
    page = (tmp_path / "page.md").read_text()
    assert "| RoBERTa | 70.0 ± 1.4 |" in page
    assert "2.50 (masked words)" in page
    assert "it needs the rows `roberta` and `gpt`" in page
    assert not (tmp_path / "page-masked-causal.svg").exists()
    result.write_text(json.dumps({"rows": {"roberta": row, "gpt": row}}))
    family.main(["--table", str(result), "--out", str(tmp_path / "page.md")])
    assert (tmp_path / "page-masked-causal.svg").read_text().count("<svg ") == 4
