"""The family table: sentences scored beside slow twins, frozen vectors, and a page from a result that lacks rows."""

import json

import numpy as np
from small_models import script

from bertkit.inside.static.vectors import StaticVectors
from bertkit.text.tokenizer import Tokenizer

WORDS = ["the", "cat", "sat", "on", "mat", "dogs", "bark", "runs"]
TOKENIZER = Tokenizer.from_vocab(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])
TEXTS = ["the cat sat on the mat", "dogs bark", "the cat runs"]


def test_static_vectors_are_means_of_known_words():
    layer = script("benchmarks/frozen_features.py").StaticLayer(StaticVectors(("cat", "sat"), np.eye(2, dtype="f4")))
    assert layer.texts(["Cat, sat!", "no word", "cat"]).tolist() == [[[0.5, 0.5]], [[0.0, 0.0]], [[1.0, 0.0]]]


def test_a_page_of_few_rows_says_what_is_missing(tmp_path):
    family = script("benchmarks/family.py")
    training = {"date": "2026-01-02", "device": "cpu", "minutes": 3.0, "tokens": 4e8, "targets": 6e7, "parameters": 2e7}
    training |= {"parameters_in_layers": 9.5e6, "target_share": 0.15, "heldout": {"mlm_loss": 2.5}}
    heldout = [[n * 1e8, n * 45.0, 4 - n * 0.375] for n in (1, 2, 3, 4)]
    training |= {"curve": {"training": [], "heldout": heldout}}
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
